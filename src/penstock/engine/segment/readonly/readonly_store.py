"""A store directory, read only: ours or RocketMQ's own, also beside a writer in another process.

    with ReadOnlyStore.open("data") as store:
        for shard in store.shards():
            store.read(shard, store.bounds(shard).earliest)

It takes no lock, writes nothing and creates nothing. It shows the directory as of its opening, or
of the last `refresh`: up to the commit offsets that the writer had published then (it does so twice
a second), without what was deleted then. RocketMQ publishes no bounds; a reader finds the ends of
its queues in their files.

The writer goes on meanwhile: it rolls, truncates and removes files, and publishes that a moment
later. When a file or record is missing, the read-only store refreshes itself and tries again: once,
or, while a writer has the store open, for about a second. What is wrong then is damage, and raises
`CorruptionError`, because a read-only store cannot repair. Methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

from penstock.codec.interface import Columns
from penstock.engine.segment.queue.lookup import Query, ReadableShard
from penstock.engine.segment.readonly.snapshot import Snapshot, SnapshotSource
from penstock.engine.segment.readonly.snapshot_reads import SnapshotReads
from penstock.engine.segment.settings import SegmentSettings
from penstock.errors import ClosedError, CorruptionError
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.record import QueueKind, ShardId, StoredRecord

_P = ParamSpec("_P")
_T = TypeVar("_T")
_WAITS_S: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
"""Pauses of a reader before its tries, while a writer may be about to publish what it did."""
_GONE: Final = "this file is gone, although the newest bounds speak of it"


def _retried(
    read: Callable[Concatenate[SnapshotReads, _P], _T],
) -> Callable[Concatenate[ReadOnlyStore, _P], _T]:
    """Make a read of a snapshot one of the store: it is tried again in a newer snapshot when a
    file or record is missing."""

    @wraps(read)
    def try_read(store: ReadOnlyStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        tries = 0
        while True:
            snapshot = store.snapshot()
            try:
                return read(SnapshotReads(snapshot, _Columns(store)), *args, **kwargs)
            except (CorruptionError, FileNotFoundError) as error:
                store.refresh_after(snapshot, tries, error)
                tries += 1

    return try_read


class ReadOnlyStore:
    """One store directory, read only. Use `open`."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source: Final = source
        self._snapshot: Snapshot | None = source.capture()

    @classmethod
    def open(
        cls,
        path: str,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        settings: SegmentSettings | None = None,
    ) -> Self:
        """Open the store in a directory; raise `NotAStoreError` when there is none.

        Of `settings` only the paths count, for a store whose parts lie on several disks.
        """
        return cls(
            SnapshotSource(
                path, settings or SegmentSettings(), disk or LocalDisk(), clock or SystemClock()
            )
        )

    def refresh(self) -> None:
        """See the directory as it is now."""
        self.snapshot()
        self._snapshot = self._source.capture()

    def snapshot(self) -> Snapshot:
        """Return what this store shows at the moment, for inspection."""
        snapshot = self._snapshot
        if snapshot is None:
            raise ClosedError(f"the read-only store {self._source.paths.root} was closed")
        return snapshot

    def shards(self) -> list[ShardId]:
        return self.snapshot().user_shards()

    def kind(self, shard: ShardId) -> QueueKind:
        return self.snapshot().get(shard).kind

    read = _retried(SnapshotReads.read)
    read_page = _retried(SnapshotReads.read_page)
    read_raw = _retried(SnapshotReads.read_raw)
    read_raw_range = _retried(SnapshotReads.read_raw_range)
    read_batches = _retried(SnapshotReads.read_batches)
    read_arrow = _retried(SnapshotReads.read_arrow)
    read_columns = _retried(SnapshotReads.read_columns)
    newest_by_key = _retried(SnapshotReads.newest_by_key)
    query_by_key = _retried(SnapshotReads.query_by_key)
    offset_by_timestamp = _retried(SnapshotReads.offset_by_timestamp)
    bounds = _retried(SnapshotReads.bounds)
    state = _retried(SnapshotReads.state)

    def by_key(self, shard: ShardId, key: bytes) -> Iterator[StoredRecord]:
        """Yield the live records of `key`, newest first, also across snapshots."""
        below: int | None = None
        tries = 0
        while True:
            snapshot = self.snapshot()
            try:
                for record in SnapshotReads(snapshot, _Columns(self)).by_key(shard, key):
                    if below is None or record.offset < below:
                        below = record.offset
                        yield record
            except (CorruptionError, FileNotFoundError) as error:
                self.refresh_after(snapshot, tries, error)
                tries += 1
            else:
                return

    def refresh_after(
        self, seen: Snapshot, tries: int, error: CorruptionError | FileNotFoundError
    ) -> None:
        """Refresh, unless another thread has done so since `seen`; raise `error` when that was
        done often enough."""
        clock = self._source.clock
        waits = _WAITS_S if seen.unclosed and isinstance(clock, SystemClock) else _WAITS_S[:1]
        if tries >= len(waits):
            raise _as_corruption(error) from error
        if waits[tries]:
            clock.wait(threading.Event(), waits[tries])
        if self._snapshot is seen:
            self._source.sealed.invalidate()
            self.refresh()

    def close(self) -> None:
        """Release the files. Safe to call again."""
        self._snapshot = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Columns:
    """Implements `ColumnReader`: every step of a long scan may meet another snapshot."""

    def __init__(self, store: ReadOnlyStore) -> None:
        self._store: Final = store

    def read_columns(
        self, log: ReadableShard, query: Query, fields: int
    ) -> tuple[Columns | None, int]:
        return self._store.read_columns(log.shard, query, fields)


def _as_corruption(error: CorruptionError | FileNotFoundError) -> CorruptionError:
    if isinstance(error, CorruptionError):
        return error
    return CorruptionError(str(error.filename), position=0, reason=_GONE)
