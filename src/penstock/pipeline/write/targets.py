"""Targets of published rows: a store directory, or a running node.

A target appends chunks atomically: rows of one shard with their producer. Appending a chunk again
changes nothing and returns False.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.segment import SegmentStore
from penstock.errors import LockedError, SequenceGapError
from penstock.pipeline.write.staging import EXPIRES, Chunk, partition_counts
from penstock.platform.log import get_logger
from penstock.record import Producer, Record, ShardId

if TYPE_CHECKING:
    from penstock.engine.segment import AnyArray

_log = get_logger(__name__)
_T = TypeVar("_T")

LOCK_POLL_S: Final = (0.05, 0.25)
"""Random range, so that two waiters do not poll in step."""
_ZERO: Final = pa.scalar(0, pa.int32())


class Target(Protocol):
    def partition_counts(self) -> dict[str, int]:
        """Return how many partitions each topic has."""
        ...

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, or the partitions that it lacks."""
        ...

    def append(self, chunk: Chunk, rows: pa.RecordBatch, producer: Producer) -> bool:
        """Append a chunk; return False when it was there already."""
        ...

    def flush(self) -> None:
        """Put what was appended on the device, as far as this can be asked for."""
        ...


def retry_while_locked(call: Callable[[], _T], timeout_s: float) -> _T:
    """Return the result of `call`; retry while it raises `LockedError`, up to `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    warned = False
    while True:
        try:
            return call()
        except LockedError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                if not timeout_s:
                    raise
                raise LockedError(
                    f"{error}; waited {timeout_s:g} s (option 'lockTimeout')"
                ) from error
            if not warned:
                _log.warning("waiting_for_lock", reason=str(error), timeout_s=timeout_s)
                warned = True
            time.sleep(min(left, random.uniform(*LOCK_POLL_S)))


class DirectoryTarget:
    """A store directory, locked while it is open."""

    def __init__(self, store: SegmentStore) -> None:
        self._store: Final = store

    @classmethod
    @contextmanager
    def open(cls, path: str, timeout_s: float = 0.0) -> Iterator[Target]:
        """Open a store, created when there is none; `LockedError` when another has it open, and
        still has after `timeout_s`."""
        with retry_while_locked(lambda: SegmentStore.open(path), timeout_s) as store:
            yield cls(store)

    def partition_counts(self) -> dict[str, int]:
        return partition_counts(self._store.shards())

    def create_topic(self, topic: str, partitions: int) -> None:
        for partition in range(partitions):
            shard = ShardId(topic, partition)
            if shard not in self._store.shards():
                self._store.create_shard(shard)

    def append(self, chunk: Chunk, rows: pa.RecordBatch, producer: Producer) -> bool:
        before = self._store.bounds(chunk.shard).next
        try:
            if _fits_columns(rows):
                first = self._store.append_columns(
                    chunk.shard,
                    rows.column("value"),
                    keys=rows.column("key"),
                    tags=_first_tags(rows.column("tags")),
                    timestamps=_timestamps(rows.column("timestamp")),
                    producer=producer,
                )
            else:
                first = self._store.append_many(chunk.shard, [*records(rows)], producer)
        except SequenceGapError as error:
            if was_appended(error, chunk, producer):
                return False
            raise
        return first >= before

    def flush(self) -> None:
        self._store.flush()


def was_appended(error: SequenceGapError, chunk: Chunk, producer: Producer) -> bool:
    """Say whether a chunk was rejected because it was appended earlier."""
    return error.expected >= producer.sequence + chunk.rows


def _fits_columns(rows: pa.RecordBatch) -> bool:
    """Say whether the rows have no headers, no expiry time and at most one tag each."""
    if _expiry(rows).null_count < rows.num_rows:
        return False
    for name, limit in (("headers", 0), ("tags", 1)):
        most = pc.max(pc.list_value_length(rows.column(name))).as_py()
        if most is not None and most > limit:
            return False
    return rows.column("timestamp").null_count in (0, rows.num_rows)


def _first_tags(tags: AnyArray) -> AnyArray | None:
    """Return the only tag of each row, null where there is none."""
    assert isinstance(tags, pa.ListArray)
    if len(tags.values) == 0:
        return None
    some = pc.greater(pc.fill_null(pc.list_value_length(tags), _ZERO), _ZERO)
    firsts = tags.offsets.slice(0, len(tags))
    return tags.values.take(pc.if_else(some, firsts, pa.scalar(None, pa.int32())))


def _timestamps(times: AnyArray) -> AnyArray | None:
    return None if times.null_count else times


def _expiry(rows: pa.RecordBatch) -> AnyArray:
    """Return when each row expires; null: by the retention of its topic alone. Files that an
    earlier release staged have no such column."""
    if EXPIRES in rows.schema.names:
        return rows.column(EXPIRES)
    return pa.nulls(rows.num_rows, pa.timestamp("ms", tz="UTC"))


def records(rows: pa.RecordBatch) -> Iterable[Record]:
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    expiry = _expiry(rows).cast(pa.int64()).to_pylist()
    columns = (rows.column(name).to_pylist() for name in ("value", "key", "tags", "headers"))
    for value, key, tags, headers, moment, expires in zip(*columns, times, expiry, strict=True):
        yield Record(
            value=value,
            key=key,
            tags=tuple(tags or ()),
            headers=tuple((header["key"], header["value"]) for header in headers or ()),
            timestamp_ms=moment,
            expires_at_ms=expires,
        )
