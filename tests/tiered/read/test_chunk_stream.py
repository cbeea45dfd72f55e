"""Chunks in order: few requests, bounded memory, nothing lost, and a kept chunk stays whole."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.codec import pure
from penstock.codec.select import Core, native_core
from penstock.errors import BadRequestError, CorruptionError, TierUnavailableError
from penstock.record import QueueKind
from penstock.tiered.chunk.chunk import ChunkEntry, Footer
from penstock.tiered.read import chunk_stream
from penstock.tiered.read.chunk_stream import ChunkStream, FetchedChunk, Span
from penstock.tiered.read.part_buffers import PartBuffers, SpareBuffers

DEADLINE_S = 60.0
FOOTER = Footer(b"", b"", b"", 0, 0, QueueKind.SIMPLE)


def entry(number: int, size: int) -> ChunkEntry:
    return ChunkEntry(str(number), number, number + 1, number, 0, size, size, 1, 0, 0, 0, 0)


def content(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


class Tier:
    """Objects of random bytes, behind a latency; counts what is under way."""

    def __init__(self, latency_s: Callable[[], float]) -> None:
        self.latency_s = latency_s
        self.under_way = self.most = 0
        self.failing: set[str] = set()
        self._lock = threading.Lock()

    def get(self, span: Span, take: Callable[[], memoryview]) -> None:
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            time.sleep(self.latency_s())
            if span.entry.name in self.failing:
                raise TierUnavailableError("gone")
            whole = content(int(span.entry.name), span.entry.size)
            take()[:] = whole[span.begin : span.end]
        finally:
            with self._lock:
                self.under_way -= 1


def check(entry: ChunkEntry, whole: memoryview, sums: bytes | None) -> Footer:
    assert sums is None
    assert len(whole) == entry.size
    return FOOTER


def spans(sizes: list[int], part: int = 1000) -> Iterator[Span]:
    for number, size in enumerate(sizes):
        one = entry(number, size)
        yield from (Span(one, at, min(at + part, size)) for at in range(0, size, part))


@pytest.mark.parametrize("latency_ms", [0, 6])
@pytest.mark.parametrize("window", [1, 2, 8])
def test_every_chunk_comes_in_order_with_few_requests_under_way(
    latency_ms: int, window: int
) -> None:
    dice = random.Random(1)
    tier = Tier(lambda: latency_ms / 1000 * dice.uniform(0.7, 1.5))
    sizes = [dice.choice([1, 999, 1000, 1001, 5200, 12_000]) for _ in range(60)]
    found = [
        (int(one.entry.name), bytes(one.data))
        for one in ChunkStream(spans(sizes), window, tier.get, check).chunks()
    ]
    assert found == [(number, content(number, size)) for number, size in enumerate(sizes)]
    assert tier.most <= window + 1, "the reader's own thread may get one"


def test_a_reader_that_pauses_holds_no_more_than_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    take = PartBuffers.acquire

    def counted(self: PartBuffers, number: int, size: int) -> memoryview:
        view = take(self, number, size)
        taken.append(number)
        return view

    monkeypatch.setattr(PartBuffers, "acquire", counted)
    tier = Tier(lambda: 0.005)
    chunks = ChunkStream(spans([1000] * 100), 8, tier.get, check).chunks()
    for done in range(20):
        chunk = next(chunks)
        assert int(chunk.entry.name) == done
        time.sleep(0.01)
        assert max(taken) < done + 3, "three parts are in memory, the one in hand among them"
    chunks.close()


def test_a_kept_chunk_stays_as_it_was() -> None:
    tier = Tier(lambda: 0.0)
    spare = SpareBuffers(8)
    kept: list[tuple[FetchedChunk, memoryview]] = [
        (chunk, chunk.data[10:20])
        for chunk in ChunkStream(spans([1000] * 50), 8, tier.get, check, spare).chunks()
        if int(chunk.entry.name) % 3 == 0
    ]
    for chunk, data in kept:
        assert bytes(data) == content(int(chunk.entry.name), 1000)[10:20]
        with pytest.raises(BadRequestError, match="keep `data`"):
            _ = chunk.data
    with pytest.raises(TypeError):
        kept[0][1][0] = 1


def test_buffers_are_used_again() -> None:
    spare = SpareBuffers(2)
    tier = Tier(lambda: 0.0)
    for _ in ChunkStream(spans([1000] * 20), 8, tier.get, check, spare).chunks():
        pass
    first = spare.pop_all()
    assert 1 <= len(first) <= 2
    spare.give_back(first)
    for _ in ChunkStream(spans([1000] * 20), 8, tier.get, check, spare).chunks():
        pass
    assert any(one is other for one in spare.pop_all() for other in first)


def test_a_failed_request_is_raised_in_its_place() -> None:
    tier = Tier(lambda: 0.001)
    tier.failing = {"7"}
    chunks = ChunkStream(spans([1000] * 20), 8, tier.get, check).chunks()
    assert [next(chunks).entry.name for _ in range(7)] == [str(n) for n in range(7)]
    with pytest.raises(TierUnavailableError):
        next(chunks)


def test_a_list_of_chunks_that_ends_in_an_error_ends_the_stream_in_it() -> None:
    def listed() -> Iterator[Span]:
        yield from spans([1000] * 5)
        raise CorruptionError("list", position=0, reason="damaged")

    chunks = ChunkStream(listed(), 8, Tier(lambda: 0.001).get, check).chunks()
    assert [next(chunks).entry.name for _ in range(5)] == [str(n) for n in range(5)]
    with pytest.raises(CorruptionError):
        next(chunks)


def test_a_stream_that_is_left_ends_its_threads() -> None:
    chunks = ChunkStream(spans([1000] * 100), 8, Tier(lambda: 0.005).get, check).chunks()
    next(chunks)
    chunks.close()
    deadline = time.monotonic() + DEADLINE_S
    while any(one.name.startswith("penstock-stream") for one in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_tier_far_away_gets_the_whole_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_stream, "_AT_ONCE_S", 0.0)
    deadline = time.monotonic() + DEADLINE_S

    def latency_s() -> float:
        while tier.most < 8 and time.monotonic() < deadline:
            time.sleep(0.001)
        return 0.0

    tier = Tier(latency_s)
    for _ in ChunkStream(spans([1000] * 40), 8, tier.get, check).chunks():
        pass
    assert tier.most == 8


@pytest.fixture(params=["native", "pure"])
def core(request: pytest.FixtureRequest) -> Core:
    found = native_core() if request.param == "native" else pure
    if found is None:
        pytest.skip("the extension was not built")
    return found


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_both_twins_sum_blocks_alike(core: Core, size: int) -> None:
    data = os.urandom(size)
    sums = core.block_checksums(memoryview(data), 64)
    assert sums == pure.block_checksums(data, 64)
    assert len(sums) == 4 * -(-size // 64)
    with pytest.raises(BadRequestError):
        core.block_checksums(data, 0)
