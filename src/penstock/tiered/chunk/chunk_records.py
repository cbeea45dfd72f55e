"""What the units of a chunk point at: read, or indexed by key and time, all of it checked.

A record that is whole may hold content that cannot be decoded, as an opaque batch does. That is
not damage: it has no keys and is skipped, and all others are read and indexed as ever. Its time is
that of the record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock.codec.format import (
    BATCH_UNIT,
    KIND_BATCH,
    KIND_SIMPLE,
    PRE_BLANK,
    QUEUE_UNIT,
    Damage,
)
from penstock.codec.select import core
from penstock.engine.segment import UnitsRead, find_unreadable
from penstock.errors import CorruptionError, UnreadableContentError
from penstock.record import QueueKind, ShardId, StoredRecord

KEY_ENTRY: Final = struct.Struct(">II")
"""The hash of a key, and the number of a unit."""
OnUnreadable = Callable[[UnreadableContentError], None]
_ALL_TIMES: Final = -(1 << 62)
_UNLIMITED: Final = 1 << 62


class UnitIndex(NamedTuple):
    """The entries of keys, sorted; a filter of the keys; the least and the greatest time."""

    keys: bytes
    key_filter: bytes
    min_ms: int
    max_ms: int


def read_units(
    shard: ShardId,
    kind: QueueKind,
    read: UnitsRead,
    on_unreadable: OnUnreadable | None = None,
) -> list[StoredRecord]:
    """Return every record that the units point at, expired ones too; `on_unreadable` is called for
    each that cannot be decoded."""
    records, damage = _read(shard, kind, read)
    if damage is None:
        return records
    # Units one by one, from the first on: slow, but content of that sort is rare.
    records = []
    for unit in _each(kind, read):
        decoded, damage = _read(shard, kind, unit)
        if damage is not None:
            error = _unreadable_or_raise(shard, kind, unit, damage)
            if on_unreadable is not None:
                on_unreadable(error)
        records += decoded
    return records


def _read(
    shard: ShardId, kind: QueueKind, read: UnitsRead
) -> tuple[list[StoredRecord], Damage | None]:
    pages = core.read_batches if kind is QueueKind.BATCH else core.read_records
    records, _, _, damage = pages(
        *(read.data, read.base, read.units, read.offset, shard.topic, shard.partition),
        *(_UNLIMITED, _UNLIMITED, [], _ALL_TIMES, None, None),
    )
    return records, damage


def index_units(shard: ShardId, kind: QueueKind, read: UnitsRead, filter_size: int) -> UnitIndex:
    """Read everything that the units point at, and index it."""
    index, damage = _index(shard, kind, read, filter_size)
    if damage is None:
        return index
    pairs: list[tuple[int, int]] = []
    bits, is_filter_of_use = 0, True
    times: list[int] = []
    for number, unit in enumerate(_each(kind, read)):
        if unit.units == PRE_BLANK:
            continue
        index, damage = _index(shard, kind, unit, filter_size)
        if damage is not None:
            times.append(_unreadable_or_raise(shard, kind, unit, damage).timestamp_ms)
            continue
        pairs += ((hashed, number) for hashed, _ in KEY_ENTRY.iter_unpack(index.keys))
        bits |= int.from_bytes(index.key_filter, "big")
        is_filter_of_use = is_filter_of_use and index.key_filter != b""
        # A batch without a message has the time 0: at worst a reader opens the chunk needlessly.
        times += (index.min_ms, index.max_ms)
    return UnitIndex(
        b"".join(KEY_ENTRY.pack(*pair) for pair in sorted(pairs)),
        bits.to_bytes(filter_size, "big") if is_filter_of_use else b"",
        min(times),
        max(times),
    )


def _index(
    shard: ShardId, kind: QueueKind, read: UnitsRead, filter_size: int
) -> tuple[UnitIndex, Damage | None]:
    number = KIND_BATCH if kind is QueueKind.BATCH else KIND_SIMPLE
    keys, key_filter, min_ms, max_ms, damage = core.index_records(
        *(read.data, read.base, read.units, number, read.offset),
        *(shard.topic, shard.partition, filter_size),
    )
    return UnitIndex(keys, key_filter, min_ms, max_ms), damage


def _each(kind: QueueKind, read: UnitsRead) -> Iterator[UnitsRead]:
    """Yield the units one by one."""
    unit_size = BATCH_UNIT.size if kind is QueueKind.BATCH else QUEUE_UNIT.size
    for number, start in enumerate(range(0, len(read.units), unit_size)):
        offset = read.offset + number
        if kind is QueueKind.BATCH:
            offset = int(BATCH_UNIT.unpack_from(read.units, start)[4])
        yield read._replace(units=read.units[start : start + unit_size], offset=offset)


def _unreadable_or_raise(
    shard: ShardId, kind: QueueKind, read: UnitsRead, damage: Damage
) -> UnreadableContentError:
    unreadable = find_unreadable(shard, kind, read, damage)
    if unreadable is None:
        position = damage.position - read.base
        raise CorruptionError(shard.name, position=position, reason=damage.reason)
    return unreadable
