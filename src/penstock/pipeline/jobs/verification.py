"""Checks a store directory: everything that follows from the log, and that Spark can read it all.

The library's full check runs on the driver, in one process: it walks the log once and compares
every record with queues, index and states, which cannot be cut into tasks without walking the log
for each. Then tasks read every shard as any other reader does, in parallel, and what they found is
compared with the bounds; and, when a tier is named, with what the tier holds (`tier_check`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.engine.segment import inspect
from penstock.errors import CorruptionError, StoreError
from penstock.pipeline.jobs.shard_ranges import ReadRange, load_ranges, read_range
from penstock.pipeline.jobs.spark_work import Progress, spark_work
from penstock.pipeline.jobs.tier_check import TierCheck, check_tier
from penstock.pipeline.store.named_view import NamedView
from penstock.pipeline.store.node_directory import store_root
from penstock.record import ShardId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ShardCheck(Struct, frozen=True):
    """How much of a shard could be read."""

    shard: str
    start: int
    end: int
    rows: int
    rows_max: int
    """Offsets in [start, end) that were not deleted. Fewer rows: records expired, or damaged."""
    bytes: int
    """Of keys and values."""


class VerifyResult(Struct, frozen=True):
    report: inspect.VerifyReport
    """What the library's check found."""
    shards: list[ShardCheck]
    rows: int
    bytes: int
    problems: list[str]
    """What could not be read at all, shards that gave more than their bounds allow, and records
    that log and tier do not agree about."""
    seconds: float
    tier: list[TierCheck] = []
    """What log and tier both hold, compared; empty when no tier was named."""

    @property
    def is_whole(self) -> bool:
        return self.report.is_whole and not self.problems


def verify(
    spark: SparkSession, path: str, *, tier: str | None = None, progress: Progress | None = None
) -> VerifyResult:
    """Check everything, also against the tier of this URL; nothing is changed, and a writer may be
    at work."""
    began = time.monotonic()
    report = inspect.verify(store_root(path), progress=progress)
    problems: list[str] = []
    ranges = _ranges(path, problems)
    shards: list[ShardCheck] = []
    try:
        with spark_work(spark, "read", progress):
            shards = _read(spark, path, ranges)
    except StoreError as error:
        problems.append(str(error))
    problems += [
        f"{shard.shard!r} gave {shard.rows} rows, but its bounds allow {shard.rows_max}"
        for shard in shards
        if shard.rows > shard.rows_max
    ]
    compared = [] if tier is None else check_tier(spark, path, tier, problems, progress)
    return VerifyResult(
        report=report,
        shards=shards,
        rows=sum(shard.rows for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        problems=problems,
        seconds=time.monotonic() - began,
        tier=compared,
    )


def _ranges(path: str, problems: list[str]) -> list[ReadRange]:
    ranges = []
    try:
        with NamedView(path) as view:
            for shard in view.shards():
                try:
                    ranges.append(read_range(view, shard))
                except CorruptionError as error:
                    problems.append(f"{shard.name!r} cannot be read: {error}")
    except CorruptionError as error:
        problems.append(f"{path} cannot be read: {error}")
    return ranges


def _read(spark: SparkSession, path: str, ranges: list[ReadRange]) -> list[ShardCheck]:
    from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documents

    counted: dict[ShardId, tuple[int, int]] = {}
    filled = [shard_range for shard_range in ranges if shard_range.start < shard_range.end]
    if filled:
        table = load_ranges(spark, path, filled, "topic,partition,key,value", strict=False)
        sizes = table.selectExpr(
            "topic",
            "partition",
            "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) size",
        )
        groups = sizes.groupBy("topic", "partition").agg(
            F.count("*").alias("rows"), F.sum("size").alias("bytes")
        )
        for row in groups.collect():
            counted[ShardId(row["topic"], row["partition"])] = row["rows"], row["bytes"]
    return [
        _shard_check(shard_range, *counted.get(shard_range.shard, (0, 0))) for shard_range in ranges
    ]


def _shard_check(shard_range: ReadRange, rows: int, size: int) -> ShardCheck:
    return ShardCheck(
        shard_range.shard.name, shard_range.start, shard_range.end, rows, shard_range.rows_max, size
    )
