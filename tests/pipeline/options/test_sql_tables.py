"""Tables of SQL, frames that are written back, and what people read when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    yield "numbers"
    spark.sql("drop table if exists numbers")


@pytest.mark.parametrize("place", ["options (path '{}', subscribe 'numbers')", "location '{}'"])
def test_a_table_of_sql_is_read_by_its_options(
    spark: SparkSession, spark_store: Path, table: str, place: str
) -> None:
    spark.sql(f"create table {table} using penstock {place.format(spark_store)}")
    found = spark.sql(f"select count(*), max(offset) from {table}").collect()
    assert [tuple(row) for row in found] == [(10_000, 9_999)]


def test_a_table_has_the_columns_that_its_option_says(
    spark: SparkSession, spark_store: Path, table: str
) -> None:
    spark.sql(
        f"create table {table} using penstock options (path '{spark_store}', columns 'offset,key')"
    )
    (row,) = spark.sql(f"select * from {table} where offset = 7").collect()
    assert (row.offset, bytes(row.key)) == (7, b"key 7")


def test_a_table_with_columns_of_its_own_says_what_to_do(
    spark: SparkSession, spark_store: Path, table: str
) -> None:
    spark.sql(f"create table {table} (key binary) using penstock options (path '{spark_store}')")
    with pytest.raises(AnalysisException, match="Create it without columns"):
        spark.sql(f"select * from {table}").collect()


def test_an_insert_into_a_table_says_what_to_do(
    spark: SparkSession, spark_store: Path, table: str
) -> None:
    spark.sql(
        f"create table {table} using penstock options (path '{spark_store}', columns 'value')"
    )
    with pytest.raises(AnalysisException, match="Write a DataFrame"):
        spark.sql(f"insert into {table} values (cast('1' as binary))")


def test_a_loaded_frame_is_written_back_without_what_the_store_assigns(
    spark: SparkSession, spark_store: Path, tmp_path: Path
) -> None:
    rows = spark.read.format("penstock").load(str(spark_store)).where("offset < 100")
    writer = rows.write.format("penstock").option("createTopics", "true").mode("append")
    writer.save(str(tmp_path / "copy"))
    copy = spark.read.format("penstock").load(str(tmp_path / "copy"))
    same = "topic", "key", "value", "timestamp"
    assert copy.select(*same).collect() == rows.select(*same).collect()
    with pytest.raises(PySparkException, match="column 'offset' is assigned by the store: drop it"):
        writer.option("storeColumns", "refuse").save(str(tmp_path / "copy"))


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("subscribe", "nobody", "topic 'nobody' does not exist"),
        ("subscibe", "numbers", "unknown option 'subscibe'; did you mean 'subscribe'?"),
        ("startingOffsets", '{"numbers": {"0": 10001}}', "startingOffsets is 10001"),
    ],
)
def test_an_error_shows_its_sentence_and_no_frames(
    spark: SparkSession, spark_store: Path, option: str, value: str, sentence: str
) -> None:
    reader = spark.read.format("penstock").option(option, value)
    with pytest.raises(AnalysisException) as caught:
        reader.load(str(spark_store)).count()
    first = str(caught.value).splitlines()[0]
    assert sentence in first
    assert "Traceback" not in str(caught.value)
