"""Cold reads ask for little: one request for a first record, one for readers of the same range; and
segments are sealed by size and by age."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, fill, open_store, upload

from penstock.engine.segment.store import SegmentStore
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.read.tier_query import TierQuery

READERS = 8
WAIT_S = 60.0


class CountedProvider(MemoryProvider):
    """Counts ranged gets; holds them up until it is let go."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.gets: list[tuple[str, int, int]] = []
        self.go = threading.Event()
        self.go.set()

    def get_range(self, key: str, start: int, size: int) -> bytes:
        self.gets.append((key, start, size))
        assert self.go.wait(WAIT_S)
        return super().get_range(key, start, size)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        yield store


def tiered(store: SegmentStore, provider: CountedProvider, **limits: int) -> CompositeFlatFile:
    config = TierConfig(url=provider.url, chunk_size=20_000, **limits)  # type: ignore[arg-type]  # sizes and times
    flat = CompositeFlatFile(config, SHARD, provider=provider)
    flat.acquire()
    upload(store, flat)
    return CompositeFlatFile(config, SHARD, provider=provider)


def test_a_first_record_is_one_request_when_its_index_is_cached(store: SegmentStore) -> None:
    fill(store, 300)
    provider = CountedProvider()
    flat = tiered(store, provider)
    entries = list(flat.manifest.chunks_from(0, flat.current()))
    assert len(entries) >= 3
    for entry in entries:
        flat.fetcher.footer(flat.manifest.prefix, entry)
    for entry in entries:
        provider.gets.clear()
        wanted = entry.first_offset + entry.units // 2
        found = flat.reader.read(TierQuery(wanted, max_records=1)).records
        assert [one.offset for one in found] == [wanted]
        assert len(provider.gets) == 1


def test_readers_of_the_same_range_share_one_request(store: SegmentStore) -> None:
    fill(store, 60)
    provider = CountedProvider()
    flat = tiered(store, provider)
    flat.fetcher.footer(flat.manifest.prefix, next(flat.manifest.chunks_from(0, flat.current())))
    provider.gets.clear()
    provider.go.clear()
    with ThreadPoolExecutor(READERS) as readers:
        found = [
            readers.submit(lambda: flat.reader.read(TierQuery(3, max_records=1)).records)
            for _ in range(READERS)
        ]
        provider.go.set()
        assert {one.result(WAIT_S)[0].offset for one in found} == {3}
    assert len(provider.gets) == 1


def test_a_segment_is_sealed_when_it_is_large_or_old_enough(store: SegmentStore) -> None:
    fill(store, 300)
    provider = CountedProvider()
    by_size = tiered(store, provider, segment_size=20_000).refresh()
    assert by_size is not None
    assert (len(by_size.segments), by_size.chunks) == (1, ()), "sealed as it was uploaded"
    clock = ManualClock()
    config = TierConfig(url=f"memory://{uuid.uuid4().hex}", segment_age_ms=5000)
    flat = CompositeFlatFile(config, SHARD, clock=clock)
    flat.acquire()
    upload(store, flat)
    assert not flat.upkeep.seal(), "it is young and small"
    clock.advance(milliseconds=5000)
    assert flat.upkeep.seal()
    assert not flat.upkeep.seal(), "nothing is open"
    sealed = flat.refresh()
    assert sealed is not None
    assert (len(sealed.segments), len(sealed.chunks)) == (1, 0)
