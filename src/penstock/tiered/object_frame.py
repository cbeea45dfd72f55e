"""The frame of the objects that a tier replaces as a whole: magic, version, checksum, body."""

from __future__ import annotations

import zlib
from typing import Final

from penstock.errors import CorruptionError, NotSupportedError

HEAD_SIZE: Final = 14


def add_frame(magic: bytes, version: int, body: bytes) -> bytes:
    assert len(magic) == 8, f"magic {magic!r} has {len(magic)} bytes, not 8"
    return magic + version.to_bytes(2, "big") + zlib.crc32(body).to_bytes(4, "big") + body


def strip_frame(magic: bytes, version_max: int, data: bytes, *, name: str, what: str) -> bytes:
    """Return the body of the object `name`, which should be `what`. Raises `NotSupportedError` for
    one of a newer version, `CorruptionError` for damage."""
    if len(data) < HEAD_SIZE or not data.startswith(magic):
        raise CorruptionError(name, position=0, reason=f"not {what} of Penstock")
    version = int.from_bytes(data[8:10], "big")
    if version > version_max:
        raise NotSupportedError(
            f"{name} was written by a newer Penstock (version {version}; this one reads up to "
            f"{version_max}); nothing was changed"
        )
    body = data[HEAD_SIZE:]
    if zlib.crc32(body) != int.from_bytes(data[10:14], "big"):
        raise CorruptionError(name, position=HEAD_SIZE, reason="its checksum is wrong")
    return body
