"""Messages between the MQTT front ends of two nodes, on the channel `mqtt` of the internal port.

    message   frames, one after the other
    frame     kind u8 · connection u64 · size u32 · content

A relayed connection has a number, which the node chose that accepted it. What the node of its
session sends has the bit `BACK` in its kind: both nodes may use the same numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.errors import BadRequestError

OPEN: Final = 1
"""A client is relayed: `Opened`."""
DATA: Final = 2
CREDIT: Final = 3
"""So many bytes more may be sent: u32."""
END: Final = 4
"""The connection has ended, after the data: why, as text."""
FOLLOW: Final = 5
"""The sender wants to know when shards grow that the receiver leads."""
ENDS: Final = 6
"""Shards that the sender leads, and the offset after their last committed message."""
CLAIM: Final = 7
"""The sender leads a partition of sessions under an epoch: `Claim`. The number is answered."""
RELEASED: Final = 8
"""The sender does nothing more for the sessions of a partition that was claimed."""
BACK: Final = 0x80

_HEAD: Final = struct.Struct(">BQI")
_COUNT: Final = struct.Struct(">I")


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """The client of a relayed connection."""

    host: str
    port: int
    transport: str


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A partition of `__mqtt_sessions`, and the epoch of its leader."""

    shard: str
    epoch: int


# Created at import: msgspec must not inspect a type for the first time in two threads.
_encode: Final = msgspec.msgpack.Encoder().encode
_opened: Final = msgspec.msgpack.Decoder(Opened).decode
_claim: Final = msgspec.msgpack.Decoder(Claim).decode
_ends: Final = msgspec.msgpack.Decoder(dict[str, int]).decode


def frame(kind: int, number: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(kind, number, len(content)) + content


def credit(size: int) -> bytes:
    return _COUNT.pack(size)


def opened(host: str, port: int, transport: str) -> bytes:
    return _encode(Opened(host, port, transport))


def claim(shard: str, epoch: int) -> bytes:
    return _encode(Claim(shard, epoch))


def ends(by_shard: dict[str, int]) -> bytes:
    return _encode(by_shard)


def split(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield kind, number and content of each frame. Raises `BadRequestError`."""
    at = 0
    while at < len(message):
        if at + _HEAD.size > len(message):
            raise BadRequestError(f"the head of a frame is cut off at byte {at}")
        kind, number, size = _HEAD.unpack_from(message, at)
        at += _HEAD.size
        if at + size > len(message):
            raise BadRequestError(f"a frame of {size} bytes is cut off at byte {at}")
        yield kind, number, message[at : at + size]
        at += size


def read_credit(content: bytes) -> int:
    if len(content) != _COUNT.size:
        raise BadRequestError(f"a credit of {len(content)} bytes instead of {_COUNT.size}")
    size: int = _COUNT.unpack(content)[0]
    return size


def read_opened(content: bytes) -> Opened:
    try:
        found: Opened = _opened(content)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"not the client of a connection: {error}") from error
    return found


def read_claim(content: bytes) -> Claim:
    try:
        found: Claim = _claim(content)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"not the claim of a partition: {error}") from error
    return found


def read_ends(content: bytes) -> dict[str, int]:
    try:
        found: dict[str, int] = _ends(content)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"not the ends of shards: {error}") from error
    return found
