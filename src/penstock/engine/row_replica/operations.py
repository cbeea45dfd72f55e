"""Operations: what happens to the records of a replicated shard after they were written.

The leader decides, and names records by their offsets: every replica then does the same, whatever
its clock says. An operation acts when it is committed and the records before `after`, which were
committed when the leader decided, are committed on the replica, too. Operations act in their
order; one that acts again changes nothing.

    remove       deletes by offset or key, compaction, expiry, aborted transactions
    before       the first offset: deletes, retention, evictions
    seal         no further writes
    transaction  the end of a producer's transaction
    snapshot     what all operations before it left: older ones are dropped
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from penstock.engine.row_replica.frames import pack_frame, unpack_frames
from penstock.errors import CorruptionError

OFFSETS_MAX: Final = 256
"""Offsets in one `Remove`: RocksDB removes so many records in about a millisecond."""

_HEAD: Final = struct.Struct(">Qi")
_EPOCH: Final = struct.Struct(">i")


class Remove(Struct, frozen=True, array_like=True, tag="remove"):
    after: int
    offsets: tuple[int, ...]


class Before(Struct, frozen=True, array_like=True, tag="before"):
    after: int
    """The offset with which the shard begins from now on."""


class Seal(Struct, frozen=True, array_like=True, tag="seal"):
    after: int


class EndTransaction(Struct, frozen=True, array_like=True, tag="transaction"):
    after: int
    producer_id: int


class Snapshot(Struct, frozen=True, array_like=True, tag="snapshot"):
    after: int
    earliest: int
    is_sealed: bool
    epoch_before: int
    """The epoch of the operation before this one. A replica that has another one there has other
    operations, and begins anew."""


Operation = Remove | Before | Seal | EndTransaction | Snapshot

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Operation)


class OperationEntry(NamedTuple):
    epoch: int
    """Of the leader that appended it."""
    body: bytes
    operation: Operation

    @classmethod
    def of(cls, epoch: int, operation: Operation) -> OperationEntry:
        return cls(epoch, _encoder.encode(operation), operation)

    def pack(self) -> bytes:
        """Return the entry as a row."""
        return _EPOCH.pack(self.epoch) + self.body

    @classmethod
    def unpack(cls, row: bytes) -> OperationEntry:
        body = row[_EPOCH.size :]
        return cls(_EPOCH.unpack_from(row)[0], body, _decoder.decode(body))


def removals(offsets: Iterable[int], after: int) -> Iterator[Operation]:
    left = iter(offsets)
    while part := tuple(islice(left, OFFSETS_MAX)):
        yield Remove(after, part)


def encode_operation(index: int, entry: OperationEntry) -> bytes:
    return pack_frame(_HEAD.pack(index, entry.epoch), entry.body)


def decode_operations(data: bytes, shard: str, first: int) -> list[OperationEntry]:
    """Return the operations of a range that begins at `first`; raise `CorruptionError` when one is
    damaged, or does not follow the one before."""
    entries: list[OperationEntry] = []
    for position, frame in unpack_frames(data, shard):
        try:
            index, epoch = _HEAD.unpack_from(frame)
            body = frame[_HEAD.size :]
            entry = OperationEntry(epoch, body, _decoder.decode(body))
        except (struct.error, msgspec.DecodeError) as error:
            raise CorruptionError(shard, position=position, reason=str(error)) from error
        if index != first + len(entries):
            raise CorruptionError(
                shard,
                position=position,
                reason=f"operation {index}; the log ends at {first + len(entries)}",
            )
        entries.append(entry)
    return entries
