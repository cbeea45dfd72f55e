"""A tier as a table: executors read its objects, and only those that a query needs."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documents
from tests.engine.segment.readonly.sample_store import (
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    QUIET,
    flip,
    tree,
)
from tests.pipeline.conftest import Metrics
from tests.pipeline.read.test_batch_source import ALL, everything, rows_of
from tests.pipeline.sample_tier import chunk_files, upload

import penstock
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, StoreError
from penstock.meta.state.model import TieringPolicy
from penstock.pipeline import jobs
from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import read_options
from penstock.pipeline.read.planning import TaskPartition
from penstock.pipeline.read.ranges import batch_ranges
from penstock.pipeline.read.reading import Scan
from penstock.pipeline.read.sources import open_source
from penstock.record import Record, ShardId
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings


@pytest.fixture(scope="module")
def tier(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample store in a tier; nothing of the store itself is used after that."""
    root = tmp_path_factory.mktemp("tiered")
    with SegmentStore.open(str(shutil.copytree(sample, root / "store")), QUIET) as store:
        upload(store, f"file://{root}/tier")
    assert len(chunk_files(root / "tier")) > 20
    return root / "tier"


def read(spark: SparkSession, tier: Path, **options: str | int | Path) -> DataFrame:
    reader = spark.read.format("penstock").option("tier", f"file://{tier}")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def planned(root: Path, **options: str | int) -> list[TaskPartition]:
    chosen = {"tier": f"file://{root}", **{name: str(value) for name, value in options.items()}}
    wanted = read_options(chosen, streaming=False)
    with closing(open_source(wanted)) as source:
        return source.tasks(batch_ranges(source, wanted), wanted, Filters())


def test_every_kind_of_record_is_what_the_store_says(
    spark: SparkSession, sample: Path, tier: Path
) -> None:
    before = tree(tier)
    table = read(spark, tier, maxPartitionBytes=10_000, **ALL)
    assert rows_of(table) == everything(sample)
    assert tree(tier) == before


@pytest.mark.parametrize("size", [300, 700, 5_000, 1 << 25])
def test_every_offset_is_in_one_task_and_read_there(sample: Path, tier: Path, size: int) -> None:
    tasks = planned(tier, maxPartitionBytes=size, columns="offset")
    wanted = read_options({"tier": f"file://{tier}"}, streaming=False)
    scan = Scan.of(wanted, ["topic", "partition", "offset"], Filters(), "a query")
    rows = [row for task in tasks for batch in scan.batches(task) for row in batch.to_pylist()]
    found = sorted((ShardId(row["topic"], row["partition"]), row["offset"]) for row in rows)
    assert found == sorted(row[:2] for row in everything(sample))


def test_work_is_cut_by_bytes(tier: Path) -> None:
    assert len(planned(tier, subscribe="orders")) == 1
    assert len(planned(tier, subscribe="orders", minPartitions=4)) >= 4
    assert len(planned(tier, maxPartitionBytes=5_000)) > 5


def test_offsets_and_times_bound_a_read(spark: SparkSession, tier: Path, metrics: Metrics) -> None:
    start, end = json.dumps({"orders": {"0": 150}}), json.dumps({"orders": {"0": 153}})
    table = read(
        spark,
        tier,
        subscribe="orders",
        startingOffsets=start,
        endingOffsets=end,
        metricsPath=metrics.path,
    )
    assert sorted(row.offset for row in table.collect()) == [150, 151, 152]
    assert metrics.total("rows_read") == 3
    assert metrics.total("chunks_read") <= 2
    bounds = {"startingTimestamp": 1_002_000, "endingTimestamp": 1_002_050}
    table = read(spark, tier, subscribe="orders", **bounds)
    assert sorted(row.offset for row in table.collect()) == [*range(200, 205)]


def test_filters_are_pushed_down_to_manifests_and_footers(
    spark: SparkSession, tier: Path, metrics: Metrics
) -> None:
    options = {"subscribe": "orders", "pushFilters": "true", "metricsPath": str(metrics.path)}
    read(spark, tier, **options).collect()
    all_bytes = metrics.total("bytes_read")
    assert metrics.total("rows_read") == ORDERS_COUNT - 3
    metrics.clear()
    late = read(spark, tier, **options).where(
        "timestamp >= timestamp_millis(1002900) and timestamp < timestamp_millis(1002950)"
    )
    assert sorted(row.offset for row in late.collect()) == [*range(290, 295)]
    assert 0 < metrics.total("bytes_read") < all_bytes / 4
    assert metrics.total("rows_read") < 40
    metrics.clear()
    of_one = read(spark, tier, **options).where(F.col("key") == F.lit(bytearray(b"o-4")))
    offsets = sorted(row.offset for row in of_one.collect())
    assert offsets == [n for n in range(ORDERS_COUNT) if n % 20 == 4 and n % 3]
    assert metrics.total("rows_read") == len(offsets)
    assert metrics.total("by_key") >= 1
    metrics.clear()
    few = read(spark, tier, **options).where("offset >= 10 and offset < 15")
    assert few.count() == 5
    assert metrics.total("rows_read") == 5


def test_a_key_inside_batches_is_found_by_the_footer(spark: SparkSession, tier: Path) -> None:
    table = read(spark, tier, subscribe="events", key="e-3")
    assert sorted(row.offset for row in table.collect()) == [*range(3, EVENTS_COUNT, 7)]


def test_tags_and_columns_are_chosen(spark: SparkSession, sample: Path, tier: Path) -> None:
    expected = [row[1] for row in everything(sample) if "us" in row[5]]  # type: ignore[operator]  # a tuple of tags
    table = read(spark, tier, tag="us", columns="offset")
    assert table.columns == ["offset"]
    assert sorted(row.offset for row in table.collect()) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "ordres"}, "topic 'ordres' does not exist in .*; did you mean 'orders'"),
        ({"assign": '{"orders": [7]}'}, "topic 'orders' of .* has no partition 7"),
        ({"startingOffsets": '{"orders": {"0": 999}}'}, r"holds \[0, 300\)"),
        ({"tier": "memory://here"}, "is an in-memory tier"),
        ({"tier": "tape:7"}, "is not the address of a tier"),
        ({"tier": "file:///no/such/tier"}, "there is no such directory"),
        ({"teir": "x"}, "did you mean 'tier'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    tier: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        planned(tier, **options)


def test_a_damaged_object_is_named_or_skipped_with_a_count(
    spark: SparkSession, tier: Path, tmp_path: Path, metrics: Metrics
) -> None:
    copy = Path(shutil.copytree(tier, tmp_path / "tier"))
    chunks = chunk_files(copy / "orders" / "0")
    flip(chunks[2], 50)
    cut = chunks[5].read_bytes()
    chunks[5].write_bytes(cut[:-1] + bytes([cut[-1] ^ 1]))
    with pytest.raises(PySparkException, match=f"{chunks[2].name}: damaged"):
        read(spark, copy, subscribe="orders").count()
    table = read(spark, copy, subscribe="orders", onDamage="skip", metricsPath=metrics.path)
    offsets = sorted(row.offset for row in table.collect())
    lost = sorted({*range(ORDERS_COUNT)} - {*offsets, 7, 8, 100})
    assert len(offsets) == len({*offsets})
    assert 2 <= len(lost) < ORDERS_COUNT / 4
    assert metrics.total("records_damaged") >= len(lost)


def test_a_chunk_that_is_gone_is_named(spark: SparkSession, tier: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tier, tmp_path / "tier"))
    gone = chunk_files(copy / "orders" / "0")[3]
    gone.unlink()
    with pytest.raises(PySparkException, match=f"{gone.name}.*the object is missing"):
        read(spark, copy, subscribe="orders").count()


def test_a_stream_follows_the_tier_across_restarts(spark: SparkSession, tmp_path: Path) -> None:
    shard, url = ShardId("orders", 0), f"file://{tmp_path}/tier"
    with SegmentStore.open(str(tmp_path / "store"), QUIET) as store:
        store.create_shard(shard)

        def grow(first: int, count: int) -> None:
            store.append_many(shard, [Record(b"%d" % n) for n in range(first, first + count)])
            upload(store, url)

        def run() -> list[int]:
            rows = (
                spark.readStream.format("penstock")
                .options(tier=url, startingOffsets="earliest", maxOffsetsPerTrigger="60")
                .load()
            )
            query = (
                rows.select("offset")
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination(200)
            return sorted(row[0] for row in spark.read.parquet(str(tmp_path / "out")).collect())

        grow(0, 100)
        assert run() == [*range(100)]
        grow(100, 30)
        assert run() == [*range(130)]


def test_a_directory_and_its_tier_are_one_shard(spark: SparkSession, tmp_path: Path) -> None:
    path, url = tmp_path / "store", f"file://{tmp_path}/tier"
    with SegmentStore.open(str(path), QUIET) as store:
        store.create_shard(ORDERS)
        records = [Record(b"%d" % n, key=b"k%d" % (n % 10), timestamp_ms=n) for n in range(200)]
        store.append_many(ORDERS, records[:75])
        store.append_many(ORDERS, records[75:150])
        upload(store, url)
        store.append_many(ORDERS, records[150:])
        store.delete_before(ORDERS, 120)
        store.delete_offsets(ORDERS, [130])  # the tier has not heard of it

    def load(**options: str) -> DataFrame:
        return spark.read.format("penstock").options(tier=url, **options).load(str(path))

    rows = load().collect()
    assert sorted(row.offset for row in rows) == [n for n in range(200) if n != 130]
    assert {int(row.value): row.offset for row in rows} == {row.offset: row.offset for row in rows}
    of_one = load(key="k3")
    assert sorted(row.offset for row in of_one.collect()) == [*range(3, 200, 10)]
    late = load(startingTimestamp="95", endingTimestamp="125")
    assert sorted(row.offset for row in late.collect()) == [*range(95, 125)]


def test_a_node_and_its_tier_are_one_shard(
    spark: SparkSession, tmp_path: Path, metrics: Metrics
) -> None:
    settings = {
        "server": {"port": 0, "http_port": 0},
        "kafka": {"port": 0},
        "broker": {"commit_log_file_size": 1 << 16},
        "tiering": {"chunk_size": 8192, "segment_size": 40_000},
    }
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, settings)) as running:
        address = f"127.0.0.1:{running.port}"
        with penstock.connect(address) as store:
            policy = TieringPolicy(local_retention_bytes=20_000)
            topic = store.create_topic("orders", tiering=policy)
            for first in range(0, 2_000, 100):
                topic.write_many([Record(b"value %d" % n * 5) for n in range(first, first + 100)])
            store.run_upkeep()
            store.run_upkeep()
            (part,) = topic.describe().partitions
            assert part.log_start is not None
            assert 1_000 < part.log_start < 2_000
        table = (
            spark.read.format("penstock")
            .options(endpoint=address, tier=f"file://{tmp_path}/data/tier", subscribe="orders")
            .option("metricsPath", str(metrics.path))
            .load()
        )
        rows = {row.offset: (row.topic, bytes(row.value)) for row in table.collect()}
        assert rows == {n: ("orders", b"value %d" % n * 5) for n in range(2_000)}
        assert metrics.total("rows_read") == 2_000
        assert metrics.total("bytes_read") > 0


@pytest.fixture(scope="module")
def tiered_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped node whose topic is in its tier, for the most part."""
    data = tmp_path_factory.mktemp("cold") / "data"
    settings: dict[str, object] = {
        "broker": {"commit_log_file_size": 1 << 16},
        "tiering": {"chunk_size": 8192, "segment_size": 40_000},
    }
    with penstock.open(data, **settings) as store:
        policy = TieringPolicy(local_retention_bytes=20_000)
        topic = store.create_topic("orders", tiering=policy)
        for first in range(0, 2_000, 100):
            topic.write_many([Record(b"value %d" % n * 5) for n in range(first, first + 100)])
        store.run_upkeep()
        store.run_upkeep()
        (part,) = topic.describe().partitions
        assert part.log_start is not None
        assert 1_000 < part.log_start < 2_000
    return data


def test_a_reader_of_a_nodes_directory_follows_its_topics_into_their_tier(
    spark: SparkSession, tiered_node: Path, tmp_path: Path
) -> None:
    load = spark.read.format("penstock").option("subscribe", "orders").load
    rows = {row.offset: (row.topic, bytes(row.value)) for row in load(str(tiered_node)).collect()}
    assert rows == {n: ("orders", b"value %d" % n * 5) for n in range(2_000)}
    done = jobs.export(spark, str(tiered_node), str(tmp_path / "out"))
    assert (done.rows, done.shards[0].start) == (2_000, 0)
    (measured,) = jobs.stats(spark, str(tiered_node), top_keys=0).topics
    assert (measured.rows, measured.rows_bound) == (2_000, 2_000)


def test_a_directory_whose_tier_is_not_named_anywhere_is_refused(
    tiered_node: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(tiered_node, tmp_path / "data"))
    shutil.move(data / "tier", tmp_path / "moved")
    (data / "tier-url").unlink(missing_ok=True)
    alone = read_options({"path": str(data)}, streaming=False)
    source = open_source(alone)
    with pytest.raises(BadRequestError, match="set the option 'tier'"):
        batch_ranges(source, alone)
    source.close()
    (data / "tier-url").write_text(f"file://{tmp_path}/moved\n")
    with closing(open_source(alone)) as source:
        assert batch_ranges(source, alone)[0].start == 0
    (data / "tier-url").unlink()
    named = read_options({"path": str(data), "tier": f"file://{tmp_path}/moved"}, streaming=False)
    with closing(open_source(named)) as source:
        assert batch_ranges(source, named)[0].start == 0
