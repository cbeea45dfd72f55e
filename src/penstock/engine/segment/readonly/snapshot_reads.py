"""The reads of a read-only store in one snapshot of its directory.

A file that the writer has removed since raises `CorruptionError` or `FileNotFoundError`; the store
then takes a newer snapshot and reads again.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import TYPE_CHECKING, Final

from penstock.engine.contract import BatchPage
from penstock.engine.segment.bounds import Bounds
from penstock.engine.segment.queue.lookup import check_limits
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.readonly.readonly_shard import ReadOnlyShard
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.engine.segment.store_reads import StoreReads
from penstock.record import Offset, Position, QueueKind, ShardId, StoredRecord

if TYPE_CHECKING:
    from penstock.engine.segment.read.arrow import ColumnReader


class SnapshotReads(StoreReads[ReadOnlyShard]):
    def __init__(self, snapshot: Snapshot, columns: ColumnReader) -> None:
        """`columns`: a scan may outlive this snapshot, the store reads its later steps."""
        super().__init__(snapshot, snapshot.reader, columns=columns)
        self._snapshot: Final = snapshot

    def bounds(self, shard: ShardId) -> Bounds:
        """Return where a shard begins and ends. `end_position` is the end of what is known to be
        in the log: a running writer may be further."""
        snapshot = self._snapshot
        log = snapshot.get(shard)
        state = log.state
        return Bounds(
            earliest=Offset(log.earliest),
            commit=state.commit_offset,
            next=state.latest_offset,
            start_position=Position(snapshot.files.start),
            end_position=Position(snapshot.end_for(log)),
        )

    def state(self, shard: ShardId) -> ShardState:
        """What is known of a shard: deleted ranges, epochs, producers. Not to be changed."""
        return self._snapshot.get(shard).state

    def read_batches(self, shard: ShardId, offset: int, until: int, max_size: int) -> BatchPage:
        """Return Kafka batches of a batch shard as the log holds them, checked."""
        log = self._snapshot.get(shard)
        check_limits(offset, 1, max_size)
        return self._reader.read_kafka(log, offset, min(until, log.commit), max_size)

    def by_key(self, shard: ShardId, key: bytes) -> Iterator[StoredRecord]:
        """Yield what the index finds and, where it has gaps, what a scan finds, newest first."""
        log = self._snapshot.get(shard)
        by_index, by_scan = self._reader.by_key(log, key), self._by_scan(log, key)
        last: int | None = None
        for record in merge(by_index, by_scan, key=_offset_of, reverse=True):
            if record.offset != last:
                last = record.offset
                yield record

    def _by_scan(self, log: ReadOnlyShard, key: bytes) -> Iterator[StoredRecord]:
        if log.kind is QueueKind.BATCH:
            # The reader scans batches in any case: RocketMQ's index does not look into them.
            return
        snapshot = self._snapshot
        for start, end in snapshot.index.gaps(snapshot.files.stop):
            yield from snapshot.scan_for_key(log, key, start, end)


def _offset_of(record: StoredRecord) -> int:
    return record.offset
