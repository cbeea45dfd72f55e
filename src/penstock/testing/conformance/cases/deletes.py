"""Deleting: by key, by offset, and everything before an offset."""

from __future__ import annotations

from penstock.engine.contract import AdapterOffsetStrategy, StorageEngine
from penstock.record import Offset, Record, StoredRecord
from penstock.testing.conformance.harness import (
    FAR,
    FIRST,
    SHARD,
    Conformance,
    EngineHarness,
    bounds,
    offsets,
    put,
    read_all,
)


def full(key: bytes, *, expires_at_ms: int | None = None) -> Record:
    """A record that every index knows."""
    return Record(value=b"v", key=key, tags=("t",), timestamp_ms=5, expires_at_ms=expires_at_ms)


def found_anywhere(engine: StorageEngine, key: bytes) -> set[int]:
    """Return the offsets of `key` that any way of reading finds."""
    records: list[StoredRecord | None] = [
        *read_all(engine),
        *engine.read_by_tag(SHARD, "t"),
        *engine.query_by_key(SHARD, key),
        engine.read_by_key(SHARD, key),
    ]
    return {record.offset for record in records if record is not None and record.key == key}


class Deletes(Conformance):
    def test_a_record_deleted_by_offset_is_gone_from_every_read(
        self, engine: StorageEngine
    ) -> None:
        put(engine, full(b"a"), full(b"b"), full(b"a"))
        assert engine.delete_by_offset(SHARD, Offset(2)) is True
        assert found_anywhere(engine, b"a") == {0}
        assert engine.delete_by_offset(SHARD, Offset(0)) is True
        assert found_anywhere(engine, b"a") == set()
        assert found_anywhere(engine, b"b") == {1}
        earliest = AdapterOffsetStrategy.EARLIEST
        assert engine.get_offset_by_timestamp(SHARD, 5, earliest) == 1

    def test_records_deleted_by_key_are_gone_from_every_read(self, engine: StorageEngine) -> None:
        put(engine, full(b"a"), full(b"b"), full(b"a"), full(b"a"))
        assert engine.delete_by_key(SHARD, b"a") == 3
        assert found_anywhere(engine, b"a") == set()
        assert found_anywhere(engine, b"b") == {1}

    def test_deleting_again_finds_nothing_and_changes_nothing(self, engine: StorageEngine) -> None:
        put(engine, full(b"a"), full(b"b"))
        assert engine.delete_by_offset(SHARD, Offset(0))
        assert engine.delete_by_key(SHARD, b"b") == 1
        for _ in range(2):
            assert engine.delete_by_offset(SHARD, Offset(0)) is False
            assert engine.delete_by_offset(SHARD, Offset(1)) is False
            assert engine.delete_by_key(SHARD, b"a") == 0
            assert engine.delete_by_key(SHARD, b"b") == 0
        assert bounds(engine) == (0, 2)

    def test_deleting_what_was_never_there_finds_nothing(self, engine: StorageEngine) -> None:
        for offset in (0, 1, 1 << 40, FAR):
            assert engine.delete_by_offset(SHARD, Offset(offset)) is False
        assert engine.delete_by_key(SHARD, b"") == 0
        put(engine, b"keyless")
        assert engine.delete_by_key(SHARD, b"") == 0
        assert engine.delete_by_offset(SHARD, Offset(1)) is False
        assert offsets(read_all(engine)) == [0]

    def test_an_expired_record_was_not_there(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        expires_ms = harness.clock.now_ms() + 10
        put(engine, full(b"a", expires_at_ms=expires_ms), full(b"a"))
        put(engine, full(b"b", expires_at_ms=expires_ms))
        harness.clock.advance(1)
        assert engine.delete_by_key(SHARD, b"a") == 1
        assert engine.delete_by_offset(SHARD, Offset(2)) is False

    def test_deletes_do_not_move_earliest_and_latest(self, engine: StorageEngine) -> None:
        put(engine, *[full(b"a")] * 5)
        engine.delete_by_offset(SHARD, Offset(0))
        engine.delete_by_offset(SHARD, Offset(4))
        assert bounds(engine) == (0, 5)
        engine.delete_by_key(SHARD, b"a")
        assert bounds(engine) == (0, 5)
        assert engine.shard_info(SHARD).commit == 5
        assert read_all(engine) == []

    def test_offsets_of_deleted_records_are_not_used_again(self, engine: StorageEngine) -> None:
        put(engine, full(b"a"), full(b"a"))
        engine.delete_by_key(SHARD, b"a")
        assert put(engine, full(b"a")) == 2
        assert found_anywhere(engine, b"a") == {2}

    def test_the_record_before_becomes_the_newest_of_its_key(self, engine: StorageEngine) -> None:
        put(engine, full(b"a"), full(b"a"), full(b"a"))
        for offset, newest in ((2, 1), (0, 1)):
            engine.delete_by_offset(SHARD, Offset(offset))
            record = engine.read_by_key(SHARD, b"a")
            assert record is not None
            assert record.offset == newest

    def test_many_records_of_one_key_are_deleted_together(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, [full(b"a" if n % 3 else b"b") for n in range(9_000)])
        assert engine.delete_by_key(SHARD, b"a") == 6_000
        assert offsets(read_all(engine)) == list(range(0, 9_000, 3))

    def test_deleting_before_an_offset_moves_the_earliest(self, engine: StorageEngine) -> None:
        put(engine, *(full(b"%d" % n) for n in range(10)))
        assert engine.delete_records_before(SHARD, Offset(4)) == 4
        assert bounds(engine) == (4, 10)
        assert offsets(read_all(engine)) == offsets(engine.read_by_tag(SHARD, "t"))
        assert offsets(read_all(engine)) == list(range(4, 10))
        for number in range(10):
            expected = {number} if number >= 4 else set()
            assert found_anywhere(engine, b"%d" % number) == expected
        for number in range(4):
            assert engine.delete_by_offset(SHARD, Offset(number)) is False
            assert engine.delete_by_key(SHARD, b"%d" % number) == 0

    def test_the_earliest_never_moves_back_nor_past_the_commit_offset(
        self, engine: StorageEngine
    ) -> None:
        assert engine.delete_records_before(SHARD, Offset(3)) == 0
        put(engine, *[b"v"] * 5)
        assert engine.delete_records_before(SHARD, Offset(2)) == 2
        assert engine.delete_records_before(SHARD, FIRST) == 2
        assert engine.delete_records_before(SHARD, Offset(2)) == 2
        assert engine.delete_records_before(SHARD, FAR) == 5
        assert bounds(engine) == (5, 5)
        assert put(engine, b"next") == 5
        assert offsets(read_all(engine)) == [5]

    def test_deleting_before_an_offset_in_a_hole_works(self, engine: StorageEngine) -> None:
        put(engine, *[full(b"a")] * 3, *[full(b"b")] * 3)
        engine.delete_by_key(SHARD, b"a")
        assert engine.delete_records_before(SHARD, Offset(2)) == 2
        assert bounds(engine) == (2, 6)
        assert offsets(read_all(engine)) == [3, 4, 5]

    def test_much_can_be_deleted_before_an_offset(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, [full(b"%d" % (n % 10)) for n in range(5_000)])
        assert engine.delete_records_before(SHARD, Offset(4_500)) == 4_500
        assert offsets(read_all(engine)) == list(range(4_500, 5_000))
        assert len(engine.query_by_key(SHARD, b"3", limit=10_000)) == 50
        assert len(engine.read_by_tag(SHARD, "t")) == 500
