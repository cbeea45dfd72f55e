"""Appends: rooms, limits, stamps, and the units that wait to be written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.workbench import HOST, NOW, Workbench

from penstock.codec.format import KIND_BATCH, KIND_SIMPLE, QUEUE_UNIT, tag_code
from penstock.codec.properties import lookup
from penstock.codec.select import Core
from penstock.errors import AlreadyExistsError, BadRequestError, RecordTooLargeError
from penstock.record import Record

V = Record(value=b"v")


def size_of(core: Core, *records: Record) -> int:
    bench = Workbench(core)
    bench.append(*records)
    return bench.end


def test_eight_bytes_of_a_file_are_always_left_for_the_blank_record(core: Core) -> None:
    size = size_of(core, V)
    assert Workbench(core, size=size + 8).append(V) == 0
    with pytest.raises(RecordTooLargeError) as caught:
        Workbench(core, size=size + 7).append(V)
    assert (caught.value.size, caught.value.size_max) == (size, size - 1)
    bench = Workbench(core, size=2 * size + 7)
    assert [bench.append(V), bench.append(V)] == [0, -1]
    bench.appender.finish_log()
    assert bench.log[size:] == (size + 7).to_bytes(4) + bytes.fromhex("CBD43194") + bytes(size - 1)


def test_a_full_log_takes_nothing_of_an_append(core: Core) -> None:
    bench = Workbench(core, size=3 * size_of(core, V))
    bench.append(V)
    log, index, units = bytes(bench.log), bytes(bench.indexes[0]), bench.units
    keyed = Record(value=b"v", key=b"k", tags=("t",))
    assert bench.append(keyed, keyed) == -1
    assert (bytes(bench.log), bytes(bench.indexes[0]), bench.units) == (log, index, units)
    assert bench.appender.last_store_timestamp_ms == NOW
    assert bench.append(V, now_ms=NOW + 1) == 1


def test_appends_go_on_in_the_next_file(core: Core) -> None:
    bench = Workbench(core, size=400)
    while bench.append(V) >= 0:
        pass
    count = bench.appender.next_offset(bench.handle)
    bench.appender.finish_log()
    assert bench.end == 400
    assert bench.append(V) == -1
    second = bytearray(400)
    bench.appender.attach_log(second, 400, 400)
    assert bench.append(V) == count
    assert core.check_log(second, 400, 400, 800)[1:] == (1, None)
    assert [unit[0] for unit in QUEUE_UNIT.iter_unpack(bench.units)][-1] == 400


def test_without_a_log_there_is_no_room(core: Core) -> None:
    bench = Workbench(core)
    bench.append(V)
    end = bench.end
    bench.appender.detach_log()
    assert bench.append(V) == -1
    assert bench.end == end
    assert core.Appender(HOST, HOST, 9).end == 0


def test_a_record_over_the_limit_names_its_shard_and_sizes(core: Core) -> None:
    appender = core.Appender(HOST, HOST, 200)
    appender.attach_log(bytearray(4096), 0, 0)
    handle = appender.add_queue("orders", 3, KIND_SIMPLE, 0, 0)
    big = Record(value=bytes(500))
    for records in ([big], [V, big]):
        with pytest.raises(RecordTooLargeError, match="record of shard 'orders_3'") as caught:
            appender.append_many(handle, records, NOW, 0, None)
        assert caught.value.size_max == 200
        assert caught.value.size > 500
    assert appender.end == 0
    assert appender.next_offset(handle) == 0


def test_a_group_must_fit_in_one_file(core: Core) -> None:
    bench = Workbench(core, size=1000)
    with pytest.raises(RecordTooLargeError, match="group of shard 'orders_0'") as caught:
        bench.append(*[Record(value=bytes(200))] * 4)
    assert caught.value.size_max == 992
    assert bench.end == 0


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"value": "text"}, "value"),
        ({"value": bytearray(b"v")}, "value"),
        ({"value": b"", "key": "k"}, "key"),
        ({"value": b"", "tags": ["t"]}, "tags"),
        ({"value": b"", "tags": ("t", 1)}, "tags"),
        ({"value": b"", "tags": "t"}, "tags"),
        ({"value": b"", "headers": [("a", b"")]}, "headers"),
        ({"value": b"", "headers": (("a", "b"),)}, "headers"),
        ({"value": b"", "headers": ((b"a", b"b"),)}, "headers"),
        ({"value": b"", "headers": (("a",),)}, "headers"),
        ({"value": b"", "headers": ("ab",)}, "headers"),
        ({"value": b"", "timestamp_ms": 1.5}, "timestamp_ms"),
        ({"value": b"", "timestamp_ms": "1"}, "timestamp_ms"),
        ({"value": b"", "timestamp_ms": 1 << 63}, "timestamp_ms"),
        ({"value": b"", "expires_at_ms": -(1 << 63) - 1}, "expires_at_ms"),
    ],
)
def test_a_wrong_type_is_refused_by_the_name_of_its_field(
    core: Core, record: dict[str, object], field: str
) -> None:
    bench = Workbench(core)
    with pytest.raises(BadRequestError, match=field):
        bench.append(Record(**record))  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(BadRequestError, match=field):
        bench.append(V, Record(**record))  # type: ignore[arg-type]  # that is what is tested
    assert (bench.end, bench.units) == (0, b"")


def test_something_else_than_a_record_is_refused(core: Core) -> None:
    bench = Workbench(core)
    with pytest.raises(BadRequestError):
        bench.append("record")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(BadRequestError):
        bench.append()


@pytest.mark.parametrize("producer", ["", "a\x01b", "\ud800"])
def test_a_producer_that_no_property_can_hold_is_refused(core: Core, producer: str) -> None:
    bench = Workbench(core)
    with pytest.raises(BadRequestError, match="producer"):
        bench.appender.append_many(bench.handle, [V], NOW, 0, producer)


def test_a_producer_stands_in_the_first_record_only(core: Core) -> None:
    bench = Workbench(core)
    bench.appender.append_many(bench.handle, [V, V], NOW, 0, "9,1,0,2")
    bench.appender.append_many(bench.handle, [V], NOW, 0, "9,1,2,1")
    found = [lookup(raw.properties).get("PSTK_PRD") for raw in bench.raws()]
    assert found == ["9,1,0,2", None, "9,1,2,1"]
    names = [name for name, _ in bench.raw(0).properties]
    assert names == ["PSTK_PRD", "PSTK_GRP", "__CRC32#"]


def test_a_transaction_stands_in_every_record(core: Core) -> None:
    bench = Workbench(core)
    bench.appender.append_many(bench.handle, [V, V], NOW, 0, "9,1,0,2", "9")
    bench.appender.append_many(bench.handle, [V], NOW, 0, "9,1,2,1")
    found = [lookup(raw.properties).get("PSTK_TXN") for raw in bench.raws()]
    assert found == ["9", "9", None]
    names = [name for name, _ in bench.raw(0).properties]
    assert names == ["PSTK_TXN", "PSTK_PRD", "PSTK_GRP", "__CRC32#"]


def test_properties_stand_in_one_order(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    plain = Record(
        value=b"v", key=b"k", tags=("t",), headers=(("b", b"1"), ("a", b"2")), expires_at_ms=NOW
    )
    envelope = Record(value=None, key=b"k", tags=("t",), expires_at_ms=NOW)
    bench.appender.append_many(bench.handle, [plain, V], NOW, 0, "9,1,0,2")
    bench.appender.append_many(bench.handle, [envelope], NOW, 0, None)
    first, _, third = (" ".join(name for name, _ in raw.properties) for raw in bench.raws())
    assert first == "KEYS TAGS b a PSTK_EXP INNER_NUM INNER_BASE PSTK_PRD PSTK_GRP __CRC32#"
    assert third == "KEYS TAGS PSTK_ENV PSTK_EXP INNER_NUM INNER_BASE __CRC32#"


def test_store_timestamps_never_run_backwards(core: Core) -> None:
    bench = Workbench(core)
    bench.append(V, now_ms=NOW)
    bench.append(V, now_ms=NOW - 1000)
    bench.appender.last_store_timestamp_ms = NOW + 50
    bench.append(V, now_ms=NOW + 20)
    bench.append(V, now_ms=NOW + 60)
    raws = bench.raws()
    expected = [NOW, NOW, NOW + 50, NOW + 60]
    assert [raw.store_timestamp_ms for raw in raws] == expected
    assert [raw.born_timestamp_ms for raw in raws] == expected
    assert bench.appender.last_store_timestamp_ms == NOW + 60


def test_a_negative_now_reads_the_clock(core: Core) -> None:
    bench = Workbench(core)
    bench.append(V, now_ms=-1)
    bench.append(Record(value=b"v", timestamp_ms=5), now_ms=-1)
    first, second = bench.raws()
    assert first.store_timestamp_ms > 1_600_000_000_000
    assert first.born_timestamp_ms == first.store_timestamp_ms
    assert second.born_timestamp_ms == 5


@pytest.mark.parametrize(("topic", "version"), [("t" * 127, 1), ("t" * 128, 2), ("т" * 64, 2)])
def test_long_topics_take_the_second_version(core: Core, topic: str, version: int) -> None:
    bench = Workbench(core, topic=topic)
    bench.append(V)
    assert (bench.raw(0).version, bench.raw(0).topic) == (version, topic)
    assert bench.records()[0].value == b"v"


def test_a_topic_beyond_its_limit_is_refused(core: Core) -> None:
    appender = core.Appender(HOST, HOST, 1 << 20)
    for topic in ("", "t" * 32_768):
        with pytest.raises(BadRequestError):
            appender.add_queue(topic, 0, KIND_SIMPLE, 0, 0)


# ------------------------------------------------------------------------------------- units


def test_units_wait_until_they_are_dropped(core: Core) -> None:
    bench = Workbench(core, first_offset=10)
    appender, handle = bench.appender, bench.handle
    assert appender.peek_units(handle) == (10, b"")
    assert appender.held_units(handle) == (10, 0)
    assert appender.dirty_queues() == []
    for n in range(5):
        bench.append(Record(value=b"v", tags=(f"t{n}",)))
    codes = [unit[2] for unit in QUEUE_UNIT.iter_unpack(bench.units)]
    assert codes == [tag_code(f"t{n}") for n in range(5)]
    assert appender.dirty_queues() == [handle]
    assert appender.held_units(handle) == (10, 5)
    whole = bench.units
    appender.drop_units(handle, 12)
    assert appender.peek_units(handle) == (12, whole[40:])
    appender.drop_units(handle, 11)
    assert appender.held_units(handle) == (12, 3)
    assert appender.read_units(handle, 11, 1) == b""
    assert appender.read_units(handle, 13, 1) == whole[60:80]
    assert appender.read_units(handle, 13, 99) == whole[60:]
    assert appender.read_units(handle, 15, 1) == b""
    assert appender.read_units(handle, 99, 1) == b""
    assert appender.read_units(handle, 13, 0) == b""
    appender.drop_units(handle, 99)
    assert appender.held_units(handle) == (15, 0)
    assert appender.dirty_queues() == []
    assert (appender.next_offset(handle), appender.next_unit(handle)) == (15, 15)


def test_a_cut_queue_forgets_what_lies_behind_the_cut(core: Core) -> None:
    bench = Workbench(core)
    for _ in range(5):
        bench.append(V)
    whole = bench.units
    appender, handle = bench.appender, bench.handle
    appender.drop_units(handle, 2)
    appender.truncate_queue(handle, 4, 4)
    assert appender.peek_units(handle) == (2, whole[40:80])
    appender.truncate_queue(handle, 1, 1)
    assert appender.peek_units(handle) == (1, b"")
    assert bench.append(V) == 1
    for offset, unit in ((9, 9), (9, 1), (1, 9), (0, -1), (-1, 0)):
        with pytest.raises(BadRequestError):
            appender.truncate_queue(handle, offset, unit)


def test_queues_are_known_by_handles_that_are_never_used_again(core: Core) -> None:
    appender = core.Appender(HOST, HOST, 1 << 20)
    first = appender.add_queue("a", 0, KIND_SIMPLE, 5, 5)
    second = appender.add_queue("a", 1, KIND_BATCH, 9, 2)
    assert appender.queues() == [(0, "a", 0, KIND_SIMPLE, 5, 5), (1, "a", 1, KIND_BATCH, 9, 2)]
    with pytest.raises(AlreadyExistsError, match="a_1"):
        appender.add_queue("a", 1, KIND_SIMPLE, 0, 0)
    appender.remove_queue(first)
    third = appender.add_queue("a", 0, KIND_SIMPLE, 7, 7)
    assert (first, second, third) == (0, 1, 2)
    assert memoryview(appender.next_offsets()).cast("q").tolist() == [0, 9, 7]
    for handle in (first, 3, -1):
        with pytest.raises(BadRequestError):
            appender.next_offset(handle)
        with pytest.raises(BadRequestError):
            appender.append(handle, V, NOW, 0)
        with pytest.raises(BadRequestError):
            appender.remove_queue(handle)


@pytest.mark.parametrize(
    ("kind", "offset", "unit"), [(2, 0, 0), (-1, 0, 0), (0, -1, 0), (0, 0, -1)]
)
def test_a_queue_that_makes_no_sense_is_refused(
    core: Core, kind: int, offset: int, unit: int
) -> None:
    with pytest.raises(BadRequestError):
        core.Appender(HOST, HOST, 1 << 20).add_queue("a", 0, kind, offset, unit)


def test_a_log_buffer_must_be_writable_and_hold_its_start(core: Core) -> None:
    appender = core.Appender(HOST, HOST, 1 << 20)
    with pytest.raises(BadRequestError):
        appender.attach_log(bytes(100), 0, 0)
    for start in (99, 201):
        with pytest.raises(BadRequestError):
            appender.attach_log(bytearray(100), 100, start)
    appender.attach_log(bytearray(100), 100, 200)
    assert appender.end == 200


@given(epochs=st.lists(st.sampled_from([0, 1, (1 << 63) - 1]), min_size=1, max_size=4))
def test_every_record_carries_its_leader_epoch(core: Core, epochs: list[int]) -> None:
    bench = Workbench(core)
    for epoch in epochs:
        bench.append(V, epoch=epoch)
    assert [record.leader_epoch for record in bench.records()] == epochs
