"""Files that Python workers stage are what Spark itself would have written, and none too many."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.engine.segment.readonly.sample_store import EVENTS, EVENTS_COUNT, ORDERS, ORDERS_COUNT

from penstock.pipeline.jobs.exports import job as export_job
from penstock.pipeline.jobs.exports import staging
from penstock.pipeline.jobs.exports.staged_counts import count_file, count_staged
from penstock.pipeline.jobs.exports.staging import Partitioning, StagedFiles, day_text, escaped
from penstock.pipeline.jobs.shard_ranges import load_ranges, range_options, read_range
from penstock.pipeline.store.named_view import NamedView

COLUMNS = export_job.EXPORTED_COLUMNS
LAYOUT = Partitioning("topic", "day", keeps_topic=False)
DAY_US = 86_400_000_000
ORDERS_DELETED = 3


def rows_of(days: list[int], partition: int = 0) -> pa.RecordBatch:
    count = len(days)
    return pa.record_batch(
        {
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([day * DAY_US + 5 for day in days], pa.timestamp("us", tz="UTC")),
        }
    )


def staged(root: Path) -> dict[str, list[int]]:
    """Return the offsets of each day, in the order of its files."""
    found: dict[str, list[int]] = {}
    for path in sorted(root.rglob("*.parquet")):
        day = path.parent.name.removeprefix("day=")
        found.setdefault(day, []).extend(pq.read_table(path).column("offset").to_pylist())  # type: ignore[arg-type]  # none is null
    return found


def test_names_of_directories_are_escaped_as_spark_escapes_them(spark: SparkSession) -> None:
    utils = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils  # type: ignore[union-attr]  # it runs
    for number in [*range(1, 0x100), 0x2028, 0x1F600]:
        text = f"a{chr(number)}b"
        assert escaped(text) == utils.escapePathName(text), number


def test_days_are_written_as_spark_writes_them(spark: SparkSession) -> None:
    days = [0, -1, 20_000, -719_162, 2_932_896, 2_932_897, 4_000_000]
    rows = spark.createDataFrame([(day,) for day in days], "day int")
    texts = rows.selectExpr("cast(date_add(date'1970-01-01', day) as string)").collect()
    assert [day_text(day) for day in days] == [row[0] for row in texts]


@pytest.mark.parametrize("days_count", [1, 3, staging.OPEN_FILES_MAX + 20])
def test_each_row_is_once_in_a_file_of_its_day_and_in_order(
    tmp_path: Path, days_count: int
) -> None:
    source = random.Random(days_count)
    days = [source.randrange(-days_count // 2, days_count // 2 + 1) for _ in range(2_000)]
    files = StagedFiles(tmp_path, 0, LAYOUT)
    files.add(rows_of(days))
    files.close()
    expected: dict[str, list[int]] = {}
    for offset, day in enumerate(days):
        text = date.fromordinal(date(1970, 1, 1).toordinal() + day).isoformat()
        expected.setdefault(text, []).append(offset)
    assert staged(tmp_path) == expected
    assert sorted(files.paths) == sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")
    )


def test_a_day_that_comes_again_goes_on_in_another_file_when_too_many_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "OPEN_FILES_MAX", 2)
    monkeypatch.setattr(staging, "GROUP_SIZE", 1)
    files = StagedFiles(tmp_path, 0, LAYOUT)
    for day in (1, 2, 3, 1, 3):
        files.add(rows_of([day] * 4))
    files.close()
    assert {day: len(offsets) for day, offsets in staged(tmp_path).items()} == {
        "1970-01-02": 8,
        "1970-01-03": 4,
        "1970-01-04": 8,
    }
    assert len(files.paths) == 4


def test_what_a_lost_attempt_left_does_not_count(
    spark: SparkSession, sample: Path, tmp_path: Path
) -> None:
    lost = tmp_path / "topic=orders" / "day=1970-01-01" / "part-00000-lost.parquet"
    lost.parent.mkdir(parents=True)
    lost.write_bytes(b"half a file")
    with NamedView(str(sample)) as view:
        ranges = [read_range(view, ORDERS)]
    options = range_options(str(sample), ranges, COLUMNS, strict=True)
    staging.stage_ranges(spark, options, tmp_path, LAYOUT)
    assert not lost.exists()
    counted = count_staged(spark, sorted(tmp_path.rglob("*.parquet")))
    assert counted[ORDERS].rows == ORDERS_COUNT - ORDERS_DELETED


@pytest.mark.parametrize("mode", ["files", "iceberg"])
def test_the_files_have_the_columns_and_rows_that_spark_writes(
    spark: SparkSession, sample: Path, tmp_path: Path, mode: str
) -> None:
    with NamedView(str(sample)) as view:
        ranges = [read_range(view, shard) for shard in (EVENTS, ORDERS)]
    ours, sparks = tmp_path / "ours", tmp_path / "sparks"
    options = range_options(str(sample), ranges, COLUMNS, strict=True)
    staging.stage_ranges(spark, options, ours, export_job.layout_of(mode))
    table = load_ranges(spark, str(sample), ranges, COLUMNS, strict=True)
    export_job.stage_table(spark, table, sparks, mode)
    found = [contents(ours), contents(sparks)]
    assert found[0].schema == found[1].schema
    assert found[0].equals(found[1])
    assert found[0].num_rows == ORDERS_COUNT - ORDERS_DELETED + EVENTS_COUNT


def contents(root: Path) -> pa.Table:
    files = sorted(root.rglob("*.parquet"), key=lambda path: path.parent.parent.name)
    return pa.concat_tables(
        [pq.ParquetFile(path).read().replace_schema_metadata() for path in files]
    )


def test_counting_tells_shards_apart_and_finds_values_that_were_not_decoded(tmp_path: Path) -> None:
    directory = tmp_path / "topic=a%3Ab" / "day=1970-01-01"
    directory.mkdir(parents=True)
    table = pa.table(
        {
            "partition": pa.array([0, 1, 1, 1], pa.int32()),
            "offset": pa.array([7, 3, 4, 9], pa.int64()),
            "undecoded": pa.array([None, None, b"x", b"y"], pa.binary()),
        }
    )
    pq.write_table(table, directory / "part.parquet")
    found = {each.partition: each for each in count_file(directory / "part.parquet")}
    assert {each.topic for each in found.values()} == {"a:b"}
    assert (found[0].rows, found[0].first, found[0].last, found[0].undecoded) == (1, 7, 7, 0)
    assert (found[1].rows, found[1].first, found[1].last) == (3, 3, 9)
    assert (found[1].undecoded, found[1].first_undecoded) == (2, 4)
    both = found[1].with_more(found[1])
    assert (both.rows, both.undecoded, both.first_undecoded) == (6, 4, 4)
