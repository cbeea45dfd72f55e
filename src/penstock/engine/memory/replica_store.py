"""The replica of a shard in memory: its writes, and what operations do to its records.

It begins empty with every start of the node. See `ReplicaStore` for the methods.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.engine.memory.records import MemoryRecords, is_live
from penstock.engine.producer_table import ProducerTable, Undone
from penstock.engine.record_rows import decode_record, encode_record, row_size
from penstock.engine.row_replica import (
    COUNT_MAX,
    Announce,
    CopiedWrite,
    Histories,
    LoggedWrite,
    Removed,
    Replica,
    RowShard,
    Saved,
    Update,
    begun,
    check_write_size,
    ended,
)
from penstock.platform.clock import Clock
from penstock.record import Producer, Record, ShardId, StoredRecord

Ranges = list[tuple[int, int]]


class _Write(NamedTuple):
    write: LoggedWrite
    forgotten: Undone
    """What the table of producers forgot for it."""


def _first(entry: _Write) -> int:
    return entry.write.first


class MemoryReplicaStore(RowShard):
    def __init__(self, shard: ShardId, clock: Clock, announce: Announce) -> None:
        super().__init__(shard, clock, announce)
        self._records = MemoryRecords()
        self._producers = ProducerTable()
        self._sealed = False
        self._open_transactions: dict[int, Ranges] = {}
        """What producers wrote in transactions that are open: by producer id, ranges."""
        self._writes: list[_Write] = []
        """The writes since the shard has replicas."""
        self._former: tuple[Saved, Histories] | None = None
        """What was left when the shard had replicas before."""

    @property
    def _end(self) -> int:
        """The end of what readers see."""
        return self._records.latest if self.replica is None else self.replica.saved.commit

    @property
    def waits_for_device(self) -> bool:
        return False

    @property
    def has_failed(self) -> bool:
        return False

    @property
    def is_sealed(self) -> bool:
        return self._sealed

    @property
    def log_start(self) -> int:
        return self._records.earliest

    @property
    def log_end(self) -> int:
        return self._records.latest

    def sync(self) -> None:
        """Nothing of this shard is ever on a device."""

    def save(self, update: Update) -> None:
        """The next start knows nothing of this one."""

    def _make_replica(self) -> Replica:
        records = self._records
        loaded = begun(self._former, records.earliest, records.latest)
        epochs = loaded.histories.records
        known = sorted(
            (write.first_offset, producer_id, write)
            for producer_id, writes in self._producers.to_list()
            for write in writes
            if write.first_offset >= records.earliest
        )
        for first, producer_id, write in known:
            producer = Producer(producer_id, write.epoch, write.sequence, is_transactional=True)
            epoch = max(0, epochs.epoch_at(first))
            logged = LoggedWrite(first, write.record_count, epoch, producer, write.timestamp_ms)
            self._writes.append(_Write(logged, ()))
        return Replica(self, self._clock, loaded)

    def _drop_replica(self, replica: Replica) -> None:
        histories = ended(replica.histories, replica.epoch, self._records.latest)
        self._former = replica.saved, histories
        self._writes.clear()

    # Writes

    def _log_write(
        self, replica: Replica, records: Sequence[Record], producer: Producer | None, now_ms: int
    ) -> None:
        """Note a write that is about to be appended."""
        count = len(records)
        check_write_size(sum(map(row_size, records)), count, self.shard.name)
        first, epoch = self._records.latest, replica.check_leads()
        replica.histories = replica.with_epoch(epoch, first) or replica.histories
        self._append_write(LoggedWrite(first, count, epoch, producer, now_ms))

    def _append_write(self, write: LoggedWrite) -> None:
        producer = write.producer
        forgotten = () if producer is None else self._producers.forgotten_for(producer.id)
        self._writes.append(_Write(write, forgotten))

    def _add_to_transaction(self, producer_id: int, first: int, end: int) -> None:
        ranges = self._open_transactions.setdefault(producer_id, [])
        if ranges and ranges[-1][1] == first:
            first = ranges.pop()[0]
        ranges.append((first, end))

    def read_write(self, offset: int, max_size: int) -> CopiedWrite:
        with self.lock:
            write, is_whole = self._write_at(offset)
            rows: list[tuple[int, bytes]] = []
            size = 0
            for record in self._records.scan(offset, write.end):
                row = encode_record(
                    record, record.timestamp_ms, record.store_timestamp_ms, record.leader_epoch
                )
                size += len(row)
                if rows and size > max_size and not is_whole:
                    write = write._replace(record_count=record.offset - offset)
                    break
                rows.append((record.offset, row))
            return CopiedWrite(write, rows)

    def _write_at(self, offset: int) -> tuple[LoggedWrite, bool]:
        """Return the write that has `offset`, and whether it has to be copied as a whole. What is
        older than the replica may be copied in parts."""
        index = bisect_right(self._writes, offset, key=_first) - 1
        if index >= 0:
            write = self._writes[index].write
            if write.end > offset:
                return self._with_flag(write), True
        following = index + 1
        is_last = following == len(self._writes)
        end = self._records.latest if is_last else self._writes[following].write.first
        assert self.replica is not None
        epochs = self.replica.histories.records
        epoch = epochs.epoch_at(offset)
        end = min(end, epochs.end_of(epoch, end)[1])
        return LoggedWrite(offset, min(end - offset, COUNT_MAX), max(0, epoch)), False

    def _with_flag(self, write: LoggedWrite) -> LoggedWrite:
        """Say of a write whether its transaction is open now."""
        producer = write.producer
        if producer is None or not producer.is_transactional:
            return write
        ranges = self._open_transactions.get(producer.id, ())
        is_open = any(first <= write.first < end for first, end in ranges)
        return write._replace(producer=producer._replace(is_transactional=is_open))

    def append_writes(self, writes: Sequence[CopiedWrite], _update: Update) -> None:
        for write, rows in writes:
            records = [decode_record(offset, row) for offset, row in rows]
            self._append_write(write)
            first = self._records.latest
            self._records.copy(first, write.end - first, records)
            producer = write.producer
            if producer is not None:
                self._producers.remember(
                    producer, write.record_count, write.first, write.timestamp_ms
                )
                if producer.is_transactional:
                    self._add_to_transaction(producer.id, write.first, write.end)

    def write_border(self, offset: int) -> int:
        index = bisect_right(self._writes, offset, key=_first) - 1
        if index < 0 or self._writes[index].write.end <= offset:
            return offset
        return self._writes[index].write.first

    def cut_records(self, offset: int, _update: Update) -> None:
        kept = bisect_left(self._writes, offset, key=_first)
        for write, forgotten in reversed(self._writes[kept:]):
            if write.producer is not None:
                self._producers.undo(write.producer.id, write.first, forgotten)
        del self._writes[kept:]
        for producer_id, ranges in list(self._open_transactions.items()):
            left = [(first, min(end, offset)) for first, end in ranges if first < offset]
            self._set_transaction(producer_id, left)
        self._records.cut(offset)

    def restart_records(self, offset: int, _update: Update) -> None:
        self._records = MemoryRecords()
        self._records.earliest = offset
        self._producers = ProducerTable()
        self._open_transactions.clear()
        self._writes.clear()

    def drop_damaged(self, offset: int) -> None:
        raise AssertionError(f"offset {offset} in memory is damaged")

    # What operations do

    def remove(self, offsets: Sequence[int]) -> Removed:
        now_ms, size = self._clock.expiry_ms(), self._records.size
        stored = map(self._records.find, offsets)
        records = [record for record in stored if record is not None]
        self._records.remove(records)
        live = sum(is_live(record, now_ms) for record in records)
        return Removed(live, len(records), size - self._records.size)

    def drop_before(self, offset: int) -> None:
        self._records.drop_before(offset)
        gone = bisect_right(self._writes, offset, key=lambda entry: entry.write.end)
        del self._writes[:gone]

    def seal_here(self) -> None:
        self._sealed = True

    def trim_transaction(self, producer_id: int, until: int) -> None:
        ranges = self._open_transactions.get(producer_id, [])
        left = [(max(first, until), end) for first, end in ranges if end > until]
        self._set_transaction(producer_id, left)

    def _set_transaction(self, producer_id: int, ranges: Ranges) -> None:
        if ranges:
            self._open_transactions[producer_id] = ranges
        else:
            self._open_transactions.pop(producer_id, None)

    def sweep_some(self) -> bool:
        return False

    # What leaders decide by

    def offsets_of_key(self, key: bytes, until: int) -> list[int]:
        offsets = self._records.by_key.get(key, [])
        return offsets[: bisect_left(offsets, until)]

    def transacted_offsets(self, producer_id: int, start: int) -> list[int] | None:
        ranges = self._open_transactions.get(producer_id)
        if ranges is None:
            return None
        return [record.offset for record in self._transacted(ranges, start)]

    def _transacted(self, ranges: Ranges, start: int) -> Iterator[StoredRecord]:
        for first, end in ranges:
            yield from self._records.scan(max(first, start), end)

    def expired_offsets(self, until: int) -> Iterator[int]:
        now_ms = self._clock.expiry_ms()
        with self.lock:
            if self._records.next_expiry_ms > now_ms:
                return iter(())
            records = self._records.scan(self._records.earliest, until)
            return iter([record.offset for record in records if not is_live(record, now_ms)])
