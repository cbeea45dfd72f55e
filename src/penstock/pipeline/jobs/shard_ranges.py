"""What a job reads of each shard: a range fixed beforehand, and how many records it can hold."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.pipeline.store.named_view import NamedView
from penstock.record import ShardId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ReadRange(Struct, frozen=True):
    """The offsets [start, end) of a shard."""

    shard: ShardId
    start: int
    end: int
    deleted: int
    """Offsets in the range whose records were deleted one by one."""

    @property
    def rows_max(self) -> int:
        """How many rows the range can give: all that were not deleted, if none has expired."""
        return self.end - self.start - self.deleted


def read_range(view: NamedView, shard: ShardId, start: int = 0) -> ReadRange:
    """Return what a shard holds from `start` on."""
    bounds = view.bounds(shard)
    start, end = max(start, bounds.earliest), bounds.commit
    gaps = view.state(shard).deleted_between(start, end)
    deleted = sum(min(last, end) - max(first, start) for first, last in gaps)
    return ReadRange(shard, start, end, deleted)


def range_options(
    path: str, ranges: Iterable[ReadRange], columns: str, *, strict: bool
) -> dict[str, str]:
    """Return the options of a read of ranges, none of them empty. Without `strict`, damaged records
    and those that are gone meanwhile are passed over."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for shard_range in ranges:
        topic, partition = shard_range.shard
        assigned.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = shard_range.start
        ends.setdefault(topic, {})[str(partition)] = shard_range.end
    return {
        "path": path,
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "columns": columns,
        "failOnDataLoss": str(strict).lower(),
        "onDamage": "fail" if strict else "skip",
    }


def load_ranges(
    spark: SparkSession, path: str, ranges: Iterable[ReadRange], columns: str, *, strict: bool
) -> DataFrame:
    """Return the records of ranges; see `range_options`."""
    options = range_options(path, ranges, columns, strict=strict)
    return spark.read.format("penstock").options(**options).load()
