"""Tells damage from a whole record whose content cannot be decoded.

Readers see no difference at first: they cannot go on. The record's own checksum decides, and the
unit that points at it: when both are right, nothing is damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.codec.format import BATCH_UNIT, QUEUE_UNIT, Damage, RawRecord
from penstock.codec.properties import inner_range, lookup
from penstock.codec.select import core
from penstock.errors import UnreadableContentError
from penstock.record import QueueKind, ShardId

if TYPE_CHECKING:
    from typing_extensions import Buffer


class UnitsRead(NamedTuple):
    """Units of a read, the first of which is that of `offset`, and the bytes that they
    point into, which begin at `base`."""

    data: Buffer
    base: int
    units: bytes
    offset: int


def find_unreadable(
    shard: ShardId, kind: QueueKind, read: UnitsRead, damage: Damage, *, strict: bool = False
) -> UnreadableContentError | None:
    """Return what to raise when the record that a reader calls damaged is whole, and the one that
    its unit speaks of; None when there is damage indeed."""
    raw = core.decode_raw(read.data, read.base, damage.position, True, strict)
    if isinstance(raw, Damage) or (raw.topic, raw.queue_id) != shard:
        return None
    if kind is QueueKind.SIMPLE:
        found_record = (raw.position, raw.size, raw.queue_offset)
        units = enumerate(QUEUE_UNIT.iter_unpack(read.units), read.offset)
        agrees = any((*unit[:2], offset) == found_record for offset, unit in units)
        end = raw.queue_offset + 1
    else:
        inner = inner_range(lookup(raw.properties))
        if inner is None or inner[0] != raw.queue_offset:
            return None
        found_batch = (raw.position, raw.size, *inner)
        units_of_batches = BATCH_UNIT.iter_unpack(read.units)
        agrees = any((*unit[:2], *unit[4:6]) == found_batch for unit in units_of_batches)
        end = sum(inner)
    return unreadable(shard, raw, end, damage.reason) if agrees else None


def unreadable(shard: ShardId, raw: RawRecord, end: int, reason: str) -> UnreadableContentError:
    """Return what to raise for a whole record whose offsets end before `end`."""
    return UnreadableContentError(
        shard.name,
        offset=raw.queue_offset,
        next_offset=end,
        timestamp_ms=raw.born_timestamp_ms,
        reason=reason,
    )
