"""Copies a record of a log to another position.

Only the position changes, and the record's checksum with it, by linearity: it is never computed
anew over bytes that were not verified.
"""

from __future__ import annotations

from typing import Final

from penstock.codec.format import (
    CHECKSUM_DIGITS,
    CHECKSUM_MASK,
    CHECKSUM_SIZE,
    CHECKSUM_START,
    RECORD_HEAD,
)
from penstock.codec.select import core
from penstock.errors import BadRequestError

_AT: Final = RECORD_HEAD.position_of("position")
_END: Final = _AT + 8


def relocate_record(record: bytes | memoryview, position: int) -> bytes:
    """Return the bytes of a whole, checked record as they read at `position`."""
    if len(record) < RECORD_HEAD.size:
        raise BadRequestError(
            f"{len(record)} bytes are not a record: its header alone has {RECORD_HEAD.size}"
        )
    copied = bytearray(record)
    new = position.to_bytes(8, "big", signed=True)
    trailer = len(copied) - CHECKSUM_SIZE
    digits_at = trailer + len(CHECKSUM_START)
    if copied[trailer:digits_at] == CHECKSUM_START:
        old = int.from_bytes(copied[_AT:_END], "big")
        delta = (old ^ int.from_bytes(new, "big")).to_bytes(8, "big")
        digits = copied[digits_at : digits_at + CHECKSUM_DIGITS][::-1]
        patched = core.crc_patch(int(digits), trailer - _END, delta) & CHECKSUM_MASK
        copied[digits_at : digits_at + CHECKSUM_DIGITS] = f"{patched:010d}"[::-1].encode()
    copied[_AT:_END] = new
    return bytes(copied)
