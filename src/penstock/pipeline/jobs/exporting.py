"""Exports topics of a store to Parquet or Delta, each record once, from where the last run ended.

    target/topic=orders/day=2026-01-31/run-000001-….parquet
    target/_penstock/bookmark.json

A day is that of the record's timestamp, in UTC. The bookmark lies in the target and moves only
after the files are in place (`export_ledger`). Before that, the staged files are read back and
counted: a shard may not have more rows than its bounds allow, nor one outside of its range.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import BadRequestError, StoreError
from penstock.pipeline.jobs.export_ledger import FILES, Bookmark, Ledger, Offsets
from penstock.pipeline.jobs.shard_ranges import ReadRange, load_ranges, read_range
from penstock.pipeline.jobs.spark_work import Progress, spark_work
from penstock.pipeline.jobs.topic_choice import chosen_shards
from penstock.pipeline.named_view import NamedView
from penstock.record import ShardId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = (
    "key,value,topic,partition,offset,timestamp,headers,tags,store_timestamp,leader_epoch,expires"
)
# Not to_date(): that goes by the time zone of the session.
_DAY: Final = (
    "date_add(date'1970-01-01', cast(floor(unix_millis(timestamp) / 86400000) as int)) as day"
)
_CHECKED: Final = "partition int, offset bigint, topic string"


class ShardExport(Struct, frozen=True):
    """What a run took of one shard: the offsets [start, end)."""

    shard: str
    start: int
    end: int
    rows: int
    deleted: int
    """Offsets in the range whose records were deleted one by one."""
    left_out: int
    """The rest: expired records, and damaged ones when these are passed over."""
    lost: int
    """Offsets before `start` that retention removed before they were exported."""


class ExportResult(Struct, frozen=True):
    path: str
    target: str
    run: int
    """The number of this run, or of the last one when there was nothing new."""
    rows: int
    files: int
    bytes_written: int
    files_recovered: int
    """Files of a run that was killed, which this one put in place first."""
    shards: list[ShardExport]
    seconds: float


def export(
    spark: SparkSession,
    path: str,
    target: str,
    *,
    topics: Sequence[str] | None = None,
    table_format: str = "parquet",
    upsert: bool = False,
    strict: bool = True,
    progress: Progress | None = None,
) -> ExportResult:
    """Append what is new in these topics (all by default) to the Parquet files in `target`.

    With `table_format="delta"`, `target` is a Delta table, by topic and day; with `upsert` it has
    the newest record of each key, by topic (the rows of a run are then held in memory).

    The store is only read; a writer may be at work. With `strict` off, damaged records and records
    that retention took before they were exported are passed over and counted. Safe to kill and to
    repeat; raises `LockedError` while another export writes to `target`.
    """
    began = time.monotonic()
    mode = _mode(table_format, upsert=upsert)
    if "://" in target:
        raise BadRequestError(f"{target!r} is no directory of this machine: export to one")
    ledger = Ledger(Path(target))
    with ledger.locked():
        recovered = ledger.recover()
        before = ledger.bookmark()
        root = str(Path(path).resolve())
        if before.store not in ("", root):
            raise BadRequestError(
                f"{target} is an export of {before.store}, not of {root}; if that store was moved, "
                "change its path in _penstock/bookmark.json"
            )
        ranges = _ranges(path, before.offsets, topics, strict=strict)
        if not ranges:
            return ExportResult(
                path, target, before.run, 0, 0, 0, recovered, [], time.monotonic() - began
            )
        after = Bookmark(before.run + 1, root, _moved(before.offsets, ranges))
        with spark_work(spark, "export", progress):
            _stage(load_ranges(spark, path, ranges, _COLUMNS, strict=strict), ledger.staging)
        with spark_work(spark, "check", progress):
            shards = _check(spark, ledger, ranges, before.offsets)
        files = ledger.staged_count()
        size = ledger.publish(after, mode)
    rows = sum(each.rows for each in shards)
    seconds = time.monotonic() - began
    return ExportResult(path, target, after.run, rows, files, size, recovered, shards, seconds)


def _mode(table_format: str, *, upsert: bool) -> str:
    if table_format == "delta":
        from penstock.pipeline.jobs.delta_table import APPEND, UPSERT, check_installed

        check_installed()
        return UPSERT if upsert else APPEND
    if table_format != "parquet":
        raise BadRequestError(f"there is no format {table_format!r}; there are parquet and delta")
    if upsert:
        raise BadRequestError("Parquet files are only appended to: upsert needs the format delta")
    return FILES


def _ranges(
    path: str, done: Offsets, topics: Sequence[str] | None, *, strict: bool
) -> list[ReadRange]:
    found = []
    with NamedView(path) as view:
        for shard in chosen_shards(view, path, topics):
            bounds = view.bounds(shard)
            wanted = done.get(shard.topic, {}).get(shard.partition, bounds.earliest)
            if wanted > bounds.commit:
                raise BadRequestError(
                    f"{shard.name!r} ends at {bounds.commit}, but was exported up to {wanted}: "
                    "this is another store, or it was cut; export to a new directory"
                )
            lost = max(0, bounds.earliest - wanted)
            if lost and strict:
                raise BadRequestError(
                    f"{lost} records of {shard.name!r} from offset {wanted} on were removed before "
                    "they were exported; go on with what there is by strict=False (--no-strict)"
                )
            planned = read_range(view, shard, wanted)
            if planned.start < planned.end:
                found.append(planned)
    return found


def _moved(before: Offsets, ranges: Iterable[ReadRange]) -> Offsets:
    after = {topic: dict(partitions) for topic, partitions in before.items()}
    for each in ranges:
        after.setdefault(each.shard.topic, {})[each.shard.partition] = each.end
    return after


def _stage(table: DataFrame, staging: Path) -> None:
    rows = table.selectExpr("*", _DAY)
    # The order that partitioned writes need anyway, and by offset within: footers help readers.
    rows = rows.sortWithinPartitions("topic", "day", "partition", "offset")
    writer = rows.write.partitionBy("topic", "day").mode("overwrite")
    writer.option("compression", "zstd").parquet(f"file://{staging.resolve()}")


def _check(
    spark: SparkSession, ledger: Ledger, ranges: Iterable[ReadRange], before: Offsets
) -> list[ShardExport]:
    """Count what was staged; raise when it cannot be what the ranges hold."""
    from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documents

    counted: dict[ShardId, tuple[int, int, int]] = {}
    if ledger.staged_count():
        staged = spark.read.schema(_CHECKED).parquet(f"file://{ledger.staging.resolve()}")
        groups = staged.groupBy("topic", "partition").agg(
            F.count("offset").alias("rows"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
        )
        for row in groups.collect():
            shard = ShardId(row["topic"], row["partition"])
            counted[shard] = row["rows"], row["first"], row["last"]
    found = []
    for each in ranges:
        rows, first, last = counted.pop(each.shard, (0, each.start, each.start))
        left_out = each.rows_max - rows
        if left_out < 0 or first < each.start or last >= each.end:
            raise StoreError(
                f"{each.shard.name!r} was to give the offsets [{each.start}, {each.end}) without "
                f"{each.deleted}, but {rows} rows from {first} to {last} were staged; nothing was "
                "published"
            )
        topic, partition = each.shard
        lost = each.start - before.get(topic, {}).get(partition, each.start)
        found.append(
            ShardExport(each.shard.name, each.start, each.end, rows, each.deleted, left_out, lost)
        )
    if counted:
        raise StoreError(f"rows of {min(counted).name!r} were staged, which was not read")
    return found
