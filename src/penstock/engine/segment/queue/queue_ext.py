"""Reading RocketMQ's consume queue extension: filter bitmaps, and the tag codes of their units.

With `enableConsumeQueueExt`, a queue unit's tag code is not a hash but the address of a unit here.
Addresses lie below every 32-bit number, so the two cannot be mixed up:

    tag code = byte offset in consumequeue_ext/<topic>/<queue id>/ + Long.MIN_VALUE

A unit never spans files: a size of -1 says that the rest of the file is unused. Penstock writes no
such units; functions over buffers are all that is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.codec.format import QUEUE_EXT_UNIT, Damage

if TYPE_CHECKING:
    from typing_extensions import Buffer

_INT64_MIN: Final = -(1 << 63)
_ADDRESS_MAX: Final = -(1 << 31) - 1
_REST_IS_UNUSED: Final = -1


class QueueExtUnit(Struct, frozen=True):
    """What an extension unit holds. `position` is its byte offset in the extension queue."""

    position: int
    size: int
    tag_code: int
    store_timestamp_ms: int
    bitmap: bytes


def is_ext_address(tag_code: int) -> bool:
    """Say whether a queue unit's tag code is an address."""
    return tag_code <= _ADDRESS_MAX


def ext_position(tag_code: int) -> int:
    """Return the byte offset in the extension queue that a unit's tag code stands for."""
    assert is_ext_address(tag_code)
    return tag_code - _INT64_MIN


def read_ext_unit(file: Buffer, base: int, position: int) -> QueueExtUnit | Damage | None:
    """Return the unit at byte offset `position` of the extension queue, whose file at `base` is
    `file`; None when the file holds no more units from there on."""
    view = memoryview(file).cast("B")
    start = position - base
    if not 0 <= start <= len(view):
        return Damage(position, "position is outside this file")
    if len(view) - start < 2:
        return None
    size = int.from_bytes(view[start : start + 2], signed=True)
    if size in (0, _REST_IS_UNUSED):
        return None
    if not QUEUE_EXT_UNIT.size <= size <= len(view) - start:
        return Damage(position, f"extension unit of {size} bytes is impossible")
    _, tag_code, store_timestamp_ms, bitmap_size = QUEUE_EXT_UNIT.unpack_from(view, start)
    if bitmap_size != size - QUEUE_EXT_UNIT.size:
        return Damage(position, f"bitmap of {bitmap_size} bytes in a unit of {size}")
    bitmap = bytes(view[start + QUEUE_EXT_UNIT.size : start + size])
    return QueueExtUnit(position, size, tag_code, store_timestamp_ms, bitmap)
