"""Writing: offsets, order, all or none, limits, and every field coming back as it was."""

from __future__ import annotations

import pytest

from penstock.engine.contract import StorageEngine
from penstock.errors import BadRequestError, RecordTooLargeError
from penstock.record import Offset, Record, ShardId
from penstock.testing.conformance.harness import (
    FIRST,
    SHARD,
    Conformance,
    EngineHarness,
    bounds,
    offsets,
    put,
    read_all,
    values,
)

ALL_BYTES = bytes(range(256))
ODD_TEXTS = (
    "a/b",
    "",
    " ",
    "a b",
    "a\x00b",
    "\x01\x02",
    "名前",
    "😀",
    "é",
    "e\u0301",
    "\udcff",
    "\udc80\udcfe",
    "T#x",
    "*multi*",
    "a||b",
    "x" * 300,
)


class Writes(Conformance):
    def test_offsets_are_dense_and_begin_at_0(self, engine: StorageEngine) -> None:
        assert engine.write(SHARD, Record(value=b"a")).offsets == range(1)
        assert engine.batch_write(SHARD, [Record(value=b"b")] * 3).offsets == range(1, 4)
        written = engine.write(SHARD, Record(value=b"c"))
        assert (written.first, written.count, written.repeated) == (4, 1, False)
        assert offsets(read_all(engine)) == [0, 1, 2, 3, 4]

    def test_a_batch_keeps_its_order(self, engine: StorageEngine) -> None:
        written = engine.batch_write(SHARD, [Record(value=b"%d" % n) for n in range(300)])
        assert written.offsets == range(300)
        assert values(read_all(engine)) == [b"%d" % n for n in range(300)]

    def test_a_batch_may_be_any_sequence(self, engine: StorageEngine) -> None:
        engine.batch_write(SHARD, (Record(value=b"tuple"),))
        engine.batch_write(SHARD, [Record(value=b"list")])
        assert values(read_all(engine)) == [b"tuple", b"list"]

    def test_what_was_written_can_be_read_at_once(self, engine: StorageEngine) -> None:
        for number in range(50):
            offset = Offset(put(engine, Record(value=b"v", key=b"%d" % number, tags=("t",))))
            assert offsets(engine.read_by_offset(SHARD, offset)) == [number]
            assert offsets(engine.read_by_tag(SHARD, "t", start_offset=offset)) == [number]
            assert engine.read_by_key(SHARD, b"%d" % number) is not None
            assert bounds(engine) == (0, number + 1)
            assert engine.shard_info(SHARD).commit == number + 1

    def test_an_empty_batch_is_refused(self, engine: StorageEngine) -> None:
        with pytest.raises(BadRequestError):
            engine.batch_write(SHARD, [])
        assert bounds(engine) == (0, 0)

    def test_a_large_batch_is_one_write(self, engine: StorageEngine) -> None:
        put(engine, b"before")
        batch = [Record(value=b"%06d" % n * 100, key=b"%d" % (n % 7)) for n in range(5_000)]
        assert engine.batch_write(SHARD, batch).offsets == range(1, 5_001)
        assert values(read_all(engine))[1:] == [record.value for record in batch]
        newest = engine.read_by_key(SHARD, b"3")
        assert newest is not None
        assert newest.offset == 1 + max(n for n in range(5_000) if n % 7 == 3)

    def test_a_batch_with_one_bad_record_writes_nothing(self, engine: StorageEngine) -> None:
        put(engine, b"before")
        good = Record(value=b"good", key=b"k", tags=("t",), timestamp_ms=1)
        bad = Record(value=b"bad", tags=("\ud800",))
        for position in range(3):
            batch = [good, good]
            batch.insert(position, bad)
            with pytest.raises(BadRequestError):
                engine.batch_write(SHARD, batch)
        assert bounds(engine) == (0, 1)
        assert put(engine, b"after") == 1
        assert values(read_all(engine)) == [b"before", b"after"]
        assert engine.read_by_tag(SHARD, "t") == []
        assert engine.read_by_key(SHARD, b"k") is None

    def test_a_batch_with_one_oversize_record_writes_nothing(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        shard = ShardId("small", 0)
        engine.create_shard(shard, harness.config(record_size_max=1_000))
        small, large = Record(value=b"v"), Record(value=bytes(1_001))
        with pytest.raises(RecordTooLargeError) as caught:
            engine.batch_write(shard, [small, large, small])
        assert (caught.value.size, caught.value.size_max) == (1_001, 1_000)
        assert bounds(engine, shard) == (0, 0)

    def test_the_size_limit_counts_value_key_tags_and_headers(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        shard = ShardId("small", 0)
        engine.create_shard(shard, harness.config(record_size_max=100))
        for exact in (
            Record(value=bytes(100)),
            Record(value=bytes(40), key=bytes(60)),
            Record(value=None, key=bytes(100)),
            Record(value=bytes(70), tags=("é" * 10, "x" * 10)),
            Record(value=bytes(50), headers=(("x" * 20, bytes(20)), ("y" * 10, None))),
        ):
            put(engine, exact, shard=shard)
        for over in (
            Record(value=bytes(101)),
            Record(value=bytes(40), key=bytes(61)),
            Record(value=bytes(71), tags=("é" * 10, "x" * 10)),
            Record(value=bytes(50), headers=(("x" * 20, bytes(21)), ("y" * 10, None))),
        ):
            with pytest.raises(RecordTooLargeError):
                put(engine, over, shard=shard)
        assert bounds(engine, shard) == (0, 5)

    def test_a_record_of_the_largest_size_comes_back(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        value = ALL_BYTES * (harness.config().record_size_max // 256)
        put(engine, value, b"small")
        assert values(read_all(engine)) == [value, b"small"]

    @pytest.mark.parametrize(
        "record",
        [
            Record(value=b""),
            Record(value=None),
            Record(value=None, key=b""),
            Record(value=ALL_BYTES, key=ALL_BYTES),
            Record(value=b"v", key=b"k"),
            Record(value=b"v", key=b"a b"),
            Record(value=b"v", key=b"\x01\x02\xff"),
            Record(value=b"v", key=bytes(40_000)),
            Record(value=b"v", tags=("t",)),
            Record(value=b"v", tags=("b", "a", "b")),
            *(Record(value=b"v", tags=(text,)) for text in ODD_TEXTS),
            Record(value=b"v", tags=ODD_TEXTS),
            *(Record(value=b"v", headers=((text, b"x"),)) for text in ODD_TEXTS),
            Record(value=b"v", headers=tuple((text, ALL_BYTES) for text in ODD_TEXTS)),
            Record(value=b"v", headers=(("h", None), ("h", b""), ("h", b"1"), ("h", b"1"))),
            Record(
                value=b"v",
                headers=tuple((name, b"x") for name in ("KEYS", "TAGS", "UNIQ_KEY", "PSTK_ENV")),
            ),
            Record(value=b"v", headers=tuple((f"h{n}", bytes(500)) for n in range(100))),
            Record(value=b"v", timestamp_ms=0),
            Record(value=b"v", timestamp_ms=(1 << 63) - 1),
            Record(value=b"v", timestamp_ms=5, expires_at_ms=(1 << 63) - 1),
        ],
    )
    def test_every_field_comes_back_as_it_was_written(
        self, harness: EngineHarness, engine: StorageEngine, record: Record
    ) -> None:
        engine.batch_write(SHARD, [Record(value=b"before"), record, Record(value=b"after")])
        records = engine.read_by_offset(SHARD, FIRST)
        assert values(records)[::2] == [b"before", b"after"]
        back = records[1].as_record()
        stamp = harness.clock.now_ms() if record.timestamp_ms is None else record.timestamp_ms
        assert back.timestamp_ms == stamp
        assert (back.value, back.key, back.tags) == (record.value, record.key, record.tags)
        assert (back.headers, back.expires_at_ms) == (record.headers, record.expires_at_ms)

    def test_the_store_stamps_records_with_its_own_clock(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        put(engine, b"first", Record(value=b"dated", timestamp_ms=7))
        first_ms = harness.clock.now_ms()
        harness.clock.advance(5)
        put(engine, b"second")
        records = read_all(engine)
        assert [record.timestamp_ms for record in records] == [first_ms, 7, first_ms + 5_000]
        stored = [record.store_timestamp_ms for record in records]
        assert stored == [first_ms, first_ms, first_ms + 5_000]

    def test_the_stores_own_time_never_goes_back(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        put(engine, b"before")
        harness.clock.set_now_ms(harness.clock.now_ms() - 60_000)
        put(engine, b"after the clock was set back")
        before, after = read_all(engine)
        assert after.store_timestamp_ms >= before.store_timestamp_ms

    def test_the_size_of_a_shard_grows_with_its_records(self, engine: StorageEngine) -> None:
        before = engine.shard_info(SHARD).size
        put(engine, *[bytes(1_000)] * 20)
        assert engine.shard_info(SHARD).size >= before + 20_000
