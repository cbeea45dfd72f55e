"""Compaction: superseded records go, and nothing else changes."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.engine.contract import AdapterOffsetStrategy, Cleanup, StorageEngine
from penstock.record import Offset, Record, ShardId
from penstock.testing.conformance.harness import (
    SHARD,
    Conformance,
    EngineHarness,
    bounds,
    offsets,
    put,
    read_all,
)


def keyed(key: bytes | None, value: bytes | None = b"v") -> Record:
    return Record(value=value, key=key, tags=("t",), timestamp_ms=1)


class Compaction(Conformance):
    def test_records_whose_key_was_written_again_are_removed(
        self, engine: StorageEngine, compacted: ShardId
    ) -> None:
        put(engine, *(keyed(key) for key in (b"a", b"b", b"a", b"c", b"a")), shard=compacted)
        removed = engine.compact(compacted)
        assert removed.records == 2
        assert removed.size > 0
        assert offsets(read_all(engine, compacted)) == [1, 3, 4]
        assert offsets(engine.read_by_tag(compacted, "t")) == [1, 3, 4]
        assert offsets(engine.query_by_key(compacted, b"a")) == [4]
        earliest = AdapterOffsetStrategy.EARLIEST
        assert engine.get_offset_by_timestamp(compacted, 1, earliest) == 1

    def test_compaction_keeps_offsets_and_bounds(
        self, engine: StorageEngine, compacted: ShardId
    ) -> None:
        put(engine, *[keyed(b"a")] * 4, shard=compacted)
        engine.compact(compacted)
        assert bounds(engine, compacted) == (0, 4)
        assert put(engine, keyed(b"a"), shard=compacted) == 4
        assert offsets(read_all(engine, compacted)) == [3, 4]

    def test_compacting_again_removes_nothing(
        self, engine: StorageEngine, compacted: ShardId
    ) -> None:
        assert engine.compact(compacted).records == 0
        put(engine, *[keyed(b"a")] * 3, shard=compacted)
        assert [engine.compact(compacted).records for _ in range(3)] == [2, 0, 0]

    def test_each_removed_record_is_counted_once(
        self, engine: StorageEngine, compacted: ShardId
    ) -> None:
        for key in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"):
            put(engine, keyed(key), shard=compacted)
        assert engine.compact(compacted).records == 0
        put(engine, keyed(b"h"), shard=compacted)
        assert engine.compact(compacted).records == 1
        put(engine, keyed(b"a"), keyed(b"h"), shard=compacted)
        assert engine.compact(compacted).records == 2
        assert offsets(read_all(engine, compacted)) == [1, 2, 3, 4, 5, 6, 9, 10]

    def test_records_without_a_key_stay(self, engine: StorageEngine, compacted: ShardId) -> None:
        put(engine, keyed(None), keyed(b""), keyed(None), keyed(b""), shard=compacted)
        assert engine.compact(compacted).records == 1
        assert offsets(read_all(engine, compacted)) == [0, 2, 3]

    def test_a_tombstone_supersedes_and_stays(
        self, engine: StorageEngine, compacted: ShardId
    ) -> None:
        put(engine, keyed(b"a"), keyed(b"a", None), keyed(b"b", None), shard=compacted)
        assert engine.compact(compacted).records == 1
        assert offsets(read_all(engine, compacted)) == [1, 2]

    def test_a_tombstone_goes_when_it_was_kept_for_long_enough(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        config = harness.config(cleanup=Cleanup.COMPACT)
        engine.alter_shard(compacted, replace(config, tombstone_retention_ms=1_000))
        put(engine, keyed(b"a"), keyed(b"b"), keyed(b"a", None), shard=compacted)
        first = engine.compact(compacted)
        assert first.records == 1
        harness.clock.advance(milliseconds=999)
        assert engine.compact(compacted).records == 0
        assert first.again_ms == harness.clock.now_ms() + 1
        harness.clock.advance(milliseconds=1)
        last = engine.compact(compacted)
        assert (last.records, last.again_ms) == (1, None)
        assert offsets(read_all(engine, compacted)) == [1]
        assert engine.read_by_key(compacted, b"a") is None
        assert bounds(engine, compacted) == (0, 3)

    def test_a_tombstone_outlives_what_it_replaced_by_one_compaction(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        config = harness.config(cleanup=Cleanup.COMPACT)
        engine.alter_shard(compacted, replace(config, tombstone_retention_ms=0))
        put(engine, keyed(b"a"), keyed(b"a", None), shard=compacted)
        first = engine.compact(compacted)
        assert offsets(read_all(engine, compacted)) == [1]
        assert first.again_ms == harness.clock.now_ms()
        assert engine.compact(compacted).records == 1
        assert read_all(engine, compacted) == []

    def test_a_key_that_was_written_after_its_tombstone_stays(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        config = harness.config(cleanup=Cleanup.COMPACT)
        engine.alter_shard(compacted, replace(config, tombstone_retention_ms=0))
        put(engine, keyed(b"a", None), keyed(b"a"), keyed(None, None), shard=compacted)
        for _ in range(3):
            engine.compact(compacted)
        assert offsets(read_all(engine, compacted)) == [1, 2]

    def test_young_records_are_left_alone_for_the_compaction_lag(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        config = harness.config(cleanup=Cleanup.COMPACT)
        engine.alter_shard(compacted, replace(config, compaction_lag_ms=100))
        put(engine, keyed(b"a"), keyed(b"a"), shard=compacted)
        harness.clock.advance(milliseconds=60)
        put(engine, keyed(b"a"), keyed(b"b"), keyed(b"b"), shard=compacted)
        assert engine.compact(compacted).records == 0
        harness.clock.advance(milliseconds=50)
        done = engine.compact(compacted)
        assert offsets(read_all(engine, compacted)) == [1, 2, 3, 4]
        assert done.again_ms is not None
        harness.clock.advance(milliseconds=max(0, done.again_ms - harness.clock.now_ms()))
        assert engine.compact(compacted).records == 2
        assert offsets(read_all(engine, compacted)) == [2, 4]

    def test_a_removed_tombstone_does_not_bring_the_key_back_after_a_crash(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        config = harness.config(cleanup=Cleanup.COMPACT)
        engine.alter_shard(compacted, replace(config, tombstone_retention_ms=0))
        put(engine, keyed(b"a"), keyed(b"b"), keyed(b"a", None), shard=compacted)
        engine.compact(compacted)
        engine.compact(compacted)
        if harness.capabilities.durable:
            engine = harness.crash()
        assert engine.read_by_key(compacted, b"a") is None
        assert offsets(read_all(engine, compacted)) == [1]

    def test_read_by_key_answers_the_same_before_and_after(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        expires_ms = harness.clock.now_ms() + 10
        fleeting = Record(value=b"v", key=b"a", expires_at_ms=expires_ms)
        put(engine, keyed(b"a"), keyed(b"a"), fleeting, keyed(b"b"), keyed(b"b"), shard=compacted)
        engine.delete_by_offset(compacted, Offset(4))
        harness.clock.advance(1)
        keys = (b"a", b"b", b"unknown")
        before = [engine.read_by_key(compacted, key) for key in keys]
        assert [record and record.offset for record in before] == [1, 3, None]
        engine.compact(compacted)
        assert [engine.read_by_key(compacted, key) for key in keys] == before

    def test_other_shards_are_not_compacted(self, engine: StorageEngine) -> None:
        put(engine, *[keyed(b"a")] * 3)
        removed = engine.compact(SHARD)
        assert (removed.records, removed.size) == (0, 0)
        assert offsets(read_all(engine)) == [0, 1, 2]

    def test_many_keys_are_compacted(self, engine: StorageEngine, compacted: ShardId) -> None:
        engine.batch_write(compacted, [keyed(b"%d" % (n % 1_500)) for n in range(4_000)])
        assert engine.compact(compacted).records == 2_500
        assert offsets(read_all(engine, compacted)) == list(range(2_500, 4_000))

    def test_what_has_expired_is_no_reason_to_compact_again(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        config = harness.config(cleanup=Cleanup.COMPACT)
        engine.alter_shard(compacted, replace(config, compaction_lag_ms=100))
        put(engine, replace(keyed(b"a"), expires_at_ms=0), shard=compacted)
        assert engine.compact(compacted).again_ms is None
        harness.clock.advance(milliseconds=10)
        put(engine, keyed(b"a"), shard=compacted)
        assert engine.compact(compacted).again_ms == harness.clock.now_ms() + 100
