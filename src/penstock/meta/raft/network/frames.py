"""What nodes send each other about their groups, as MessagePack arrays.

A snapshot travels in chunks, each answered before the next one is sent. A chunk carries the CRC-32
of all rows up to its end, so that a lost, repeated or damaged one is noticed where it happens.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from penstock.errors import BadRequestError

Rows = list[tuple[bytes, bytes]]


class RaftMessage(Struct, frozen=True, array_like=True, tag=1):
    """A message of the Raft core, as it encoded it."""

    group: int
    message: bytes


class SnapshotChunk(Struct, frozen=True, array_like=True, tag=2):
    """Rows of a state, in key order; keys are those of the state machine."""

    group: int
    snapshot: int
    """Chosen by the sender; no two snapshots of a node have the same."""
    number: int
    rows: bytes
    checksum: int
    """CRC-32 of the rows of this chunk and all before it."""
    message: bytes = b""
    """In the last chunk: the Raft message that installs the snapshot."""


class SnapshotAnswer(Struct, frozen=True, array_like=True, tag=3):
    group: int
    snapshot: int
    wanted: int
    """Number of the chunk that is wanted next; -1: begin again, or not at all."""


class Beat(Struct, frozen=True, array_like=True, tag=4):
    """A heartbeat of a member to the leader of the metadata. Only for nodes with the role
    `replication`: older ones do not know it."""

    broker_epoch: int
    sent_at: int
    """When it was sent, by a clock of the sender; the answer repeats it."""
    term: int = 0
    """The term of the group `metadata` at a member of it; 0: of a node without Raft, or of an
    earlier release."""
    quiet_ms: int = 0
    """For how long at least the sender was in contact with no leader of an earlier term."""
    unanswered_ms: int = 0
    """Since when no answer has come to a node without Raft; 0: it is a member, or runs an earlier
    release."""


class BeatAnswer(Struct, frozen=True, array_like=True, tag=5):
    broker_epoch: int
    sent_at: int
    is_granted: bool
    """False: the node is fenced, or not registered under this epoch."""


Frame = RaftMessage | SnapshotChunk | SnapshotAnswer

_encoder: Final = Encoder()
_incoming_decoder: Final = Decoder(Frame | Beat | BeatAnswer)
_rows_decoder: Final = Decoder(Rows)


def encode_frame(frame: Frame | Beat | BeatAnswer) -> bytes:
    return _encoder.encode(frame)


def decode_incoming(data: bytes) -> Frame | Beat | BeatAnswer:
    """Decode whatever another node sent."""
    try:
        frame: Frame | Beat | BeatAnswer = _incoming_decoder.decode(data)
    except MsgspecError as error:
        raise BadRequestError(f"no frame of this protocol: {error}") from error
    return frame


def encode_rows(rows: Rows) -> bytes:
    return _encoder.encode(rows)


def decode_rows(data: bytes) -> Rows:
    return _rows_decoder.decode(data)


def chain_checksum(checksum: int, rows: bytes) -> int:
    return crc32(rows, checksum)
