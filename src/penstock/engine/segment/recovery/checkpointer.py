"""Puts derived files and states on the device, and publishes bounds for other processes.

The order of a checkpoint is its guarantee:

    1  position P and the queues' ends, taken together under the log's lock
    2  shards' states             packed
    3  the log, up to its end     synced
    4  queues, times, index       written and synced
    5  shards' states             replaced, durable
    6  penstock/checkpoint = P    replaced, durable

A crash before 6 leaves the old checkpoint, and everything below its position is still right: files
only hold more than it says, which a replay from it writes again.

The ends themselves say which shards to save: those whose end is not the one that was saved.
A note of every move could get lost; so only changes that have no unit are noted (`touch`).

Appends go on meanwhile, so a state may know of records after P: a replay folds them again, which
changes nothing. That is why the log is synced after the states are packed: a state must not know of
a record that a power cut can take. A shard is cut only between two checkpoints (`pause`), because
to cut it again in a replay would change something.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Final

from msgspec.structs import replace

from penstock.engine.segment.dispatch.changed_shards import changed_indexes
from penstock.engine.segment.index.block_checksums import BlockChecksums
from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.log.commit_log import CommitLog
from penstock.engine.segment.log.disk_errors import is_full
from penstock.engine.segment.log.reserve import Reserve
from penstock.engine.segment.paths import StorePaths, sums_path
from penstock.engine.segment.queue.queue_files import Unsynced
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_table import ShardTable
from penstock.engine.segment.queue.state_files import PackableState, StateFiles
from penstock.engine.segment.recovery.checkpoint import DerivedPoint, write_derived, write_rocketmq
from penstock.engine.segment.recovery.file_checksums import sums_of_small_files
from penstock.errors import DiskFullError, StoreError
from penstock.platform.disk import Disk
from penstock.platform.log import get_logger
from penstock.record import ShardId

_SEALED_TOGETHER: Final = 64
"""Queue files that share the syncs of their checksums. A busy shard fills many between two
checkpoints, and no other thread may truncate a shard, or make a checkpoint, meanwhile."""

_log: Final = get_logger(__name__)


class _Packed:
    """A shard's state as of the given ends, ready to be written."""

    __slots__ = ("_latest", "_log", "_position")

    def __init__(self, log: ShardLog, latest: int, position: int) -> None:
        self._log = log
        self._latest = latest
        self._position = position

    def to_bytes(self) -> bytes:
        return self._log.pack_state(self._latest, self._log.commit, self._position)


class _States(Mapping[ShardId, PackableState]):
    """All states, packed when asked for. `ends` are the queues' ends by handle, at `position`, as
    the appender gives them."""

    def __init__(self, table: ShardTable, ends: bytes, position: int) -> None:
        self._table = table
        self._ends = memoryview(ends).cast("q")
        self._position = position

    def __getitem__(self, shard: ShardId) -> PackableState:
        log = self._table.find(shard)
        if log is None:
            raise KeyError(shard)
        # A shard that is younger than the ends had none then.
        latest = self._ends[log.handle] if log.handle < len(self._ends) else 0
        return _Packed(log, latest, self._position)

    def __contains__(self, shard: object) -> bool:
        return isinstance(shard, ShardId) and self._table.find(shard) is not None

    def __iter__(self) -> Iterator[ShardId]:
        return (log.shard for log in self._table)

    def __len__(self) -> int:
        return len(self._table)


class Checkpointer:
    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        log: CommitLog,
        table: ShardTable,
        index: KeyIndex,
        sums: BlockChecksums,
    ) -> None:
        self._disk: Final = disk
        self._paths: Final = paths
        self._log: Final = log
        self._table: Final = table
        self._index: Final = index
        self._checksums: Final = sums
        self._states: Final = StateFiles(disk, paths.shards, paths.copies)
        self._live: Final = StateFiles(disk, paths.live)
        self._reserve: Final = Reserve(disk, paths.reserve)
        self.pause: Final = threading.Lock()
        """Held while a checkpoint is taken, and while a shard is cut; before the log's lock."""
        self._unsaved: set[ShardId] = set()
        self._unpublished: set[ShardId] = set()
        self._cut: list[ShardLog] = []
        self._changed_lock: Final = threading.Lock()
        """Held for a moment, while one of the two sets is changed or taken."""
        self.position = 0
        """The position of the newest checkpoint."""
        self._saved_ends = b""
        """The queues' ends by handle, as the saved states say them."""
        self._stopped: StoreError | None = None

    @property
    def is_due(self) -> bool:
        """Whether anything happened since the newest checkpoint."""
        return bool(self._unsaved) or self._log.end != self.position

    def resume(self, position: int) -> None:
        """Go on from the checkpoint at `position`; the queues end where its states say."""
        self.position = position
        self._saved_ends = self._log.appender.next_offsets()

    def stop(self, error: StoreError) -> None:
        """Write nothing any more: a late caller finds no shards, and must not save that."""
        self._stopped = error

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    def touch(self, log: ShardLog) -> None:
        """Save this shard's state next time: it changed without a queue unit of its own. For a
        change that a record of the log tells of, before the log's lock is released: a checkpoint
        after that record must have the state."""
        self._add_changed((log.shard,))

    def trim_later(self, log: ShardLog) -> None:
        """Clear the queue files after the end of a shard that was cut, when the next checkpoint has
        saved that. The caller holds `pause`."""
        self._cut.append(log)

    def remove_later(self, shard: ShardId) -> None:
        """Remove a deleted shard from the files of states, next time."""
        self._add_changed((shard,))

    def _add_changed(self, shards: Iterable[ShardId], *, saved: bool = False) -> None:
        """Have shards published, and unless they are `saved`, saved."""
        with self._changed_lock:
            self._unpublished.update(shards)
            if not saved:
                self._unsaved.update(shards)

    def publish(self) -> None:
        """Show readers in other processes what is committed now."""
        with self.pause:
            if not (self._unpublished or self._log.appender.dirty_queues()):
                return
            self._check_running()
            # Ends first: what is published then is below what is drained.
            position = self._log.end
            ends = self._log.appender.next_offsets()
            self._drain()
            with self._changed_lock:
                dirty, self._unpublished = self._unpublished, set()
            try:
                self._live.save(dirty, _States(self._table, ends, position), durable=False)
            except BaseException:
                self._add_changed(dirty, saved=True)
                raise
            self._add_changed([shard for shard in dirty if self._has_more(shard)], saved=True)

    def _has_more(self, shard: ShardId) -> bool:
        """Say whether a shard has records that were not committed when it was published."""
        log = self._table.find(shard)
        return log is not None and log.state.commit_offset < log.next_offset

    def _drain(self) -> None:
        self._table.drain_dirty(self.touch)

    def _pop_unsaved(self, ends: bytes) -> set[ShardId]:
        moved = map(self._table.find_handle, changed_indexes(self._saved_ends, ends))
        shards = {log.shard for log in moved if log is not None}
        with self._changed_lock:
            dirty, self._unsaved = self._unsaved | shards, set()
        return dirty

    def checkpoint(self, *, clean: bool = False, frees_room: bool = False) -> None:
        """Put everything derived on the device and remember how far the log is then. One after
        which files can be removed (`frees_room`) may use the last room that there is."""
        with self.pause:
            try:
                self._checkpoint(clean=clean)
            except (OSError, DiskFullError) as error:
                if not (frees_room and self._reserve.give_up_for(error)):
                    raise
                self._checkpoint(clean=clean)

    def _checkpoint(self, *, clean: bool) -> None:
        self._index.seal_full(self._log.appender)
        with self._log.lock:
            position = self._log.end
            ends = self._log.appender.next_offsets()
            timestamp_ms = self._log.appender.last_store_timestamp_ms
            begun = self._index.begin_mark()
        self._drain()
        dirty = self._pop_unsaved(ends)
        try:
            packed = self._states.pack(dirty, _States(self._table, ends, position))
            self._log.flush()
            self._sync_shards(dirty)
            self._index.sync()
            mark = self._index.finish_mark(begun, clean=clean)
            self._check_running()
            self._states.write(packed, durable=True)
            point = DerivedPoint(
                position,
                clean,
                mark,
                timestamp_ms,
                buckets=tuple(self._states.buckets),
                ends_total=sum(memoryview(ends).cast("q")),
                log_start=self._log.files.start,
            )
            if clean:
                self._write_rocketmq(position, timestamp_ms)
                point = replace(point, small_files=sums_of_small_files(self._disk, self._paths))
            write_derived(self._disk, self._paths.derived, point)
        except BaseException:
            self._add_changed(dirty)
            raise
        self.position, self._saved_ends = position, ends
        cut, self._cut = self._cut, []
        for log in cut:
            log.trim_files()
        if not clean:
            self._write_rocketmq(position, timestamp_ms)

    def _write_rocketmq(self, position: int, timestamp_ms: int) -> None:
        """Keep RocketMQ's own checkpoint. An old one only makes it look at more of the log: on a
        full disk, where retention needs checkpoints to free space, it may stay."""
        try:
            write_rocketmq(
                self._disk,
                self._paths.checkpoint,
                durable=self._log.durable,
                derived=position,
                timestamp_ms=timestamp_ms,
            )
        except OSError as error:
            if not is_full(error):
                raise
            _log.warning("rocketmq_checkpoint_not_written", error=str(error))

    def _sync_shards(self, dirty: set[ShardId]) -> None:
        """Put the queues and times of shards on the device, all of them together, then seal the
        queue files that take no more units."""
        # The files of a deleted shard are not read again: see `shard_gc`.
        candidates = [self._table.find(shard) for shard in sorted(dirty)]
        logs = [log for log in candidates if log is not None and not log.state.dropped]
        taken: list[tuple[ShardLog, Unsynced, Unsynced]] = []
        try:
            for log in logs:
                with log.lock:
                    taken.append((log, log.units.drain_unsynced(), ([], [])))
                    taken[-1] = (*taken[-1][:2], log.times.drain_unsynced())
            parts = [part for _, units, times in taken for part in (units, times)]
            files = [path for paths, _ in parts for path in paths]
            # The innermost directory of each first, the ones that shards share last.
            directories = sorted({path for _, paths in parts for path in paths}, reverse=True)
            self._disk.sync_together(files, directories)
        except BaseException:
            for log, units, times in taken:
                with log.lock:
                    log.units.return_unsynced(units)
                    log.times.return_unsynced(times)
            raise
        for log in logs:
            with log.lock:
                # Checksums over bytes that failed theirs would hide the damage.
                filled = log.units.filled_and_synced if log.check_units() else []
                for start in range(0, len(filled), _SEALED_TOGETHER):
                    self._seal(log, filled[start : start + _SEALED_TOGETHER])

    def _seal(self, log: ShardLog, paths: list[str]) -> None:
        """Keep checksums of queue files that take no more units."""
        with ExitStack() as opened:
            files = {
                sums_path(log.shard, log.kind, path): opened.enter_context(
                    closing(self._disk.open(path, writable=False))
                )
                for path in paths
            }
            self._checksums.seal_together(files)
        for path in paths:
            log.units.discard_filled(path)

    def remove_checkpoint(self) -> None:
        """Drop the checkpoint before derived files are rebuilt: a crash in between must start
        from the log again."""
        self._disk.remove(self._paths.derived)
        self._disk.sync_directory(self._paths.own)

    def remove_live(self) -> None:
        self._disk.remove_tree(self._paths.live)
