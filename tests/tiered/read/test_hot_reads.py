"""Reads below the log's first offset go to the tier, and cost the log nothing."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.tiered.cold_engines import ColdHarness
from tests.tiered.rig import SHARD, open_store, record, upload

from penstock.engine.contract import AdapterOffsetStrategy, ColumnQuery, Isolation, ShardConfig
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError
from penstock.record import Offset, ShardId, StoredRecord
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.providers import ObjectBytes
from penstock.tiered.providers.memory import MemoryProvider

COLD, HOT = 60, 100
EARLIEST, LATEST = AdapterOffsetStrategy.EARLIEST, AdapterOffsetStrategy.LATEST


class CountedProvider(MemoryProvider):
    """Counts reads of the lists of segments."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.lists = 0

    def get(self, key: str) -> ObjectBytes:
        self.lists += key.endswith(".segment")
        return super().get(key)


def time_of(offset: int) -> int:
    timestamp_ms = record(offset).timestamp_ms
    assert timestamp_ms is not None
    return timestamp_ms


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each way to read the log was used."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        plain = getattr(SegmentStore, name)

        def wrapper(self: SegmentStore, *args: object, **options: object) -> object:
            counted[name] += 1
            return plain(self, *args, **options)

        monkeypatch.setattr(SegmentStore, name, wrapper)

    for name in (
        "read",
        "read_page",
        "read_raw",
        "read_arrow",
        "by_key",
        "newest_by_key",
        "query_by_key",
        "offset_by_timestamp",
    ):
        count(name)
    return counted


@pytest.fixture
def engine(tmp_path: Path, reads: Counter[str]) -> Iterator[TieredSegmentEngine]:
    """[0, 60) is in the tier alone, [60, 100) in tier and log."""
    made = ColdHarness(tmp_path / "data").make()
    assert isinstance(made, TieredSegmentEngine)
    made.create_shard(SHARD, ShardConfig())
    made.store.append_many(SHARD, [record(n) for n in range(HOT)])
    made.dispatcher.upload(SHARD)
    made.store.delete_before(SHARD, COLD)
    reads.clear()
    yield made
    made.close()


def offsets(records: list[StoredRecord]) -> list[int]:
    return [int(each.offset) for each in records]


def test_a_cold_page_does_not_read_the_log(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    assert offsets(engine.read_by_offset(SHARD, Offset(10), max_records=20)) == list(range(10, 30))
    assert reads == {}


def test_a_cold_page_of_a_tag_does_not_scan_the_log(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    records = engine.read_by_tag(SHARD, "even", start_offset=Offset(10), max_records=20)
    assert offsets(records) == list(range(10, 50, 2))
    assert reads == {}


def test_columns_are_not_read_from_the_log_to_be_dropped(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    query = ColumnQuery(offset=10, until=HOT, columns=("offset",), tag=None, max_size=1 << 20)
    assert engine.read_columns(SHARD, query) is None
    assert reads == {}


def test_a_page_across_the_seam_reads_the_log_once(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    assert offsets(engine.read_by_offset(SHARD, Offset(50))) == list(range(50, HOT))
    assert reads == {"read_page": 1}


def test_a_hot_page_is_read_once_and_no_tier_is_asked(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    assert offsets(engine.read_by_offset(SHARD, Offset(COLD), max_records=5)) == [*range(60, 65)]
    assert reads == {"read": 1, "read_page": 1}


def test_a_key_that_only_the_tier_holds_is_looked_up_in_the_log_once(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    engine.store.delete_before(SHARD, HOT)
    found = engine.read_by_key(SHARD, b"key-3")
    assert found is not None
    assert found.offset == max(n for n in range(HOT) if n % 7 == 3)
    assert reads == {"newest_by_key": 1, "by_key": 1}


def test_records_of_a_key_are_looked_up_in_the_log_once(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    everything = [n for n in range(HOT - 1, -1, -1) if n % 7 == 3]
    assert offsets(engine.query_by_key(SHARD, b"key-3")) == everything
    assert reads == {"query_by_key": 1, "by_key": 1}
    reads.clear()
    assert offsets(engine.query_by_key(SHARD, b"key-3", limit=7)) == everything[:7]
    first, last = record(10).timestamp_ms, record(70).timestamp_ms
    assert first is not None
    found = engine.query_by_key(SHARD, b"key-3", begin_ms=first, end_ms=last)
    assert offsets(found) == [n for n in everything if 10 <= n <= 70]
    assert reads == {"query_by_key": 2, "by_key": 2}


def test_a_time_that_the_tier_holds_is_not_looked_for_in_the_log(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    for strategy in AdapterOffsetStrategy:
        assert engine.get_offset_by_timestamp(SHARD, time_of(10), strategy) == 10
    assert reads == {}
    assert engine.get_offset_by_timestamp(SHARD, time_of(80), LATEST) == 80
    assert reads == {"offset_by_timestamp": 1}


def test_a_time_after_all_records_is_looked_for_in_the_log_once(
    engine: TieredSegmentEngine, reads: Counter[str]
) -> None:
    late = time_of(HOT + 1)
    assert engine.get_offset_by_timestamp(SHARD, late, LATEST) == HOT
    assert reads == {"offset_by_timestamp": 1}
    assert engine.get_offset_by_timestamp(SHARD, late, EARLIEST) == 0
    assert reads == {"offset_by_timestamp": 2}
    assert engine.get_offset_by_timestamp(SHARD, 1 << 63, LATEST) == HOT


def test_retention_during_a_search_by_time_hides_no_record(
    engine: TieredSegmentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = SegmentStore.offset_by_timestamp

    def search(self: SegmentStore, shard: ShardId, timestamp_ms: int) -> int | None:
        self.delete_before(SHARD, 80)
        return plain(self, shard, timestamp_ms)

    monkeypatch.setattr(SegmentStore, "offset_by_timestamp", search)
    assert engine.get_offset_by_timestamp(SHARD, time_of(70), LATEST) == 70


def test_a_search_by_time_reads_no_list_of_an_older_segment(tmp_path: Path) -> None:
    provider = CountedProvider()
    config = TierConfig(url=provider.url, chunk_size=2000, segment_size=3000)
    with open_store(tmp_path / "store") as store:
        store.create_shard(SHARD)
        store.append_many(SHARD, [record(n) for n in range(HOT)])
        flat = CompositeFlatFile(config, SHARD, provider=provider)
        flat.acquire()
        upload(store, flat)
    cold = CompositeFlatFile(config, SHARD, provider=provider)
    manifest = cold.refresh()
    assert manifest is not None
    assert len(manifest.segments) > 2
    provider.lists = 0
    assert cold.reader.offset_by_time(time_of(HOT - 1)) == HOT - 1
    assert provider.lists <= 1


def test_retention_during_a_read_leaves_no_hole(
    engine: TieredSegmentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = SegmentStore.read

    def read(self: SegmentStore, *args: object, **options: object) -> list[StoredRecord]:
        self.delete_before(SHARD, 80)
        return plain(self, *args, **options)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(SegmentStore, "read", read)
    records = engine.read_by_offset(SHARD, Offset(COLD), max_records=10)
    assert offsets(records) == list(range(60, 70))


def test_a_cold_read_refuses_bad_limits_as_a_hot_one_does(engine: TieredSegmentEngine) -> None:
    for offset in (Offset(0), Offset(COLD)):
        with pytest.raises(BadRequestError, match="max_records"):
            engine.read_by_offset(SHARD, offset, max_records=-1)
        with pytest.raises(BadRequestError, match="isolation"):
            engine.read_by_offset(SHARD, offset, isolation=cast("Isolation", "all"))
        with pytest.raises(BadRequestError, match="max_size"):
            engine.read_by_tag(SHARD, "even", start_offset=offset, max_size=-1)
    assert engine.read_by_offset(SHARD, Offset(0), isolation=Isolation.COMMITTED)


def test_every_read_that_goes_to_the_tier_is_counted(engine: TieredSegmentEngine) -> None:
    counter = engine._metrics.cold_reads
    engine.read_by_offset(SHARD, Offset(10), max_records=5)
    engine.read_raw(SHARD, 10, max_records=5, max_size=1 << 20)
    engine.read_batches(SHARD, 10, HOT, 1 << 20)
    engine.read_by_offset(SHARD, Offset(COLD), max_records=5)
    assert counter._value.get() == 3
