"""ConsumeQueueExt: units of RocketMQ's filter bitmaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.codec.workbench import NOW

from penstock.codec.format import QUEUE_EXT_UNIT, Damage
from penstock.engine.segment.queue.queue_ext import (
    QueueExtUnit,
    ext_position,
    is_ext_address,
    read_ext_unit,
)

INT64_MIN = -(1 << 63)


def unit(tag_code: int, bitmap: bytes) -> bytes:
    return QUEUE_EXT_UNIT.pack(20 + len(bitmap), tag_code, NOW, len(bitmap)) + bitmap


def test_units_follow_each_other_until_the_file_says_no_more() -> None:
    data = unit(7, b"\x01\x02") + unit(-9, b"")
    for rest in (b"\xff\xff" + bytes(40), bytes(40), b"", b"\0"):
        file = data + rest
        assert read_ext_unit(file, 100, 100) == QueueExtUnit(100, 22, 7, NOW, b"\x01\x02")
        assert read_ext_unit(file, 100, 122) == QueueExtUnit(122, 20, -9, NOW, b"")
        assert read_ext_unit(file, 100, 142) is None


def test_a_unit_is_read_by_the_address_in_a_queue_unit() -> None:
    data = unit(7, b"\x01\x02") + unit(-9, b"abc")
    code = INT64_MIN + 122
    assert is_ext_address(code)
    assert read_ext_unit(data, 100, ext_position(code)) == QueueExtUnit(122, 23, -9, NOW, b"abc")


def test_hashes_are_no_addresses() -> None:
    assert not is_ext_address(-(1 << 31))
    assert not is_ext_address(0)
    assert is_ext_address(-(1 << 31) - 1)
    assert is_ext_address(INT64_MIN)


def test_what_is_no_unit_is_damage() -> None:
    whole = unit(7, b"\x01\x02")
    assert isinstance(read_ext_unit(whole[:-1], 0, 0), Damage)
    assert isinstance(read_ext_unit(b"\x00\x05" + bytes(30), 0, 0), Damage)
    assert isinstance(read_ext_unit(whole[:18] + b"\x00\x03" + whole[20:], 0, 0), Damage)
    assert isinstance(read_ext_unit(whole, 100, 99), Damage)
    assert isinstance(read_ext_unit(whole, 100, 500), Damage)


@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_unit_damage_or_the_end(data: bytes) -> None:
    unit = read_ext_unit(data, 0, 0)
    assert unit is None or isinstance(unit, Damage) or unit.size <= len(data)
