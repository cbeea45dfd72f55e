"""Filters that the source takes over from Spark, and what they rule out.

Filters on topic, partition and offset shorten the plan. A filter on the time is applied to blocks
of records first and then to the rows, one on the key through the key index where there is one. A
filter that is not taken over stays with Spark, and so does one that only helps (`tag`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    Mask = pa.Array[pa.BooleanScalar] | pa.ChunkedArray[pa.BooleanScalar]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_NULL: Final = {"topic", "partition", "offset", "timestamp", "timestampType"}
_UNLIMITED: Final = 1 << 63

Scalar = str | int | bytes | datetime


class Range(Struct, frozen=True):
    """The whole numbers [start, end)."""

    start: int = -_UNLIMITED
    end: int = _UNLIMITED

    def __and__(self, other: Range) -> Range:
        return Range(max(self.start, other.start), min(self.end, other.end))


class Filters(Struct):
    """What is left after all filters that were taken over; None rules out nothing."""

    topics: frozenset[str] | None = None
    partitions: Range = Range()
    partition_set: frozenset[int] | None = None
    offsets: Range = Range()
    times_us: Range = Range()
    keys: frozenset[bytes] | None = None
    tag: str | None = None

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take over what can be; yield what Spark must still check."""
        waiting: list[Filter] = []
        for condition in filters:
            if isinstance(condition, IsNotNull):
                waiting.append(condition)
            elif not self._push(condition):
                yield condition
        for condition in waiting:
            assert isinstance(condition, IsNotNull)
            (name, *inner) = condition.attribute
            implied = name in _NEVER_NULL or (name == "key" and self.keys is not None)
            if inner or not implied:
                yield condition

    def _push(self, condition: Filter) -> bool:
        values = _values(condition)
        if values is None:
            return False
        name, items = values
        if name == "topic":
            return self._push_topics(condition, items)
        if name == "key":
            return self._push_keys(condition, items)
        if name == "partition" and isinstance(condition, In):
            return self._push_partitions(items)
        if name == "tag" and isinstance(condition, EqualTo) and isinstance(items[0], str):
            self.tag = items[0]
            return False  # the column is null for several tags: Spark looks again
        return self._push_range(name, condition, items)

    def _push_topics(self, condition: Filter, items: list[Scalar]) -> bool:
        topics = frozenset(item for item in items if isinstance(item, str))
        if not isinstance(condition, EqualTo | In) or len(topics) != len(set(items)):
            return False
        self.topics = topics if self.topics is None else self.topics & topics
        return True

    def _push_keys(self, condition: Filter, items: list[Scalar]) -> bool:
        keys = frozenset(bytes(item) for item in items if isinstance(item, bytes | bytearray))
        if not isinstance(condition, EqualTo | In) or len(keys) != len({*map(_frozen, items)}):
            return False
        self.keys = keys if self.keys is None else self.keys & keys
        return True

    def _push_partitions(self, items: list[Scalar]) -> bool:
        numbers = frozenset(item for item in items if isinstance(item, int))
        if len(numbers) != len(set(items)):
            return False
        known = self.partition_set
        self.partition_set = numbers if known is None else known & numbers
        return True

    def shows(self, topic: str, partition: int) -> bool:
        """Say whether records of this shard can pass."""
        return (
            (self.topics is None or topic in self.topics)
            and self.partitions.start <= partition < self.partitions.end
            and (self.partition_set is None or partition in self.partition_set)
        )

    def _push_range(self, name: str, condition: Filter, items: list[Scalar]) -> bool:
        compare = _RANGES.get(type(condition))
        if compare is None:
            return False
        value = _as_number(name, items[0])
        if value is None:
            return False
        allowed = compare(value)
        if name == "partition":
            self.partitions &= allowed
        elif name == "offset":
            self.offsets &= allowed
        else:
            self.times_us &= allowed
        return True

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns that `mask` looks at."""
        time = ("timestamp",) if self.times_us != Range() else ()
        return (*time, *(("key",) if self.keys is not None else ()))

    def mask(self, batch: pa.RecordBatch) -> Mask | None:
        """Return which rows stay; None when all do."""
        masks: list[Mask] = []
        if self.keys is not None:
            keys = pa.array(sorted(self.keys), pa.binary())
            masks.append(pc.is_in(batch.column("key"), keys))
        if self.times_us != Range():
            times = batch.column("timestamp").cast(pa.int64())
            if self.times_us.start > -_UNLIMITED:
                masks.append(pc.greater_equal(times, pa.scalar(self.times_us.start, pa.int64())))
            if self.times_us.end < _UNLIMITED:
                masks.append(pc.less(times, pa.scalar(self.times_us.end, pa.int64())))
        if not masks:
            return None
        mask = masks[0]
        for other in masks[1:]:
            mask = pc.and_(mask, other)
        return mask

    @property
    def first_ms(self) -> int | None:
        """The first millisecond that can pass the filter on the time."""
        start = self.times_us.start
        return None if start <= -_UNLIMITED else -(-start // 1000)

    @property
    def last_ms(self) -> int | None:
        """The last millisecond that can."""
        end = self.times_us.end
        return None if end >= _UNLIMITED else (end - 1) // 1000


def _at_least(value: int) -> Range:
    return Range(start=value)


def _above(value: int) -> Range:
    return Range(start=value + 1)


def _below(value: int) -> Range:
    return Range(end=value)


def _at_most(value: int) -> Range:
    return Range(end=value + 1)


def _exactly(value: int) -> Range:
    return Range(value, value + 1)


_RANGES: Final[dict[type[Filter], Callable[[int], Range]]] = {
    EqualTo: _exactly,
    GreaterThan: _above,
    GreaterThanOrEqual: _at_least,
    LessThan: _below,
    LessThanOrEqual: _at_most,
}


def _values(condition: Filter) -> tuple[str, list[Scalar]] | None:
    """Return the column and the values of a comparison; None for nested columns and nulls."""
    if not isinstance(
        condition, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual | In
    ):
        return None
    if len(condition.attribute) != 1:
        return None
    items: list[Scalar | None] = (
        list(condition.value) if isinstance(condition, In) else [condition.value]
    )
    known = [item for item in items if item is not None]
    if not known or len(known) != len(items):
        return None
    return condition.attribute[0], known


def _frozen(item: Scalar | bytearray) -> Scalar:
    return bytes(item) if isinstance(item, bytearray) else item


def _as_number(name: str, value: Scalar) -> int | None:
    if name in ("partition", "offset") and isinstance(value, int):
        return value
    if name == "timestamp" and isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    return None
