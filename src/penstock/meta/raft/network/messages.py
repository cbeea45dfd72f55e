"""The internal protocol between nodes: framed MessagePack over TCP.

    size u32 · CRC-32 u32 · message                             frames of version 1
    size u32 · CRC-32 u32 · CRC-32 of the head u32 · message    frames of version 2

The handshake and the Raft frames of earlier releases have version 1. In version 2 a damaged size is
noticed with the head, before the reader waits for bytes that never come.

A connection begins with a handshake of four messages; see `handshake` for what it proves:

    opener    ConnectRequest, StatusRequest     the purpose of the connection, with a nonce
              or JoinRequest
    acceptor  Challenge                         another nonce
    opener    Proof                             a MAC of both
    acceptor  Sealed                            the reply, with a MAC of all messages before it

The reply to a `ConnectRequest` is `HandshakeAccepted`; frames of one channel follow, one way. The
request names the channel, the cluster, the incarnation of the sender and the one that it means to
reach. A `StatusRequest` or `JoinRequest` has one reply. A connection that fails the handshake is
closed with a reason.

Fields that later releases append have defaults, and earlier releases ignore them: a node that
expects the reply to repeat its channel notices a peer that does not know channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal
from zlib import crc32

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from penstock.codec.select import core
from penstock.errors import BadRequestError
from penstock.platform.layout import Field, Layout

PROTOCOL: Final = 2
ChannelName = Literal["raft", "replicate", "forward", "heartbeat", "mqtt"]
DataChannelName = Literal["replicate", "forward", "heartbeat", "mqtt"]
CHANNELS: Final[tuple[ChannelName, ...]] = ("raft", "replicate", "forward", "heartbeat", "mqtt")
RAFT: Final = "raft"
HEARTBEAT: Final = "heartbeat"
"""Heartbeats of nodes without Raft, and the answers to them."""
FRAME_VERSION: Final = 2
FRAME_SIZE_MAX: Final = 8 << 20
DATA_FRAME_SIZE_MAX: Final = 32 << 20
"""Bytes of a frame on the channels `replicate` and `forward`."""
HANDSHAKE_SIZE_MAX: Final = 4 << 10
"""Bytes of a handshake frame: an unauthenticated peer cannot make a node buffer more."""
NONCE_SIZE: Final = 32
_LARGE_SIZE: Final = 4 << 10

FRAME_HEAD: Final = Layout(
    "head of a frame",
    Field("size", "u32", "bytes that follow the head"),
    Field("checksum", "u32", "CRC-32 of those bytes"),
    size=8,
)
FRAME_HEAD_2: Final = Layout(
    "head of a frame of version 2",
    Field("size", "u32", "bytes that follow the head"),
    Field("checksum", "u32", "CRC-32 of those bytes"),
    Field("head_checksum", "u32", "CRC-32 of the two fields before"),
    size=12,
)


class HandshakeRejected(Struct, frozen=True, array_like=True, tag=12):
    reason: str


class ConnectRequest(Struct, frozen=True, array_like=True, tag=20):
    """Open a connection for the frames of one channel."""

    protocol: int
    cluster: str
    """The tag of the cluster id: see `handshake.cluster_tag`."""
    node_id: int
    incarnation: str
    to_node: int
    to_incarnation: str
    """Empty: not known yet."""
    nonce: bytes
    channel: str = RAFT
    broker_epoch: int = 0
    """Of the sender's last registration; 0: it has not registered since its start."""
    frame_version: int = 1
    """The newest version of frames that the sender writes."""


class StatusRequest(Struct, frozen=True, array_like=True, tag=21):
    """Request the `PeerStatus` of a node."""

    protocol: int
    node_id: int
    nonce: bytes


class JoinRequest(Struct, frozen=True, array_like=True, tag=22):
    """Add the sending node to the groups; the reply follows when all have proposed it."""

    protocol: int
    node_id: int
    address: str
    incarnation: str
    nonce: bytes
    token: str = ""
    """The public part of a join token."""
    seed: bytes = b""
    """The seed of the incarnation; sent only without a secret and without a token."""


class Challenge(Struct, frozen=True, array_like=True, tag=23):
    nonce: bytes


class Proof(Struct, frozen=True, array_like=True, tag=24):
    mac: bytes


class Sealed(Struct, frozen=True, array_like=True, tag=25):
    body: bytes
    """An encoded `HandshakeAccepted`, `PeerStatus` or `HandshakeRejected`."""
    mac: bytes


class HandshakeAccepted(Struct, frozen=True, array_like=True, tag=26):
    cluster_id: str = ""
    offset_groups: int = 0
    key: bytes = b""
    """The generated key of the cluster, encrypted for the node that joins."""
    channel: str = RAFT
    """The channel of the connection, as the acceptor understood it."""
    frame_version: int = 1
    """The version in which the acceptor expects frames."""


class PeerStatus(Struct, frozen=True, array_like=True, tag=27):
    node_id: int
    incarnation: str
    is_bootstrapped: bool
    """Whether the node belongs to a cluster."""
    peers: tuple[str, ...] = ()
    """`node.peers` of its settings; only nodes with equal lists bootstrap a cluster."""
    members: tuple[str, ...] = ()
    """`NODE@HOST:PORT` of each member that the node knows."""


Opening = ConnectRequest | StatusRequest | JoinRequest
Answer = HandshakeAccepted | PeerStatus | HandshakeRejected
HandshakeMessage = Opening | Answer | Challenge | Proof | Sealed

_NOT_YET: Final = " yet"
_UNPROVEN: Final = " (unauthenticated)"


def is_of_start(reason: str) -> bool:
    """Return whether a refusal says that the other side has not finished its start: it ends by
    itself, and its reason says "yet"."""
    return reason.removesuffix(_UNPROVEN).endswith(_NOT_YET)


_encoder: Final = Encoder()
_decoder: Final = Decoder(HandshakeMessage)


def _checksum(data: bytes) -> int:
    """Return the CRC-32 of a frame. The extension computes that of a large one several times as
    fast as zlib."""
    size = len(data)
    if size < _LARGE_SIZE:
        return crc32(data)
    return int.from_bytes(core.block_checksums(data, size))


def frame_head(data: bytes, version: int = 1) -> bytes:
    head = FRAME_HEAD.pack(len(data), _checksum(data))
    return head if version == 1 else head + crc32(head).to_bytes(4, "big")


def pack_frame(data: bytes, version: int = 1) -> bytes:
    return frame_head(data, version) + data


def read_head(
    buffer: bytes | bytearray, position: int, version: int, size_max: int
) -> tuple[int, int]:
    """Return the size and the checksum of the frame whose head begins at `at`. Raises
    `BadRequestError` for a damaged head and for a frame above the limit."""
    if version == 1:
        size, checksum = FRAME_HEAD.unpack_from(buffer, position)
    else:
        size, checksum, head_checksum = FRAME_HEAD_2.unpack_from(buffer, position)
        if crc32(buffer[position : position + FRAME_HEAD.size]) != head_checksum:
            raise BadRequestError("the checksum of a frame's head does not match")
    if size > size_max:
        raise BadRequestError(f"a frame of {size} bytes; at most {size_max}")
    return size, checksum


def check_frame(frame: bytes, checksum: int) -> None:
    if _checksum(frame) != checksum:
        raise BadRequestError("the checksum of a frame does not match")


def encode_handshake(greeting: HandshakeMessage) -> bytes:
    return _encoder.encode(greeting)


def pack_handshake(greeting: HandshakeMessage) -> bytes:
    return pack_frame(encode_handshake(greeting))


def decode_handshake(data: bytes) -> HandshakeMessage:
    try:
        greeting: HandshakeMessage = _decoder.decode(data)
    except MsgspecError as error:
        raise BadRequestError(f"not a handshake message of protocol {PROTOCOL}: {error}") from error
    return greeting


class FrameReader:
    """Cuts a stream of bytes into frames; raises `BadRequestError` for a malformed one."""

    def __init__(self, size_max: int = FRAME_SIZE_MAX, version: int = 1) -> None:
        self._buffer = bytearray()
        self.size_max = size_max
        """Bytes of a frame at most; may be raised between two frames."""
        self.version = version
        """May be changed between two frames."""

    @property
    def is_empty(self) -> bool:
        """Whether all bytes belong to frames that were taken."""
        return not self._buffer

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes; yield the frames that are complete."""
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> bytes | None:
        buffer = self._buffer
        head_size = FRAME_HEAD.size if self.version == 1 else FRAME_HEAD_2.size
        if len(buffer) < head_size:
            return None
        size, checksum = read_head(buffer, 0, self.version, self.size_max)
        end = head_size + size
        if len(buffer) < end:
            return None
        frame = bytes(buffer[head_size:end])
        check_frame(frame, checksum)
        del buffer[:end]
        return frame
