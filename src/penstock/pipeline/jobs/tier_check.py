"""Compares a store with its tier, in Spark's tasks: what both hold must be the same.

Both sides are read through the normal readers, which verify all checksums. For every record that is
in the log and within the range of the tier, a hash of its visible fields must exist in the tier.
The tier may hold more records: deletions reach it later than the log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from penstock.errors import StoreError
from penstock.pipeline.jobs.spark_work import Progress, spark_work
from penstock.pipeline.read.tiers import OpenTier
from penstock.pipeline.store.named_view import NamedView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = "key,value,topic,partition,offset,timestamp,headers,tags"


class TierCheck(Struct, frozen=True):
    """One shard that both hold: the offsets [start, end) were compared."""

    shard: str
    start: int
    end: int
    rows: int
    """Records of the log in it."""
    missing: int
    """… that the tier has not, or has otherwise."""


class _Overlap(NamedTuple):
    name: str
    topic: str
    shown: str
    partition: int
    start: int
    end: int


def check_tier(
    spark: SparkSession, path: str, url: str, problems: list[str], progress: Progress | None
) -> list[TierCheck]:
    """Compare; what cannot be read, or is not the same, goes to `problems`."""
    overlaps = _overlaps(path, url, problems)
    if not overlaps:
        return []
    try:
        with spark_work(spark, "tier", progress):
            checks = _compare(spark, path, url, overlaps)
    except StoreError as error:
        problems.append(str(error))
        return []
    problems += [
        f"{check.missing} of {check.rows} records of {check.shard!r} are not in the tier as they "
        "are in the log"
        for check in checks
        if check.missing
    ]
    return checks


def _overlaps(path: str, url: str, problems: list[str]) -> list[_Overlap]:
    overlaps = []
    tier = OpenTier(url)
    try:
        with NamedView(path) as view:
            for shard in view.shards():
                stored, bounds = view.stored(shard), view.bounds(shard)
                manifest = tier.flat(stored).refresh()
                if manifest is None:
                    continue
                if manifest.end_offset < bounds.earliest:
                    problems.append(
                        f"{shard.name!r}: the tier ends at {manifest.end_offset}, the log begins "
                        f"at {bounds.earliest}; the records between them are lost"
                    )
                start = max(manifest.start_offset, int(bounds.earliest))
                end = min(manifest.end_offset, int(bounds.commit))
                if start < end:
                    overlaps.append(
                        _Overlap(shard.name, stored.topic, shard.topic, shard.partition, start, end)
                    )
    finally:
        tier.close()
    return overlaps


def _compare(spark: SparkSession, path: str, url: str, overlaps: list[_Overlap]) -> list[TierCheck]:
    log = _hashed(
        spark, {"path": path}, [overlap._replace(topic=overlap.shown) for overlap in overlaps]
    )
    tier = _hashed(spark, {"tier": url}, overlaps)
    # Topics have other names in the tier of a node: rows of both sides carry a number instead.
    rows = {row[0]: row[1] for row in log.groupBy("number").count().collect()}
    lacking = log.join(tier, ["number", "offset", "hash"], "left_anti")
    missing = {row[0]: row[1] for row in lacking.groupBy("number").count().collect()}
    return [
        TierCheck(
            overlap.name, overlap.start, overlap.end, rows.get(number, 0), missing.get(number, 0)
        )
        for number, overlap in enumerate(overlaps)
    ]


def _hashed(spark: SparkSession, place: dict[str, str], overlaps: list[_Overlap]) -> DataFrame:
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for overlap in overlaps:
        assigned.setdefault(overlap.topic, []).append(overlap.partition)
        starts.setdefault(overlap.topic, {})[str(overlap.partition)] = overlap.start
        ends.setdefault(overlap.topic, {})[str(overlap.partition)] = overlap.end
    table = (
        spark.read.format("penstock")
        .options(**place, columns=_COLUMNS, assign=json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
    numbers = spark.createDataFrame(
        [(number, overlap.topic, overlap.partition) for number, overlap in enumerate(overlaps)],
        "number int, topic string, partition int",
    )
    hashed = "xxhash64(key is null, key, value is null, value, timestamp, headers, tags) hash"
    return table.join(numbers.hint("broadcast"), ["topic", "partition"]).selectExpr(
        "number", "offset", hashed
    )
