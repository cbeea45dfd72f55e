"""Measures topics of a store directory: records and bytes over time, sizes, the commonest keys.

The ranges that are read are fixed first; what was counted is then compared with what they allow.
Sizes are those of keys and values, as their producers sent them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import BadRequestError, StoreError
from penstock.pipeline.jobs.shard_ranges import ReadRange, load_ranges, read_range
from penstock.pipeline.jobs.spark_work import Progress, spark_work
from penstock.pipeline.jobs.topic_choice import chosen_shards
from penstock.pipeline.store.named_view import NamedView

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EVERY_S: Final = 3600
TOP_KEYS: Final = 10
_COLUMNS: Final = "topic,partition,key,value,timestamp"
_SIZES: Final = (
    "topic",
    "partition",
    "key",
    "unix_millis(timestamp) at",
    "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) size",
)


class TopicStats(Struct, frozen=True):
    """A topic as a whole. Times are null when it is empty."""

    topic: str
    shards: int
    rows: int
    rows_bound: int
    """Offsets between the bounds that were not deleted; the rest expired or is damaged."""
    bytes: int
    size_max: int
    first_ms: int | None
    last_ms: int | None


class Interval(Struct, frozen=True):
    """What a topic took in within one interval, by the records' timestamps."""

    topic: str
    start_ms: int
    rows: int
    bytes: int
    rows_per_s: float
    bytes_per_s: float


class TopKey(Struct, frozen=True):
    topic: str
    key: str
    """As text; bytes that are not UTF-8 are escaped."""
    rows: int
    bytes: int


class StatsResult(Struct, frozen=True):
    path: str
    rows: int
    bytes: int
    topics: list[TopicStats]
    intervals: list[Interval]
    top_keys: list[TopKey]
    seconds: float
    every_s: int = EVERY_S
    """Seconds of one interval."""


def stats(
    spark: SparkSession,
    path: str,
    *,
    topics: Sequence[str] | None = None,
    every_s: int = EVERY_S,
    top_keys: int = TOP_KEYS,
    progress: Progress | None = None,
) -> StatsResult:
    """Measure these topics (all by default), over time in steps of `every_s` seconds.

    Of each topic, `top_keys` keys with the most records are named. Damaged records are passed over:
    the topic then has fewer rows than its bounds allow. Nothing is changed.
    """
    if every_s < 1 or top_keys < 0:
        raise BadRequestError(
            f"every_s must be at least 1 and top_keys at least 0, got {every_s} and {top_keys}"
        )
    began = time.monotonic()
    with NamedView(path, with_tiers=True) as view:
        ranges = [read_range(view, shard) for shard in chosen_shards(view, path, topics)]
    filled = [shard_range for shard_range in ranges if shard_range.start < shard_range.end]
    intervals: list[Interval] = []
    measured = _unmeasured(ranges)
    keys: list[TopKey] = []
    if filled:
        table = load_ranges(spark, path, filled, _COLUMNS, strict=False).selectExpr(*_SIZES)
        with spark_work(spark, "throughput", progress):
            intervals = _over_time(table, measured, every_s)
        if top_keys:
            with spark_work(spark, "keys", progress):
                keys = _top_keys(table, top_keys)
    _check(measured.values())
    return StatsResult(
        path=path,
        rows=sum(topic_stats.rows for topic_stats in measured.values()),
        bytes=sum(topic_stats.bytes for topic_stats in measured.values()),
        topics=[measured[topic] for topic in sorted(measured)],
        intervals=intervals,
        top_keys=keys,
        seconds=time.monotonic() - began,
        every_s=every_s,
    )


def _unmeasured(ranges: Iterable[ReadRange]) -> dict[str, TopicStats]:
    by_topic: dict[str, TopicStats] = {}
    for shard_range in ranges:
        topic = shard_range.shard.topic
        before = by_topic.get(topic) or TopicStats(topic, 0, 0, 0, 0, 0, None, None)
        by_topic[topic] = replace(
            before, shards=before.shards + 1, rows_bound=before.rows_bound + shard_range.rows_max
        )
    return by_topic


def _over_time(table: DataFrame, by_topic: dict[str, TopicStats], every_s: int) -> list[Interval]:
    """Measure each interval, and add it to the topic's sums in `by_topic`."""
    step = every_s * 1000
    groups = (
        table.selectExpr("topic", "at", "size", f"at - pmod(at, {step}) start")
        .groupBy("topic", "start")
        .agg(*_measures())
        .orderBy("topic", "start")
    )
    intervals = []
    for row in groups.collect():
        topic, rows, size = row["topic"], row["rows"], row["bytes"]
        intervals.append(Interval(topic, row["start"], rows, size, rows / every_s, size / every_s))
        before = by_topic[topic]
        by_topic[topic] = replace(
            before,
            rows=before.rows + rows,
            bytes=before.bytes + size,
            size_max=max(before.size_max, row["size_max"]),
            first_ms=row["first_ms"] if before.first_ms is None else before.first_ms,
            last_ms=row["last_ms"],
        )
    return intervals


def _top_keys(table: DataFrame, count: int) -> list[TopKey]:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documents

    counted = table.where("key is not null").groupBy("topic", "key").agg(*_measures())
    order = Window.partitionBy("topic").orderBy(F.desc("rows"), F.asc("key"))
    best = counted.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= count)
    return [
        TopKey(
            row["topic"],
            bytes(row["key"]).decode("utf-8", "backslashreplace"),
            row["rows"],
            row["bytes"],
        )
        for row in best.orderBy("topic", "rank").collect()
    ]


def _measures() -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documents

    return [
        F.count("*").alias("rows"),
        F.sum("size").alias("bytes"),
        F.max("size").alias("size_max"),
        F.min("at").alias("first_ms"),
        F.max("at").alias("last_ms"),
    ]


def _check(topics: Iterable[TopicStats]) -> None:
    for topic in topics:
        if topic.rows > topic.rows_bound:
            raise StoreError(
                f"topic {topic.topic!r} gave {topic.rows} rows, but its bounds allow "
                f"{topic.rows_bound}: check the store with `penstock store verify`"
            )
