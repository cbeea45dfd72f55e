"""WebSocket frames (RFC 6455): headers, masks and close codes.

FIN 1 bit · RSV 3 · opcode 4 · MASK 1 · size 7 [+ 16 or 64] · [mask 4] · payload
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

CONTROL_SIZE_MAX: Final = 125
HEADER_SIZE_MAX: Final = 14

_FIN: Final = 0x80
_RESERVED: Final = 0x70
_MASKED: Final = 0x80
_SIZE_16: Final = 126
_SIZE_64: Final = 127
_U16: Final = Struct("!H")
_U64: Final = Struct("!Q")
_MORE_SIZE: Final = {_SIZE_16: _U16.size, _SIZE_64: _U64.size}
_MASK_CHUNK: Final = 64 << 10


class Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    INVALID_TEXT = 1007
    TOO_LARGE = 1009


class FrameError(Exception):
    """A frame that ends the connection, with the code that says why."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code: Final = code


class FrameHeader(NamedTuple):
    opcode: Opcode
    is_final: bool
    size: int
    """Bytes of the payload."""
    mask: bytes
    header_size: int


def read_header(view: memoryview, size_max: int) -> FrameHeader | None:
    """Return the header of a client's frame; None while it is incomplete."""
    if len(view) < 2:
        return None
    first, second = view[0], view[1]
    if first & _RESERVED:
        raise FrameError(CloseCode.PROTOCOL_ERROR, "a reserved bit is set")
    try:
        opcode = Opcode(first & 0x0F)
    except ValueError:
        raise FrameError(
            CloseCode.PROTOCOL_ERROR, f"the opcode {first & 0x0F} is unknown"
        ) from None
    if not second & _MASKED:
        raise FrameError(CloseCode.PROTOCOL_ERROR, "a frame is not masked")
    is_final = first & _FIN != 0
    size = second & 0x7F
    if opcode >= Opcode.CLOSE and (not is_final or size > CONTROL_SIZE_MAX):
        raise FrameError(CloseCode.PROTOCOL_ERROR, "a control frame is fragmented or too large")
    position = 2 + _MORE_SIZE.get(size, 0)
    if len(view) < position:
        return None
    if size >= _SIZE_16:
        size = _read_size(view, size)
    if size > size_max:
        raise FrameError(CloseCode.TOO_LARGE, f"a frame of {size} bytes; the limit is {size_max}")
    if len(view) < position + 4:
        return None
    mask = bytes(view[position : position + 4])
    return FrameHeader(opcode, is_final, size, mask, position + 4)


def _read_size(view: memoryview, kind: int) -> int:
    (size,) = (_U16 if kind == _SIZE_16 else _U64).unpack_from(view, 2)
    if size < _SIZE_16 or (kind == _SIZE_64 and size <= 0xFFFF):
        raise FrameError(CloseCode.PROTOCOL_ERROR, "a size is not in its shortest form")
    return int(size)


def frame_header(opcode: Opcode, size: int) -> bytes:
    """Return the header of a whole frame of the server, which is not masked."""
    first = _FIN | opcode
    if size < _SIZE_16:
        return bytes((first, size))
    if size <= 0xFFFF:
        return bytes((first, _SIZE_16)) + _U16.pack(size)
    return bytes((first, _SIZE_64)) + _U64.pack(size)


def close_frame(code: int, reason: str = "") -> bytes:
    payload = _U16.pack(code) + reason.encode()[: CONTROL_SIZE_MAX - 2]
    return frame_header(Opcode.CLOSE, len(payload)) + payload


def unmask(view: memoryview, mask: bytes, offset: int) -> bytes:
    """Return the payload; `offset` is the position of its first byte in the frame. One exclusive
    or of large numbers is faster than any loop over bytes."""
    size = len(view)
    if size > _MASK_CHUNK:
        return b"".join(
            unmask(view[start : start + _MASK_CHUNK], mask, offset + start)
            for start in range(0, size, _MASK_CHUNK)
        )
    turned = mask[offset & 3 :] + mask[: offset & 3]
    key = int.from_bytes((turned * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(view, "little") ^ key).to_bytes(size, "little")


def check_close(payload: bytes) -> int:
    """Return the code to answer a client's close frame with."""
    if not payload:
        return CloseCode.NORMAL
    if len(payload) == 1:
        raise FrameError(CloseCode.PROTOCOL_ERROR, "a close frame has half a code")
    (code,) = _U16.unpack_from(payload)
    if not (code in {1000, 1001, 1002, 1003} or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        raise FrameError(CloseCode.PROTOCOL_ERROR, f"the close code {code} is invalid")
    try:
        payload[2:].decode()
    except UnicodeDecodeError as error:
        raise FrameError(CloseCode.INVALID_TEXT, "a close reason is not UTF-8") from error
    return int(code)
