"""`LoggedWrite`: one write of a client, which replicas have whole or not at all.

A write takes the offsets [first, first + count). Records of it that were deleted are holes: a
replica that copies the write later gets the same offsets without them. The frame of a write:

    first u64 · LOGGED_WRITE · (offset - first u32 · size u32 · record row)*
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.engine.record_rows import RECORD_HEAD
from penstock.engine.row_replica.frames import pack_frame, unpack_frames
from penstock.errors import CorruptionError, RecordTooLargeError
from penstock.platform.layout import Field, Layout
from penstock.record import Producer

WRITE_SIZE_MAX: Final = 15 << 20
"""Bytes that one write to a replicated shard takes in a message: it travels as a whole."""

COUNT_MAX: Final = (1 << 32) - 1

HAS_PRODUCER: Final = 1
IS_TRANSACTIONAL: Final = 2

LOGGED_WRITE: Final = Layout(
    "logged write",
    Field("count", "u32", "offsets that the write took"),
    Field("leader_epoch", "i32", "epoch of the leader that took the write"),
    Field("flags", "u8", "1 has a producer, 2 is in an open transaction"),
    Field("producer_id", "i64", "who wrote; 0 without a producer, as the next three"),
    Field("producer_epoch", "i64", "of the producer"),
    Field("sequence", "i64", "of the first record"),
    Field("timestamp_ms", "i64", "when the leader took the write"),
    size=41,
)

_FIRST: Final = struct.Struct(">Q")
_ROW: Final = struct.Struct(">II")


class LoggedWrite(NamedTuple):
    first: int
    record_count: int
    """Offsets that it took, with those of records that are gone."""
    epoch: int
    """Of the leader."""
    producer: Producer | None = None
    timestamp_ms: int = 0

    @property
    def end(self) -> int:
        return self.first + self.record_count

    def pack(self) -> bytes:
        """Return the write without its first offset, as `LOGGED_WRITE`."""
        producer = self.producer
        if producer is None:
            return LOGGED_WRITE.pack(self.record_count, self.epoch, 0, 0, 0, 0, 0)
        flags = HAS_PRODUCER | (IS_TRANSACTIONAL if producer.is_transactional else 0)
        return LOGGED_WRITE.pack(
            self.record_count,
            self.epoch,
            flags,
            producer.id,
            producer.epoch,
            producer.sequence,
            self.timestamp_ms,
        )

    @classmethod
    def unpack(cls, first: int, data: bytes, position: int = 0) -> LoggedWrite:
        fields = LOGGED_WRITE.unpack_from(data, position)
        count, epoch, flags, producer_id, producer_epoch, sequence, timestamp_ms = fields
        if not flags & HAS_PRODUCER:
            return cls(first, count, epoch)
        is_transactional = bool(flags & IS_TRANSACTIONAL)
        known = Producer(producer_id, producer_epoch, sequence, is_transactional)
        return cls(first, count, epoch, known, timestamp_ms)


class CopiedWrite(NamedTuple):
    write: LoggedWrite
    rows: list[tuple[int, bytes]]
    """Offsets and rows of the records that are there, ascending."""

    @property
    def size(self) -> int:
        return sum(len(row) for _, row in self.rows)


def encode_write(copied: CopiedWrite) -> bytes:
    write, rows = copied
    parts = [_FIRST.pack(write.first), write.pack()]
    for offset, row in rows:
        parts += (_ROW.pack(offset - write.first, len(row)), row)
    return pack_frame(*parts)


def decode_writes(
    data: bytes, shard: str, first: int, *, is_empty: bool = False
) -> list[CopiedWrite]:
    """Return the writes of a range that begins at `first`; raise `CorruptionError` when one is
    damaged, or does not follow the one before. Only an empty log may begin within a write: the
    records before are deleted, and what else is known of the write holds for the rest."""
    writes: list[CopiedWrite] = []
    for position, body in unpack_frames(data, shard):
        try:
            copied = _decode_write(body)
        except (struct.error, ValueError) as error:
            raise CorruptionError(shard, position=position, reason=str(error)) from error
        begins_within = is_empty and not writes and copied.write.first < first
        if not (copied.write.first == first or begins_within) or copied.write.end <= first:
            raise CorruptionError(
                shard,
                position=position,
                reason=f"a write at offset {copied.write.first}; the log ends at {first}",
            )
        first = copied.write.end
        writes.append(copied)
    return writes


def _decode_write(body: bytes) -> CopiedWrite:
    first: int = _FIRST.unpack_from(body)[0]
    write = LoggedWrite.unpack(first, body, _FIRST.size)
    position, end = _FIRST.size + LOGGED_WRITE.size, len(body)
    rows: list[tuple[int, bytes]] = []
    last = -1
    while position < end:
        index, size = _ROW.unpack_from(body, position)
        position += _ROW.size
        row = body[position : position + size]
        if not last < index < write.record_count or len(row) != size or size < RECORD_HEAD.size:
            raise ValueError(
                f"record {index} of {write.record_count} with {len(row)} bytes of {size}"
            )
        rows.append((first + index, row))
        position, last = position + size, index
    return CopiedWrite(write, rows)


def check_write_size(size: int, count: int, shard: str) -> None:
    """Refuse a write of `count` rows that is too large to be sent to other replicas."""
    size += count * _ROW.size
    if size > WRITE_SIZE_MAX:
        raise RecordTooLargeError(
            f"a batch for replicated shard {shard!r}", size=size, size_max=WRITE_SIZE_MAX
        )
