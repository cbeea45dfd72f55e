"""Inflates what clients compressed, up to a bound; `ValueError` says why that fails.

Python's library has zlib and gzip; LZ4's frames are read here; Zstandard needs the package
`zstandard`, which only this backend uses.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from penstock.errors import NotSupportedError

INFLATED_SIZE_MAX: Final = 256 << 20
_SIZE_ERROR: Final = "it decompresses to more than 256 MiB"

_COMPRESSION_SHIFT: Final = 8
_COMPRESSION_MASK: Final = 7
_ZLIB_WINDOW: Final = 15
_GZIP_WINDOW: Final = 31

_U32: Final = struct.Struct("<I")
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_VERSION: Final = 1
_LZ4_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_DICTIONARY: Final = 0x01
_LZ4_STORED: Final = 0x8000_0000
_LZ4_LENGTH_MORE: Final = 15
_LZ4_MATCH_MIN: Final = 4


def inflate_body(body: bytes, sys_flag: int) -> bytes:
    """Return the body that a RocketMQ client compressed as `sys_flag` says. Brokers store the flag
    unseen: a body that does not begin as it says was never compressed."""
    match sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_MASK:
        case 0 | 3:  # clients that knew no other kind did not say which
            inflate, is_such = inflate_zlib, _is_zlib(body)
        case 1:
            inflate, is_such = inflate_lz4, body.startswith(_U32.pack(_LZ4_MAGIC))
        case 2:
            inflate, is_such = inflate_zstd, body.startswith(_ZSTD_MAGIC)
        case kind:
            raise ValueError(f"the body has unknown compression {kind}")
    try:
        return inflate(body) if is_such else body
    except ValueError as error:
        raise ValueError(f"the body does not decompress: {error}") from error


def _is_zlib(body: bytes) -> bool:
    """Deflate, a window of at most 32 KiB, and a multiple of 31."""
    return (
        len(body) > 1
        and body[0] & 15 == 8
        and body[0] >> 4 <= 7
        and int.from_bytes(body[:2]) % 31 == 0
    )


def inflate_zlib(data: bytes) -> bytes:
    return _inflate_deflated(data, _ZLIB_WINDOW)


def inflate_gzip(data: bytes) -> bytes:
    return _inflate_deflated(data, _GZIP_WINDOW)


def _inflate_deflated(data: bytes, window: int) -> bytes:
    inflater = zlib.decompressobj(wbits=window)
    try:
        inflated = inflater.decompress(data, INFLATED_SIZE_MAX + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(inflated) > INFLATED_SIZE_MAX:
        raise ValueError(_SIZE_ERROR)
    if not inflater.eof:
        raise ValueError("it is cut short")
    return inflated


def inflate_zstd(data: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise NotSupportedError(
            "data compressed with Zstandard needs the native extension, or the package zstandard"
        ) from None
    inflater = zstandard.ZstdDecompressor().stream_reader(data)
    try:
        # A stream that is cut short reads as one that ends early: its end must have been seen.
        inflated = inflater.read(INFLATED_SIZE_MAX + 1)
        whole = zstandard.ZstdDecompressor().decompressobj()
        if len(inflated) <= INFLATED_SIZE_MAX:
            whole.decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(inflated) > INFLATED_SIZE_MAX:
        raise ValueError(_SIZE_ERROR)
    if not whole.eof:
        raise ValueError("it is cut short")
    return inflated


# ---------------------------------------------------------------------------------------- LZ4


def inflate_lz4(data: bytes) -> bytes:
    """Return the content of one LZ4 frame. Checksums in it are ignored: a store that keeps such a
    frame has one of its own over all of it."""
    flags, index = _lz4_head(data)
    out = bytearray()
    while size := _u32_at(data, index):
        start = index + _U32.size
        end = start + (size & ~_LZ4_STORED)
        if end > len(data):
            raise ValueError("a block is cut short")
        if size & _LZ4_STORED:
            out += data[start:end]
        else:
            _lz4_block(data, start, end, out)
        if len(out) > INFLATED_SIZE_MAX:
            raise ValueError(_SIZE_ERROR)
        index = end + (_U32.size if flags & _LZ4_BLOCK_CHECKSUMS else 0)
    return bytes(out)


def _lz4_head(data: bytes) -> tuple[int, int]:
    """Return the frame's flags, and where its first block begins."""
    if _u32_at(data, 0) != _LZ4_MAGIC or len(data) < 7:
        raise ValueError("it is not an LZ4 frame")
    flags = data[4]
    if flags >> 6 != _LZ4_VERSION or flags & _LZ4_DICTIONARY:
        raise ValueError(f"an LZ4 frame with flags {flags:#04x} is not readable")
    return flags, 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0)


def _lz4_block(data: bytes, index: int, end: int, out: bytearray) -> None:
    """Append what a block holds: literals, each followed by a copy of bytes that came before."""
    while index < end:
        token = data[index]
        size, index = _lz4_length(data, index + 1, end, token >> 4)
        if index + size > end:
            raise ValueError("literals are cut short")
        out += data[index : index + size]
        index += size
        if index == end:
            return
        if index + 2 > end:
            raise ValueError("a distance is cut short")
        distance = data[index] | data[index + 1] << 8
        size, index = _lz4_length(data, index + 2, end, token & _LZ4_LENGTH_MORE)
        _lz4_copy(out, distance, size + _LZ4_MATCH_MIN)


def _lz4_length(data: bytes, index: int, end: int, size: int) -> tuple[int, int]:
    if size == _LZ4_LENGTH_MORE:
        more = 255
        while more == 255:
            if index >= end:
                raise ValueError("a length is cut short")
            more = data[index]
            size += more
            index += 1
    return size, index


def _lz4_copy(out: bytearray, distance: int, size: int) -> None:
    if not 0 < distance <= len(out):
        raise ValueError("a copy leads before the begin")
    if len(out) + size > INFLATED_SIZE_MAX:
        raise ValueError(_SIZE_ERROR)
    piece = out[-distance:]
    if distance < size:  # it repeats itself
        piece *= -(-size // distance)
    out += piece[:size]


def _u32_at(data: bytes, index: int) -> int:
    if index + _U32.size > len(data):
        raise ValueError("it is cut short")
    value: int = _U32.unpack_from(data, index)[0]
    return value
