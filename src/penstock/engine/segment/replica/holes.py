"""A hole in a range of records that one replica gives to another: offsets without a record.

    size (4) · "HOLE" · first offset (8) · offset after the last (8) · CRC-32 of all before (4)
    size (4) · "HOLE" · first offset (8) · offset after the last (8) · epoch (8) · CRC-32 (4)

Retention and compaction leave no holes: deleted records stay in the log until everything before
them is deleted, too. A hole is what is left of records that were damaged on every replica. It
travels in place of a record, so that all replicas have the same offsets.

The second form is for a hole whose first record began a leader epoch. Without it a follower would
count the hole to the epoch before, and its leader would have it cut there again and again.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

_HOLE: Final = struct.Struct(">i4sqq")
_EPOCH: Final = struct.Struct(">q")
_CHECKSUM: Final = struct.Struct(">I")
_MAGIC: Final = b"HOLE"
_SIZE: Final = _HOLE.size + _CHECKSUM.size
_SIZE_WITH_EPOCH: Final = _SIZE + _EPOCH.size


class Hole(NamedTuple):
    first: int
    end: int
    epoch: int | None = None
    """The leader epoch that begins at `first`; None: that of the record before goes on."""


def encode_hole(hole: Hole) -> bytes:
    size = _SIZE if hole.epoch is None else _SIZE_WITH_EPOCH
    data = _HOLE.pack(size, _MAGIC, hole.first, hole.end)
    if hole.epoch is not None:
        data += _EPOCH.pack(hole.epoch)
    return data + _CHECKSUM.pack(zlib.crc32(data))


def decode_hole(data: bytes) -> Hole | None:
    """Return the hole, or None for records. Raise ValueError for a damaged hole."""
    if len(data) not in {_SIZE, _SIZE_WITH_EPOCH} or data[4:8] != _MAGIC:
        return None
    size, _, first, end = _HOLE.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
    epoch = _EPOCH.unpack_from(data, _HOLE.size)[0] if len(data) == _SIZE_WITH_EPOCH else None
    is_whole = zlib.crc32(data[: -_CHECKSUM.size]) == checksum and size == len(data)
    if not is_whole or not 0 <= first < end or (epoch is not None and epoch < 0):
        raise ValueError("the checksum of a hole is wrong")
    return Hole(first, end, epoch)
