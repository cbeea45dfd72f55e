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
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from msgspec.structs import replace

from penstock.codec.validation import Checked
from penstock.engine.compaction import CompactionRules
from penstock.engine.contract import Compacted, ShardConfig, ShardInfo, Written
from penstock.engine.rocksdb import reads
from penstock.engine.rocksdb.keys import shard_row
from penstock.engine.rocksdb.replica_store import RocksDBReplicaStore, SyncMark
from penstock.engine.rocksdb.rows import End, encode_end
from penstock.engine.rocksdb.stored_shard import SWEEP_RECORDS
from penstock.engine.row_replica import LoggedWrite, Removed, check_write_size
from penstock.errors import CorruptionError, RetryableError, ShardSealedError
from penstock.platform.rocksdb import CHANGES_SIZE_MAX, Changes
from penstock.record import Offset, Producer, Record, StoredRecord


class _Compaction(NamedTuple):
    """What a compaction is going to remove."""

    bounds: reads.Bounds
    """Where superseded records go."""
    tombstones: list[int]
    again_ms: int | None


class RocksDBShard(RocksDBReplicaStore):
    __slots__ = ()

    def info(self) -> ShardInfo:
        with self.lock:
            return ShardInfo(
                shard=self.shard,
                earliest=Offset(self._end.earliest),
                commit=Offset(self._commit),
                latest=Offset(self._end.latest if self.replica is None else self._commit),
                size=self._end.size,
                sealed=self._row.sealed,
            )

    def alter(self, config: ShardConfig) -> None:
        self._change_row(config=config)

    def _seal(self) -> None:
        self._change_row(sealed=True)

    def delete(self) -> None:
        """Remove every row; later changes find the shard unknown."""
        with self.lock:
            changes = Changes()
            changes.delete(shard_row(self.shard))
            changes.delete_range(*self._rows.keys.all)
            self._family.write(changes, frees_room=True)
            self._mark_deleted()
        self._sync_if(self.waits_for_device)

    def _change_row(self, *, config: ShardConfig | None = None, sealed: bool | None = None) -> None:
        with self.lock:
            self.check_exists()
            row = replace(
                self._row,
                config=self._row.config if config is None else config,
                sealed=self._row.sealed if sealed is None else sealed,
            )
            self._put_row(row)
        self._sync_if(self.waits_for_device)

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
        synchronous = self.waits_for_device
        with self.lock:
            self.check_exists()
            replica = self.replica
            epoch = 0 if replica is None else replica.check_leads()
            known = None
            if producer is not None:
                known = self._known_producers().check(producer, count, self.shard.name)
            if known is None:
                if self._row.sealed:
                    raise ShardSealedError(self.shard.name)
                first = self._end.latest
                self._write(records, producer, epoch)
                if replica is None and not synchronous:
                    self._commit = self._end.latest
            else:
                first = known
        return Written(Offset(first), count, repeated=known is not None), synchronous

    def _write(self, records: Sequence[Record], producer: Producer | None, epoch: int) -> None:
        if not self._tail_clean:
            self._clean_tail()
        now_ms = self._clock.now_ms()
        pieces, end = self._build(records, now_ms, epoch)
        last = pieces[-1]
        last.put(self._rows.keys.end, encode_end(end))
        first, count = self._end.latest, len(records)
        histories = None
        if self.replica is not None:
            check_write_size(end.size - self._end.size, count, self.shard.name)
            write = LoggedWrite(first, count, epoch, producer, now_ms)
            histories = self._log_write(last, write)
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
        if self.replica is not None and histories is not None:
            self.replica.histories = histories
        self._end = end

    def _build(
        self, records: Sequence[Record], now_ms: int, epoch: int
    ) -> tuple[list[Changes], End]:
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
            timestamp_ms, row_size = rows.add(changes, offset, record, now_ms, stored_ms, epoch)
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

    def _commit_until(self, offset: int) -> None:
        replica = self.replica
        if (self._commit if replica is None else replica.synced) < offset:
            mark = self.sync_mark()
            self._database.sync()
            self.show(offset, mark)

    def show(self, offset: int, mark: SyncMark | None) -> None:
        """Let readers see what is below `offset`, which is on the device; where there are replicas,
        count for what was there at `mark` before the sync."""
        if self.replica is not None:
            self.synced(mark)
            return
        with self.lock:
            self._commit = max(self._commit, offset)

    # Reading

    def page(self, start: int, max_records: int, max_size: int) -> list[StoredRecord]:
        return reads.page(self._rows, self._bounds(start), max_records, max_size)

    def verify(self, start: int, max_size: int) -> tuple[int, int]:
        """See `VerifiedEngine`: RocksDB verifies each block that it reads from the disk."""
        bounds = self._bounds(start)
        after, size = bounds.start, 0
        try:
            for offset, row in self._rows.records(bounds.start, bounds.end):
                after, size = offset + 1, size + len(row)
                if size >= max_size:
                    return after, size
        except CorruptionError:
            if not size:
                raise
            return after, size  # the next call begins at the damage
        return max(start, bounds.end), size

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

    def _delete_key(self, key: bytes) -> int:
        with self.lock:
            self.check_exists()
            now_ms, end, count = self._clock.expiry_ms(), self._end, 0
            rows = self._rows.of_key_back(key, end.earliest, end.latest)
            patient = False
            while part := list(islice(rows, SWEEP_RECORDS)):
                self.remove([offset for offset, _, _ in part], patient=patient)
                count += sum(expires_ms > now_ms for _, expires_ms, _ in part)
                patient = True
        self._sync_if(patient and self.waits_for_device)
        return count

    def _end_transaction(self, producer_id: int, start: int, *, is_commit: bool) -> int:
        count = 0
        writes = self._rows.transacted(producer_id)
        if not is_commit:
            offsets = (offset for write in writes for offset in write if offset >= start)
            while part := list(islice(offsets, SWEEP_RECORDS)):
                with self.lock:
                    self.check_exists()
                    count += self.remove(part, patient=count > 0).records
        with self.lock:
            self.check_exists()
            if writes:
                # Last: when the process ends before, the rows are there for the next one.
                changes = Changes()
                self._rows.delete_transacted(changes, producer_id)
                self._family.write(changes, frees_room=True, patient=count > 0)
        # Also when there was nothing left: it may be deleted, and not yet be on the device.
        self._sync_if(not is_commit)
        return count

    def _delete_offset(self, offset: int) -> bool:
        with self.lock:
            self.check_exists()
            if not self._end.earliest <= offset < self._commit:
                return False
            removed = self.remove([offset])
        self._sync_if(removed.records > 0 and self.waits_for_device)
        return removed.live > 0

    def _delete_before(self, offset: int) -> Offset:
        with self.lock:
            self.check_exists()
            earliest = max(self._end.earliest, min(offset, self._commit))
            if earliest > self._end.earliest:
                self._apply(Changes(), self._end._replace(earliest=earliest))
        self._sync_if(self.waits_for_device)
        # The offset has moved; what a sweep leaves only takes room until the next one.
        with contextlib.suppress(RetryableError):
            while self.sweep_some():
                pass
        return Offset(earliest)

    def _compact(self, stable_until: Callable[[], int | None]) -> Compacted:
        plan = self._plan_compaction(stable_until)
        removed = self._remove_superseded(plan.bounds)
        for first in range(0, len(plan.tombstones), SWEEP_RECORDS):
            with self.lock:
                self.check_exists()
                part = plan.tombstones[first : first + SWEEP_RECORDS]
                removed = removed.plus(self.remove(part, patient=True))
        self._sync_if(removed.records > 0 and self.waits_for_device)
        return Compacted(removed.records, removed.size, plan.again_ms)

    def _plan_compaction(self, stable_until: Callable[[], int | None]) -> _Compaction:
        bounds = self._bounds()
        # After the bounds: a transaction holds the shard up before it writes below them.
        stable = stable_until()
        if stable is not None:
            bounds = bounds._replace(end=max(bounds.start, min(bounds.end, stable)))
        rules = CompactionRules.of(self.config, bounds.now_ms)
        end, young_ms = reads.settled_end(self._rows, bounds, rules)
        bounds = bounds._replace(end=end)
        old = reads.old_tombstones(self._rows, bounds, rules)
        return _Compaction(bounds, old.offsets, rules.again(old.waiting_ms, young_ms))

    def compactable(
        self, stable_until: Callable[[], int | None]
    ) -> tuple[Iterator[int], int | None]:
        plan = self._plan_compaction(stable_until)
        superseded = (offset for _, _, offset in reads.superseded(self._rows, plan.bounds))
        return chain(superseded, plan.tombstones), plan.again_ms

    def _remove_superseded(self, bounds: reads.Bounds) -> Removed:
        removed = Removed()
        superseded = reads.superseded(self._rows, bounds)
        while part := list(islice(superseded, SWEEP_RECORDS)):
            with self.lock:
                self.check_exists()
                # A keeper may have been deleted meanwhile: its predecessor is the newest again.
                kept = {
                    keeper
                    for keeper in {(prefix, newest) for prefix, newest, _ in part}
                    if self._family.get(self._rows.keys.named(*keeper)) is not None
                }
                offsets = [offset for prefix, newest, offset in part if (prefix, newest) in kept]
                removed = removed.plus(self.remove(offsets, patient=removed.records > 0))
        return removed

    def _remove_expired(self) -> Compacted:
        """Give back the room of records that have expired."""
        removed = Removed()
        expired = self._rows.expired(self._clock.expiry_ms())
        while part := list(islice(expired, SWEEP_RECORDS)):
            with self.lock:
                self.check_exists()
                first = self._end.earliest
                here = [offset for _, offset in part if first <= offset < self._commit]
                removed = removed.plus(self.remove(here, patient=removed.records > 0))
        return Compacted(removed.records, removed.size)
