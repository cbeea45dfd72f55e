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
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from penstock.codec.interface import Columns
from penstock.engine.contract import RECORDS_PER_READ, SIZE_PER_READ, BatchPage
from penstock.engine.segment.bounds import Bounds
from penstock.engine.segment.queue.lookup import check_limit, check_limits
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.read.key_reader import Page, Query, ReadableShard
from penstock.engine.segment.readonly.readonly_shard import ReadOnlyShard
from penstock.engine.segment.readonly.snapshot import Snapshot, SnapshotSource
from penstock.engine.segment.settings import SegmentSettings
from penstock.errors import ClosedError, CorruptionError, SetupError
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.record import Offset, Position, QueueKind, ShardId, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_WAITS_S: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
"""How long a reader waits before it looks again, while a writer may be about to say what it did."""
_GONE: Final = "this file is gone, although the newest bounds speak of it"


class ReadOnlyStore:
    """One store directory, read only. Use `open`."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source: Final = source
        self._snapshot: Snapshot | None = source.take()

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
        self._snapshot = self._source.take()

    def snapshot(self) -> Snapshot:
        """Return what this store shows at the moment, for inspection."""
        snapshot = self._snapshot
        if snapshot is None:
            raise ClosedError(f"the read-only store {self._source.paths.root} was closed")
        return snapshot

    # Shards

    def shards(self) -> list[ShardId]:
        return self.snapshot().user_shards()

    def bounds(self, shard: ShardId) -> Bounds:
        """Return where a shard begins and ends. `end_position` is the end of what is known to be
        in the log: a running writer may be further."""
        return self._retry(lambda snapshot: _bounds(snapshot, shard))

    def kind(self, shard: ShardId) -> QueueKind:
        return self.snapshot().get(shard).kind

    def state(self, shard: ShardId) -> ShardState:
        """What is known of a shard: deleted ranges, epochs, producers. Not to be changed."""
        return self._retry(lambda snapshot: snapshot.get(shard).state)

    # Reading

    def read(
        self,
        shard: ShardId,
        offset: int,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        """Return records from `offset` on, ascending; empty at the end of the shard."""
        return self.read_page(shard, offset, max_records=max_records, max_size=max_size).records

    def read_page(
        self,
        shard: ShardId,
        offset: int,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        tag: str | None = None,
    ) -> Page:
        """Return records, of one tag if asked for, and the offset at which to go on."""
        check_limits(offset, max_records, max_size)

        def read(snapshot: Snapshot) -> Page:
            log = snapshot.get(shard)
            query = Query(offset, log.commit, max_records, max_size, tag)
            return snapshot.reader.read(log, query)

        return self._retry(read)

    def read_raw(
        self,
        shard: ShardId,
        offset: int,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[bytes]:
        """Return whole records (batches, in a batch shard) as the log holds them, checked."""
        check_limits(offset, max_records, max_size)

        def read(snapshot: Snapshot) -> list[bytes]:
            log = snapshot.get(shard)
            return snapshot.reader.read_raw(log, Query(offset, log.commit, max_records, max_size))

        return self._retry(read)

    def read_raw_range(
        self, shard: ShardId, offset: int, *, max_size: int, until: int | None = None
    ) -> tuple[bytes, int]:
        """Return whole records (batches, in a batch shard) below `until` one after the other as
        the log holds them, checked, and the offset to go on at."""
        check_limits(offset, 1, max_size)

        def read(snapshot: Snapshot) -> tuple[bytes, int]:
            log = snapshot.get(shard)
            end = log.commit if until is None else until
            return snapshot.reader.read_raw_range(log, Query(offset, end, max_size, max_size))

        return self._retry(read)

    def read_batches(self, shard: ShardId, offset: int, until: int, max_size: int) -> BatchPage:
        """Return Kafka batches of a batch shard as the log holds them, checked."""
        check_limits(offset, 1, max_size)

        def read(snapshot: Snapshot) -> BatchPage:
            log = snapshot.get(shard)
            return snapshot.reader.read_kafka(log, offset, min(until, log.commit), max_size)

        return self._retry(read)

    def read_arrow(
        self,
        shard: ShardId,
        offset: int = 0,
        *,
        until: int | None = None,
        columns: Sequence[str] | None = None,
        tag: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of [offset, until) as Arrow batches; the default is all there is."""
        if find_spec("pyarrow") is None:
            raise SetupError("Arrow columns need pyarrow: pip install 'penstock[arrow]'")
        from penstock.engine.segment.read.arrow import ArrowReader

        log, commit = self._retry(lambda snapshot: _with_commit(snapshot.get(shard)))
        end = commit if until is None else min(until, commit)
        return ArrowReader(_Columns(self)).batches(log, offset, end, columns, tag)

    def newest_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        """Return the newest live record of `key`."""
        return next(self.by_key(shard, key), None)

    def by_key(self, shard: ShardId, key: bytes) -> Iterator[StoredRecord]:
        """Yield the live records of `key`, newest first."""
        below: int | None = None
        tries = 0
        while True:
            snapshot = self.snapshot()
            try:
                for record in _by_key(snapshot, shard, key):
                    if below is None or record.offset < below:
                        below = record.offset
                        yield record
            except (CorruptionError, FileNotFoundError) as error:
                self._look_again(snapshot, tries, error)
                tries += 1
            else:
                return

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        """Return live records of `key` with begin_ms <= timestamp <= end_ms, newest first."""
        check_limit(limit)
        records: list[StoredRecord] = []
        for record in self.by_key(shard, key):
            late = end_ms is not None and record.timestamp_ms > end_ms
            if record.timestamp_ms >= begin_ms and not late:
                records.append(record)
                if len(records) >= limit:
                    break
        return records[:limit]

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        """Return the offset of the first live record with a timestamp >= `timestamp_ms`."""
        return self._retry(
            lambda snapshot: snapshot.reader.offset_by_time(snapshot.get(shard), timestamp_ms)
        )

    def read_columns(self, shard: ShardId, query: Query, fields: int) -> tuple[Columns | None, int]:
        """Return the next records as Arrow buffers, and the offset at which to go on."""
        return self._retry(
            lambda snapshot: snapshot.reader.read_columns(snapshot.get(shard), query, fields)
        )

    def _retry(self, operation: Callable[[Snapshot], _T]) -> _T:
        """Run `operation`, again if something is not where it should be."""
        tries = 0
        while True:
            snapshot = self.snapshot()
            try:
                return operation(snapshot)
            except (CorruptionError, FileNotFoundError) as error:
                self._look_again(snapshot, tries, error)
                tries += 1

    def _look_again(
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
            self._source.forget()
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


def _bounds(snapshot: Snapshot, shard: ShardId) -> Bounds:
    log = snapshot.get(shard)
    state = log.state
    return Bounds(
        earliest=Offset(log.earliest),
        commit=state.commit_offset,
        next=state.latest_offset,
        start_position=Position(snapshot.files.start),
        end_position=Position(snapshot.end_for(log)),
    )


def _with_commit(log: ReadOnlyShard) -> tuple[ReadOnlyShard, int]:
    return log, log.commit


def _by_key(snapshot: Snapshot, shard: ShardId, key: bytes) -> Iterator[StoredRecord]:
    """Yield what the index finds and, where it has gaps, what a scan finds, newest first."""
    log = snapshot.get(shard)
    records = merge(
        snapshot.reader.by_key(log, key),
        _by_scan(snapshot, log, key),
        key=_offset_of,
        reverse=True,
    )
    last: int | None = None
    for record in records:
        if record.offset != last:
            last = record.offset
            yield record


def _by_scan(snapshot: Snapshot, log: ReadOnlyShard, key: bytes) -> Iterator[StoredRecord]:
    if log.kind is QueueKind.BATCH:
        # The reader scans batches in any case: RocketMQ's index does not look into them.
        return
    for start, end in snapshot.index.gaps(snapshot.files.stop):
        yield from snapshot.scan_for_key(log, key, start, end)


def _offset_of(record: StoredRecord) -> int:
    return record.offset


def _as_corruption(error: CorruptionError | FileNotFoundError) -> CorruptionError:
    if isinstance(error, CorruptionError):
        return error
    return CorruptionError(str(error.filename), position=0, reason=_GONE)
