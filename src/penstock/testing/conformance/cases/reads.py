"""Reading by offset: bounds, limits, holes and expiry."""

from __future__ import annotations

import pytest

from penstock.engine.contract import Isolation, StorageEngine
from penstock.record import Offset, Record
from penstock.testing.conformance.harness import (
    FAR,
    FIRST,
    SHARD,
    Conformance,
    EngineHarness,
    offsets,
    put,
    read_all,
    values,
)


class Reads(Conformance):
    def test_an_empty_shard_is_empty_at_offset_0_and_everywhere(
        self, engine: StorageEngine
    ) -> None:
        for offset in (0, 1, 1 << 40, (1 << 63) - 1, FAR):
            assert engine.read_by_offset(SHARD, Offset(offset)) == []
            assert engine.read_by_tag(SHARD, "t", start_offset=Offset(offset)) == []

    def test_reading_starts_at_the_offset_and_ascends(self, engine: StorageEngine) -> None:
        put(engine, *(b"%d" % n for n in range(10)))
        for start in range(10):
            records = engine.read_by_offset(SHARD, Offset(start))
            assert offsets(records) == list(range(start, 10))
            assert values(records) == [b"%d" % n for n in range(start, 10)]

    def test_reading_at_or_past_the_end_is_empty(self, engine: StorageEngine) -> None:
        put(engine, b"a", b"b")
        for offset in (2, 3, 1 << 40, (1 << 63) - 1, FAR):
            assert engine.read_by_offset(SHARD, Offset(offset)) == []

    def test_reading_before_the_earliest_starts_at_the_earliest(
        self, engine: StorageEngine
    ) -> None:
        put(engine, *[b"v"] * 10)
        engine.delete_records_before(SHARD, Offset(6))
        for start in (0, 3, 6):
            assert offsets(engine.read_by_offset(SHARD, Offset(start))) == [6, 7, 8, 9]

    def test_both_isolations_read_all_that_is_committed(self, engine: StorageEngine) -> None:
        put(engine, b"a", b"b")
        for isolation in Isolation:
            records = engine.read_by_offset(SHARD, FIRST, isolation=isolation)
            assert values(records) == [b"a", b"b"]

    def test_a_page_ends_at_max_records(self, engine: StorageEngine) -> None:
        put(engine, *[b"v"] * 10)
        for limit in (1, 3, 9, 10):
            records = engine.read_by_offset(SHARD, FIRST, max_records=limit)
            assert offsets(records) == list(range(limit))
        assert len(engine.read_by_offset(SHARD, FIRST, max_records=FAR, max_size=FAR)) == 10

    def test_a_page_ends_at_max_size(self, engine: StorageEngine) -> None:
        # An engine may count its own framing of a record, too: hence the loose sizes.
        put(engine, *[bytes(10_000)] * 10)
        for size, count in ((15_000, 1), (25_000, 2), (35_000, 3), (95_000, 9), (200_000, 10)):
            assert len(engine.read_by_offset(SHARD, FIRST, max_size=size)) == count

    def test_the_first_record_comes_even_if_it_exceeds_max_size(
        self, engine: StorageEngine
    ) -> None:
        put(engine, bytes(50_000), b"small", bytes(50_000))
        for start in range(3):
            assert offsets(engine.read_by_offset(SHARD, Offset(start), max_size=1)) == [start]
        assert offsets(engine.read_by_offset(SHARD, Offset(1), max_size=1_000)) == [1]

    def test_a_page_begins_with_the_first_live_record_whatever_its_size(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        now_ms = harness.clock.now_ms()
        put(engine, Record(value=b"x", expires_at_ms=now_ms), b"deleted", bytes(50_000), b"next")
        engine.delete_by_offset(SHARD, Offset(1))
        assert offsets(engine.read_by_offset(SHARD, FIRST, max_size=1)) == [2]

    def test_pages_join_without_loss_or_repetition(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, [Record(value=b"%d" % n) for n in range(2_500)])
        for page in (7, 1_000, 5_000):
            assert offsets(read_all(engine, max_records=page)) == list(range(2_500))

    def test_holes_are_skipped(self, engine: StorageEngine) -> None:
        put(engine, *[b"v"] * 10)
        for hole in (0, 3, 4, 9):
            engine.delete_by_offset(SHARD, Offset(hole))
        assert offsets(read_all(engine)) == [1, 2, 5, 6, 7, 8]
        assert offsets(engine.read_by_offset(SHARD, Offset(3), max_records=2)) == [5, 6]
        assert engine.read_by_offset(SHARD, Offset(9)) == []

    def test_a_run_of_holes_longer_than_a_page_does_not_end_it(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, [Record(value=b"v", key=b"gone", tags=("t",))] * 3_000)
        engine.batch_write(SHARD, [Record(value=b"v", tags=("t",))] * 3)
        engine.delete_by_key(SHARD, b"gone")
        assert offsets(engine.read_by_offset(SHARD, FIRST, max_records=2)) == [3_000, 3_001]
        assert offsets(engine.read_by_tag(SHARD, "t", max_records=2)) == [3_000, 3_001]

    def test_an_expired_run_longer_than_a_page_does_not_end_it(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        expires_ms = harness.clock.now_ms() + 1_000
        fleeting = Record(value=bytes(100), tags=("t",), expires_at_ms=expires_ms)
        engine.batch_write(SHARD, [fleeting] * 3_000)
        engine.batch_write(SHARD, [Record(value=b"v", tags=("t",))] * 3)
        harness.clock.advance(1)
        for size in (1_000, 4 << 20):
            records = engine.read_by_offset(SHARD, FIRST, max_records=2, max_size=size)
            assert offsets(records) == [3_000, 3_001]
            records = engine.read_by_tag(SHARD, "t", max_records=2, max_size=size)
            assert offsets(records) == [3_000, 3_001]

    def test_a_record_is_gone_from_every_read_at_the_moment_it_expires(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        expires_ms = harness.clock.now_ms() + 100
        put(engine, Record(value=b"v", key=b"k", tags=("t",), expires_at_ms=expires_ms))
        harness.clock.advance(milliseconds=99)
        assert offsets(read_all(engine)) == [0]
        assert offsets(engine.read_by_tag(SHARD, "t")) == [0]
        assert offsets(engine.query_by_key(SHARD, b"k")) == [0]
        assert engine.read_by_key(SHARD, b"k") is not None
        harness.clock.advance(milliseconds=1)
        assert read_all(engine) == []
        assert engine.read_by_tag(SHARD, "t") == []
        assert engine.query_by_key(SHARD, b"k") == []
        assert engine.read_by_key(SHARD, b"k") is None

    def test_a_record_that_has_expired_when_it_is_written_takes_an_offset(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        past_ms = harness.clock.now_ms() - 1
        assert put(engine, Record(value=b"v", expires_at_ms=past_ms), b"live") == 1
        assert offsets(read_all(engine)) == [1]

    @pytest.mark.parametrize("tombstone", [Record(value=None), Record(value=None, key=b"k")])
    def test_a_tombstone_is_a_record_like_any_other(
        self, engine: StorageEngine, tombstone: Record
    ) -> None:
        put(engine, b"", tombstone)
        assert values(read_all(engine)) == [b"", None]
