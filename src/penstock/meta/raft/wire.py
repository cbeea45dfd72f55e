"""The internal protocol between nodes: framed MessagePack over TCP.

    size u32 · CRC-32 u32 · message

The first message of a connection says what it is for. A `Hello` is answered with `Welcome`, then
Raft frames follow, one way; it names the cluster and which life of which node it means to reach.
`Ask` and `Join` are single questions. Whoever speaks another version, belongs to another cluster or
is not who it should be is told why and cut off.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from penstock.errors import BadRequestError
from penstock.layout import Field, Layout
from penstock.meta.state.model import Member

PROTOCOL: Final = 1
FRAME_SIZE_MAX: Final = 8 << 20

FRAME_HEAD: Final = Layout(
    "head of a frame",
    Field("size", "u32", "bytes that follow the head"),
    Field("checksum", "u32", "CRC-32 of those bytes"),
    size=8,
)


class Hello(Struct, frozen=True, array_like=True, tag=10):
    protocol: int
    cluster_id: str
    node_id: int
    to_node: int
    to_incarnation: str


class Welcome(Struct, frozen=True, array_like=True, tag=11):
    cluster_id: str = ""
    offset_groups: int = 0


class Refusal(Struct, frozen=True, array_like=True, tag=12):
    reason: str


class Ask(Struct, frozen=True, array_like=True, tag=13):
    """Who are you, and do you belong to a cluster?"""

    protocol: int
    node_id: int


class Standing(Struct, frozen=True, array_like=True, tag=14):
    node_id: int
    cluster_id: str
    """Empty while the node belongs to none."""
    peers: tuple[str, ...]
    """As its settings list them; a cluster is founded by nodes that list the same."""
    members: tuple[Member, ...] = ()


class Join(Struct, frozen=True, array_like=True, tag=15):
    """Take this node into the groups; the answer comes when it was proposed everywhere."""

    protocol: int
    cluster_id: str
    node_id: int
    address: str
    incarnation: str


Greeting = Hello | Welcome | Refusal | Ask | Standing | Join

_encoder: Final = Encoder()
_decoder: Final = Decoder(Greeting)


def pack_frame(data: bytes) -> bytes:
    return FRAME_HEAD.pack(len(data), crc32(data)) + data


def pack_greeting(greeting: Greeting) -> bytes:
    return pack_frame(_encoder.encode(greeting))


def decode_greeting(data: bytes) -> Greeting:
    try:
        greeting: Greeting = _decoder.decode(data)
    except MsgspecError as error:
        raise BadRequestError(f"no greeting of this protocol: {error}") from error
    return greeting


class FrameReader:
    """Cuts a stream of bytes into frames; raises `BadRequestError` for what is none."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        at = 0
        while len(buffer) - at >= FRAME_HEAD.size:
            size, checksum = FRAME_HEAD.unpack_from(buffer, at)
            if size > FRAME_SIZE_MAX:
                raise BadRequestError(f"a frame of {size} bytes; at most {FRAME_SIZE_MAX}")
            end = at + FRAME_HEAD.size + size
            if len(buffer) < end:
                break
            frame = bytes(buffer[at + FRAME_HEAD.size : end])
            if crc32(frame) != checksum:
                raise BadRequestError("the checksum of a frame does not match")
            frames.append(frame)
            at = end
        del buffer[:at]
        return frames
