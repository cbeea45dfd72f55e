"""A store as a table: every record once, filters where the data is, errors that tell what to do."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documents
from tests.codec.golden_store import GoldenStore
from tests.engine.segment.readonly.sample_store import (
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    flip,
    tree,
)
from tests.pipeline.conftest import Load, Metrics

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.record import ShardId, StoredRecord

DELETED = 3
ALL = {"includeHeaders": "true", "includeMetadata": "true"}


def as_row(shard: ShardId, record: StoredRecord) -> tuple[object, ...]:
    return (
        shard,
        record.offset,
        record.key,
        record.value,
        record.timestamp_ms,
        record.tags,
        record.headers,
        record.store_timestamp_ms,
        record.leader_epoch,
    )


def from_spark(row: Row) -> tuple[object, ...]:
    return (
        (row.topic, row.partition),
        row.offset,
        None if row.key is None else bytes(row.key),
        None if row.value is None else bytes(row.value),
        row.at,
        tuple(row.tags),
        tuple(
            (each.key, None if each.value is None else bytes(each.value)) for each in row.headers
        ),
        row.stored_at,
        row.leader_epoch,
    )


def rows_of(table: DataFrame) -> list[tuple[object, ...]]:
    chosen = table.selectExpr(
        "*", "unix_millis(timestamp) at", "unix_millis(store_timestamp) stored_at"
    )
    return [from_spark(row) for row in chosen.orderBy("topic", "partition", "offset").collect()]


def everything(path: Path) -> list[tuple[object, ...]]:
    with ReadOnlyStore.open(str(path)) as view:
        return [
            as_row(shard, record)
            for shard in view.shards()
            for record in view.read(shard, 0, max_records=10_000, max_size=1 << 30)
        ]


def test_the_schema_is_that_of_kafkas_source_and_tags(load: Load, sample: Path) -> None:
    assert load(sample).dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("tags", "array<string>"),
    ]


def test_every_kind_of_record_is_what_the_store_says(load: Load, sample: Path) -> None:
    before = tree(sample)
    assert rows_of(load(sample, maxPartitionBytes=5_000, **ALL)) == everything(sample)
    assert tree(sample) == before  # nothing is written


def test_a_store_that_rocketmq_wrote_is_read_fully(load: Load, golden: GoldenStore) -> None:
    assert rows_of(load(golden.root, **ALL)) == everything(golden.root)
    expected = sorted(
        (
            line["topic"],
            line["queueId"],
            line["cqOffset"],
            line["bodySha256"],
            line["bornTimestamp"],
        )
        for line in golden.lines("msg")
        if line.get("cqOffset") is not None and line["topic"] != "TopicBCQ"
    )
    found = load(golden.root).where("topic != 'TopicBCQ'")
    rows = found.selectExpr("topic", "partition", "offset", "value", "unix_millis(timestamp)")
    assert (
        sorted(
            (topic, number, offset, hashlib.sha256(value).hexdigest(), time)
            for topic, number, offset, value, time in rows.collect()
        )
        == expected
    )


def test_chosen_columns_come_in_the_chosen_order(load: Load, sample: Path) -> None:
    table = load(sample, columns="offset,tag,value", subscribe="orders")
    assert table.columns == ["offset", "tag", "value"]
    assert [tuple(row) for row in table.where("offset in (1, 2, 5)").collect()] == [
        (1, "eu", bytearray(b"order 1")),
        (2, "us", bytearray(b"order 2")),
        (5, None, bytearray(b"order 5")),
    ]


def test_topics_are_chosen_by_name_pattern_and_assignment(load: Load, sample: Path) -> None:
    orders = ORDERS_COUNT - DELETED
    assert load(sample, subscribe="orders, events").count() == orders + EVENTS_COUNT
    assert load(sample, subscribePattern="ord.*").count() == orders
    assert load(sample, assign=json.dumps({"events": [3]})).count() == EVENTS_COUNT


def test_offsets_and_times_bound_a_read(load: Load, sample: Path) -> None:
    start = json.dumps({"orders": {"0": 100}})
    end = json.dumps({"orders": {"0": 110}})
    table = load(sample, subscribe="orders", startingOffsets=start, endingOffsets=end)
    assert [row.offset for row in table.orderBy("offset").collect()] == [*range(101, 110)]
    # Record n has the timestamp 1,000,000 + 10 n.
    table = load(sample, subscribe="orders", startingTimestamp=1_002_000, endingTimestamp=1_002_050)
    assert [row.offset for row in table.orderBy("offset").collect()] == [*range(200, 205)]


def test_filters_on_shards_and_offsets_shorten_the_plan(
    load: Load, sample: Path, metrics: Metrics
) -> None:
    table = load(sample, metricsPath=metrics.path)
    assert table.where("topic = 'events' and offset >= 10 and offset < 15").count() == 5
    assert metrics.total("rows_read") == 5
    metrics.clear()
    assert table.where("partition = 3").count() == EVENTS_COUNT
    assert metrics.total("rows_read") == EVENTS_COUNT
    metrics.clear()
    assert table.where("topic = 'none'").count() == 0
    assert metrics.total("rows_read") == 0


def test_a_filter_on_the_key_goes_through_the_index(
    load: Load, sample: Path, metrics: Metrics
) -> None:
    table = load(sample, subscribe="orders", metricsPath=metrics.path)
    for key in (b"o-4", b"\xff odd 3"):
        expected = [row[1] for row in everything(sample) if row[0] == ORDERS and row[2] == key]
        found = table.where(F.col("key") == F.lit(bytearray(key))).collect()
        assert sorted(row.offset for row in found) == expected
        assert metrics.total("rows_read") == len(expected)
        assert metrics.total("by_key") == 1
        metrics.clear()


def test_a_filter_on_the_key_of_batches_reads_them(load: Load, sample: Path) -> None:
    table = load(sample, subscribe="events")
    found = table.where(F.col("key") == F.lit(bytearray(b"e-3"))).orderBy("offset").collect()
    assert [row.offset for row in found] == [*range(3, EVENTS_COUNT, 7)]


def test_a_filter_on_the_time_passes_over_old_blocks(
    load: Load, spark_store: Path, metrics: Metrics
) -> None:
    table = load(spark_store, metricsPath=metrics.path)
    found = table.where(
        "timestamp >= timestamp_millis(9500) and timestamp < timestamp_millis(9510)"
    )
    assert sorted(row.offset for row in found.collect()) == [*range(9500, 9510)]
    assert metrics.total("rows_read") < 2_000
    assert metrics.total("rows_returned") == 10


def test_a_tag_is_looked_for_by_its_code(load: Load, sample: Path, metrics: Metrics) -> None:
    expected = [row[1] for row in everything(sample) if "us" in row[5]]  # type: ignore[operator]  # a tuple of tags
    table = load(sample, tag="us", metricsPath=metrics.path)
    assert sorted(row.offset for row in table.collect()) == expected
    assert metrics.total("rows_read") == len(expected)
    metrics.clear()
    table = load(sample, columns="offset,tag", metricsPath=metrics.path)
    assert table.where("tag = 'us'").count() == len(expected)
    assert metrics.total("rows_read") == len(expected)


def test_filters_that_are_not_taken_over_stay_with_spark(load: Load, sample: Path) -> None:
    table = load(sample, subscribe="orders")
    assert table.where("offset % 2 = 0 and cast(value as string) like 'order 1%'").count() == 54
    assert table.where("key is null").count() == 0
    assert table.where("offset = 5 or offset = 6").count() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscrbe": "orders"}, "unknown option 'subscrbe'; did you mean 'subscribe'"),
        ({"subscribe": "ordres"}, "topic 'ordres' does not exist in .*; did you mean 'orders'"),
        ({"subscribe": "orders", "assign": "{}"}, "give one of"),
        ({"assign": '{"orders": [7]}'}, "topic 'orders' of .* has no partition 7"),
        ({"startingOffsets": "first"}, "expected JSON like"),
        ({"startingOffsets": "latest"}, "a batch would read nothing"),
        ({"startingOffsets": '{"orders": {"0": 999}}'}, r"holds \[0, 300\)"),
        ({"endingOffsets": '{"orders": {"0": 301}}'}, r"holds \[0, 300\)"),
        ({"startingOffsets": '{"orders": {"9": 1}}'}, "partition 9 of 'orders', which is not read"),
        ({"startingTimestamp": "99999999"}, "has no record with a timestamp >= 99999999"),
        ({"minPartitions": "none"}, "expected a number >= 1"),
        ({"columns": "offset,valu"}, "unknown column 'valu'"),
        ({"subscribePattern": "("}, "option 'subscribePattern' is"),
        ({"failOnDataLoss": "no"}, "expected true or false"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(
    load: Load, sample: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        load(sample, **options).count()


def test_options_of_a_kafka_client_do_no_harm(load: Load, sample: Path) -> None:
    options = {"kafka.bootstrap.servers": "example.org:9092", "subscribe": "events"}
    assert load(sample, **options).count() == EVENTS_COUNT


def test_offsets_out_of_range_read_what_there_is_when_told_so(load: Load, sample: Path) -> None:
    end = '{"orders": {"0": 999}}'
    table = load(sample, subscribe="orders", endingOffsets=end, failOnDataLoss="false")
    assert table.count() == ORDERS_COUNT - DELETED


def test_a_directory_that_is_no_store_is_named(load: Load, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="is not a store"):
        load(tmp_path / "nothing").count()


def test_a_damaged_file_is_named_or_skipped_with_a_count(
    load: Load, sample: Path, tmp_path: Path, metrics: Metrics
) -> None:
    path = Path(shutil.copytree(sample, tmp_path / "damaged"))
    with ReadOnlyStore.open(str(path)) as view:
        position = view.snapshot().get(ORDERS).position_of(2)
    assert position is not None
    log = path / "commitlog" / f"{0:020d}"
    flip(log, position + 100)
    table = load(path, subscribe="orders")
    with pytest.raises(PySparkException, match=f"{log}: damaged at byte {position}"):
        table.count()
    table = load(path, subscribe="orders", onDamage="skip", metricsPath=metrics.path)
    offsets = sorted(row.offset for row in table.collect())
    assert offsets == [n for n in range(ORDERS_COUNT) if n not in (2, 7, 8, 100)]
    assert metrics.total("records_damaged") == 1


def test_queries_on_one_loaded_frame_do_not_share_their_filters(
    spark: SparkSession, spark_store: Path
) -> None:
    numbers = spark.read.format("penstock").load(str(spark_store))
    few, later = numbers.where("offset < 10"), numbers.where("offset >= 9000")
    assert few.count() == 10
    assert numbers.count() == 10_000
    assert few.union(later).count() == 1_010


def test_a_key_is_asked_for_by_option(
    spark: SparkSession, spark_store: Path, metrics: Metrics
) -> None:
    reader = spark.read.format("penstock").option("key", "key 7")
    numbers = reader.option("metricsPath", str(metrics.path)).load(str(spark_store))
    assert {row.key for row in numbers.collect()} == {b"key 7"}
    assert metrics.total("rows_read") == 100
