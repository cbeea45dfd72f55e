"""Finding offsets by time, whatever the order of the timestamps."""

from __future__ import annotations

from penstock.engine.contract import AdapterOffsetStrategy, StorageEngine
from penstock.record import Offset, Record
from penstock.testing.conformance.harness import (
    FAR,
    SHARD,
    Conformance,
    EngineHarness,
    put,
)


def dated(*timestamps_ms: int) -> list[Record]:
    return [Record(value=b"v", timestamp_ms=timestamp_ms) for timestamp_ms in timestamps_ms]


def earliest(engine: StorageEngine, timestamp_ms: int) -> int:
    return engine.get_offset_by_timestamp(SHARD, timestamp_ms, AdapterOffsetStrategy.EARLIEST)


def latest(engine: StorageEngine, timestamp_ms: int) -> int:
    return engine.get_offset_by_timestamp(SHARD, timestamp_ms, AdapterOffsetStrategy.LATEST)


class Times(Conformance):
    def test_the_first_record_at_or_after_the_time_is_found(self, engine: StorageEngine) -> None:
        put(engine, *dated(10, 20, 20, 30))
        expected = {-5: 0, 0: 0, 10: 0, 11: 1, 20: 1, 21: 3, 30: 3}
        for timestamp_ms, offset in expected.items():
            assert earliest(engine, timestamp_ms) == latest(engine, timestamp_ms) == offset

    def test_without_such_a_record_the_strategy_decides(self, engine: StorageEngine) -> None:
        assert earliest(engine, 0) == latest(engine, 0) == 0
        put(engine, *dated(10, 20, 30))
        engine.delete_records_before(SHARD, Offset(1))
        for timestamp_ms in (31, 1 << 62, FAR):
            assert earliest(engine, timestamp_ms) == 1
            assert latest(engine, timestamp_ms) == 3

    def test_the_largest_moments_are_told_apart(self, engine: StorageEngine) -> None:
        """Nothing is rounded to a number that is far enough: no record is older than asked for."""
        times = [1_000, -(1 << 63), 1 << 60, (1 << 60) + 1, 1 << 62, 5, (1 << 63) - 1]
        put(engine, *dated(*times))
        for moment in sorted({*times, -(1 << 61), 1 << 61, 1 << 63, FAR, -FAR}):
            for time_ms in (moment - 1, moment, moment + 1):
                first = next((o for o, t in enumerate(times) if t >= time_ms), None)
                assert latest(engine, time_ms) == (len(times) if first is None else first)
                assert earliest(engine, time_ms) == (0 if first is None else first)

    def test_timestamps_may_come_in_any_order(self, engine: StorageEngine) -> None:
        times = [50, 10, 90, 20, 90, 5, 70]
        put(engine, *dated(*times))
        for time_ms in range(95):
            first = next((o for o, t in enumerate(times) if t >= time_ms), len(times))
            assert latest(engine, time_ms) == first

    def test_timestamps_in_any_order_over_many_records(self, engine: StorageEngine) -> None:
        times = [(n * 7_919) % 10_007 + n // 4 for n in range(5_000)]
        for start in range(0, 5_000, 700):
            engine.batch_write(SHARD, dated(*times[start : start + 700]))
        for time_ms in range(0, 12_000, 97):
            first = next((o for o, t in enumerate(times) if t >= time_ms), len(times))
            assert latest(engine, time_ms) == first

    def test_ascending_timestamps_over_many_records(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, dated(*range(0, 10_000, 2)))
        for time_ms in (0, 1, 2, 2_047, 2_048, 2_049, 6_143, 9_997, 9_998):
            assert latest(engine, time_ms) == (time_ms + 1) // 2
        assert latest(engine, 9_999) == 5_000

    def test_deleted_records_are_not_found(self, engine: StorageEngine) -> None:
        put(engine, *dated(10, 90, 20, 80, 30))
        engine.delete_by_offset(SHARD, Offset(1))
        assert latest(engine, 15) == 2
        assert latest(engine, 25) == 3
        assert latest(engine, 85) == 5
        engine.delete_by_offset(SHARD, Offset(3))
        assert latest(engine, 25) == 4
        assert earliest(engine, 31) == 0

    def test_the_only_young_record_of_a_long_stretch_may_be_deleted(
        self, engine: StorageEngine
    ) -> None:
        times = [1] * 6_000
        times[700] = times[3_000] = times[5_500] = 100
        engine.batch_write(SHARD, dated(*times))
        for gone, following in ((700, 3_000), (3_000, 5_500), (5_500, 6_000)):
            assert latest(engine, 50) == gone
            engine.delete_by_offset(SHARD, Offset(gone))
            assert latest(engine, 50) == following

    def test_expired_records_are_not_found(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        expires_ms = harness.clock.now_ms() + 10
        put(engine, Record(value=b"v", timestamp_ms=50, expires_at_ms=expires_ms), *dated(20, 60))
        assert latest(engine, 40) == 0
        harness.clock.advance(1)
        assert latest(engine, 40) == 2

    def test_records_before_the_earliest_are_not_found(self, engine: StorageEngine) -> None:
        put(engine, *dated(90, 10, 80, 20))
        engine.delete_records_before(SHARD, Offset(1))
        assert latest(engine, 0) == 1
        assert latest(engine, 50) == 2
        assert latest(engine, 85) == 4
        engine.delete_records_before(SHARD, Offset(4))
        assert earliest(engine, 0) == latest(engine, 0) == 4

    def test_records_without_a_timestamp_have_the_stores(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        now_ms = harness.clock.now_ms()
        for _ in range(3):
            put(engine, b"v")
            harness.clock.advance(10)
        assert latest(engine, now_ms + 1) == 1
        assert latest(engine, now_ms + 20_000) == 2
