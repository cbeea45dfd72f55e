"""The part of a read that runs in Spark's workers: ranges of offsets become Arrow batches.

Every worker process opens the store by itself and keeps it open for the query's next tasks. A plan
may be newer than what a worker saw: it looks again before it says that something is missing.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from msgspec import Struct

from penstock.codec.format import TIME_BLOCK
from penstock.engine.segment import Query, ReadOnlyStore
from penstock.engine.transactions import Ranges
from penstock.errors import CorruptionError
from penstock.pipeline.columns import BatchMaker, fields_of
from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import SourceOptions
from penstock.pipeline.read.planning import TaskPartition
from penstock.pipeline.read.ranges import ShardRange, available_part
from penstock.pipeline.spark_session.worker_gc import freeze_loaded_objects
from penstock.pipeline.store.node_directory import store_root
from penstock.platform.log import get_logger
from penstock.record import ShardId, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

_log = get_logger(__name__)

ROWS_PER_BATCH: Final = 8192
SIZE_PER_BATCH: Final = 8 << 20

VIEWS_MAX: Final = 8
"""Stores that a worker keeps open; the least recently used is closed first."""

_views: dict[tuple[str, str], ReadOnlyStore] = {}
_views_lock: Final = threading.Lock()


def shared_view(path: str, query: str) -> ReadOnlyStore:
    """Return this process's view of a store. Each query opens it again: the path may hold
    another store than for an earlier query."""
    with _views_lock:
        view = _views.pop((path, query), None) or ReadOnlyStore.open(path)
        _views[path, query] = view
        while len(_views) > VIEWS_MAX:
            del _views[next(iter(_views))]
        return view


class Counts(Struct):
    """What a task did."""

    rows_read: int = 0
    """Records that were taken from the log."""
    rows_returned: int = 0
    """… of which so many passed the filters."""
    bytes_returned: int = 0
    records_damaged: int = 0
    """Records that were skipped (`onDamage=skip`)."""
    records_lost: int = 0
    """Records that retention had removed since the read was planned."""
    chunks_read: int = 0
    """Chunks of a tier that were read, wholly or in part; a look-up counts each record."""
    bytes_read: int = 0
    """Bytes of a tier's objects that were wanted."""
    by_key: bool = False
    seconds: float = 0.0


class RangeReader(Protocol):
    """Reads one range of offsets."""

    def scan(self) -> Iterator[pa.RecordBatch]: ...

    def by_key(self) -> Iterator[pa.RecordBatch]:
        """Look the wanted keys up."""
        ...


class Scan(Struct, frozen=True):
    """How tasks read; the same for all tasks of a read."""

    path: str
    endpoint: str | None
    namespace: str
    columns: tuple[str, ...]
    filters: Filters
    fail_on_data_loss: bool
    skip_damage: bool
    tag: str | None
    metrics_path: str | None
    query: str
    """Unique per query."""

    @classmethod
    def of(
        cls, options: SourceOptions, columns: Sequence[str], filters: Filters, query: str
    ) -> Self:
        return cls(
            path=store_root(options.path),
            endpoint=options.endpoint,
            namespace=options.namespace,
            columns=tuple(columns),
            filters=filters,
            fail_on_data_loss=options.fail_on_data_loss,
            skip_damage=options.skip_damage,
            tag=options.tag,
            metrics_path=options.metrics_path,
            query=query,
        )

    def batches(self, task: TaskPartition) -> Iterator[pa.RecordBatch]:
        """Yield what a task reads."""
        freeze_loaded_objects()
        counts = Counts(by_key=task.by_key)
        began = time.monotonic()
        names = tuple(dict.fromkeys((*self.columns, *self.filters.row_columns)))
        for shard_range in task.ranges:
            hidden = task.hidden.get(shard_range.shard, ())
            needed = tuple(dict.fromkeys((*names, "offset"))) if hidden else names
            reader = self._reader(shard_range, task, needed, counts)
            for batch in reader.by_key() if task.by_key else reader.scan():
                shown = self._filtered(without_hidden(batch, hidden) if hidden else batch)
                counts.rows_returned += shown.num_rows
                counts.bytes_returned += shown.nbytes
                if shown.num_rows:
                    yield shown
        counts.seconds = time.monotonic() - began
        if counts.records_damaged:
            _log.warning("damaged_records_skipped", path=self.path, count=counts.records_damaged)
        if self.metrics_path is not None:
            _save_counts(self.metrics_path, counts)

    def _reader(
        self, shard_range: ShardRange, task: TaskPartition, names: tuple[str, ...], counts: Counts
    ) -> RangeReader:
        topic, partition = shard_range.shard
        shown = ShardId(task.names.get(topic, topic), partition)
        if task.tier is not None:
            from penstock.pipeline.read.tier_reading import TierRangeReader

            return TierRangeReader(self, task.tier, shard_range, BatchMaker(shown, names), counts)
        if self.endpoint is not None:
            # Here, so that a directory is read without gRPC.
            from penstock.pipeline.read.node_reading import NodeRangeReader

            return NodeRangeReader(self, shard_range, names, counts, task.ids.get(topic))
        view = shared_view(self.path, self.query)
        return _RangeReader(self, view, shard_range, BatchMaker(shown, names), counts)

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = self.filters.mask(batch)
        if mask is not None:
            batch = batch.filter(mask)
        return batch if batch.schema.names == [*self.columns] else batch.select([*self.columns])


def without_hidden(batch: pa.RecordBatch, hidden: Ranges) -> pa.RecordBatch:
    """Return the rows whose offsets are outside of the ascending ranges."""
    import numpy as np
    import pyarrow as pa

    offsets = batch.column("offset").to_numpy()
    indexes = np.searchsorted([start for start, _ in hidden], offsets, side="right") - 1
    ends = np.array([end for _, end in hidden])
    inside = (indexes >= 0) & (offsets < ends[np.maximum(indexes, 0)])
    return batch.filter(pa.array(~inside)) if inside.any() else batch


class _RangeReader:
    def __init__(
        self,
        scan: Scan,
        view: ReadOnlyStore,
        shard_range: ShardRange,
        make: BatchMaker,
        counts: Counts,
    ) -> None:
        self._scan: Final = scan
        self._view: Final = view
        self._shard: Final = shard_range.shard
        self._make: Final = make
        self._fields: Final = fields_of(make.columns)
        self._tag: Final = scan.tag if scan.tag is not None else scan.filters.tag
        self._counts: Final = counts
        self._start, self._end = self._bounds(shard_range)

    def _bounds(self, shard_range: ShardRange) -> tuple[int, int]:
        bounds = self._view.bounds(shard_range.shard)
        if bounds.commit < shard_range.end:
            self._view.refresh()
            bounds = self._view.bounds(shard_range.shard)
        fail = self._scan.fail_on_data_loss
        start, end, lost = available_part(shard_range, bounds.earliest, bounds.commit, fail=fail)
        self._counts.records_lost += lost
        return start, end

    def by_key(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the wanted keys, found through the key index, by offset."""
        by_offset: dict[int, StoredRecord] = {}
        for key in sorted(self._scan.filters.keys or ()):
            for record in self._view.by_key(self._shard, key):
                if record.offset < self._start:
                    break  # newest first
                if record.offset < self._end:
                    by_offset[record.offset] = record
        self._counts.rows_read += len(by_offset)
        records = [by_offset[offset] for offset in sorted(by_offset)]
        if self._tag is not None:
            records = [record for record in records if self._tag in record.tags]
        for first in range(0, len(records), ROWS_PER_BATCH):
            yield self._make.from_records(records[first : first + ROWS_PER_BATCH])

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range, without the blocks that are too old."""
        first_ms = self._scan.filters.first_ms
        if first_ms is None:
            yield from self._read(self._start, self._end)
            return
        for start, end in self._runs_from(first_ms):
            yield from self._read(start, end)

    def _runs_from(self, first_ms: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of the offsets that may hold a record of this time or a later one."""
        log = self._view.snapshot().get(self._shard)
        start = end = self._start
        blocks = log.times.candidates(
            first_ms, self._start // TIME_BLOCK, -(-self._end // TIME_BLOCK)
        )
        for block in blocks:
            if block * TIME_BLOCK > end:
                if start < end:
                    yield start, end
                start = block * TIME_BLOCK
            end = min((block + 1) * TIME_BLOCK, self._end)
        if start < end:
            yield start, end

    def _read(self, offset: int, end: int) -> Iterator[pa.RecordBatch]:
        while offset < end:
            query = Query(offset, end, ROWS_PER_BATCH, SIZE_PER_BATCH, self._tag)
            try:
                columns, after = self._view.read_columns(self._shard, query, self._fields)
            except CorruptionError:
                if not self._scan.skip_damage:
                    raise
                offset = self._after_damage(query)
                continue
            if columns is not None:
                batch = self._make.from_columns(columns)
                self._counts.rows_read += batch.num_rows
                if batch.num_rows:
                    yield batch
            if after <= offset:
                return
            offset = after

    def _after_damage(self, query: Query) -> int:
        """Return the next offset that can be read; all before it are counted as damaged."""
        # The view has looked again already: asking this snapshot saves a look for each record.
        snapshot = self._view.snapshot()
        log = snapshot.get(self._shard)
        offset = query.offset + 1
        while offset < query.until:
            try:
                snapshot.reader.read_columns(log, query._replace(offset=offset, max_records=1), 0)
                break
            except CorruptionError:
                offset += 1
        self._counts.records_damaged += offset - query.offset
        return offset


def _save_counts(directory: str, counts: Counts) -> None:
    """Write the counts of a task to the directory that the caller reads."""
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex
    staged = target / f".{name}.tmp"
    fields = {field: getattr(counts, field) for field in counts.__struct_fields__}
    staged.write_text(json.dumps(fields), encoding="utf-8")
    os.replace(staged, target / f"task-{name}.json")
