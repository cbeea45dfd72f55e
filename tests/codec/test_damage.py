"""Every flipped bit and every cut of a small log: detected, or proved harmless. Never served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.codec.test_replay import PLAIN
from tests.codec.workbench import HOST_IPV6, NOW, Workbench

from penstock.codec.format import (
    CHECKSUM_SIZE,
    KIND_SIMPLE,
    MAGIC_V1,
    QUEUE_UNIT,
    Damage,
    RawRecord,
)
from penstock.codec.select import Core
from penstock.record import Record

RECORDS = (
    Record(value=b"body", key=b"key-1", tags=("TagA",), headers=(("region", b"eu"),)),
    Record(value=None, key=b"\xff", tags=("a", "b")),
    Record(value=b"", timestamp_ms=5, expires_at_ms=NOW + 1),
)


def written(core: Core) -> tuple[Workbench, list[int]]:
    """Return a finished log of single records and a group, and where each record ends."""
    bench = Workbench(core, size=1200, base=4096)
    for record in RECORDS:
        bench.append(record)
    bench.append(*RECORDS[:2])
    ends = [raw.position + raw.size for raw in bench.raws()]
    bench.appender.finish_log()
    return bench, ends


def test_every_flipped_bit_of_a_log_is_detected(core: Core) -> None:
    bench, ends = written(core)
    starts = [bench.base, *ends]
    expected = bench.records()
    file_end = bench.base + len(bench.log)
    for bit in range((ends[-1] + 8 - bench.base) * 8):
        bench.log[bit >> 3] ^= 1 << (bit & 7)
        hit = sum(end <= bench.base + (bit >> 3) for end in ends)
        stop, records, damage = core.check_log(bench.log, bench.base, bench.base, file_end)
        assert damage is not None, bit
        assert (stop, records, damage.position) == (starts[hit], hit, starts[hit]), bit
        page, next_offset, _, page_damage = bench.read()
        assert page == expected[:hit]
        assert next_offset == hit
        assert (page_damage is None) == (hit == len(ends))
        bench.log[bit >> 3] ^= 1 << (bit & 7)
    assert bench.records() == expected


def test_bytes_behind_the_blank_record_mean_nothing(core: Core) -> None:
    bench, ends = written(core)
    file_end = bench.base + len(bench.log)
    for index in range(ends[-1] + 8 - bench.base, len(bench.log)):
        bench.log[index] = 0xFF
    stop = core.check_log(bench.log, bench.base, bench.base, file_end)
    assert stop == (file_end, len(ends), None)


def test_every_cut_keeps_exactly_the_whole_records(core: Core) -> None:
    """A cut is zero bytes: what a file system shows where a page was never written."""
    bench, ends = written(core)
    expected = bench.records()
    file_end = bench.base + len(bench.log)
    for cut in range(bench.base, ends[-1] + 1):
        log = bytearray(bench.log)
        log[cut - bench.base :] = bytes(file_end - cut)
        whole = sum(end <= cut for end in ends)
        start = [bench.base, *ends][whole]
        stop, records, damage = core.check_log(log, bench.base, bench.base, file_end)
        assert (stop, records) == (start, whole), cut
        assert (damage is None) == (not any(log[start - bench.base :][:8])), cut
        bench_log, bench.log = bench.log, log
        assert bench.read()[0] == expected[:whole], cut
        bench.log = bench_log


def test_every_short_file_ends_before_its_cut_record(core: Core) -> None:
    bench, ends = written(core)
    for size in range(ends[-1] - bench.base):
        whole = sum(end - bench.base <= size for end in ends)
        log = bytes(bench.log[:size])
        stop, records, damage = core.check_log(log, bench.base, bench.base, bench.base + size)
        assert (stop, records) == ([bench.base, *ends][whole], whole)
        assert (damage is None) == (stop == bench.base + size)


def test_every_lost_page_in_the_middle_of_a_record_is_detected(core: Core) -> None:
    """Pages are small here; zeros from any page border to any later one."""
    bench, ends = written(core)
    page = 32
    for start in range(0, ends[0] - bench.base, page):
        for end in range(start + page, ends[1] - bench.base + page, page):
            log = bytearray(bench.log)
            log[start:end] = bytes(end - start)
            found = core.decode_raw(log, bench.base, bench.base, True)
            assert isinstance(found, Damage), (start, end)


def test_every_flipped_bit_of_a_unit_ends_the_page_or_changes_nothing(core: Core) -> None:
    bench, _ = written(core)
    expected = bench.records()
    units = bench.units
    for bit in range(len(units) * 8):
        damaged = bytearray(units)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        page, next_offset, _, damage = bench.read(units=bytes(damaged))
        unit, at = divmod(bit >> 3, QUEUE_UNIT.size)
        is_code = at >= 12
        assert page == (expected if is_code else expected[:unit]), bit
        assert next_offset == len(page)
        assert damage is None or not is_code


def test_a_unit_of_another_queue_is_never_served(core: Core) -> None:
    bench, _ = written(core)
    other = bench.appender.add_queue("others", 0, KIND_SIMPLE, 0, 0)
    bench.appender.detach_log()
    fresh = bytearray(512)
    bench.appender.attach_log(fresh, 8192, 8192)
    bench.appender.append(other, Record(value=b"secret"), NOW, 0)
    units = bench.appender.peek_units(other)[1]
    for topic, queue_id in (("orders", 0), ("others", 1)):
        page = core.read_records(
            fresh, 8192, units, 0, topic, queue_id, 9, 999, (), NOW, None, None
        )
        assert page[0] == []
        assert page[3] is not None


def test_a_unit_of_another_offset_is_never_served(core: Core) -> None:
    bench, _ = written(core)
    page, next_offset, _, damage = bench.read(1, units=bench.units[: QUEUE_UNIT.size])
    assert (page, next_offset) == ([], 1)
    assert damage is not None


def test_reading_goes_on_behind_damage(core: Core) -> None:
    bench, ends = written(core)
    starts = [bench.base, *ends[:-1]]
    file_end = bench.base + len(bench.log)
    for n, start in enumerate(starts[:-1]):
        log = bytearray(bench.log)
        log[start - bench.base + 50] ^= 0x10
        assert core.find_record(log, bench.base, start, file_end) == starts[n + 1]
    assert core.find_record(bench.log, bench.base, bench.base, file_end) == bench.base
    assert core.find_record(bench.log, bench.base, bench.base + 1, file_end) == starts[1]
    assert core.find_record(bench.log, bench.base, starts[-1] + 1, file_end) == -1
    assert core.find_record(bench.log, bench.base, starts[-1], ends[-1] - 1) == -1
    assert core.find_record(bench.log, bench.base, starts[-1], ends[-1]) == starts[-1]


def test_a_record_is_found_across_a_border_of_the_search(core: Core) -> None:
    bench = Workbench(core, size=(1 << 20) + 4096)
    bench.append(Record(value=b"first"))
    raw = bench.raw(0)
    for position in range((1 << 20) - 16, (1 << 20) + 4):
        log = bytearray(len(bench.log))
        moved = core.encode_raw(
            RawRecord(
                topic=raw.topic,
                queue_id=0,
                queue_offset=0,
                position=position,
                size=0,
                version=1,
                flag=0,
                sys_flag=0,
                born_timestamp_ms=0,
                born_host=raw.born_host,
                store_timestamp_ms=0,
                store_host=raw.store_host,
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=b"",
                body_crc=0,
                properties=(),
                raw_properties=b"",
            ),
            True,
        )
        log[position : position + len(moved)] = moved
        assert core.find_record(log, 0, 0, len(log)) == position


def test_a_record_in_the_wrong_place_is_damage(core: Core) -> None:
    bench, _ = written(core)
    found = core.decode_raw(bench.log, 0, 0, True)
    assert isinstance(found, Damage)
    unchecked = core.decode_raw(bench.log, 0, 0, False)
    assert isinstance(unchecked, RawRecord)
    assert unchecked.position == bench.base


@pytest.mark.parametrize("position", [-1, 4095, 4096 + 1193, 4096 + 1200, 4096 + 1201, 1 << 62])
def test_a_position_without_a_record_is_damage(core: Core, position: int) -> None:
    bench, _ = written(core)
    found = core.decode_raw(bench.log, bench.base, position, True)
    assert isinstance(found, Damage)
    assert found.position == position


def test_a_blank_record_is_no_record_and_must_fill_the_file(core: Core) -> None:
    bench, ends = written(core)
    assert isinstance(core.decode_raw(bench.log, bench.base, ends[-1], True), Damage)
    longer = bytes(bench.log) + b"\0"
    stop, _, damage = core.check_log(longer, bench.base, bench.base, bench.base + len(longer))
    assert stop == ends[-1]
    assert damage is not None


def test_a_record_that_passes_the_end_is_damage(core: Core) -> None:
    bench, ends = written(core)
    for end in range(bench.base, ends[1] + 1):
        stop, records, damage = core.check_log(bench.log, bench.base, bench.base, end)
        whole = sum(each <= end for each in ends)
        assert (stop, records) == ([bench.base, *ends][whole], whole)
        assert (damage is None) == (stop == end)


@given(data=st.binary(max_size=200), magic=st.booleans())
def test_any_bytes_are_a_record_or_damage(core: Core, data: bytes, magic: bool) -> None:
    log = bytearray(data)
    if magic and len(log) >= 8:
        log[:8] = len(log).to_bytes(4) + MAGIC_V1.to_bytes(4)
    found = core.decode_raw(log, 0, 0, False)
    assert isinstance(found, Damage | RawRecord)
    core.check_log(log, 0, 0, len(log))
    core.find_record(log, 0, 0, len(log))


@given(
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=5),
    ipv6=st.booleans(),
)
def test_changed_bytes_never_make_another_record(
    core: Core, edits: list[tuple[int, int]], ipv6: bool
) -> None:
    hosts = (HOST_IPV6, HOST_IPV6) if ipv6 else (bytes(8), bytes(8))
    bench = Workbench(core, size=600, hosts=hosts)
    bench.append(RECORDS[0])
    whole = core.decode_raw(bench.log, 0, 0, True)
    for at, byte in edits:
        bench.log[at] = byte
    found = core.decode_raw(bench.log, 0, 0, True)
    assert isinstance(found, Damage) or found == whole


@pytest.mark.parametrize("ending", [b"deviceId\x011234567890\x02", b"a\x01" + b"0" * 18])
def test_properties_that_only_look_a_little_like_a_checksum_are_none(
    core: Core, ending: bytes
) -> None:
    name, _, value = ending.decode().rstrip("\x02").partition("\x01")
    data = core.encode_raw(replace(PLAIN, properties=((name, value),)), False)
    assert isinstance(core.decode_raw(data, 0, 0, True), RawRecord)


def test_a_checksum_whose_name_is_hit_does_not_pass_for_none(core: Core) -> None:
    bench = Workbench(core)
    bench.append(RECORDS[0])
    end = bench.raw(0).size
    for at in range(end - CHECKSUM_SIZE, end):
        for byte in range(256):
            before, bench.log[at] = bench.log[at], byte
            is_same = before == byte
            assert isinstance(core.decode_raw(bench.log, 0, 0, True), RawRecord) == is_same
            bench.log[at] = before
