"""Cuts a read into tasks of about equal bytes, without reading a record.

All shards share one log. A read of few shards is split by offset ranges. A read of most of the log
is split by ranges of the log: a task reads, shard by shard, the records in its range, so that the
device reads each byte once and in order, for any number of shards. The size of an offset range is
estimated from a sample of its queue entries.

Every split is correct; the sizes only balance the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.codec.format import BATCH_UNIT, PRE_BLANK, QUEUE_UNIT, TIME_BLOCK
from penstock.engine.segment import ReadOnlyShard, ReadOnlyStore, first_record, first_unit_at
from penstock.engine.transactions import Ranges
from penstock.pipeline.options.source_options import SourceOptions
from penstock.pipeline.read.ranges import ShardRange
from penstock.pipeline.read.task_planning import limit_rows, pack, rows_of, task_count
from penstock.record import QueueKind, ShardId

_SAMPLES: Final = 32
_UNITS_HELD_MAX: Final = 4096
"""Queues up to this size are read whole, longer ones by bisection."""
_MOST_OF_THE_LOG: Final = 0.5


class TaskPartition(InputPartition):
    """What one task reads: small, and pickled."""

    def __init__(
        self,
        ranges: Sequence[ShardRange],
        *,
        by_key: bool = False,
        names: Mapping[str, str] | None = None,
        tier: str | None = None,
        hidden: Mapping[ShardId, Ranges] | None = None,
        ids: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None)
        self.ranges: Final = tuple(ranges)
        self.by_key: Final = by_key
        """Look the keys up in the index instead of reading the ranges."""
        self.names: Final = dict(names or {})
        """How topics are called that are stored under another name."""
        self.tier: Final = tier
        """The URL of the tier that holds the ranges; None: the store itself does."""
        self.hidden: Final = dict(hidden or {})
        """Offsets that are not to be shown, as ascending ranges, by shard."""
        self.ids: Final = dict(ids or {})
        """The ids of topics that are read by name: another topic of that name is not meant."""

    def named(self, names: Mapping[str, str]) -> TaskPartition:
        return TaskPartition(
            self.ranges,
            by_key=self.by_key,
            names=names,
            tier=self.tier,
            hidden=self.hidden,
            ids=self.ids,
        )

    def without(self, hidden: Mapping[ShardId, Ranges]) -> TaskPartition:
        """Return the task without these offsets."""
        some = {shard: tuple(ranges) for shard, ranges in hidden.items() if ranges}
        return TaskPartition(
            self.ranges,
            by_key=self.by_key,
            names=self.names,
            tier=self.tier,
            hidden=some,
            ids=self.ids,
        )

    def cut(self, rows_max: int) -> list[TaskPartition]:
        """Return the task as several, none with more than so many offsets."""
        return [
            TaskPartition(
                ranges,
                by_key=self.by_key,
                names=self.names,
                tier=self.tier,
                hidden=self.hidden,
                ids=self.ids,
            )
            for ranges in limit_rows(self.ranges, rows_max)
        ]

    def __repr__(self) -> str:
        return f"TaskPartition({self.ranges}, by_key={self.by_key})"


def within_limit(tasks: Sequence[TaskPartition], options: SourceOptions) -> list[TaskPartition]:
    """Return the tasks, cut where the options limit the records of one."""
    most = options.records_per_partition
    return [*tasks] if most is None else [part for task in tasks for part in task.cut(most)]


class _Queue:
    """The units of a range of offsets."""

    def __init__(self, log: ReadOnlyShard, shard_range: ShardRange) -> None:
        self._log: Final = log
        self._unit_size: Final = (QUEUE_UNIT if log.kind is QueueKind.SIMPLE else BATCH_UNIT).size
        self.range: Final = shard_range
        self.first: Final = log.unit_of(shard_range.start)
        last = log.unit_of(shard_range.end - 1)
        self.stop: Final = max(self.first, min(last + 1, log.ends.stop))
        self._held = b""
        if self.stop - self.first <= _UNITS_HELD_MAX:
            self._held = log.read_units(self.first, self.stop - self.first)

    def _unit(self, number: int) -> bytes:
        return self._read(number, 1)

    def _read(self, number: int, count: int) -> bytes:
        if self._held:
            position = (number - self.first) * self._unit_size
            return self._held[position : position + count * self._unit_size]
        return self._log.read_units(number, count)

    def size(self, number: int) -> int:
        unit = self._unit(number)
        return 0 if unit == PRE_BLANK else int.from_bytes(unit[8:12], "big")

    def estimate(self) -> int:
        """Return about how many bytes the records take."""
        count = self.stop - self.first
        if count <= 0:
            return 0
        step = max(1, count // _SAMPLES)
        numbers = range(self.first, self.stop, step)
        return sum(map(self.size, numbers)) * count // len(numbers)

    def offset_at(self, position: int) -> int:
        """Return the first offset of the range whose record is at or after `position`."""
        units = (self.first, self.stop)
        return self._offset_of(first_unit_at(self._read, self._unit_size, units, position))

    def span(self) -> _Span | None:
        """Return where in the log the records are stored; None when all of them are lost."""
        first, start = first_record(self._read, self._unit_size, self.first, self.stop)
        last = self.stop - 1
        while last > first and self.size(last) == 0:
            last -= 1
        if start is None:
            return None
        return _Span(start, int.from_bytes(self._unit(last)[:8], "big") + self.size(last))

    def _offset_of(self, number: int) -> int:
        if number >= self.stop:
            return self.range.end
        offset = number
        if self._log.kind is QueueKind.BATCH:
            offset = int(BATCH_UNIT.unpack(self._unit(number))[4])
        return min(max(offset, self.range.start), self.range.end)


class _Span(NamedTuple):
    start: int
    end: int


def plan(
    view: ReadOnlyStore, ranges: Sequence[ShardRange], partition_bytes: int, partitions_min: int
) -> list[TaskPartition]:
    """Cut `ranges` into tasks, as many as `task_count` says."""
    snapshot = view.snapshot()
    queues = [
        _Queue(snapshot.get(shard_range.shard), shard_range)
        for shard_range in ranges
        if shard_range.start < shard_range.end
    ]
    sizes = [max(1, queue.estimate()) for queue in queues]
    total = sum(sizes)
    if not queues:
        return []
    rows = rows_of(queue.range for queue in queues)
    count = task_count(total, rows, partition_bytes, partitions_min)
    task_size = max(1, -(-total // count))
    span = _span_of(queues)
    if len(queues) > 1 and total >= _MOST_OF_THE_LOG * (span.end - span.start):
        return _by_position(queues, span, count)
    return [
        TaskPartition(packed)
        for packed in pack([queue.range for queue in queues], sizes, task_size)
    ]


def _span_of(queues: Iterable[_Queue]) -> _Span:
    used = [queue for queue in queues if queue.first < queue.stop]
    spans = [span for span in (queue.span() for queue in used) if span is not None]
    return _Span(
        min((span.start for span in spans), default=0), max((span.end for span in spans), default=0)
    )


def _by_position(queues: Sequence[_Queue], span: _Span, count: int) -> list[TaskPartition]:
    stretches: list[list[ShardRange]] = [[] for _ in range(count)]
    for queue in queues:
        shard, start, end = queue.range
        for number in range(count):
            cut = end
            if number < count - 1:
                position = span.start + (span.end - span.start) * (number + 1) // count
                cut = max(start, queue.offset_at(position))
            if start < cut:
                stretches[number].append(ShardRange(shard, start, cut))
            start = cut
    return [TaskPartition(pieces) for pieces in stretches if pieces]


def without_old(
    view: ReadOnlyStore, ranges: Sequence[ShardRange], first_ms: int
) -> list[ShardRange]:
    """Drop records before the first block that may hold a record of this time or later."""
    snapshot = view.snapshot()
    newer = []
    for shard, start, end in ranges:
        first, last = start // TIME_BLOCK, -(-end // TIME_BLOCK)
        times = snapshot.get(shard).times
        block = next(iter(times.candidates(first_ms, first, last)), last)
        if block * TIME_BLOCK < end:
            newer.append(ShardRange(shard, max(start, block * TIME_BLOCK), end))
    return newer


def plan_by_key(view: ReadOnlyStore, ranges: Sequence[ShardRange]) -> list[TaskPartition]:
    """Return tasks that look keys up; shards whose records the index does not hold are left to
    the caller's plan."""
    simple = [
        shard_range for shard_range in ranges if view.kind(shard_range.shard) is QueueKind.SIMPLE
    ]
    return [TaskPartition(simple, by_key=True)] if simple else []
