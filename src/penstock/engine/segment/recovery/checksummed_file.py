"""The frame of Penstock's own small files: what is read is what was written, or it is refused.

    ┌─────────────┬──────┬──────────┐
    │ header 24 B │ body │ checksum │
    └─────────────┴──────┴──────────┘

Every bit and every cut of such a file is covered: the checksum by itself, the size by the size of
the file, everything else by the checksum. Files are replaced as a whole, never changed in place.

Every version of every kind of file keeps the magic first, the version after it and the checksum
last, so that an older release can tell a newer file from a damaged one.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from penstock.errors import CorruptionError, NotSupportedError
from penstock.platform.disk import Disk
from penstock.platform.layout import Field, Layout

FRAME_HEADER: Final = Layout(
    "sidecar file header",
    Field("magic", "8 bytes", "the kind of file"),
    Field("version", "u32", "of this kind of file"),
    Field("count", "u32", "entries in the body"),
    Field("body_size", "u64", "bytes between this header and the checksum"),
    size=24,
)
FRAME_CHECKSUM: Final = Layout(
    "sidecar file checksum",
    Field("checksum", "u32", "CRC-32 of every byte before it"),
    size=4,
)

_FRAME_SIZE: Final = FRAME_HEADER.size + FRAME_CHECKSUM.size


class Kind(NamedTuple):
    """A kind of sidecar file, and the version that this release writes."""

    magic: bytes
    version: int


def frame(kind: Kind, count: int, body: bytes) -> bytes:
    """Return the whole file."""
    header = FRAME_HEADER.pack(kind.magic, kind.version, count, len(body))
    checksum = zlib.crc32(body, zlib.crc32(header))
    return b"".join((header, body, FRAME_CHECKSUM.pack(checksum)))


def unframe(kind: Kind, path: str, data: bytes) -> tuple[int, memoryview]:
    """Return the count and the body of a file that was read whole.

    Raises CorruptionError, or NotSupportedError when an undamaged file has a newer version.
    """
    if len(data) < _FRAME_SIZE:
        raise CorruptionError(path, position=len(data), reason="cut short")
    magic, version, count, body_size = FRAME_HEADER.unpack_from(data)
    if magic != kind.magic:
        reason = f"magic is {magic!r}, expected {kind.magic!r}"
        raise CorruptionError(path, position=0, reason=reason)
    end = len(data) - FRAME_CHECKSUM.size
    view = memoryview(data)
    (checksum,) = FRAME_CHECKSUM.unpack_from(data, end)
    if zlib.crc32(view[:end]) != checksum:
        raise CorruptionError(path, position=end, reason="checksum does not match")
    if version != kind.version:
        raise NotSupportedError(f"{path}: version {version} needs a newer release of Penstock")
    if body_size != end - FRAME_HEADER.size:
        position = FRAME_HEADER.position_of("body_size")
        raise CorruptionError(path, position=position, reason="size does not match")
    return count, view[FRAME_HEADER.size : end]


def read_whole(disk: Disk, path: str) -> bytes | None:
    """Return the bytes of a file, or None when there is none."""
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
