"""Batch writes: what went in comes out, once, also when tasks fail; bad rows are refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.conftest import Load

from penstock.adapter.topics.partitioning import key_hash

NEW = {"topic": "orders", "createTopics": "true", "partitions": "3"}


def write(table: DataFrame, path: Path, **options: str | int) -> None:
    writer = table.write.format("penstock").mode("append")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save(str(path))


def left_over(path: Path) -> list[Path]:
    return [each for each in path.glob("penstock/sink/**/*") if each.is_file()]


def test_every_column_comes_back_as_it_went_in(
    spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    rows = spark.range(0, 500, 1, 3).selectExpr(
        "if(id % 9 = 0, null, binary(string(id))) value",
        "if(id % 7 = 0, null, cast(id % 20 as string)) key",
        "if(id % 2 = 0, array(struct('n' key, binary(string(id)) value)), array()) headers",
        "case id % 3 when 0 then array('a', 'b') when 1 then array('c') else array() end tags",
        "timestamp_millis(5000 + id) timestamp",
    )
    path = tmp_path / "store"
    write(rows, path, **NEW)
    assert left_over(path) == []
    found = load(path, includeHeaders="true")
    wanted = {(row.timestamp, row.value, row.key and row.key.encode()) for row in rows.collect()}
    assert {
        (row.timestamp, row.value, row.key and bytes(row.key)) for row in found.collect()
    } == wanted
    columns = ["timestamp", "headers", "tags"]
    assert found.select(columns).exceptAll(rows.select(columns)).count() == 0
    assert rows.select(columns).exceptAll(found.select(columns)).count() == 0
    for row in found.where("key is not null").collect():
        assert row.partition == key_hash(bytes(row.key)) % 3


def test_a_loaded_frame_is_written_back_with_the_times_at_which_records_expire(
    spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    rows = spark.range(100).selectExpr(
        "cast(id as string) value",
        "timestamp_millis(5000 + id) timestamp",
        "if(id % 3 = 0, null, timestamp_millis(4102444800000 + id)) expires",
    )
    write(rows, tmp_path / "store", **NEW)
    loaded = load(tmp_path / "store", includeMetadata="true")
    write(loaded, tmp_path / "copy", createTopics="true", partitions=3)
    columns = ["timestamp", "expires"]
    for path in ("store", "copy"):
        found = load(tmp_path / path, includeMetadata="true").select(columns)
        assert found.exceptAll(rows.select(columns)).count() == 0
        assert found.count() == 100


def test_a_task_that_fails_leaves_no_row_twice(
    spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    marker = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("this attempt fails behind its first batch")

    rows = spark.range(0, 30_000, 1, 2).selectExpr("cast(id as string) value")
    path = tmp_path / "store"
    write(rows.mapInArrow(fail_once, "value string"), path, **NEW)
    assert Path(marker).exists()
    found = load(path).selectExpr("cast(value as string) value")
    assert found.count() == found.distinct().count() == 30_000
    assert left_over(path) == []


def test_a_numbered_write_is_done_once(spark: SparkSession, load: Load, tmp_path: Path) -> None:
    path = tmp_path / "store"
    rows = spark.range(10).selectExpr("cast(id as string) value")
    for number in (0, 0, 1, 0):
        write(rows, path, sinkId="nightly", batchId=number, **NEW)
    assert load(path).count() == 20


def test_a_new_store_at_an_old_path_is_not_taken_for_the_old_one(
    spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    for word in ("old", "new"):
        shutil.rmtree(path, ignore_errors=True)
        write(spark.range(4).selectExpr(f"'{word}' value"), path, **NEW)
        assert {bytes(row.value) for row in load(path).collect()} == {word.encode()}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id", {}, "the sink does not accept the column 'id'"),
        ("cast(id as string) valu", {}, "did you mean 'value'"),
        ("id value", {}, "column 'value' is bigint, expected binary or string"),
        ("'x' key", {}, "the sink needs a column 'value'"),
        ("'x' value", {"topic": ""}, "the sink needs a column 'topic'"),
        ("'x' value", {"createTopics": "false"}, "topic 'orders' does not exist"),
        ("'x' value", {"topc": "x"}, "unknown option 'topc'; did you mean 'topic'"),
        ("'x' value", {"batchId": "1"}, "option 'batchId' needs 'sinkId'"),
        ("'x' value, 8 partition", {}, "partition 8, but its topic has 3"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_sentence(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, str], message: str
) -> None:
    rows = spark.range(3).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=message):
        write(rows, tmp_path / "store", **{**NEW, **options})
    assert left_over(tmp_path / "store") == []


def test_a_store_is_never_overwritten(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(PySparkException, match="append-only"):
        rows.write.format("penstock").mode("overwrite").options(**NEW).save(str(tmp_path / "s"))
