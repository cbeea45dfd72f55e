"""Readers by other doors see nothing of transactions that are open or were aborted, either."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from msgspec.structs import replace
from tests.brokers.kafka.running import Running, running
from tests.brokers.kafka.waiting import wait_until_ended
from tests.kafka_clients import Consumer, Producer

from penstock.adapter.requests import OffsetsAt, QueryByKey, ReadByKey, ReadByTag
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.server import KafkaServer
from penstock.engine.contract import AdapterOffsetStrategy, Isolation
from penstock.engine.segment.engine import SegmentEngine
from penstock.errors import DeadlineError
from penstock.meta.client_api.transaction_client import LogTransactionClient
from penstock.meta.state.transactions.commands import TransactionState
from penstock.node import node as node_module
from penstock.node.node import Node
from penstock.record import Offset
from penstock.settings import Settings

WAIT_S = 60.0
TOPIC = "orders"
START = Offset(0)


@pytest.fixture
def server(data_path: Path) -> Iterator[Running]:
    with running(data_path) as started:
        yield started


def transactional(address: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, *pairs: tuple[bytes, bytes]) -> None:
    for key, value in pairs:
        producer.produce(TOPIC, value, key=key, partition=0, headers={"tag": "x"})
    assert producer.flush(WAIT_S) == 0


def in_transaction(producer: Producer, *pairs: tuple[bytes, bytes], commit: bool) -> None:
    producer.begin_transaction()
    write(producer, *pairs)
    if commit:
        producer.commit_transaction(WAIT_S)
    else:
        producer.abort_transaction(WAIT_S)


def values(node: Node, isolation: Isolation = Isolation.COMMITTED) -> list[bytes | None]:
    found = node.driver_manager.read_by_offset(TOPIC, 0, START, isolation=isolation)
    return [one.value for one in found]


def test_aborted_records_are_holes_for_every_read(server: Running) -> None:
    node, producer = server.node, transactional(server.address)
    plain = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
    in_transaction(producer, (b"k", b"kept"), (b"l", b"kept, too"), commit=True)
    producer.begin_transaction()
    write(producer, (b"k", b"aborted 1"))
    write(plain, (b"m", b"between"))
    write(producer, (b"k", b"aborted 2"))
    producer.abort_transaction(WAIT_S)
    wait_until_ended(node, TOPIC)
    assert values(node) == [b"kept", b"kept, too", b"between"]
    shown = values(node, Isolation.UNCOMMITTED)
    assert shown == [b"kept", b"kept, too", b"aborted 1", b"between", b"aborted 2"]
    tagged = node.driver_manager.execute(ReadByTag(TOPIC, "x", partition=0))
    assert [one.value for one in tagged] == [b"kept", b"kept, too", b"between"]
    newest = node.driver_manager.execute(ReadByKey(TOPIC, b"k"))
    assert newest is not None
    assert newest.value == b"kept"
    history = node.driver_manager.execute(QueryByKey(TOPIC, b"k"))
    assert [one.value for one in history] == [b"kept"]


def test_a_time_never_names_an_aborted_record_to_python_and_does_to_kafka(
    server: Running,
) -> None:
    node, producer = server.node, transactional(server.address)
    plain = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
    producer.begin_transaction()
    producer.produce(TOPIC, b"aborted", partition=0, timestamp=2_000)
    assert producer.flush(WAIT_S) == 0
    plain.produce(TOPIC, b"older", partition=0, timestamp=1_000)
    plain.produce(TOPIC, b"younger", partition=0, timestamp=3_000)
    assert plain.flush(WAIT_S) == 0

    def find(timestamp_ms: int, strategy: AdapterOffsetStrategy) -> int:
        return node.driver_manager.execute(OffsetsAt(TOPIC, timestamp_ms, strategy))[0]

    latest, earliest = AdapterOffsetStrategy.LATEST, AdapterOffsetStrategy.EARLIEST
    assert find(1_500, latest) == 0, "nothing is to be seen yet, and all of it may be"
    producer.abort_transaction(WAIT_S)
    wait_until_ended(node, TOPIC)
    assert [find(ms, latest) for ms in (500, 1_500, 3_000)] == [1, 2, 2]
    assert find(4_000, latest) == node.driver_manager.shard_info(TOPIC, 0).latest
    assert find(4_000, earliest) == 0
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "times"})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(TOPIC, 0, 1_500)], WAIT_S)
        assert found.offset == 0, "as Kafka: a consumer passes over what was aborted"
    finally:
        consumer.close()


def test_an_open_transaction_holds_python_readers_back_and_wakes_them(server: Running) -> None:
    node, producer = server.node, transactional(server.address)
    plain = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
    write(plain, (b"a", b"before"))
    producer.begin_transaction()
    write(producer, (b"b", b"inside"))
    write(plain, (b"c", b"behind"))
    assert values(node) == [b"before"]
    assert node.driver_manager.shard_info(TOPIC, 0).commit == 1
    assert not node.driver_manager.wait_for_records({(TOPIC, 0): Offset(1)}, 0.05)
    woken: list[bool] = []
    waiter = threading.Thread(
        target=lambda: woken.append(
            node.driver_manager.wait_for_records({(TOPIC, 0): Offset(1)}, WAIT_S)
        )
    )
    waiter.start()
    producer.commit_transaction(WAIT_S)
    waiter.join(WAIT_S)
    assert woken == [True]
    assert values(node) == [b"before", b"inside", b"behind"]


def test_a_compaction_keeps_what_only_an_aborted_record_replaced(server: Running) -> None:
    node = server.node
    node.admin.create_topic_full(TOPIC, 1, {"queue": "batch", "cleanup": "compact"})
    producer = transactional(server.address)
    in_transaction(producer, (b"k", b"old"), (b"l", b"alone"), commit=True)
    in_transaction(producer, (b"k", b"kept"), commit=True)
    in_transaction(producer, (b"k", b"aborted"), commit=False)
    producer.begin_transaction()
    write(producer, (b"k", b"open"))
    node.run_upkeep()
    assert values(node) == [b"alone", b"kept"]
    # What was aborted is gone for all readers, what is open is there.
    assert values(node, Isolation.UNCOMMITTED) == [b"alone", b"kept", b"open"]
    producer.commit_transaction(WAIT_S)
    wait_until_ended(node, TOPIC)
    node.run_upkeep()
    assert values(node) == [b"alone", b"open"]


def leave_all_kinds(server: Running) -> None:
    """Leave a transaction that was committed, one that was aborted, and one that is open."""
    producer = transactional(server.address)
    in_transaction(producer, (b"k", b"kept"), commit=True)
    in_transaction(producer, (b"k", b"aborted"), commit=False)
    producer.begin_transaction()
    write(producer, (b"k", b"open"))


def test_a_node_without_kafka_clients_knows_of_transactions(data_path: Path) -> None:
    with running(data_path) as server:
        leave_all_kinds(server)
        settings = server.node.settings
    with Node(str(data_path), settings) as node:
        assert values(node) == [b"kept"]
        latest = AdapterOffsetStrategy.LATEST
        assert node.driver_manager.execute(OffsetsAt(TOPIC, 0, latest))[0] == 0


def in_a_cluster(alone: Settings) -> Settings:
    place = replace(alone.node, peers=("1@127.0.0.1:1",), meta_listen="127.0.0.1:0")
    return replace(alone, node=place)


def test_a_node_of_a_cluster_waits_until_it_knows_of_transactions(
    data_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(data_path) as server:
        leave_all_kinds(server)
        alone = server.node.settings
    asked: list[str] = []
    response = LogTransactionClient.list_transactions

    def no_majority(meta: LogTransactionClient) -> list[TransactionState]:
        asked.append("no majority")
        raise DeadlineError("no leader answered")

    def a_little_later(meta: LogTransactionClient) -> list[TransactionState]:
        return no_majority(meta) if len(asked) < 2 else response(meta)

    monkeypatch.setattr(node_module, "_LIMITS_PAUSE_S", 0.01)
    monkeypatch.setattr(LogTransactionClient, "list_transactions", a_little_later)
    with Node(str(data_path), in_a_cluster(alone)) as node:
        assert len(asked) == 2
        assert values(node) == [b"kept"]
    monkeypatch.setattr(node_module, "_LIMITS_WAIT_S", 0.05)
    monkeypatch.setattr(LogTransactionClient, "list_transactions", no_majority)
    with pytest.raises(DeadlineError):
        Node(str(data_path), in_a_cluster(alone))


def test_a_node_of_a_cluster_knows_of_transactions_before_it_serves_kafka_clients(
    data_path: Path,
) -> None:
    with running(data_path) as server:
        leave_all_kinds(server)
        alone = server.node.settings
    settings = in_a_cluster(alone)
    with Node(str(data_path), settings) as node:
        # Another node may ask for records as soon as this one exists.
        assert values(node) == [b"kept"]
        assert node.handler.limits.holds_any
        # Once the front end has looked, only what is still open holds anybody up.
        node.handler.limits.hold("ended_0", 1 << 40, 0)
        broker = KafkaBroker(node.driver_manager, node.meta, node.clock, settings)
        with KafkaServer(broker, "127.0.0.1"):
            assert node.handler.limits.stable_until("ended_0") is None
            assert values(node) == [b"kept"]
            assert node.handler.limits.holds_any


def test_the_marker_of_an_abort_is_on_the_device_before_its_range_is_told(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, producer = server.node, transactional(server.address)
    in_transaction(producer, (b"k", b"kept"), commit=True)
    wait_until_ended(node, TOPIC)
    synced: list[int] = []
    sync = SegmentEngine.sync

    def watch(engine: SegmentEngine) -> None:
        shard = node.broker_cache.get_topic(TOPIC).topic_id
        assert not node.handler.limits.aborted(f"{shard}_0", 0, 1 << 40)
        sync(engine)
        synced.append(node.driver_manager.shard_info(TOPIC, 0).latest)

    monkeypatch.setattr(SegmentEngine, "sync", watch)
    in_transaction(producer, (b"k", b"aborted"), commit=False)
    wait_until_ended(node, TOPIC)
    assert synced == [4]  # a record and a marker each
