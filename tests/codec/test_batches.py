"""Batch queues: units, inner batches of RocketMQ and of Kafka, and single records among them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.kafka_builder import castagnoli, kafka_batch
from tests.codec.record_strategies import any_bytes, any_text
from tests.codec.workbench import NOW, Workbench

from penstock.codec.format import (
    BATCH_UNIT,
    FLAG_INNER_BATCH,
    KAFKA,
    KAFKA_BATCH,
    KIND_BATCH,
    QUEUE_UNIT,
)
from penstock.codec.properties import lookup
from penstock.codec.pure.read.kafka_batch import crc32c
from penstock.codec.select import Core
from penstock.errors import BadRequestError, NotSupportedError
from penstock.record import Record

kafka_records = st.builds(
    Record,
    value=st.none() | any_bytes,
    key=st.none() | any_bytes,
    headers=st.lists(st.tuples(any_text, st.none() | any_bytes), max_size=3).map(tuple),
    timestamp_ms=st.integers(0, 1 << 41),
)


def inner_message(body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 5, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def append_kafka(bench: Workbench, records: list[Record], codec: int = 0) -> int:
    body = kafka_batch(records, codec=codec)
    return bench.appender.append_batch(
        bench.handle, body, len(records), NOW, 4, NOW - 9, None, True
    )


@given(
    batches=st.lists(st.lists(kafka_records, min_size=1, max_size=4), min_size=1, max_size=3),
    codec=st.sampled_from([0, 1]),
)
def test_kafka_batches_come_back_message_by_message(
    core: Core, batches: list[list[Record]], codec: int
) -> None:
    bench = Workbench(core, kind=KIND_BATCH, first_offset=100)
    offset = 100
    for records in batches:
        assert append_kafka(bench, records, codec) == offset
        offset += len(records)
    found = bench.records()
    assert [each.offset for each in found] == list(range(100, offset))
    assert [each.as_record() for each in found] == [each for batch in batches for each in batch]
    assert {each.leader_epoch for each in found} == {4}
    assert {each.store_timestamp_ms for each in found} == {NOW}


def test_a_kafka_batch_is_stored_with_its_place_in_the_log(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH, first_offset=70)
    append_kafka(bench, [Record(value=b"a"), Record(value=b"b")])
    raw = bench.raw(0)
    base_offset, _, epoch, *_ = KAFKA_BATCH.unpack_from(raw.body)
    assert (base_offset, epoch) == (70, 4)
    assert raw.sys_flag == FLAG_INNER_BATCH
    found = lookup(raw.properties)
    assert (found["INNER_NUM"], found["INNER_BASE"], found[KAFKA]) == ("2", "70", "1")
    assert BATCH_UNIT.unpack(bench.units) == (0, raw.size, 0, NOW, 70, 2, -1, 0)


def test_messages_of_rocketmqs_form_carry_their_own_properties(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    body = inner_message(b"one", b"KEYS\x01k1\x02TAGS\x01a\x02") + inner_message(b"", b"")
    bench.appender.append_batch(bench.handle, body, 2, NOW, 0, NOW - 5, "1,0,0,2", False)
    first, second = bench.records()
    assert (first.value, first.key, first.tags) == (b"one", b"k1", ("a",))
    assert (second.value, second.key, second.tags) == (b"", None, ())
    assert {first.timestamp_ms, second.timestamp_ms} == {NOW - 5}
    assert lookup(bench.raw(0).properties)["PSTK_PRD"] == "1,0,0,2"


def test_single_records_and_batches_share_a_queue(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    bench.append(Record(value=b"single", key=b"k", tags=("t",)))
    append_kafka(bench, [Record(value=b"x"), Record(value=b"y")])
    bench.append(Record(value=None), Record(value=b"last", tags=("t",)))
    assert [each.value for each in bench.records()] == [b"single", b"x", b"y", None, b"last"]
    assert [unit[4:6] for unit in BATCH_UNIT.iter_unpack(bench.units)] == [
        (0, 1),
        (1, 2),
        (3, 1),
        (4, 1),
    ]
    single = bench.raw(0)
    assert single.sys_flag == 0
    assert lookup(single.properties)["INNER_NUM"] == "1"
    assert [each.value for each in bench.read(tag="t")[0]] == [b"single", b"last"]
    assert [each.value for each in bench.read(key=b"k")[0]] == [b"single"]


def test_a_page_may_begin_and_end_inside_a_batch(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    append_kafka(bench, [Record(value=bytes([n])) for n in range(5)])
    append_kafka(bench, [Record(value=bytes([n])) for n in range(5, 8)])
    records, next_offset, size, damage = bench.read(2, max_records=4)
    assert damage is None
    assert [each.offset for each in records] == [2, 3, 4, 5]
    assert next_offset == 6
    assert size == sum(raw.size for raw in bench.raws())


def test_a_batch_counts_once_against_the_size_limit(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    append_kafka(bench, [Record(value=b"a"), Record(value=b"b")])
    append_kafka(bench, [Record(value=b"c")])
    first = bench.raw(0).size
    assert bench.read(max_size=1)[1:] == (2, first, None)
    assert bench.read(max_size=first)[1:] == (2, first, None)
    assert bench.read(max_size=LARGE)[1:] == (3, bench.end, None)
    assert bench.read(max_size=0)[:3] == ([], 0, 0)


LARGE = 1 << 30


def test_deleted_messages_inside_a_batch_are_skipped(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    append_kafka(bench, [Record(value=bytes([n])) for n in range(6)])
    records, next_offset, _, _ = bench.read(deleted=((1, 3), (5, 9)))
    assert [each.offset for each in records] == [0, 3, 4]
    assert next_offset == 6


def test_a_batch_says_which_header_gives_its_tags(core: Core) -> None:
    headers = (("tag", b"a"), ("region", b"eu"), ("region", b"us"), ("région", b"fr"))
    bench = Workbench(core, kind=KIND_BATCH)
    body = kafka_batch([Record(value=b"v", headers=headers)])
    for name in (None, "region", "", "région", "nothing"):
        bench.appender.append_batch(bench.handle, body, 1, NOW, 0, NOW, None, True, name)
    found, _, _, damage = bench.read()
    assert damage is None
    assert [one.tags for one in found] == [("a",), ("eu", "us"), (), ("fr",), ()]
    assert [one.offset for one in bench.read(tag="us")[0]] == [1]
    for bad in ("a\x01b", "\x02"):
        with pytest.raises(BadRequestError):
            bench.appender.append_batch(bench.handle, body, 1, NOW, 0, NOW, None, True, bad)


def test_a_compacted_kafka_batch_keeps_its_offsets(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH, first_offset=10)
    records = [Record(value=b"a", timestamp_ms=5), Record(value=b"b", timestamp_ms=3)]
    body = kafka_batch(records, deltas=[1, 3], last_delta=4)
    bench.appender.append_batch(bench.handle, body, 5, NOW, 0, 0, None, True)
    found, next_offset, _, damage = bench.read()
    assert damage is None
    assert [(each.offset, each.timestamp_ms) for each in found] == [(11, 5), (13, 3)]
    assert next_offset == 15


def test_control_batches_hold_no_messages_but_take_offsets(core: Core) -> None:
    control = kafka_batch([Record(value=b"\0\0\0\0", key=b"\0\0\0\1")], attributes=32)
    data = kafka_batch([Record(value=b"v")])
    assert core.decode_inner(control, True, 5, NOW, 0) == []
    (message,) = core.decode_inner(control + data, True, 5, NOW, 0)
    assert (message.offset, message.value) == (6, b"v")
    compacted = kafka_batch([Record(value=b"a")], deltas=[2], last_delta=9)
    first, second = core.decode_inner(compacted + data, True, 5, NOW, 0)
    assert (first.offset, second.offset) == (7, 15)


def test_log_append_time_stands_for_every_message(core: Core) -> None:
    records = [Record(value=b"a", timestamp_ms=1), Record(value=b"b", timestamp_ms=2)]
    body = kafka_batch(records, attributes=8, max_ms=77)
    assert [each.timestamp_ms for each in core.decode_inner(body, True, 0, NOW, 0)] == [77, 77]


def test_every_flipped_bit_of_a_kafka_batch_is_detected_or_outside_its_checksum(
    core: Core,
) -> None:
    body = kafka_batch([Record(value=b"value", key=b"key", headers=(("h", b"x"),))])
    expected = core.decode_inner(body, True, 0, NOW, 0)
    for bit in range(len(body) * 8):
        damaged = bytearray(body)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        outside = bit < 64 or 96 <= bit < 128  # base offset and leader epoch
        if outside:
            assert core.decode_inner(damaged, True, 0, NOW, 0) == expected
        else:
            with pytest.raises(BadRequestError):
                core.decode_inner(damaged, True, 0, NOW, 0)


@given(data=st.binary(max_size=120), kafka=st.booleans())
def test_any_bytes_are_a_batch_or_an_error(core: Core, data: bytes, kafka: bool) -> None:
    with contextlib.suppress(BadRequestError, NotSupportedError):
        core.decode_inner(data, kafka, 0, NOW, 0)


@given(content=st.binary(max_size=60), count=st.integers(0, 3), codec=st.integers(0, 7))
def test_a_batch_with_a_right_checksum_and_wrong_contents_is_an_error(
    core: Core, content: bytes, count: int, codec: int
) -> None:
    checked = struct.pack(">hiqqqhii", codec, max(count - 1, 0), 0, 0, -1, -1, -1, count) + content
    head = struct.pack(">qiiBI", 0, 9 + len(checked), -1, 2, castagnoli(checked))
    try:
        found = core.decode_inner(head + checked, True, 0, NOW, 0)
    except (BadRequestError, NotSupportedError):
        return
    assert len(found) == count


def test_a_batch_that_lies_about_its_count_is_damage(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    body = inner_message(b"one", b"")
    bench.appender.append_batch(bench.handle, body, 2, NOW, 0, NOW, None, False)
    records, next_offset, _, damage = bench.read()
    assert (records, next_offset) == ([], 0)
    assert damage is not None
    assert damage.position == 0


def test_every_damaged_batch_unit_ends_the_page_or_changes_nothing(core: Core) -> None:
    """Codes and stamps of a unit are not needed to read; everything else must agree."""
    bench = Workbench(core, kind=KIND_BATCH, first_offset=3)
    append_kafka(bench, [Record(value=b"a"), Record(value=b"b")])
    bench.append(Record(value=b"c"))
    expected = bench.records()
    for bit in range(len(bench.units) * 8):
        units = bytearray(bench.units)
        units[bit >> 3] ^= 1 << (bit & 7)
        records, next_offset, _, damage = bench.read(units=bytes(units))
        assert records == expected[: len(records)]
        assert next_offset == 3 + len(records)
        is_needed = bit // 8 % BATCH_UNIT.size < 12 or 28 <= bit // 8 % BATCH_UNIT.size < 38
        assert (len(records) < 3) == is_needed
        assert damage is None or is_needed


@pytest.mark.parametrize("count", [0, -1, 32_768])
def test_a_batch_of_an_impossible_count_is_refused(core: Core, count: int) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    with pytest.raises(BadRequestError):
        bench.appender.append_batch(bench.handle, b"", count, NOW, 0, NOW, None, False)


def test_a_simple_queue_takes_no_batch(core: Core) -> None:
    bench = Workbench(core)
    with pytest.raises(BadRequestError, match="orders_0"):
        bench.appender.append_batch(bench.handle, b"", 1, NOW, 0, NOW, None, False)
    assert bench.units == b""
    assert len(bench.units) % QUEUE_UNIT.size == 0


@pytest.mark.parametrize(("body", "epoch"), [(b"short", 0), (bytes(61), 1 << 31)])
def test_a_kafka_batch_that_cannot_be_patched_is_refused(
    core: Core, body: bytes, epoch: int
) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    with pytest.raises(BadRequestError):
        bench.appender.append_batch(bench.handle, body, 1, NOW, epoch, NOW, None, True)


def test_the_pure_twin_says_that_snappy_needs_the_native_one() -> None:
    from penstock.codec import pure

    checked = struct.pack(">hiqqqhii", 2, 0, 0, 0, -1, -1, -1, 1)
    head = struct.pack(">qiiBI", 0, 9 + len(checked), -1, 2, castagnoli(checked))
    with pytest.raises(NotSupportedError, match="needs the native extension"):
        pure.decode_inner(head + checked, True, 0, NOW, 0)


@given(data=st.binary(max_size=64))
def test_the_table_of_crc32c_agrees_with_its_definition(data: bytes) -> None:
    assert crc32c(data) == castagnoli(data)
    assert crc32c(b"123456789") == 0xE306_9283
