"""The rows of one shard, and the changes to them that hold its lock.

See `shard` for what is atomic.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import Final

from penstock.engine.contract import ShardConfig
from penstock.engine.record_rows import decode_record
from penstock.engine.rocksdb.keys import ShardKeys, shard_row
from penstock.engine.rocksdb.producers import StoredProducers
from penstock.engine.rocksdb.rows import End, ShardRow, decode_end, encode_end, encode_shard
from penstock.engine.rocksdb.shard_rows import ShardRows
from penstock.engine.row_replica import Announce, Removed, RowShard
from penstock.platform.clock import Clock
from penstock.platform.rocksdb import Changes, Database, Family
from penstock.record import Flush, ShardId

OFFSETS_END: Final = (1 << 64) - 1
SWEEP_RECORDS: Final = 256
"""Records that a sweep removes in one write: about a millisecond in which writers wait."""


class StoredShard(RowShard):
    """Invariants: earliest <= commit <= latest; swept <= earliest; rows in [earliest, latest) are
    complete; `_end` is what the end's row holds."""

    __slots__ = (
        "_commit",
        "_database",
        "_end",
        "_family",
        "_producers",
        "_row",
        "_rows",
        "_tail_clean",
        "_times_opened",
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
        announce: Announce,
    ) -> None:
        super().__init__(shard, clock, announce)
        self._row = row
        self._end = end
        self._commit = end.latest
        self._database: Final = database
        self._family: Final = family
        self._rows: Final = ShardRows(family, ShardKeys(row.generation))
        self._producers: StoredProducers | None = None  # until one writes
        self._tail_clean = False  # not looked at yet
        self._times_opened = database.prepare()

    @property
    def config(self) -> ShardConfig:
        return self._row.config

    @property
    def waits_for_device(self) -> bool:
        return self._row.config.flush is Flush.SYNC

    @property
    def has_failed(self) -> bool:
        return self._database.failure is not None

    def sync(self) -> None:
        self._database.sync()

    def check_exists(self) -> None:
        super().check_exists()
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
        self._reload_replica()

    @abstractmethod
    def _reload_replica(self) -> None:
        """Start again from the replica's rows, too, if there is one."""

    @abstractmethod
    def write_border(self, offset: int) -> int:
        """See `ReplicaStore`."""

    def _put_row(self, row: ShardRow) -> None:
        changes = Changes()
        changes.put(shard_row(self.shard), encode_shard(row))
        self._family.write(changes)
        self._row = row

    def _known_producers(self) -> StoredProducers:
        if self._producers is None:
            self._producers = StoredProducers(self._family, self._rows.keys)
        return self._producers

    def _sync_if(self, is_due: bool) -> None:
        if is_due:
            self._database.sync()

    def _clean_tail(self) -> None:
        """Remove what a write of several pieces that did not end has left, or a cut."""
        rows = self._rows.records(self._end.latest, OFFSETS_END)
        while leftover := list(islice(rows, SWEEP_RECORDS)):
            changes = Changes()
            for offset, row in leftover:
                self._rows.remove(changes, decode_record(offset, row))
            self._family.write(changes, frees_room=True)
        if self.replica is not None:
            changes, keys = Changes(), self._rows.keys
            changes.delete_range(keys.write(self._end.latest), keys.write(OFFSETS_END))
            self._family.write(changes, frees_room=True)
        self._tail_clean = True

    def remove(self, offsets: Sequence[int], *, patient: bool = False) -> Removed:
        """Remove a few records, if they are there."""
        live = count = size = 0
        now_ms, changes = self._clock.expiry_ms(), Changes()
        for offset in offsets:
            entry = self._rows.record(offset)
            if entry is not None:
                record, row_size = entry
                self._rows.remove(changes, record)
                live += record.expires_at_ms is None or record.expires_at_ms > now_ms
                count, size = count + 1, size + row_size
        if count:
            end = self._end._replace(size=self._end.size - size)
            self._apply(changes, end, patient=patient)
        return Removed(live, count, size)

    def sweep_some(self) -> bool:
        """Remove some rows below the earliest offset; return whether there may be more."""
        with self.lock:
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
            if self.replica is not None:
                keys = self._rows.keys
                changes.delete_range(keys.write(0), keys.write(self.write_border(swept)))
            self._apply(changes, end._replace(swept=swept, size=end.size - size))
        return True

    def _apply(self, changes: Changes, end: End, *, patient: bool = False) -> None:
        changes.put(self._rows.keys.end, encode_end(end))
        self._family.write(changes, frees_room=True, patient=patient)
        self._end = end
