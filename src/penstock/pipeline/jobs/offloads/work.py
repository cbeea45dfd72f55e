"""The part of an offload that runs in Spark's workers: one shard of a log goes into its tier.

The tier's own code does it, under an epoch of the shard: when another uploader takes the shard
over, a node or a second job, this one stops at its next commit, which changes nothing. Killed at
any moment it leaves whole chunks that the manifest refers to, and at most objects that nothing
refers to; the next run goes on where the manifest ends.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.codec.deleted_ranges import coalesce
from penstock.codec.format import RawRecord
from penstock.codec.select import core
from penstock.engine.segment import Bounds, ReadOnlyStore, ShardState, inner_count, split_raw_range
from penstock.errors import StoreError
from penstock.record import Offset, QueueKind, ShardId
from penstock.tiered import (
    CompositeFlatFile,
    LeaseLostError,
    Manifest,
    TierConfig,
    sync_deleted,
    upload_shard,
    without_aborted,
)

_SIZE: Final = struct.Struct(">I")


class OffloadTask(Struct, frozen=True):
    """One shard, up to the offset that was committed when the job was planned."""

    name: str
    """As people call it; `topic` is how the store names it."""
    root: str
    topic: str
    partition: int
    kind: QueueKind
    end: int
    config: TierConfig
    aborted: tuple[tuple[int, int], ...] = ()
    """Offsets whose transactions were aborted: they are not for the tier."""

    @property
    def shard(self) -> ShardId:
        return ShardId(self.topic, self.partition)


class OffloadDone(Struct, frozen=True):
    """What became of a task."""

    topic: str
    partition: int
    start: int
    """Where the tier ended before; offsets [start, end) were brought there."""
    end: int
    rows: int
    bytes: int
    gone: int = 0
    """Offsets after the tier's old end that the log deleted before their upload."""
    failure: str = ""


def offload_one(task: OffloadTask) -> OffloadDone:
    """Bring one shard into its tier. An error is part of the answer: one shard that cannot be read
    does not stop the others."""
    try:
        return _offload(task)
    except LeaseLostError as error:
        reason = f"another uploader is at work: {error}"
    except StoreError as error:
        reason = str(error)
    return OffloadDone(task.topic, task.partition, 0, 0, 0, 0, failure=reason)


def _offload(task: OffloadTask) -> OffloadDone:
    flat = CompositeFlatFile(task.config, task.shard, task.kind)
    try:
        with ReadOnlyStore.open(task.root) as view:
            log = _BoundedLog(view, task)
            before = flat.refresh()
            start = 0 if before is None else before.end_offset
            if before is not None and start >= task.end:
                sync_deleted(log, flat)
                return OffloadDone(task.topic, task.partition, start, start, 0, 0)
            flat.acquire()
            size = upload_shard(log, flat)
            after = flat.current()
            assert after is not None, "it was just written"
            _check(log, before, after, size)
            first = int(log.bounds(task.shard).earliest)
            started = before is not None and before.initialized
            gone = max(0, first - start) if started else 0
            return OffloadDone(
                task.topic, task.partition, start, after.end_offset, log.rows, size, gone
            )
    finally:
        flat.shutdown()
        flat.fetcher.close()
        flat.provider.close()


class _BoundedLog:
    """Implements `CommittedLog`: a view that ends where the plan does, and counts what it gave."""

    def __init__(self, view: ReadOnlyStore, task: OffloadTask) -> None:
        self._view: Final = view
        self._task: Final = task
        self.rows = 0
        self.size = 0
        self.first: int | None = None

    def bounds(self, shard: ShardId) -> Bounds:
        bounds = self._view.bounds(shard)
        return replace(bounds, commit=Offset(min(bounds.commit, self._task.end)))

    def state(self, shard: ShardId) -> ShardState:
        return self._view.state(shard)

    def read_raw_range(self, shard: ShardId, offset: int, *, max_size: int) -> tuple[bytes, int]:
        run, after = self._view.read_raw_range(
            shard, offset, max_size=max_size, until=self._task.end
        )
        run = without_aborted(run, self._task.aborted)
        self.first = offset if self.first is None else self.first
        self.rows += self._count(run)
        self.size += len(run)
        return run, after

    def _count(self, run: bytes) -> int:
        if self._task.kind is QueueKind.SIMPLE:
            return _records_in(run)
        count = 0
        for message in split_raw_range(run):
            raw = core.decode_raw(message, 0, 0, False)
            assert isinstance(raw, RawRecord), "the view has checked it"
            count += inner_count(raw)
        return count

    def live(self, start: int, end: int) -> int:
        """Return how many offsets of a range were neither deleted one by one nor aborted."""
        deleted = self.state(self._task.shard).deleted_between(start, end)
        aborted = [
            aborted_range for aborted_range in self._task.aborted if aborted_range[1] > start
        ]
        gaps = coalesce([*deleted, *aborted])
        return end - start - sum(min(last, end) - max(first, start) for first, last in gaps)

    @property
    def task(self) -> OffloadTask:
        return self._task


def _records_in(run: bytes) -> int:
    """Count consecutive records, each prefixed with its size."""
    count = position = 0
    end, size_at = len(run), _SIZE.unpack_from
    while position < end:
        position += size_at(run, position)[0]
        count += 1
    return count


def _check(log: _BoundedLog, before: Manifest | None, after: Manifest, size: int) -> None:
    """Compare what the tier has got with what the log holds."""
    task = log.task
    name = task.name
    position = 0 if before is None else before.position
    if not size == log.size == after.position - position:
        raise StoreError(
            f"the log of {name!r} gave {log.size} bytes, {size} were appended to the tier, and its "
            f"manifest grew by {after.position - position}: check both with verify"
        )
    if after.end_offset < task.end:
        raise StoreError(f"the tier of {name!r} ends at {after.end_offset}, not at {task.end}")
    first = task.end if log.first is None else log.first
    rows_min = log.live(first, task.end)
    rows_max = rows_min if task.kind is QueueKind.SIMPLE else task.end - first
    if not rows_min <= log.rows <= rows_max:
        raise StoreError(
            f"{log.rows} records of {name!r} were uploaded, but the log holds {rows_min} in "
            f"[{first}, {task.end}): check it with verify"
        )
