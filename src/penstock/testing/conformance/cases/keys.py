"""Reading by key: the newest live record, and the history."""

from __future__ import annotations

from penstock.engine.contract import StorageEngine
from penstock.record import Offset, Record
from penstock.testing.conformance.harness import (
    FAR,
    SHARD,
    Conformance,
    EngineHarness,
    offsets,
    put,
)

ODD_KEYS = (
    b"",
    b"\x00",
    b"\x00\x00",
    b"a",
    b"a\x00",
    b"a\x00\x00\x00\x00\x00\x00\x00\x00",
    b"a b",
    b" a",
    b"b",
    b"a#b",
    b"T#a",
    b"~e8b7be431",
    b"\xff",
    b"\xff\xff",
    "名".encode(),
    b"\x01\x02",
    b"Aa",
    b"BB",
    b"k" * 128,
    b"k" * 129,
    b"k" * 40_000,
    b"k" * 40_000 + b"l",
)


def keyed(key: bytes | None, value: bytes | None = b"v", timestamp_ms: int | None = None) -> Record:
    return Record(value=value, key=key, timestamp_ms=timestamp_ms)


def newest(engine: StorageEngine, key: bytes) -> int | None:
    record = engine.read_by_key(SHARD, key)
    return None if record is None else record.offset


class Keys(Conformance):
    def test_the_newest_record_of_a_key_wins(self, engine: StorageEngine) -> None:
        assert newest(engine, b"k") is None
        put(engine, keyed(b"k"), keyed(b"other"), keyed(b"k"), keyed(b"other"))
        assert newest(engine, b"k") == 2
        assert newest(engine, b"other") == 3
        assert newest(engine, b"unknown") is None

    def test_newest_means_written_last_whatever_the_timestamps(self, engine: StorageEngine) -> None:
        put(engine, keyed(b"k", timestamp_ms=50), keyed(b"k", timestamp_ms=10))
        assert newest(engine, b"k") == 1
        assert offsets(engine.query_by_key(SHARD, b"k")) == [1, 0]

    def test_a_key_twice_in_one_batch_is_read_as_the_later_one(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, [keyed(b"k", b"1"), keyed(b"j", b"2"), keyed(b"k", b"3")])
        record = engine.read_by_key(SHARD, b"k")
        assert record is not None
        assert (record.offset, record.value) == (2, b"3")
        assert offsets(engine.query_by_key(SHARD, b"k")) == [2, 0]

    def test_an_empty_key_is_a_key_and_no_key_is_none(self, engine: StorageEngine) -> None:
        put(engine, keyed(b""), keyed(None), keyed(b"k"), keyed(None))
        assert newest(engine, b"") == 0
        assert offsets(engine.query_by_key(SHARD, b"")) == [0]
        assert engine.delete_by_key(SHARD, b"") == 1
        assert newest(engine, b"") is None
        assert offsets(engine.read_by_offset(SHARD, Offset(0))) == [1, 2, 3]

    def test_any_bytes_are_a_key(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, [keyed(key) for key in ODD_KEYS])
        engine.batch_write(SHARD, [keyed(key) for key in ODD_KEYS])
        count = len(ODD_KEYS)
        for number, key in enumerate(ODD_KEYS):
            assert offsets(engine.query_by_key(SHARD, key)) == [number + count, number], key[:20]
        assert engine.delete_by_key(SHARD, ODD_KEYS[4]) == 2
        for number, key in enumerate(ODD_KEYS):
            assert newest(engine, key) == (None if number == 4 else number + count), key[:20]

    def test_a_header_is_not_a_key(self, engine: StorageEngine) -> None:
        headers = (("KEYS", b"k"), ("UNIQ_KEY", b"u"))
        put(engine, Record(value=b"v", headers=headers), keyed(b"own"))
        assert newest(engine, b"k") is None
        assert newest(engine, b"u") is None

    def test_a_tombstone_is_the_newest_record_of_its_key(self, engine: StorageEngine) -> None:
        put(engine, keyed(b"k", b"1"), keyed(b"k", None))
        record = engine.read_by_key(SHARD, b"k")
        assert record is not None
        assert (record.offset, record.value) == (1, None)

    def test_an_expired_record_gives_way_to_the_one_before_it(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        expires_ms = harness.clock.now_ms() + 10
        fleeting = Record(value=b"v", key=b"k", expires_at_ms=expires_ms)
        put(engine, keyed(b"k"), fleeting, fleeting)
        assert newest(engine, b"k") == 2
        harness.clock.advance(1)
        assert newest(engine, b"k") == 0
        assert offsets(engine.query_by_key(SHARD, b"k", limit=1)) == [0]

    def test_the_history_of_a_key_is_newest_first_within_the_limit(
        self, engine: StorageEngine
    ) -> None:
        put(engine, *(keyed(b"k" if n % 2 == 0 else b"other") for n in range(200)))
        assert offsets(engine.query_by_key(SHARD, b"k")) == list(range(198, 70, -2))
        assert offsets(engine.query_by_key(SHARD, b"k", limit=3)) == [198, 196, 194]
        assert len(engine.query_by_key(SHARD, b"k", limit=FAR)) == 100
        assert engine.query_by_key(SHARD, b"unknown") == []

    def test_the_history_of_a_key_can_be_cut_by_time_inclusively(
        self, engine: StorageEngine
    ) -> None:
        put(engine, *(keyed(b"k", timestamp_ms=time) for time in (10, 40, 20, 30, 20)))

        def query(begin_ms: int = 0, end_ms: int | None = None, limit: int = 64) -> list[int]:
            records = engine.query_by_key(
                SHARD, b"k", begin_ms=begin_ms, end_ms=end_ms, limit=limit
            )
            return offsets(records)

        assert query(20, 30) == [4, 3, 2]
        assert query(20, 30, limit=2) == [4, 3]
        assert query(21) == [3, 1]
        assert query(end_ms=10) == [0]
        assert query(30, 20) == []
        assert query(41) == query(end_ms=9) == query(FAR) == []
        assert query(-FAR, FAR) == [4, 3, 2, 1, 0]

    def test_keys_below_the_earliest_offset_are_gone(self, engine: StorageEngine) -> None:
        put(engine, keyed(b"old"), keyed(b"both"), keyed(b"both"))
        engine.delete_records_before(SHARD, Offset(2))
        assert newest(engine, b"old") is None
        assert offsets(engine.query_by_key(SHARD, b"both")) == [2]
        assert engine.delete_by_key(SHARD, b"old") == 0
        assert engine.delete_by_key(SHARD, b"both") == 1
