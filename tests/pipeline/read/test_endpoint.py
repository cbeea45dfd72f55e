"""A running node as a table, a stream and a sink: the same records as in its files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.conftest import Load, Metrics

import penstock
from penstock import Record, Store
from penstock.errors import DeadlineError
from penstock.pipeline.write import staging
from penstock.pipeline.write.commit_protocol import Journal, Publisher
from penstock.pipeline.write.node_target import NodeTarget
from penstock.pipeline.write.staging import Chunk, Partitioner, Stager
from penstock.record import Producer
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

COUNT = 6_000
COLUMNS = "key,value,topic,partition,offset,timestamp,headers,tags,store_timestamp,leader_epoch"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("node") / "data"
    ports = merge_settings(EMBEDDED, {"server": {"port": 0, "http_port": 0}, "kafka": {"port": 0}})
    with Server(str(path), ports) as running:
        with penstock.connect(f"127.0.0.1:{running.port}") as store:
            store.create_topic("numbers", partitions=2)
            numbers = store.topic("numbers")
            for partition in range(2):
                numbers.write_many([record(n) for n in range(COUNT)], partition=partition)
            store.create_topic("kept in memory", partitions=1, storage="memory")
            store.topic("kept in memory").write_many([record(n) for n in range(100)])
        yield running


def record(number: int) -> Record:
    return Record(
        None if number == 17 else b"value %d" % number,
        key=b"key %d" % (number % 100),
        tags=("third",) if number % 3 == 0 else (),
        headers=(("number", b"%d" % number), ("none", None)) if number % 5 == 0 else (),
        timestamp_ms=number - 10,
    )


@pytest.fixture
def address(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    with penstock.connect(address) as connected:
        yield connected


class LoadNode:
    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self.address = address

    def __call__(self, **options: str | int | Path) -> DataFrame:
        reader = self._spark.read.format("penstock").option("endpoint", self.address)
        reader = reader.option("pushFilters", "true")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()


@pytest.fixture
def node(spark: SparkSession, address: str) -> LoadNode:
    return LoadNode(spark, address)


def test_a_node_gives_the_records_that_its_files_hold(
    server: Server, node: LoadNode, load: Load
) -> None:
    chosen = {"subscribe": "numbers", "columns": COLUMNS}
    over_the_net = node(**chosen, maxPartitionBytes=100_000)
    in_files = load(Path(server.node.path), **chosen)
    assert over_the_net.rdd.getNumPartitions() > 2
    assert over_the_net.schema == in_files.schema
    order = ("partition", "offset")
    assert over_the_net.orderBy(*order).collect() == in_files.orderBy(*order).collect()
    assert in_files.count() == 2 * COUNT


def test_a_topic_in_memory_is_read_too(node: LoadNode) -> None:
    rows = node(subscribe="kept in memory").orderBy("offset").collect()
    assert [row.value for row in rows] == [record(n).value for n in range(100)]


@pytest.mark.parametrize(
    ("condition", "rows", "read_max"),
    [
        ("key = cast('key 7' as binary)", 2 * COUNT // 100, 2 * COUNT // 100),
        ("timestamp >= timestamp_millis(5000)", 2 * (COUNT - 5010), 2 * (COUNT - 5010)),
        ("partition = 1 and offset < 50", 50, 50),
        ("array_contains(tags, 'third')", 2 * COUNT // 3, 2 * COUNT),
    ],
)
def test_filters_are_decided_by_the_node(
    node: LoadNode, metrics: Metrics, condition: str, rows: int, read_max: int
) -> None:
    table = node(subscribe="numbers", metricsPath=metrics.path)
    assert table.where(condition).count() == rows
    assert rows <= metrics.total("rows_read") <= read_max


def test_a_tag_is_looked_for_by_the_node(node: LoadNode, metrics: Metrics) -> None:
    assert node(subscribe="numbers", tag="third", metricsPath=metrics.path).count() == 4_000
    assert metrics.total("rows_read") == 4_000


def test_starting_times_and_offsets_are_found(node: LoadNode) -> None:
    assert node(subscribe="numbers", startingTimestamp=5_000).count() == 2 * (COUNT - 5_010)
    starts = json.dumps({"numbers": {"0": 5_999, "1": -2}})
    assert node(subscribe="numbers", startingOffsets=starts).count() == COUNT + 1


def test_rows_are_written_to_a_node_once(
    spark: SparkSession, node: LoadNode, tmp_path: Path
) -> None:
    rows = spark.range(1_000).selectExpr(
        "cast(id as string) value", "cast(id as string) key", "array('a', 'b') tags"
    )
    for _ in range(2):
        writer = rows.write.format("penstock").mode("append").option("endpoint", node.address)
        writer = writer.option("topic", "written").option("createTopics", "true")
        writer = writer.option("partitions", "3").option("stagingPath", str(tmp_path))
        writer.option("sinkId", "nightly").option("batchId", "0").save()
    found = node(subscribe="written")
    assert found.count() == 1_000
    assert found.groupBy("partition").count().count() == 3
    assert found.first().tags == ["a", "b"]  # type: ignore[union-attr]  # there is one
    # Without a name there is nothing to recognise a repeat by: these are more rows.
    writer = rows.write.format("penstock").mode("append").option("endpoint", node.address)
    writer.option("topic", "written").save()
    assert node(subscribe="written").count() == 2_000


def test_a_stream_from_a_node_to_a_node_survives_a_lost_commit(
    spark: SparkSession, node: LoadNode, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = (
            spark.readStream.format("penstock")
            .option("endpoint", node.address)
            .option("subscribe", "numbers")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "5000")
            .load()
        )
        query = (
            stream.select("key", "value", "partition")
            .writeStream.format("penstock")
            .option("endpoint", node.address)
            .option("topic", "copy")
            .option("createTopics", "true")
            .option("partitions", "2")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert node(subscribe="copy").count() == 2 * COUNT
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    run()
    copied = node(subscribe="copy").select("partition", "value").collect()
    expected = Counter((p, record(n).value) for p in range(2) for n in range(COUNT))
    assert Counter((row.partition, row.value) for row in copied) == expected


class Crash(BaseException):
    """The driver dies."""


@pytest.mark.parametrize("chunks_before", [0, 1, 3, 12])
def test_a_driver_that_dies_while_it_publishes_leaves_each_row_once(
    store: Store,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunks_before: int,
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 16)
    topic = f"published-{chunks_before}"
    publisher = Publisher(
        lambda: NodeTarget.open(address, "default", str(tmp_path)),
        topic,
        Journal(tmp_path),
        2,
    )
    rows = pa.record_batch({"value": pa.array([b"%d" % n for n in range(300)])})
    stager = Stager(tmp_path / "run-1", 0, Partitioner(topic, False, {}, 2))
    file = stager.stage([rows])
    assert file is not None
    append, left = NodeTarget.append, chunks_before

    def append_or_die(
        self: NodeTarget, chunk: Chunk, rows: pa.RecordBatch, producer: Producer
    ) -> bool:
        nonlocal left
        done = append(self, chunk, rows, producer)
        if left == 0:
            raise Crash
        left -= 1
        return done

    monkeypatch.setattr(NodeTarget, "append", append_or_die)
    with pytest.raises(Crash):
        publisher.publish(0, [file])
    monkeypatch.setattr(NodeTarget, "append", append)
    assert publisher.publish(0, [file]) == 300 - 16 * (chunks_before + 1)
    found = [
        r.value for p in range(2) for r in store.topic(topic).read(partition=p, max_records=1000)
    ]
    assert Counter(found) == Counter(b"%d" % n for n in range(300))
    assert publisher.publish(0, [file]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nombers"}, "did you mean 'numbers'"),
        ({"path": "data"}, "one of 'path' and 'endpoint'"),
        ({"endpoint": "somewhere"}, "expected host:port"),
        ({"endpoint": "127.0.0.1:1"}, "no Penstock server answers at 127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said(node: LoadNode, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        node(**options).count()


def test_the_files_of_a_node_are_not_written_behind_its_back(
    spark: SparkSession, server: Server
) -> None:
    writer = spark.range(1).selectExpr("'x' value").write.format("penstock").option("topic", "x")
    with pytest.raises(Exception, match="belongs to a node"):
        writer.mode("append").save(server.node.path)


def test_nobody_at_the_address_is_a_deadline(tmp_path: Path) -> None:
    with (
        pytest.raises(DeadlineError, match="penstock serve"),
        NodeTarget.open("127.0.0.1:1", "default", str(tmp_path)),
    ):
        pass
