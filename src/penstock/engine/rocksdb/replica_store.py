"""The replica of a shard in RocksDB: its writes, its state, and what operations do.

See `ReplicaStore` for the methods. The rows of a replica are written with the records that they
belong to; a cut moves the shard's end, its producers and its state in one atomic change, and the
rows of the records that it removed are out of reach from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.codec.validation import INT64_MAX
from penstock.engine.producer_table import Undone
from penstock.engine.record_rows import decode_record, moments, stored_at
from penstock.engine.rocksdb.keys import offset_of, shard_row
from penstock.engine.rocksdb.producers import StoredProducers
from penstock.engine.rocksdb.rows import (
    End,
    decode_history,
    decode_saved,
    decode_write,
    encode_end,
    encode_history,
    encode_saved,
    encode_shard,
    encode_write,
)
from penstock.engine.rocksdb.stored_shard import OFFSETS_END, StoredShard
from penstock.engine.row_replica import (
    COUNT_MAX,
    CopiedWrite,
    Histories,
    Loaded,
    LoggedWrite,
    OperationEntry,
    Replica,
    Update,
    begun,
    ended,
)
from penstock.errors import CorruptionError, RetryableError
from penstock.platform.rocksdb import CHANGES_SIZE_MAX, Changes
from penstock.record import Producer

_OF_RECORDS: Final = (b"A", b"B", b"K", b"P", b"R", b"T", b"W", b"X")
"""The kinds of rows that go when a log begins anew."""
_OF_REPLICAS: Final = (b"A", b"O")
"""The kinds of rows that go when replication ends. What is left says what was copied to others: see
`begun`."""
_READABLE: Final = 1_024
"""Records in a row that can be read, after which damage counts as passed."""

SyncMark = tuple[int, int, int]
"""The ends of both logs before a sync, and how often they were cut."""


class RocksDBReplicaStore(StoredShard):
    __slots__ = ()

    @property
    def is_sealed(self) -> bool:
        return self._row.sealed

    @property
    def log_start(self) -> int:
        return self._end.earliest

    @property
    def log_end(self) -> int:
        return self._end.latest

    # The state

    def load_replica(self) -> None:
        """Take up the replica that an earlier start has left."""
        self.replica = Replica(self, self._clock, self._loaded())
        self._commit = self.replica.saved.commit

    def _reload_replica(self) -> None:
        if self.replica is not None:
            loaded = self._loaded()
            self.replica.reload(loaded)
            self._commit = loaded.saved.commit

    def _loaded(self) -> Loaded:
        keys, get = self._rows.keys, self._family.get
        saved, history = get(keys.copy), get(keys.history)
        assert saved is not None, f"replicated shard {self.shard.name!r} has no state"
        assert history is not None, f"replicated shard {self.shard.name!r} has no history"
        rows = self._family.scan(*keys.every(b"O"))
        operations = [OperationEntry.unpack(row) for _, row in rows]
        return Loaded(decode_saved(saved), decode_history(history), operations)

    def _make_replica(self) -> Replica:
        keys, get, end = self._rows.keys, self._family.get, self._end
        old, history = get(keys.copy), get(keys.history)
        former = None
        if old is not None and history is not None:
            former = decode_saved(old), decode_history(history)
        loaded = begun(former, end.earliest, end.latest)
        saved = loaded.saved._replace(commit=self._commit)
        histories = loaded.histories
        changes = Changes()
        row = replace(self._row, replicated=True)
        changes.put(shard_row(self.shard), encode_shard(row))
        self._put_update(changes, Update(saved, histories=histories))
        for producer_id, known in self._known_producers().writes():
            if known.first_offset >= end.earliest:
                producer = Producer(producer_id, known.epoch, known.sequence, is_transactional=True)
                epoch = max(0, histories.records.epoch_at(known.first_offset))
                write = LoggedWrite(
                    known.first_offset, known.record_count, epoch, producer, known.timestamp_ms
                )
                changes.put(self._rows.keys.write(write.first), encode_write(write, ()))
        self._family.write(changes)
        self._row = row
        replica = Replica(self, self._clock, Loaded(saved, histories, []))
        replica.synced = self._commit
        return replica

    def _drop_replica(self, replica: Replica) -> None:
        changes = Changes()
        histories = ended(replica.histories, replica.epoch, self._end.latest)
        changes.put(self._rows.keys.copy, encode_saved(replica.saved))
        changes.put(self._rows.keys.history, encode_history(histories))
        for kind in _OF_REPLICAS:
            changes.delete_range(*self._rows.keys.every(kind))
        row = replace(self._row, replicated=False)
        changes.put(shard_row(self.shard), encode_shard(row))
        self._family.write(changes, frees_room=True)
        self._row = row
        self._commit = self._end.latest

    def save(self, update: Update) -> None:
        changes = Changes()
        self._put_update(changes, update)
        self._family.write(changes, frees_room=True)
        self._commit = update.saved.commit

    def _put_update(self, changes: Changes, update: Update) -> None:
        keys = self._rows.keys
        changes.put(keys.copy, encode_saved(update.saved))
        if update.histories is not None:
            changes.put(keys.history, encode_history(update.histories))
        first, end = update.dropped
        if first < end:
            changes.delete_range(keys.operation(first), keys.operation(end))
        for index, entry in update.operations:
            changes.put(keys.operation(index), entry.pack())

    def sync_mark(self) -> SyncMark | None:
        """Return what a sync from now on covers; None without a replica."""
        replica = self.replica
        if replica is None:
            return None
        with self.lock:
            return self._end.latest, replica.saved.operations_end, replica.cuts

    def synced(self, mark: SyncMark | None) -> None:
        """Count for what was there at `mark`: it is on the device."""
        if mark is not None and self.replica is not None:
            self.replica.mark_synced(*mark)

    # Writes

    def _log_write(self, changes: Changes, write: LoggedWrite) -> Histories | None:
        """Put the rows with which followers get a write; return the histories with it."""
        assert self.replica is not None
        producer = write.producer
        known = () if producer is None else self._known_producers().forgotten_for(producer.id)
        changes.put(self._rows.keys.write(write.first), encode_write(write, known))
        histories = self.replica.with_epoch(write.epoch, write.first)
        if histories is not None:
            changes.put(self._rows.keys.history, encode_history(histories))
        return histories

    def read_write(self, offset: int, max_size: int) -> CopiedWrite:
        write, is_whole = self._write_at(offset)
        rows: list[tuple[int, bytes]] = []
        size = 0
        for own, row in self._rows.records(offset, write.end):
            size += len(row)
            if rows and size > max_size and not is_whole:
                write = write._replace(record_count=own - offset)
                break
            rows.append((own, row))
        return CopiedWrite(write, rows)

    def _write_at(self, offset: int) -> tuple[LoggedWrite, bool]:
        """Return the write that has `offset`, and whether it has to be copied as a whole. What is
        older than the replica may be copied in parts."""
        keys, family, latest = self._rows.keys, self._family, self._end.latest
        before = next(family.scan_back(keys.write(0), keys.write(offset + 1)), None)
        if before is not None:
            write = decode_write(offset_of(before[0]), before[1])[0]
            if write.end > offset:
                return self._with_flag(write), True
        after = next(family.scan(keys.write(offset), keys.write(latest)), None)
        end = latest if after is None else offset_of(after[0])
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
        row = self._family.get(self._rows.keys.transacted(producer.id, write.first))
        return write._replace(producer=producer._replace(is_transactional=row is not None))

    def append_writes(self, writes: Sequence[CopiedWrite], update: Update) -> None:
        if not self._tail_clean:
            self._clean_tail()
        pieces, end = self._build_copies(writes)
        last = pieces[-1]
        last.put(self._rows.keys.end, encode_end(end))
        if update.histories is not None:
            last.put(self._rows.keys.history, encode_history(update.histories))
        self._tail_clean = len(pieces) == 1
        try:
            self._put_producers(last, writes)
            for number, piece in enumerate(pieces):
                self._family.write(piece, patient=number > 0)
        except BaseException:
            self._producers = None  # read again from the rows, which know of nothing new
            raise
        self._tail_clean = True
        self._end = end

    def _build_copies(self, writes: Sequence[CopiedWrite]) -> tuple[list[Changes], End]:
        end, rows = self._end, self._rows
        size, newest, group = end.size, end.newest_in_block, end.newest_in_group
        stored_ms, changes = end.store_timestamp_ms, Changes()
        pieces = [changes]
        for write, records in writes:
            offset = max(write.first, end.latest)
            for own, row in records:
                if changes.size >= CHANGES_SIZE_MAX:
                    changes = Changes()
                    pieces.append(changes)
                newest, group = rows.skip_times(changes, offset, own, newest, group)
                timestamp_ms = moments(row)[1]
                rows.put(changes, own, decode_record(own, row), timestamp_ms, row)
                newest, group = rows.add_time(changes, own, max(newest, timestamp_ms), group)
                size, offset = size + len(row), own + 1
                stored_ms = max(stored_ms, stored_at(row))
            newest, group = rows.skip_times(changes, offset, write.end, newest, group)
        return pieces, end._replace(
            latest=writes[-1].write.end,
            size=size,
            store_timestamp_ms=stored_ms,
            newest_in_block=newest,
            newest_in_group=group,
        )

    def _put_producers(self, changes: Changes, writes: Sequence[CopiedWrite]) -> None:
        """Put the rows of the writes themselves, with what they say of their producers."""
        for write, _ in writes:
            known: Undone = ()
            producer = write.producer
            if producer is not None:
                table, entry = self._known_producers(), (write.record_count, write.first)
                known = table.forgotten_for(producer.id)
                table.put(changes, producer, *entry, write.timestamp_ms)
                table.remember(producer, *entry, write.timestamp_ms)
                if producer.is_transactional:
                    self._rows.add_transacted(changes, producer.id, write.first, write.record_count)
            changes.put(self._rows.keys.write(write.first), encode_write(write, known))

    # Cuts

    def write_border(self, offset: int) -> int:
        keys = self._rows.keys
        before = next(self._family.scan_back(keys.write(0), keys.write(offset)), None)
        if before is None:
            return offset
        write = decode_write(offset_of(before[0]), before[1])[0]
        return write.first if write.end > offset else offset

    def cut_records(self, offset: int, update: Update) -> None:
        keys, changes = self._rows.keys, Changes()
        cut = [
            decode_write(offset_of(key), row)
            for key, row in self._family.scan(keys.write(offset), keys.write(OFFSETS_END))
        ]
        changes.delete_range(keys.write(offset), keys.write(OFFSETS_END))
        for write, _ in cut:
            if write.producer is not None and write.producer.is_transactional:
                changes.delete(keys.transacted(write.producer.id, write.first))
        end = self._end_at(changes, offset)
        # From the rows, and not in place: the change may fail.
        StoredProducers(self._family, keys).undo(changes, reversed(cut))
        self._put_update(changes, update)
        self._tail_clean, self._producers = False, None
        self._apply(changes, end)
        self._commit = update.saved.commit
        with contextlib.suppress(RetryableError):  # the next write does it, too
            self._clean_tail()

    def _end_at(self, changes: Changes, offset: int) -> End:
        end = self._end
        try:
            gone = sum(len(row) for _, row in self._rows.records(offset, end.latest))
            return self._rows.cut(changes, offset, end)._replace(size=end.size - gone)
        except CorruptionError:
            # What their rows held is not known: delete them and every index row that names them.
            keys = self._rows.keys
            changes.delete_range(keys.record(offset), keys.record(OFFSETS_END))
            self._rows.remove_indexes(changes, offset)
            # Too much for a look-up by time, never too little.
            return end._replace(latest=offset, newest_in_block=INT64_MAX, newest_in_group=INT64_MAX)

    def restart_records(self, offset: int, update: Update) -> None:
        changes = Changes()
        for kind in _OF_RECORDS:
            changes.delete_range(*self._rows.keys.every(kind))
        self._put_update(changes, update)
        self._producers = None
        self._apply(changes, End(latest=offset, earliest=offset, swept=offset))
        self._commit = update.saved.commit
        self._tail_clean = True

    def drop_damaged(self, offset: int) -> None:
        changes, readable = Changes(), 0
        while offset < self._end.latest and readable < _READABLE:
            key = self._rows.keys.record(offset)
            try:
                self._family.get(key)
            except CorruptionError:
                changes.delete(key)
                readable = -1
            readable, offset = readable + 1, offset + 1
        self._family.write(changes, frees_room=True)

    # What operations do

    def drop_before(self, offset: int) -> None:
        self._apply(Changes(), self._end._replace(earliest=offset))

    def seal_here(self) -> None:
        if not self._row.sealed:
            self._put_row(replace(self._row, sealed=True))

    def trim_transaction(self, producer_id: int, until: int) -> None:
        changes, transacted = Changes(), self._rows.keys.transacted
        changes.delete_range(transacted(producer_id, 0), transacted(producer_id, until))
        self._family.write(changes, frees_room=True)

    # What leaders decide by

    def offsets_of_key(self, key: bytes, until: int) -> list[int]:
        rows = self._rows.of_key_back(key, self._end.earliest, until)
        return sorted(offset for offset, _, _ in rows)

    def transacted_offsets(self, producer_id: int, start: int) -> list[int] | None:
        writes = self._rows.transacted(producer_id)
        if not writes:
            return None
        start = max(start, self._end.earliest)
        return [offset for write in writes for offset in write if offset >= start]

    def expired_offsets(self, until: int) -> Iterator[int]:
        for _, offset in self._rows.expired(self._clock.expiry_ms()):
            if self._end.earliest <= offset < until:
                yield offset
