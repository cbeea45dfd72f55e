"""Spark sees nothing of transactions that are open or were aborted, wherever it reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kafka_clients import Producer

from penstock.adapter.topics.shard_name import build_storage_name
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.errors import BadRequestError
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.pipeline import jobs, transactions
from penstock.pipeline.options.source_options import read_options
from penstock.pipeline.read.sources import DirectorySource
from penstock.pipeline.store.named_view import NamedView
from penstock.record import QueueKind, ShardId
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

WAIT_S = 120.0
TOPIC = "orders"
COMMITTED = ["kept 1", "kept 2", "between"]
ABORTED = ["aborted 1", "aborted 2"]
OPEN = ["open"]
BEHIND = ["behind"]


class Broker:
    """A node, a producer whose last transaction is open, and a plain one."""

    def __init__(self, server: Server) -> None:
        assert server.kafka is not None
        self.server = server
        self.path = Path(server.node.path)
        self.endpoint = f"127.0.0.1:{server.port}"
        address = {
            "bootstrap.servers": f"127.0.0.1:{server.kafka.port}",
            "linger.ms": 0,
            "log_level": 0,
        }
        self._plain = Producer(address)
        # No transaction is ended by time, however slow the machine is.
        patient = {"transactional.id": "t", "transaction.timeout.ms": 900_000}
        self.producer = Producer({**address, **patient})
        self.producer.init_transactions(WAIT_S)

    def fill(self, queue: str = "batch", **options: str) -> None:
        self.server.node.admin.create_topic_full(TOPIC, 1, {"queue": queue, **options})
        self.producer.begin_transaction()
        self._write(self.producer, "kept 1")
        self._write(self.producer, "kept 2")
        self.producer.commit_transaction(WAIT_S)
        self.producer.begin_transaction()
        self._write(self.producer, "aborted 1")
        self._write(self._plain, "between")
        self._write(self.producer, "aborted 2")
        self.producer.abort_transaction(WAIT_S)
        self.wait_until_ended()
        self.producer.begin_transaction()
        self._write(self.producer, *OPEN)
        self._write(self._plain, *BEHIND)

    def _write(self, producer: Producer, value: str) -> None:
        producer.produce(TOPIC, value.encode(), key=b"k", partition=0)
        assert producer.flush(WAIT_S) == 0

    def end(self) -> None:
        """Commit what is open; the answer comes before the marker is there."""
        self.producer.commit_transaction(WAIT_S)
        self.wait_until_ended()

    def wait_until_ended(self) -> None:
        node = self.server.node
        topic = node.broker_cache.get_topic(TOPIC).topic_id
        shard = build_storage_name(topic, 0)
        deadline = time.monotonic() + WAIT_S
        while node.handler.limits.stable_until(shard) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait_until_finished(self) -> None:
        """Until the metadata says so, too."""
        meta = self.server.node.meta
        assert isinstance(meta, StandaloneMetaClient)
        deadline = time.monotonic() + WAIT_S
        while not all(one.status.startswith("complete") for one in meta.list_transactions()):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait_for_files(self, count: int) -> None:
        """The node tells those who read its files twice a second where its shards end."""
        deadline = time.monotonic() + WAIT_S
        while True:
            with ReadOnlyStore.open(f"{self.path}/segment") as view:
                if any(view.bounds(shard).commit >= count for shard in view.shards()):
                    return
            assert time.monotonic() < deadline
            time.sleep(0.1)


PORTS = {"server": {"port": 0, "http_port": 0}, "kafka": {"port": 0}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, PORTS)) as server:
        found = Broker(server)
        found.fill()
        # Seven records and the markers of two transactions.
        found.wait_for_files(9)
        yield found


def read(spark: SparkSession, **options: str) -> list[str]:
    # Tiers name topics as the store does, by their ids.
    table = spark.read.format("penstock").options(subscribePattern=".*", **options).load()
    rows = table.selectExpr("cast(value as string) value", "offset").collect()
    return [row.value for row in sorted(rows, key=lambda row: row.offset)]


def test_open_and_aborted_transactions_are_not_read(spark: SparkSession, broker: Broker) -> None:
    path = str(broker.path)
    assert read(spark, path=path) == COMMITTED
    assert read(spark, endpoint=broker.endpoint) == COMMITTED
    shown = read(spark, path=path, isolationLevel="read_uncommitted")
    assert sorted(shown) == sorted([*COMMITTED, *ABORTED, *OPEN, *BEHIND])
    everything = [*COMMITTED, *OPEN, *BEHIND]
    tier, target = f"file://{broker.path.parent}/tier", broker.path.parent / "exported"
    assert jobs.offload(spark, path, tier, take_over=True).shards[0].end == 7
    assert read(spark, tier=tier) == COMMITTED
    assert jobs.export(spark, path, str(target)).rows == len(COMMITTED)
    broker.end()
    broker.wait_for_files(10)
    assert read(spark, path=path) == everything
    assert read(spark, endpoint=broker.endpoint) == everything
    jobs.offload(spark, path, tier, take_over=True)
    assert read(spark, tier=tier) == everything
    assert jobs.export(spark, path, str(target)).rows == 2


@pytest.mark.parametrize("source", ["path", "endpoint"])
def test_a_stream_waits_for_the_end_of_a_transaction_and_loses_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path, source: str
) -> None:
    place = {"path": str(broker.path)} if source == "path" else {"endpoint": broker.endpoint}
    seen: list[str] = []

    def drain() -> None:
        rows = spark.readStream.format("penstock").options(**place, subscribe=TOPIC)
        texts = (
            rows.option("startingOffsets", "earliest").load().selectExpr("cast(value as string)")
        )
        writer = texts.writeStream.option("checkpointLocation", str(tmp_path / "state"))
        writer = writer.foreachBatch(lambda batch, _: seen.extend(r[0] for r in batch.collect()))
        writer.trigger(availableNow=True).start().awaitTermination()

    drain()
    assert seen == COMMITTED
    broker.end()
    broker.wait_for_files(10)
    drain()
    assert seen == [*COMMITTED, *OPEN, *BEHIND]


def test_what_is_known_of_transactions_is_never_older_than_the_records(broker: Broker) -> None:
    # The node writes the rows of its state by and by; the log beside them has the rest. At 6 lies
    # the marker of the abort.
    with NamedView(str(broker.path)) as view:
        (shard,) = (each for each in view.shards() if each.topic == TOPIC)
        assert view.bounds(shard).commit == 7
        assert view.aborted(ShardId(TOPIC, 0), 0, 7) == [(3, 4), (5, 6), (6, 7)]


def stored_values(view: NamedView, root: str) -> list[str]:
    """Return what a job would read."""
    (shard,) = (each for each in view.shards() if each.topic == TOPIC)
    end = view.bounds(shard).commit
    with ReadOnlyStore.open(root) as opened:
        found = opened.read(view.stored(shard), 0)
    return [(one.value or b"").decode() for one in found if one.offset < end]


def test_of_topics_without_batches_only_what_is_committed_is_read(tmp_path: Path) -> None:
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, PORTS)) as server:
        broker = Broker(server)
        broker.fill(queue="simple")
        broker.wait_for_files(7)
        with NamedView(str(broker.path)) as view:
            assert stored_values(view, view.root) == COMMITTED
        broker.producer.abort_transaction(WAIT_S)
        broker.wait_until_ended()
        # At once: whoever knows that it is over knows of the deletes.
        with NamedView(str(broker.path)) as view:
            assert stored_values(view, view.root) == [*COMMITTED, *BEHIND]


def test_a_transaction_that_is_aborted_while_somebody_looks_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, PORTS)) as server:
        broker = Broker(server)
        broker.fill(queue="simple")
        broker.wait_for_files(7)
        looks: list[int] = []
        read_transaction_limits = transactions.read_transaction_limits

        def late(meta: Path) -> tuple[StableOffsets, bool]:
            looks.append(1)
            if len(looks) == 2:  # behind the ends
                broker.producer.abort_transaction(WAIT_S)
                broker.wait_until_finished()
            return read_transaction_limits(meta)

        monkeypatch.setattr(transactions, "read_transaction_limits", late)
        with closing(DirectorySource(str(broker.path))) as source:
            shard = ShardId(TOPIC, 0)
            assert source.bounds(shard).commit == 7
            found = source._view.read(source.stored(shard), 0)
        assert [(one.value or b"").decode() for one in found] == [*COMMITTED, *BEHIND]


def test_a_compaction_lets_no_aborted_and_no_open_record_win(tmp_path: Path) -> None:
    # All records have one key.
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, PORTS)) as server:
        broker = Broker(server)
        broker.fill(cleanup="compact")
    with ReadOnlyStore.open(f"{broker.path}/segment") as view:
        (shard,) = (each for each in view.shards() if view.kind(each) is QueueKind.BATCH)
    result = jobs.compact(str(broker.path))
    # What was aborted goes, and its marker; before the open one, the newest record stays.
    with ReadOnlyStore.open(f"{broker.path}/segment") as view:
        values = [(each.value or b"").decode() for each in view.read(shard, 0, max_records=99)]
    assert [value for value in values if value in ABORTED] == []
    assert [value for value in values if value in COMMITTED] == COMMITTED[-1:]
    assert [value for value in values if value in (*OPEN, *BEHIND)] == [*OPEN, *BEHIND]
    assert result.rows_removed >= len(ABORTED) + len(COMMITTED) - 1
    assert jobs.compact(str(broker.path)).rows_removed == 0


def test_a_level_that_is_none_and_one_that_a_node_has_not_are_refused() -> None:
    with pytest.raises(BadRequestError, match="expected read_committed or read_uncommitted"):
        read_options({"path": "x", "isolationLevel": "serializable"}, streaming=False)
    uncommitted = {"endpoint": "127.0.0.1:1", "isolationLevel": "read_uncommitted"}
    with pytest.raises(BadRequestError, match="a node returns committed records only"):
        read_options(uncommitted, streaming=True)
