"""A hole in a range of records that one replica gives to another: offsets without a record.

    size (4) · "HOLE" · first offset (8) · offset after the last (8) · CRC-32 of all before (4)

Retention and compaction leave no holes: deleted records stay in the log until everything before
them is deleted, too. A hole is what is left of records that were damaged on every replica. It
travels in place of a record, so that all replicas have the same offsets.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

_HOLE: Final = struct.Struct(">i4sqq")
_CHECKSUM: Final = struct.Struct(">I")
_MAGIC: Final = b"HOLE"
_SIZE: Final = _HOLE.size + _CHECKSUM.size


def encode_hole(first: int, end: int) -> bytes:
    head = _HOLE.pack(_SIZE, _MAGIC, first, end)
    return head + _CHECKSUM.pack(zlib.crc32(head))


def decode_hole(data: bytes) -> tuple[int, int] | None:
    """Return the offsets [first, end) of a hole; None for records. Raise ValueError for a damaged
    hole."""
    if len(data) != _SIZE or data[4:8] != _MAGIC:
        return None
    _, _, first, end = _HOLE.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HOLE.size)
    if zlib.crc32(data[: _HOLE.size]) != checksum or not 0 <= first < end:
        raise ValueError("the checksum of a hole is wrong")
    return first, end
