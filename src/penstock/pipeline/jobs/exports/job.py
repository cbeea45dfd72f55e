"""Exports topics of a store to files or a table, each record once, from where the last run ended.

    target/topic=orders/day=2026-01-31/run-000001-….parquet
    target/_penstock/bookmark.json

The day is that of the record's timestamp in UTC. The bookmark is stored in the target and moves
after the files are in place (`ledger`). Before that, the staged files are read back and counted: a
shard may not have more rows than its bounds allow, nor rows outside of its range. Rows for a Delta
or Iceberg table are staged in the same way and added in one commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import BadRequestError, StoreError
from penstock.pipeline.jobs.exports.iceberg_place import IcebergPlace
from penstock.pipeline.jobs.exports.ledger import FILES, ICEBERG, Bookmark, Ledger, Offsets
from penstock.pipeline.jobs.exports.payload import (
    UNDECODED,
    Payload,
    check_growth,
    choose_payload,
    decoded,
    with_schema,
)
from penstock.pipeline.jobs.exports.staged_counts import Counted, count_staged
from penstock.pipeline.jobs.exports.staging import Partitioning, stage_ranges
from penstock.pipeline.jobs.shard_ranges import (
    ReadRange,
    load_ranges,
    range_options,
    read_range,
)
from penstock.pipeline.jobs.spark_work import Progress, spark_work
from penstock.pipeline.jobs.topic_choice import chosen_shards
from penstock.pipeline.read.positions import Positions
from penstock.pipeline.store.named_view import NamedView
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = get_logger(__name__)

EXPORTED_COLUMNS: Final = (
    "key,value,topic,partition,offset,timestamp,headers,tags,store_timestamp,leader_epoch,expires"
)
# Not to_date(): it uses the time zone of the session.
_DAY: Final = "date_add(date'1970-01-01', cast(floor(unix_millis(timestamp) / 86400000) as int))"
_TIMES: Final = "spark.sql.parquet.outputTimestampType"


class ExportForm(Struct, frozen=True):
    """The form in which an export stores records."""

    table_format: str = "parquet"
    """`parquet`; `delta`: the target is a Delta table; `iceberg`: see `iceberg`. All by topic and
    day."""
    upsert: bool = False
    """Delta: keep the newest record of each key, by topic. A run's rows are held in memory."""
    iceberg: IcebergPlace | None = None
    """Which table. The target has the bookmark and, by default, the catalog and the files."""
    payload: Payload | None = None
    """Make columns of the values."""


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
    undecoded: int = 0
    """Rows whose value is not what the schema says."""
    first_undecoded: int | None = None
    """The offset of the first of them."""


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
    form: ExportForm | None = None,
    strict: bool = True,
    progress: Progress | None = None,
) -> ExportResult:
    """Append what is new in these topics (all by default) to `target`: Parquet files, unless `form`
    says otherwise.

    The store is only read; a writer may be at work. With `strict` off, damaged records, values that
    cannot be decoded, and records that retention took before they were exported are passed over and
    counted. Safe to kill and to repeat; raises `LockedError` while another export writes to
    `target`.
    """
    began = time.monotonic()
    form = form or ExportForm()
    mode, iceberg = _mode(form)
    if "://" in target:
        raise BadRequestError(f"{target!r} is not a local directory: export to one")
    with NamedView(path) as view:
        chosen_shards(view, path, topics)  # raises for an unknown topic before anything is created
    ledger = Ledger(Path(target), iceberg)
    with ledger.locked():
        recovered = ledger.recover()
        before = ledger.bookmark()
        root = str(Path(path).resolve())
        _check_same(before, root, mode, target)
        payload = choose_payload(form.payload, before.payload)
        before, ids = _present(path, before, topics, strict=strict)
        ranges = _ranges(path, before.offsets, topics, strict=strict)
        if not ranges:
            return ExportResult(
                path, target, before.run, 0, 0, 0, recovered, [], time.monotonic() - began
            )
        with _cleaned(ledger):
            with spark_work(spark, "export", progress):
                if payload is None:
                    options = range_options(path, ranges, EXPORTED_COLUMNS, strict=strict)
                    stage_ranges(spark, options, ledger.staging, layout_of(mode))
                else:
                    table = load_ranges(spark, path, ranges, EXPORTED_COLUMNS, strict=strict)
                    payload = with_schema(payload, spark, table)
                    check_growth(before.payload, payload)
                    stage_table(spark, decoded(table, payload), ledger.staging, mode)
            with spark_work(spark, "check", progress):
                shards = _check(spark, ledger, ranges, before.offsets)
            if strict:
                _check_values(shards)
        after = Bookmark(
            before.run + 1,
            root,
            _moved(before.offsets, ranges),
            mode,
            payload,
            before.export_id or uuid4().hex,
            before.ids | ids,
        )
        files = len(ledger.staged_files())
        size = ledger.publish(after, mode)
    rows = sum(shard.rows for shard in shards)
    seconds = time.monotonic() - began
    return ExportResult(path, target, after.run, rows, files, size, recovered, shards, seconds)


@contextmanager
def _cleaned(ledger: Ledger) -> Iterator[None]:
    """Leave no staged file of a run that fails before it is published."""
    try:
        yield
    except BaseException:
        ledger.clean()
        raise


def _check_same(before: Bookmark, root: str, mode: str, target: str) -> None:
    """Refuse to mix two exports in one target."""
    if before.store not in ("", root):
        raise BadRequestError(
            f"{target} is an export of {before.store}, not of {root}; if that store was moved, "
            "change its path in _penstock/bookmark.json"
        )
    if before.mode not in ("", mode):
        raise BadRequestError(
            f"{target} holds an export of kind {before.mode!r}, which cannot continue as "
            f"{mode!r}: export to a new directory"
        )


def _mode(form: ExportForm) -> tuple[str, IcebergPlace | None]:
    table_format = form.table_format
    if form.upsert and table_format != "delta":
        raise BadRequestError(
            "upsert requires the format delta: parquet and iceberg are append-only"
        )
    if form.iceberg is not None and table_format != "iceberg":
        raise BadRequestError(
            f"table and catalog options require the format iceberg, not {table_format}"
        )
    if table_format == "delta":
        from penstock.pipeline.jobs.exports.delta_table import APPEND, UPSERT, check_installed

        check_installed()
        return UPSERT if form.upsert else APPEND, None
    if table_format == "iceberg":
        from penstock.pipeline.jobs.exports.iceberg_table import check_place

        place = form.iceberg or IcebergPlace()
        check_place(place)
        return ICEBERG, place
    if table_format != "parquet":
        raise BadRequestError(
            f"unknown format {table_format!r}; expected parquet, delta or iceberg"
        )
    return FILES, None


def _present(
    path: str, before: Bookmark, topics: Sequence[str] | None, *, strict: bool
) -> tuple[Bookmark, dict[str, str]]:
    """Return the bookmark without topics that were created again since the last run, and the
    present ids. Such a topic is refused when the export is strict."""
    with NamedView(path) as view:
        chosen = {shard.topic for shard in chosen_shards(view, path, topics)}
        ids = {topic: known for topic, known in view.ids().items() if topic in chosen}
    other = Positions({}, before.ids).recreated(ids, chosen & set(before.offsets))
    for topic, text in other.items():
        if strict:
            raise BadRequestError(
                f"{text}; export the present topic from its earliest record by strict=False "
                "(--no-strict), or to a new directory"
            )
        _log.warning("topic_recreated", topic=topic, detail=text)
    kept = {topic: done for topic, done in before.offsets.items() if topic not in other}
    return replace(before, offsets=kept), ids


def _ranges(
    path: str, done: Offsets, topics: Sequence[str] | None, *, strict: bool
) -> list[ReadRange]:
    ranges = []
    with NamedView(path, with_tiers=True) as view:
        for shard in chosen_shards(view, path, topics):
            bounds = view.bounds(shard)
            next_offset = done.get(shard.topic, {}).get(shard.partition, bounds.earliest)
            if next_offset > bounds.commit:
                raise BadRequestError(
                    f"{shard.name!r} ends at {bounds.commit}, but was exported up to "
                    f"{next_offset}: this is another store, or it was truncated; export to a new "
                    "directory"
                )
            lost = max(0, bounds.earliest - next_offset)
            if lost and strict:
                raise BadRequestError(
                    f"{lost} records of {shard.name!r} from offset {next_offset} on were removed "
                    "before they were exported; continue with the available records by "
                    "strict=False (--no-strict)"
                )
            planned = read_range(view, shard, next_offset)
            if planned.start < planned.end:
                ranges.append(planned)
    return ranges


def _moved(before: Offsets, ranges: Iterable[ReadRange]) -> Offsets:
    after = {topic: dict(partitions) for topic, partitions in before.items()}
    for shard_range in ranges:
        after.setdefault(shard_range.shard.topic, {})[shard_range.shard.partition] = shard_range.end
    return after


def layout_of(mode: str) -> Partitioning:
    """Return the layout of the staged files of an export."""
    if mode == ICEBERG:
        # Its files hold all columns; the day is a hidden partition.
        return Partitioning("by_topic", "by_day", keeps_topic=True)
    return Partitioning("topic", "day", keeps_topic=False)


def stage_table(spark: SparkSession, table: DataFrame, staging: Path, mode: str) -> None:
    """Have Spark write the files: it decodes the values."""
    layout = layout_of(mode)
    by = layout.topic, layout.day
    if layout.keeps_topic:
        rows = table.selectExpr("*", f"topic as {layout.topic}", f"{_DAY} as {layout.day}")
    else:
        rows = table.selectExpr("*", f"{_DAY} as {layout.day}")
    # The order that partitioned writes need anyway, and by offset within: footers help readers.
    rows = rows.sortWithinPartitions(*by, "partition", "offset")
    writer = rows.write.partitionBy(*by).mode("overwrite").option("compression", "zstd")
    with _setting(spark, _TIMES, "TIMESTAMP_MICROS"):
        writer.parquet(f"file://{staging.resolve()}")


@contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set what Spark takes only from the session: its own times (INT96) have no statistics."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def _check(
    spark: SparkSession, ledger: Ledger, ranges: Iterable[ReadRange], before: Offsets
) -> list[ShardExport]:
    """Count what was staged; raise when it cannot be what the ranges hold."""
    counted = count_staged(spark, ledger.staged_files())
    exports = []
    for shard_range in ranges:
        nothing = Counted(
            *shard_range.shard, rows=0, first=shard_range.start, last=shard_range.start
        )
        staged = counted.pop(shard_range.shard, nothing)
        left_out = shard_range.rows_max - staged.rows
        if left_out < 0 or staged.first < shard_range.start or staged.last >= shard_range.end:
            raise StoreError(
                f"shard {shard_range.shard.name!r}: expected offsets [{shard_range.start}, "
                f"{shard_range.end}) without {shard_range.deleted} deleted ones, but the tasks "
                f"staged {staged.rows} rows from {staged.first} to {staged.last}; nothing was "
                "published"
            )
        topic, partition = shard_range.shard
        lost = shard_range.start - before.get(topic, {}).get(partition, shard_range.start)
        exports.append(
            ShardExport(
                shard_range.shard.name,
                shard_range.start,
                shard_range.end,
                staged.rows,
                shard_range.deleted,
                left_out,
                lost,
                staged.undecoded,
                staged.first_undecoded,
            )
        )
    if counted:
        raise StoreError(
            f"rows of shard {min(counted).name!r} were staged, but the export did not read it"
        )
    return exports


def _check_values(shards: Iterable[ShardExport]) -> None:
    """Refuse to publish values that are not what the schema says."""
    bad = [shard for shard in shards if shard.undecoded]
    if bad:
        places = ", ".join(
            f"{shard.undecoded} of {shard.shard!r} from offset {shard.first_undecoded} on"
            for shard in bad
        )
        raise BadRequestError(
            f"values do not match the schema: {places}; nothing was published. Keep them in "
            f"the column {UNDECODED!r} by strict=False (--no-strict)"
        )
