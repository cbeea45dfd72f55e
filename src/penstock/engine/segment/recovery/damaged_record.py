"""What is still known of a damaged record: its shard, its offset, and how many offsets it has.

Three sources, in this order:

  * one wrong bit among the fields that matter: the checksum shows which bit, and the record is
    known exactly
  * the size field alone: the next whole record begins where this one ended
  * of a batch, the number of messages: its body when the checksum of the body is right, else the
    properties when they name the record's own offset

None stands for a number that no source gives. The caller decides what is safe then.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Final

from penstock.codec.format import (
    HOLE,
    HOLE_MARK,
    KAFKA_BATCH,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    Damage,
    RawRecord,
)
from penstock.codec.properties import inner_range, lookup
from penstock.codec.raw_message import body_of
from penstock.codec.select import core
from penstock.engine.segment.read.batch_validation import offsets_in_body
from penstock.errors import BadRequestError, NotSupportedError

_CRC_MASK: Final = 0x7FFF_FFFF
_MENDED_SIZE_MAX: Final = 64 << 10
"""Of larger records the checksum takes too long to be computed for every bit."""
_MENDS_MAX: Final = 64
"""A log with more damaged records than this has lost whole pages: no single bit mends them."""
_HEAD_SIZE: Final = 92
_TAIL_SIZE_MAX: Final = 1 << 10
"""Bits are tried in the first bytes (hosts, offsets, sizes), and at the end after the body (topic,
properties)."""


class DamagedRecords:
    """Reads the damaged records of one log; spends a bounded time on them."""

    def __init__(self) -> None:
        self._mends_left = _MENDS_MAX

    def read(self, buffer: memoryview, base: int, position: int, stop: int) -> RawRecord | Damage:
        """Return what the record at `position` was, as far as that is known; the next whole
        record, or the end of what was written, is at `stop`."""
        saved = saved_in_hole(buffer, base, position)
        if saved is not None:
            return saved
        raw = core.decode_raw(buffer, base, position, False)
        size = stop - position if isinstance(raw, Damage) else raw.size
        is_inside = position - base + size <= len(buffer)
        if not (is_inside and self._mends_left and RECORD_SIZE_MIN <= size <= _MENDED_SIZE_MAX):
            return raw
        record = bytes(buffer[position - base : position - base + size])
        if isinstance(raw, Damage):
            raw = _with_size(record, position) or raw
        if isinstance(raw, RawRecord) and not _has_whole_body(raw):
            return raw  # the damage is in the body, not in a field
        self._mends_left -= 1
        tail = _TAIL_SIZE_MAX if isinstance(raw, Damage) else size - _HEAD_SIZE - len(raw.body)
        return _mend(record, position, tail) or raw


def _mend(record: bytes, position: int, tail: int) -> RawRecord | None:
    """Return the record with the one bit put right that makes its checksum right, or None. Bits
    are tried in its head and in its last `tail` bytes."""
    size = len(record)
    mended = bytearray(record)
    head = min(size, _HEAD_SIZE)
    for index in (*range(head), *range(max(head, size - min(tail, _TAIL_SIZE_MAX)), size)):
        for bit in range(8):
            mended[index] ^= 1 << bit
            decoded = core.decode_raw(mended, position, position, True, True)
            if isinstance(decoded, RawRecord) and decoded.size == size:
                return decoded
            mended[index] ^= 1 << bit
    return None


def _with_size(record: bytes, position: int) -> RawRecord | None:
    """Return the record as its fields say when all that is wrong is in its first eight bytes."""
    for magic in (MAGIC_V1, MAGIC_V2):
        fixed = len(record).to_bytes(4, "big") + magic.to_bytes(4, "big") + record[8:]
        decoded = core.decode_raw(fixed, position, position, False)
        if isinstance(decoded, RawRecord):
            return decoded
    return None


def _has_whole_body(raw: RawRecord) -> bool:
    return zlib.crc32(raw.body) & _CRC_MASK == raw.body_crc


def saved_in_hole(buffer: memoryview, base: int, position: int) -> RawRecord | None:
    """Return what is left of the record that a hole in the log begins with, or None."""
    index = position - base
    if index + HOLE.size > len(buffer):
        return None
    _, magic, mark, size, checksum = HOLE.unpack_from(buffer, index)
    saved = bytes(buffer[index + HOLE.size : index + HOLE.size + size])
    if magic != MAGIC_BLANK or mark != HOLE_MARK or zlib.crc32(saved) != checksum:
        return None
    return torn_record(saved, position, len(buffer) - index)


def torn_record(left: bytes, position: int, size_max: int) -> RawRecord | None:
    """Return the record at `position` of which only the first bytes are left, if they tell enough
    of it."""
    size = int.from_bytes(left[:4], "big")
    if not RECORD_SIZE_MIN <= size <= size_max or len(left) > size:
        return None
    decoded = core.decode_raw(left.ljust(size, b"\0"), position, position, False)
    return decoded if isinstance(decoded, RawRecord) and decoded.position == position else None


def offsets_of_batch(raw: RawRecord) -> int | None:
    """Return how many offsets a damaged batch has; None when that is unknown."""
    if _has_whole_body(raw):
        count = _count_in_body(raw)
        if count is not None:
            return count
    inner = inner_range(lookup(raw.properties))
    return inner[1] if inner is not None and inner[0] == raw.queue_offset else None


def _count_in_body(raw: RawRecord) -> int | None:
    with suppress(BadRequestError, NotSupportedError, ValueError):
        body = memoryview(body_of(raw))
        if len(body) >= KAFKA_BATCH.size:
            with suppress(BadRequestError):
                return offsets_in_body(body, kafka=True)
        return offsets_in_body(body, kafka=False)
    return None
