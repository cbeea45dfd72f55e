"""The producers of one shard, kept in rows beside its records.

A producer's row is written with the records of its write, so that a write is remembered exactly
when it is there. The table is bounded; the rows of producers that it forgets go with the next
write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.engine.producer_table import (
    PRODUCERS_MAX,
    WRITES_MAX,
    ProducerTable,
    Undone,
    Write,
)
from penstock.engine.rocksdb.keys import ShardKeys, offset_of
from penstock.engine.rocksdb.rows import decode_writes, encode_writes
from penstock.engine.row_replica import LoggedWrite
from penstock.platform.rocksdb import Changes, Family
from penstock.record import Producer


class StoredProducers:
    def __init__(self, family: Family, keys: ShardKeys, producers_max: int = PRODUCERS_MAX) -> None:
        self._keys: Final = keys
        self._producers_max: Final = producers_max
        rows = [
            (offset_of(key), decode_writes(row)) for key, row in family.scan(*keys.every_producer)
        ]
        rows.sort(key=lambda item: item[1][-1].first_offset)
        self._table: Final = ProducerTable.from_list(rows, producers_max)
        self._forgotten = {producer_id for producer_id, _ in rows[:-producers_max]}

    def check(self, producer: Producer, count: int, shard: str) -> int | None:
        """As `ProducerTable.check`."""
        return self._table.check(producer, count, shard)

    def put(
        self, changes: Changes, producer: Producer, count: int, first_offset: int, now_ms: int
    ) -> None:
        """Put the rows that `remember` will stand for once `changes` are written."""
        kept = self._table.writes_of(producer.id)
        write = Write(producer.epoch, producer.sequence, count, first_offset, now_ms)
        changes.put(
            self._keys.producer(producer.id), encode_writes((*kept[1 - WRITES_MAX :], write))
        )
        for forgotten in self._forgotten - {producer.id}:
            changes.delete(self._keys.producer(forgotten))

    def remember(self, producer: Producer, count: int, first_offset: int, now_ms: int) -> None:
        """Note a write that is in the database."""
        self._forgotten.clear()
        forgotten = self._table.forgotten_for(producer.id)
        if forgotten and forgotten[0][0] != producer.id:
            self._forgotten.add(forgotten[0][0])
        self._table.remember(producer, count, first_offset, now_ms)

    def forgotten_for(self, producer_id: int) -> Undone:
        """As `ProducerTable.forgotten_for`."""
        return self._table.forgotten_for(producer_id)

    def writes(self) -> list[tuple[int, Write]]:
        """Return all writes that are remembered, in the order of their offsets."""
        known = [(pid, write) for pid, writes in self._table.to_list() for write in writes]
        return sorted(known, key=lambda item: item[1].first_offset)

    def undo(self, changes: Changes, cut: Iterable[tuple[LoggedWrite, Undone]]) -> None:
        """Forget writes, the last one first, and put the rows that this leaves."""
        changed: set[int] = set()
        for write, forgotten in cut:
            if write.producer is not None:
                self._table.undo(write.producer.id, write.first, forgotten)
                changed |= {write.producer.id, *(known_id for known_id, _ in forgotten)}
        for producer_id in changed:
            writes = self._table.writes_of(producer_id)
            if writes:
                changes.put(self._keys.producer(producer_id), encode_writes(writes))
                self._forgotten.discard(producer_id)
            else:
                changes.delete(self._keys.producer(producer_id))
