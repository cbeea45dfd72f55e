"""The producers of one shard, kept in rows beside its records.

A producer's row is written with the records of its write, so that a write is remembered exactly
when it is there. The table is bounded; the rows of producers that it forgets go with the next
write.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.producer_table import PRODUCERS_MAX, WRITES_MAX, ProducerTable, Write
from penstock.engine.rocksdb.keys import ShardKeys, offset_of
from penstock.engine.rocksdb.rows import decode_writes, encode_writes
from penstock.platform.rocksdb.changes import Changes
from penstock.platform.rocksdb.family import Family
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
        if len(self._table) == self._producers_max and not self._table.writes_of(producer.id):
            self._forgotten.add(self._table.to_list()[0][0])
        self._table.remember(producer, count, first_offset, now_ms)
