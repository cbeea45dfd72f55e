"""Puts derived files and states on the device, and publishes bounds for other processes.

The order of a checkpoint is its guarantee:

    1  position P and the queues' ends, taken together under the log's lock
    2  the log up to P            synced
    3  queues, times, index       written and synced
    4  shards' states             replaced, durable
    5  penstock/checkpoint = P    replaced, durable

A crash before 5 leaves the old checkpoint, and everything below its position is still right: files
only hold more than it says, which a replay from it writes again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.disk import Disk
from penstock.engine.segment.checkpoint import DerivedPoint, write_derived, write_rocketmq
from penstock.engine.segment.commit_log import CommitLog
from penstock.engine.segment.key_index import KeyIndex
from penstock.engine.segment.page_sums import PageSums
from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.shard_log import ShardLog
from penstock.engine.segment.shard_table import ShardTable
from penstock.engine.segment.state_files import PackableState, StateFiles
from penstock.record import QueueKind, ShardId


class _Packed:
    """A shard's state as of the given ends, ready to be written."""

    __slots__ = ("_commit", "_latest", "_log")

    def __init__(self, log: ShardLog, latest: int, commit: int) -> None:
        self._log = log
        self._latest = latest
        self._commit = commit

    def to_bytes(self) -> bytes:
        return self._log.pack_state(self._latest, self._commit)


class _States(Mapping[ShardId, PackableState]):
    """All states, packed when asked for. `ends` are the queues' ends by handle."""

    def __init__(self, table: ShardTable, ends: dict[int, int]) -> None:
        self._table = table
        self._ends = ends

    def __getitem__(self, shard: ShardId) -> PackableState:
        log = self._table.find(shard)
        if log is None:
            raise KeyError(shard)
        latest = self._ends.get(log.handle, 0)
        return _Packed(log, latest, min(latest, log.commit))

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
        sums: PageSums,
    ) -> None:
        self._disk: Final = disk
        self._paths: Final = paths
        self._log: Final = log
        self._table: Final = table
        self._index: Final = index
        self._sums: Final = sums
        self._states: Final = StateFiles(disk, paths.shards)
        self._live: Final = StateFiles(disk, paths.live)
        self._lock: Final = threading.Lock()
        self._unsaved: set[ShardId] = set()
        self._unpublished: set[ShardId] = set()
        self.position = 0
        """The position of the newest checkpoint."""

    @property
    def is_due(self) -> bool:
        """Whether anything happened since the newest checkpoint."""
        return bool(self._unsaved) or self._log.end != self.position

    def touch(self, log: ShardLog) -> None:
        """Save this shard's state next time: it changed without a queue unit of its own."""
        self._unsaved.add(log.shard)
        self._unpublished.add(log.shard)

    def touch_all(self) -> None:
        for log in self._table:
            self.touch(log)

    def publish(self) -> None:
        """Show readers in other processes what is committed now."""
        with self._lock:
            if not (self._unpublished or self._log.appender.dirty_queues()):
                return
            # Ends first: what is published then lies below what is drained.
            ends = self._ends()
            self._drain()
            dirty, self._unpublished = self._unpublished, set()
            self._live.save(dirty, _States(self._table, ends), durable=False)
            for shard in dirty:
                log = self._table.find(shard)
                if log is not None and log.state.commit_offset < log.next_offset:
                    self._unpublished.add(shard)

    def _ends(self) -> dict[int, int]:
        return {handle: end for handle, _, _, _, end, _ in self._log.appender.queues()}

    def _drain(self) -> None:
        for log in self._table.drain_dirty():
            self.touch(log)

    def checkpoint(self, *, clean: bool = False) -> None:
        """Put everything derived on the device and remember how far the log is then."""
        with self._lock:
            with self._log.lock:
                position = self._log.end
                ends = self._ends()
                timestamp_ms = self._log.appender.last_store_timestamp_ms
                begun = self._index.begin_mark()
            self._log.flush()
            self._drain()
            dirty, self._unsaved = self._unsaved, set()
            try:
                self._sync_shards(dirty)
                self._index.sync()
                mark = self._index.finish_mark(begun)
                self._states.save(dirty, _States(self._table, ends), durable=True)
                point = DerivedPoint(position, clean, mark, timestamp_ms)
                write_derived(self._disk, self._paths.derived, point)
            except OSError:
                self._unsaved |= dirty
                raise
            self.position = position
            write_rocketmq(
                self._disk,
                self._paths.checkpoint,
                durable=self._log.durable,
                derived=position,
                timestamp_ms=timestamp_ms,
            )

    def _sync_shards(self, dirty: set[ShardId]) -> None:
        for shard in sorted(dirty):
            log = self._table.find(shard)
            if log is None:
                continue
            with log.lock:
                log.units.sync()
                log.times.sync()
                for path in log.units.take_filled():
                    self._seal(log, path)

    def _seal(self, log: ShardLog, path: str) -> None:
        """Keep checksums of a queue file that takes no more units."""
        file = self._disk.open(path, writable=False)
        try:
            self._sums.seal(sums_path(log.shard, log.kind, path), file)
        finally:
            file.close()

    def forget(self) -> None:
        """Drop the checkpoint before derived files are rebuilt: a crash in between must start
        from the log again."""
        self._disk.remove(self._paths.derived)
        self._disk.sync_directory(self._paths.own)

    def remove_live(self) -> None:
        self._disk.remove_tree(self._paths.live)


def sums_path(shard: ShardId, kind: QueueKind, path: str) -> str:
    root = "consumequeue" if kind is QueueKind.SIMPLE else "batchconsumequeue"
    return f"{root}/{shard.topic}/{shard.partition}/{path.rpartition('/')[2]}"
