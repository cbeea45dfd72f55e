"""One shard in RocksDB.

A write puts its records, all their index rows and the shard's end in one atomic change: after a
crash a record is there with all of its rows, or not at all. A write of more than a megabyte goes in
pieces, and only the last one moves the end: rows at or past the end are left over from a write that
did not end. They are removed before the next write, which would give their offsets to others.

Changes hold the shard's lock; reads do not. They take the bounds first and the rows afterwards:
every row below the commit offset was written before it moved. Where the shard is flushed
synchronously the commit offset moves after the sync, which is waited for outside the lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from penstock.codec.validation import Checked
from penstock.engine.compaction import CompactionRules
from penstock.engine.contract import Compacted, ShardConfig, ShardInfo, Written
from penstock.engine.rocksdb import reads
from penstock.engine.rocksdb.keys import ShardKeys, shard_row
from penstock.engine.rocksdb.producers import StoredProducers
from penstock.engine.rocksdb.rows import (
    End,
    ShardRow,
    decode_end,
    decode_record,
    encode_end,
    encode_shard,
)
from penstock.engine.rocksdb.shard_rows import ShardRows
from penstock.errors import RetryableError, ShardSealedError, UnknownShardError
from penstock.platform.clock import Clock
from penstock.platform.rocksdb.changes import CHANGES_SIZE_MAX, Changes
from penstock.platform.rocksdb.database import Database
from penstock.platform.rocksdb.family import Family
from penstock.record import (
    Flush,
    Offset,
    Producer,
    Record,
    ShardId,
    StoredRecord,
)

OFFSETS_END: Final = (1 << 64) - 1
SWEEP_RECORDS: Final = 256
"""Records that a sweep removes in one write: about a millisecond in which writers wait."""


class RocksDBShard:
    """Invariants: earliest <= commit <= latest; swept <= earliest; rows in [earliest, latest) are
    complete; `_end` is what the end's row holds."""

    __slots__ = (
        "_clock",
        "_commit",
        "_database",
        "_deleted",
        "_end",
        "_family",
        "_lock",
        "_producers",
        "_row",
        "_rows",
        "_tail_clean",
        "_times_opened",
        "shard",
    )

    def __init__(
        self,
        shard: ShardId,
        row: ShardRow,
        end: End,
        *,
        database: Database,
        family: Family,
        clock: Clock,
    ) -> None:
        self.shard: Final = shard
        self._row = row
        self._end = end
        self._commit = end.latest
        self._database: Final = database
        self._family: Final = family
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._rows: Final = ShardRows(family, ShardKeys(row.generation))
        self._producers: StoredProducers | None = None  # until one writes
        self._tail_clean = False  # not looked at yet
        self._times_opened = database.prepare()
        self._deleted = False

    @property
    def config(self) -> ShardConfig:
        return self._row.config

    def info(self) -> ShardInfo:
        with self._lock:
            return ShardInfo(
                shard=self.shard,
                earliest=Offset(self._end.earliest),
                commit=Offset(self._commit),
                latest=Offset(self._end.latest),
                size=self._end.size,
                sealed=self._row.sealed,
            )

    def alter(self, config: ShardConfig) -> None:
        self._change_row(config=config)

    def seal(self) -> None:
        self._change_row(sealed=True)

    def delete(self) -> None:
        """Remove every row; later changes find the shard unknown."""
        with self._lock:
            changes = Changes()
            changes.delete(shard_row(self.shard))
            changes.delete_range(*self._rows.keys.all)
            self._family.write(changes, frees_room=True)
            self._deleted = True
        self._sync_if(self._is_synchronous)

    def _change_row(self, *, config: ShardConfig | None = None, sealed: bool | None = None) -> None:
        with self._lock:
            self._begin_change()
            row = replace(
                self._row,
                config=self._row.config if config is None else config,
                sealed=self._row.sealed if sealed is None else sealed,
            )
            changes = Changes()
            changes.put(shard_row(self.shard), encode_shard(row))
            self._family.write(changes)
            self._row = row
        self._sync_if(self._is_synchronous)

    # Writing

    def append(
        self, records: Sequence[Record], checked: Checked, producer: Producer | None
    ) -> Written:
        written, waits = self.append_unsynced(records, checked, producer)
        if waits:
            self._commit_until(written.first + written.count)
        return written

    def append_unsynced(
        self, records: Sequence[Record], _checked: Checked, producer: Producer | None
    ) -> tuple[Written, bool]:
        """Append, and say whether the caller has to sync the database and call `show`."""
        count = len(records)
        synchronous = self._is_synchronous
        with self._lock:
            self._begin_change()
            known = None
            if producer is not None:
                known = self._known_producers().check(producer, count, self.shard.name)
            if known is None:
                if self._row.sealed:
                    raise ShardSealedError(self.shard.name)
                first = self._end.latest
                self._write(records, producer)
                if not synchronous:
                    self._commit = self._end.latest
            else:
                first = known
        return Written(Offset(first), count, repeated=known is not None), synchronous

    def _write(self, records: Sequence[Record], producer: Producer | None) -> None:
        if not self._tail_clean:
            self._clean_tail()
        now_ms = self._clock.now_ms()
        pieces, end = self._build(records, now_ms)
        last = pieces[-1]
        last.put(self._rows.keys.end, encode_end(end))
        first, count = self._end.latest, len(records)
        if producer is not None:
            self._known_producers().put(last, producer, count, first, now_ms)
            if producer.is_transactional:
                self._rows.add_transacted(last, producer.id, first, count)
        self._tail_clean = len(pieces) == 1
        for number, piece in enumerate(pieces):
            self._family.write(piece, patient=number > 0)
        self._tail_clean = True
        if producer is not None:
            self._known_producers().remember(producer, count, first, now_ms)
        self._end = end

    def _build(self, records: Sequence[Record], now_ms: int) -> tuple[list[Changes], End]:
        """Return the rows of `records` in pieces of bounded size, and the shard's end with them."""
        end, rows = self._end, self._rows
        offset, size, newest, group = (
            end.latest,
            end.size,
            end.newest_in_block,
            end.newest_in_group,
        )
        stored_ms = max(now_ms, end.store_timestamp_ms)
        changes = Changes()
        pieces = [changes]
        for record in records:
            if changes.size >= CHANGES_SIZE_MAX:
                changes = Changes()
                pieces.append(changes)
            timestamp_ms, row_size = rows.add(changes, offset, record, now_ms, stored_ms)
            newest, group = rows.add_time(changes, offset, max(newest, timestamp_ms), group)
            size += row_size
            offset += 1
        return pieces, End(
            latest=offset,
            earliest=end.earliest,
            swept=end.swept,
            size=size,
            store_timestamp_ms=stored_ms,
            newest_in_block=newest,
            newest_in_group=group,
        )

    def _clean_tail(self) -> None:
        """Remove what a write of several pieces that did not end has left."""
        rows = self._rows.records(self._end.latest, OFFSETS_END)
        while leftover := list(islice(rows, SWEEP_RECORDS)):
            changes = Changes()
            for offset, row in leftover:
                self._rows.remove(changes, decode_record(offset, row))
            self._family.write(changes, frees_room=True)
        self._tail_clean = True

    def _commit_until(self, offset: int) -> None:
        if self._commit < offset:
            self._database.sync()
            self.show(offset)

    def show(self, offset: int) -> None:
        """Let readers see what is below `offset`, which is on the device."""
        with self._lock:
            self._commit = max(self._commit, offset)

    # Reading

    def page(self, start: int, max_records: int, max_size: int) -> list[StoredRecord]:
        return reads.page(self._rows, self._bounds(start), max_records, max_size)

    def page_of_tag(
        self, tag: str, start: int, max_records: int, max_size: int
    ) -> list[StoredRecord]:
        return reads.page_of_tag(self._rows, tag, self._bounds(start), max_records, max_size)

    def history(
        self, key: bytes, begin_ms: int | None, end_ms: int | None, limit: int
    ) -> list[StoredRecord]:
        return reads.history(self._rows, key, self._bounds(), begin_ms, end_ms, limit)

    def first_since(self, timestamp_ms: int, start: int = 0) -> Offset | None:
        bounds = self._bounds(start)
        return reads.first_since(self._rows, timestamp_ms, self._end, bounds)

    def first_within(self, size: int) -> int:
        bounds = self._bounds()
        return reads.first_after(self._rows, bounds, self._end.size - size)

    def _bounds(self, start: int = 0) -> reads.Bounds:
        """Return the readable offsets from `start` on; never a start after the end."""
        commit = self._commit  # before any row, see the module's head
        start = min(max(start, self._end.earliest), commit)
        return reads.Bounds(start, commit, self._clock.expiry_ms())

    # Deleting

    def delete_key(self, key: bytes) -> int:
        with self._lock:
            self._begin_change()
            now_ms, end, count = self._clock.expiry_ms(), self._end, 0
            rows = self._rows.of_key_back(key, end.earliest, end.latest)
            patient = False
            while part := list(islice(rows, SWEEP_RECORDS)):
                self._remove([offset for offset, _, _ in part], patient=patient)
                count += sum(expires_ms > now_ms for _, expires_ms, _ in part)
                patient = True
        self._sync_if(patient and self._is_synchronous)
        return count

    def end_transaction(self, producer_id: int, start: int, *, is_commit: bool) -> int:
        count = 0
        writes = self._rows.transacted(producer_id)
        if not is_commit:
            offsets = (offset for write in writes for offset in write if offset >= start)
            while part := list(islice(offsets, SWEEP_RECORDS)):
                with self._lock:
                    self._begin_change()
                    count += self._remove(part, patient=count > 0)[0]
        with self._lock:
            self._begin_change()
            if writes:
                # Last: when the process ends before, the rows are there for the next one.
                changes = Changes()
                self._rows.forget_transacted(changes, producer_id)
                self._family.write(changes, frees_room=True, patient=count > 0)
        # Also when there was nothing left: it may be deleted, and not yet be on the device.
        self._sync_if(not is_commit)
        return count

    def delete_offset(self, offset: int) -> bool:
        with self._lock:
            self._begin_change()
            if not self._end.earliest <= offset < self._commit:
                return False
            entry = self._rows.record(offset)
            if entry is None:
                return False
            self._remove([offset])
            expires_ms, now_ms = entry[0].expires_at_ms, self._clock.expiry_ms()
        self._sync_if(self._is_synchronous)
        return expires_ms is None or expires_ms > now_ms

    def delete_before(self, offset: int) -> Offset:
        with self._lock:
            self._begin_change()
            earliest = max(self._end.earliest, min(offset, self._commit))
            if earliest > self._end.earliest:
                self._apply(Changes(), self._end._replace(earliest=earliest))
        self._sync_if(self._is_synchronous)
        # The offset has moved; what a sweep leaves only takes room until the next one.
        with contextlib.suppress(RetryableError):
            while self._sweep():
                pass
        return Offset(earliest)

    def compact(self, stable_until: Callable[[], int | None]) -> Compacted:
        if not self.config.cleanup.compacts:
            return Compacted(0, 0)
        bounds = self._bounds()
        # After the bounds: a transaction holds the shard up before it writes below them.
        stable = stable_until()
        if stable is not None:
            bounds = bounds._replace(end=max(bounds.start, min(bounds.end, stable)))
        rules = CompactionRules.of(self.config, bounds.now_ms)
        end, young_ms = reads.settled_end(self._rows, bounds, rules)
        bounds = bounds._replace(end=end)
        old = reads.old_tombstones(self._rows, bounds, rules)
        removed = self._remove_superseded(bounds)
        count, size = removed.records, removed.size
        for first in range(0, len(old.offsets), SWEEP_RECORDS):
            with self._lock:
                self._begin_change()
                part = self._remove(old.offsets[first : first + SWEEP_RECORDS], patient=True)
                count, size = count + part[0], size + part[1]
        self._sync_if(count > 0 and self._is_synchronous)
        return Compacted(count, size, rules.again(old.waiting_ms, young_ms))

    def _remove_superseded(self, bounds: reads.Bounds) -> Compacted:
        count = size = 0
        superseded = reads.superseded(self._rows, bounds)
        while part := list(islice(superseded, SWEEP_RECORDS)):
            with self._lock:
                self._begin_change()
                # A keeper may have been deleted meanwhile: its predecessor is the newest again.
                kept = {
                    keeper
                    for keeper in {(prefix, newest) for prefix, newest, _ in part}
                    if self._family.get(self._rows.keys.named(*keeper)) is not None
                }
                removed = self._remove(
                    [offset for prefix, newest, offset in part if (prefix, newest) in kept],
                    patient=count > 0,
                )
                count, size = count + removed[0], size + removed[1]
        return Compacted(count, size)

    def remove_expired(self) -> Compacted:
        """Give back the room of records that have expired."""
        count = size = 0
        expired = self._rows.expired(self._clock.expiry_ms())
        while part := list(islice(expired, SWEEP_RECORDS)):
            with self._lock:
                self._begin_change()
                end = self._end
                here = [offset for _, offset in part if end.earliest <= offset < self._commit]
                removed = self._remove(here, patient=count > 0)
                count, size = count + removed[0], size + removed[1]
        return Compacted(count, size)

    def _remove(self, offsets: list[int], *, patient: bool = False) -> tuple[int, int]:
        """Remove a few records, if they are there; return how many there were, and their size."""
        count = size = 0
        changes = Changes()
        for offset in offsets:
            entry = self._rows.record(offset)
            if entry is not None:
                self._rows.remove(changes, entry[0])
                count, size = count + 1, size + entry[1]
        if count:
            end = self._end._replace(size=self._end.size - size)
            self._apply(changes, end, patient=patient)
        return count, size

    def _sweep(self) -> bool:
        """Remove some rows below the earliest offset; return whether there may be more."""
        with self._lock:
            end = self._end
            if self._deleted or end.swept >= end.earliest:
                return False
            changes, size, swept = Changes(), 0, end.earliest
            leftover = self._rows.records(end.swept, end.earliest)
            for number, (offset, row) in enumerate(leftover):
                if number == SWEEP_RECORDS:
                    swept = offset
                    break
                self._rows.remove(changes, decode_record(offset, row))
                size += len(row)
            self._rows.remove_times(changes, end.swept, swept)
            self._apply(changes, end._replace(swept=swept, size=end.size - size))
        return True

    def _apply(self, changes: Changes, end: End, *, patient: bool = False) -> None:
        changes.put(self._rows.keys.end, encode_end(end))
        self._family.write(changes, frees_room=True, patient=patient)
        self._end = end

    # The rest

    @property
    def _is_synchronous(self) -> bool:
        return self._row.config.flush is Flush.SYNC

    def _sync_if(self, is_due: bool) -> None:
        if is_due:
            self._database.sync()

    def _known_producers(self) -> StoredProducers:
        if self._producers is None:
            self._producers = StoredProducers(self._family, self._rows.keys)
        return self._producers

    def _begin_change(self) -> None:
        if self._deleted:
            raise UnknownShardError(self.shard.name)
        times_opened = self._family.prepare()
        if times_opened != self._times_opened:
            self._load_end()
            self._times_opened = times_opened

    def _load_end(self) -> None:
        """Start again from the rows: a write that failed on a full disk may be there after all."""
        row = self._family.get(self._rows.keys.end)
        assert row is not None, f"shard {self.shard.name!r} has no end"
        self._end = decode_end(row)
        self._commit = self._end.latest
        self._producers = None
        self._tail_clean = False
