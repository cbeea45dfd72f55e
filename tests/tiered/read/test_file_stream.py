"""Chunks that are files: in order, with few buffers, and the provider has the last word."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.codec import pure
from penstock.codec.select import native_core
from penstock.errors import BadRequestError, CorruptionError, TierUnavailableError
from penstock.record import QueueKind
from penstock.tiered.chunk.chunk import BLOCK_SIZE, ChunkEntry, Footer
from penstock.tiered.read.file_stream import FileRequests, FileStream
from penstock.tiered.read.part_buffers import PartBuffers, SpareBuffers

pytestmark = pytest.mark.skipif(native_core() is None, reason="the extension was not built")

DEADLINE_S = 60.0
FOOTER = Footer(b"", b"", b"", 0, 0, QueueKind.SIMPLE)
SIZES = [1, 65_535, 65_536, 1_048_576, 1_048_577, 3_000_000]


class Files:
    """Files of random bytes, and a provider that is asked for those that cannot be read."""

    def __init__(self, directory: Path, sizes: list[int]) -> None:
        self.directory = directory
        self.asked: list[str] = []
        self.unavailable = False
        self.content = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
        for number, data in enumerate(self.content):
            (directory / str(number)).write_bytes(data)

    def entries(self) -> Iterator[ChunkEntry]:
        for number, data in enumerate(self.content):
            size = len(data)
            summed = size - size // 10
            yield ChunkEntry(
                str(number), number, number + 1, number, 0, summed, size, 1, 0, 0, 0, 0
            )

    def stream(
        self, entries: Iterator[ChunkEntry] | None = None, spare: SpareBuffers | None = None
    ) -> FileStream:
        requests = FileRequests(
            path=lambda entry: str(self.directory / entry.name),
            parts=lambda entry: max(1, entry.size // 1_000_000),
            get=self.get,
            check=self.check,
        )
        return FileStream(entries or self.entries(), requests, spare)

    def get(self, entry: ChunkEntry, whole: memoryview) -> bytes:
        self.asked.append(entry.name)
        if self.unavailable:
            raise TierUnavailableError("gone")
        whole[:] = self.content[int(entry.name)]
        return pure.block_checksums(whole[: entry.data_size], BLOCK_SIZE)

    def check(self, entry: ChunkEntry, whole: memoryview, sums: bytes | None) -> Footer:
        assert sums == pure.block_checksums(whole[: entry.data_size], BLOCK_SIZE)
        return FOOTER


def test_every_file_comes_in_order_with_the_sums_of_its_blocks(tmp_path: Path) -> None:
    dice = random.Random(2)
    files = Files(tmp_path, SIZES + [dice.choice(SIZES) for _ in range(20)])
    found = []
    for chunk in files.stream().chunks():
        found.append(bytes(chunk.data))
        time.sleep(dice.choice([0, 0, 0.002]))
    assert found == files.content
    assert files.asked == []


def test_two_parts_are_in_memory_however_large_chunks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = most = 0
    take, give_back = PartBuffers.try_acquire, PartBuffers.give_back

    def taking(self: PartBuffers, number: int, size: int) -> memoryview | None:
        nonlocal out, most
        view = take(self, number, size)
        out += view is not None
        most = max(most, out)
        return view

    def giving(self: PartBuffers, view: memoryview, requests: int) -> None:
        nonlocal out
        out -= 1
        give_back(self, view, requests)

    monkeypatch.setattr(PartBuffers, "try_acquire", taking)
    monkeypatch.setattr(PartBuffers, "give_back", giving)
    assert sum(1 for _ in Files(tmp_path, [50_000] * 30).stream().chunks()) == 30
    assert most == 2
    most = 0
    assert sum(1 for _ in Files(tmp_path, [3_000_000] * 4).stream().chunks()) == 4
    assert most == 1, "a chunk of three parts is all that there is room for"


def test_a_kept_chunk_stays_as_it_was_and_other_buffers_are_used_again(tmp_path: Path) -> None:
    files = Files(tmp_path, [100_000] * 12)
    spare = SpareBuffers(8)
    kept = []
    for number, chunk in enumerate(files.stream(spare=spare).chunks()):
        if number % 3 == 0:
            kept.append((number, chunk, chunk.data[10:2000]))
    for number, chunk, data in kept:
        assert bytes(data) == files.content[number][10:2000]
        with pytest.raises(BadRequestError, match="keep `data`"):
            _ = chunk.data
    first = spare.pop_all()
    assert len(first) in (1, 2)
    spare.give_back(first)
    assert sum(1 for _ in files.stream(spare=spare).chunks()) == 12
    assert any(one is other for one in spare.pop_all() for other in first)


@pytest.mark.parametrize("how", ["missing", "short", "directory"])
def test_a_file_that_cannot_be_read_is_asked_of_the_provider(tmp_path: Path, how: str) -> None:
    files = Files(tmp_path, [100_000] * 6)
    path = tmp_path / "3"
    path.unlink()
    if how == "short":
        path.write_bytes(files.content[3][:-1])
    elif how == "directory":
        path.mkdir()
    assert [bytes(chunk.data) for chunk in files.stream().chunks()] == files.content
    assert files.asked == ["3"]
    files.unavailable = True
    chunks = files.stream().chunks()
    assert [next(chunks).entry.name for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(TierUnavailableError):
        next(chunks)


def test_a_list_of_files_that_ends_in_an_error_ends_the_stream_in_it(tmp_path: Path) -> None:
    files = Files(tmp_path, [1000] * 5)

    def listed() -> Iterator[ChunkEntry]:
        yield from files.entries()
        raise CorruptionError("list", position=0, reason="damaged")

    chunks = files.stream(listed()).chunks()
    assert [next(chunks).entry.name for _ in range(5)] == [str(n) for n in range(5)]
    with pytest.raises(CorruptionError):
        next(chunks)


def test_a_stream_that_is_left_ends_its_thread_and_frees_its_buffers(tmp_path: Path) -> None:
    files = Files(tmp_path, [3_000_000, 900_000] * 4)
    for taken in range(3):
        chunks = files.stream().chunks()
        for _ in range(taken):
            next(chunks)
        chunks.close()
    deadline = time.monotonic() + DEADLINE_S
    while _native_threads() > 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _native_threads() -> int:
    names = [each.read_text(encoding="ascii") for each in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("penstock-ahead") for name in names)
