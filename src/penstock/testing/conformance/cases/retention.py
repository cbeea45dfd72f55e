"""Retention: what a shard's configuration does not let it keep goes, oldest first."""

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

VALUE = bytes(1_000)


class Retention(Conformance):
    def limit(
        self,
        harness: EngineHarness,
        engine: StorageEngine,
        *,
        age_ms: int | None = None,
        size: int | None = None,
        records: int | None = None,
    ) -> int:
        """Let the shard keep so much, apply that, and return its earliest offset."""
        config = replace(
            harness.config(), retention_ms=age_ms, retention_bytes=size, retention_records=records
        )
        engine.alter_shard(SHARD, config)
        earliest = engine.apply_retention(SHARD)
        assert engine.apply_retention(SHARD) == earliest == engine.shard_info(SHARD).earliest
        return earliest

    def aged(self, harness: EngineHarness, engine: StorageEngine, *ages_ms: int) -> None:
        """Write records that are this old now."""
        now_ms = harness.clock.now_ms()
        for age_ms in ages_ms:
            record = Record(value=VALUE, key=b"k", tags=("t",), timestamp_ms=now_ms - age_ms)
            engine.write(SHARD, record)

    def test_without_limits_everything_stays(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, 10**9, 5, 0)
        assert self.limit(harness, engine) == 0
        assert offsets(read_all(engine)) == [0, 1, 2]

    def test_records_older_than_the_retention_time_are_gone_from_every_read(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, 50, 40, 30, 20, 10)
        assert self.limit(harness, engine, age_ms=30) == 2
        assert offsets(read_all(engine)) == [2, 3, 4]
        assert offsets(engine.read_by_tag(SHARD, "t")) == [2, 3, 4]
        assert offsets(engine.query_by_key(SHARD, b"k")) == [4, 3, 2]
        assert engine.get_offset_by_timestamp(SHARD, 0, AdapterOffsetStrategy.EARLIEST) == 2
        assert bounds(engine) == (2, 5)

    def test_time_passes_between_two_rounds_of_retention(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        for _ in range(6):
            put(engine, VALUE)
            harness.clock.advance(1)
        assert self.limit(harness, engine, age_ms=4_000) == 2
        harness.clock.advance(2)
        assert engine.apply_retention(SHARD) == 4
        harness.clock.advance(100)
        assert engine.apply_retention(SHARD) == 6
        assert put(engine, VALUE) == 6, "an emptied shard goes on where it was"
        assert offsets(read_all(engine)) == [6]

    def test_a_young_record_keeps_older_ones_behind_it(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, 90, 10, 90, 90, 20, 90)
        assert self.limit(harness, engine, age_ms=50) == 1
        harness.clock.advance(milliseconds=45)
        assert engine.apply_retention(SHARD) == 6, "none is young any more, and all go"

    def test_a_young_record_that_was_deleted_keeps_nothing(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, 10, 90, 90, 20, 90)
        engine.delete_by_offset(SHARD, Offset(0))
        assert self.limit(harness, engine, age_ms=50) == 3

    def test_a_young_record_that_expired_keeps_nothing(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        now_ms = harness.clock.now_ms()
        fleeting = Record(value=b"v", timestamp_ms=now_ms, expires_at_ms=now_ms + 5)
        engine.batch_write(SHARD, [fleeting] * 20)
        self.aged(harness, engine, 90)
        engine.batch_write(SHARD, [fleeting, Record(value=b"v", timestamp_ms=now_ms), fleeting])
        assert self.limit(harness, engine, age_ms=50) == 0
        harness.clock.advance(milliseconds=5)
        assert engine.apply_retention(SHARD) == 22
        assert offsets(read_all(engine)) == [22]

    def test_records_from_the_future_stay(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, 90, -1_000_000, 90)
        assert self.limit(harness, engine, age_ms=1) == 1

    def test_many_old_records_go_at_once(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        now_ms = harness.clock.now_ms()
        times = [now_ms - 6_000 + n for n in range(6_000)]
        engine.batch_write(SHARD, [Record(value=b"v", timestamp_ms=ms) for ms in times])
        assert self.limit(harness, engine, age_ms=1_500) == 4_500
        assert offsets(read_all(engine)) == list(range(4_500, 6_000))

    def test_no_more_than_the_last_offsets_stay(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, *[0] * 20)
        engine.delete_by_offset(SHARD, Offset(18))
        assert self.limit(harness, engine, records=3) == 17
        assert offsets(read_all(engine)) == [17, 19]
        assert self.limit(harness, engine, records=100) == 17

    def test_about_the_retention_size_stays(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        engine.batch_write(SHARD, [Record(value=VALUE)] * 300)
        assert self.limit(harness, engine, size=10**7) == 0
        earliest = self.limit(harness, engine, size=100_000)
        assert 200 <= earliest < 250, earliest
        assert offsets(read_all(engine)) == list(range(earliest, 300))
        assert self.limit(harness, engine, size=50_000) > earliest, "without a write between"

    def test_the_limit_that_keeps_least_wins(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, 50, 40, 30, 20, 10)
        assert self.limit(harness, engine, age_ms=40, records=4) == 1
        assert self.limit(harness, engine, age_ms=40, records=2) == 3
        assert self.limit(harness, engine, age_ms=10, records=2) == 4

    def test_a_shard_begins_with_a_young_live_record_wherever_the_other_limits_end(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, 10, 10, 10, 90, 10, 90, 10)
        engine.delete_by_offset(SHARD, Offset(2))
        assert self.limit(harness, engine, age_ms=50, records=5) == 4, "2 is gone, 3 is old"
        engine.delete_by_offset(SHARD, Offset(6))
        assert self.limit(harness, engine, age_ms=50, records=1) == 7, "nothing young is left"

    def test_many_young_records_in_front_of_the_last_offsets_keep_no_old_one(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        now_ms = harness.clock.now_ms()
        ages = [10] * 3_000 + [90] * 3_000 + [10]
        engine.batch_write(SHARD, [Record(b"v", timestamp_ms=now_ms - age) for age in ages])
        assert self.limit(harness, engine, age_ms=50, records=2_500) == 6_000

    def test_a_compacted_shard_keeps_what_its_keys_need(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        put(engine, *[Record(value=b"v", key=b"k", timestamp_ms=1)] * 4, shard=compacted)
        config = harness.config(cleanup=Cleanup.COMPACT)
        engine.alter_shard(compacted, replace(config, retention_ms=1, retention_records=1))
        assert engine.apply_retention(compacted) == 0
        assert len(read_all(engine, compacted)) == 4

    def test_a_shard_that_is_compacted_and_deleted_from_has_both(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        config = harness.config(cleanup=Cleanup.BOTH)
        engine.alter_shard(compacted, replace(config, retention_records=4))
        put(engine, *(Record(value=b"v", key=key) for key in (b"a", b"b", b"a")), shard=compacted)
        assert engine.apply_retention(compacted) == 0
        assert engine.compact(compacted).records == 1
        assert offsets(read_all(engine, compacted)) == [1, 2]
        put(engine, *(Record(value=b"v", key=key) for key in (b"c", b"d", b"e")), shard=compacted)
        assert engine.apply_retention(compacted) == 2
        assert offsets(read_all(engine, compacted)) == [2, 3, 4, 5]

    def test_what_compaction_removed_is_nothing_that_a_shard_begins_with(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId
    ) -> None:
        config = harness.config(cleanup=Cleanup.BOTH)
        engine.alter_shard(compacted, replace(config, retention_ms=100))
        now_ms = harness.clock.now_ms()
        record = Record(value=b"v", key=b"k", timestamp_ms=now_ms)
        put(engine, *[record] * 5, shard=compacted)
        assert engine.apply_retention(compacted) == 0
        assert engine.compact(compacted).records == 4
        assert engine.apply_retention(compacted) == 4

    def test_what_retention_removed_stays_away_after_a_restart(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        self.aged(harness, engine, 50, 40, 30, 20, 10)
        assert self.limit(harness, engine, age_ms=30) == 2
        if harness.capabilities.durable:
            engine = harness.crash()
            assert bounds(engine) == (2, 5)
            assert engine.apply_retention(SHARD) == 2, "the limit itself was kept, too"
            harness.clock.advance(milliseconds=10)
            assert engine.apply_retention(SHARD) == 3
