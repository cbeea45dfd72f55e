"""Frames: parts of a log on their way to another replica, each with its own checksum.

    checksum u32 · size u32 · body

The checksum is the CRC-32 of size and body.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from penstock.errors import CorruptionError

_U32: Final = struct.Struct(">I")
_HEAD_SIZE: Final = 8


def pack_frame(*parts: bytes) -> bytes:
    body = b"".join(parts)
    checked = _U32.pack(len(body)) + body
    return _U32.pack(zlib.crc32(checked)) + checked


def unpack_frames(data: bytes, shard: str) -> Iterator[tuple[int, bytes]]:
    """Yield the position and the body of each frame; raise `CorruptionError` for damaged ones."""
    position = 0
    while position < len(data):
        start = position + _HEAD_SIZE
        if start > len(data):
            raise CorruptionError(shard, position=position, reason="the head of a frame is cut")
        size: int = _U32.unpack_from(data, position + 4)[0]
        end = start + size
        if end > len(data):
            raise CorruptionError(
                shard, position=position, reason=f"a frame of {size} bytes ends after the data"
            )
        checksum: int = _U32.unpack_from(data, position)[0]
        if zlib.crc32(memoryview(data)[position + 4 : end]) != checksum:
            raise CorruptionError(shard, position=position, reason="the checksum is wrong")
        yield start, data[start:end]
        position = end
