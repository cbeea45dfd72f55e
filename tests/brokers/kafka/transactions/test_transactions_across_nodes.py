"""Transactions whose partitions, groups and coordinator are at different nodes of a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewTopic
from msgspec.structs import replace
from tests.engine.quick_directory import quick_directory
from tests.free_ports import free_ports
from tests.kafka_clients import AdminClient, Consumer, Producer

from penstock.remote.server import node_server as serving
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, Settings

pytestmark = pytest.mark.timeout(600)

WAIT_S = 120.0
NODES = (1, 2)
PARTITIONS = 4


def settings_of(node: int, peers: tuple[str, ...]) -> Settings:
    return replace(
        EMBEDDED,
        node=replace(EMBEDDED.node, id=node, peers=peers, rack=f"rack-{node}"),
        server=replace(EMBEDDED.server, port=0, http_port=0),
        kafka=replace(
            EMBEDDED.kafka,
            enabled=True,
            port=0,
            group_initial_delay_ms=50,
            transaction_check_interval_ms=50,
        ),
    )


def in_parallel(work: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=work, args=(node,), daemon=True) for node in NODES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)


class TwoNodes:
    """Two servers in this process; each leads some partitions of `input` and of `output`."""

    def __init__(self, directory: Path) -> None:
        peers = [
            f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, free_ports(2), strict=True)
        ]
        settings = {node: settings_of(node, tuple(peers)) for node in NODES}
        self.servers: dict[int, Server] = {}

        def start(node: int) -> None:
            self.servers[node] = Server(str(directory / str(node)), settings[node])

        in_parallel(start)
        self.addresses = {node: f"127.0.0.1:{self._port(node)}" for node in NODES}
        self.wait_for(lambda: all(map(self._knows_all, NODES)), "each knows the other")
        admin = AdminClient({"bootstrap.servers": self.addresses[1]})
        new = [NewTopic(name, PARTITIONS, 1) for name in ("input", "output")]
        for future in admin.create_topics(new).values():
            future.result(WAIT_S)

    def _port(self, node: int) -> int:
        kafka = self.servers[node].kafka
        assert kafka is not None
        return kafka.advertised[1]

    def _knows_all(self, node: int) -> bool:
        admin = AdminClient({"bootstrap.servers": self.addresses[node]})
        return len(admin.list_topics(timeout=WAIT_S).brokers) == len(NODES)

    def wait_for(self, check: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not check():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def leaders(self, topic: str) -> set[int]:
        admin = AdminClient({"bootstrap.servers": self.addresses[1]})
        found = admin.list_topics(topic, timeout=WAIT_S).topics[topic]
        return {one.leader for one in found.partitions.values()}

    def is_led_by_all(self, topic: str) -> bool:
        return self.leaders(topic) == set(NODES)

    def close(self) -> None:
        in_parallel(lambda node: self.servers[node].close())


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with quick_directory() as directory:
        made = TwoNodes(Path(directory))
        yield made
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(serving, "LEAVE_S", 0.01)  # both go: nobody is left to be told
            made.close()


def producer_of(nodes: TwoNodes, name: str, timeout_ms: int = 60_000) -> Producer:
    options = {"transactional.id": name, "transaction.timeout.ms": timeout_ms, "linger.ms": 0}
    producer = Producer({"bootstrap.servers": nodes.addresses[1], **options})
    producer.init_transactions(WAIT_S)
    return producer


def write_everywhere(producer: Producer, value: bytes, topic: str = "output") -> None:
    for partition in range(PARTITIONS):
        producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT_S) == 0


def read(nodes: TwoNodes, topic: str = "output", *, committed: bool = True) -> list[list[bytes]]:
    """Return what each partition shows up to its end, or where an open transaction begins."""
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.addresses[2],
            "group.id": "readers",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    deadline = time.monotonic() + WAIT_S
    try:
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, "the end of every partition is reached"
            message = consumer.poll(1)
            if message is None:
                continue
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is None:
                values[partition].append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return values


def test_a_transaction_is_all_or_nothing_over_the_nodes(nodes: TwoNodes) -> None:
    assert nodes.leaders("output") == set(NODES), "otherwise nothing is tried here"
    for number in range(4):  # of different coordinators
        producer = producer_of(nodes, f"writer-{number}")
        for outcome in ("commit", "abort", "commit"):
            producer.begin_transaction()
            write_everywhere(producer, f"{number} {outcome}".encode())
            if outcome == "commit":
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
    committed = [f"{number} commit".encode() for number in range(4) for _ in range(2)]
    nodes.wait_for(lambda: _is_stable(nodes), "markers follow the answer")
    assert [[one for one in values if one in committed] for values in read(nodes)] == (
        [committed] * PARTITIONS
    )
    seen = {value for values in read(nodes) for value in values}
    assert not [value for value in seen if value.endswith(b"abort")]
    everything = read(nodes, committed=False)
    assert {values.count(b"0 abort") for values in everything} == {1}


def edges(nodes: TwoNodes, topic: str) -> list[list[int]]:
    """Return where each node says that committed records of each partition end."""
    return [
        [
            server.node.driver_manager.shard_info(topic, number).commit
            for number in range(PARTITIONS)
        ]
        for server in nodes.servers.values()
    ]


def test_a_transaction_over_the_nodes_may_write_to_topics_that_hold_no_batches(
    nodes: TwoNodes,
) -> None:
    topics = {"simple": {}, "rows": {"storage": "rocksdb"}, "memory": {"storage": "memory"}}
    admin = nodes.servers[1].node.admin
    for topic, options in topics.items():
        admin.create_topic_full(topic, PARTITIONS, options)
        nodes.wait_for(partial(nodes.is_led_by_all, topic), "each leads some")
    producer = producer_of(nodes, "mixed")
    for outcome in ("commit", "abort", "commit", "abort"):
        producer.begin_transaction()
        stable = [edges(nodes, topic) for topic in topics]
        for topic in topics:
            write_everywhere(producer, outcome.encode(), topic)
        assert [edges(nodes, topic) for topic in topics] == stable, "whichever node is asked"
        if outcome == "commit":
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
        nodes.wait_for(lambda: _is_stable(nodes), "the ends follow the answer")
    for topic in topics:
        assert read(nodes, topic) == [[b"commit", b"commit"]] * PARTITIONS, topic


def consumer_of(nodes: TwoNodes, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": nodes.addresses[1],
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def test_offsets_of_any_group_are_committed_with_a_transaction_of_any_coordinator(
    nodes: TwoNodes,
) -> None:
    places = [TopicPartition("input", partition, 3) for partition in range(PARTITIONS)]
    for number in range(4):
        consumer = consumer_of(nodes, f"group-{number}")
        producer = producer_of(nodes, f"mover-{number}")
        for outcome, offset in (("commit", 3), ("abort", 9)):
            producer.begin_transaction()
            moved = [TopicPartition("input", one.partition, offset) for one in places]
            metadata = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(moved, metadata, WAIT_S)
            if outcome == "commit":
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
        # Whoever asks while the outcome is on its way is told to ask again, and does.
        committed = consumer.committed(places, timeout=WAIT_S)
        assert [one.offset for one in committed] == [3] * PARTITIONS
        consumer.close()


def test_a_producer_that_is_replaced_or_too_slow_leaves_nothing_behind(nodes: TwoNodes) -> None:
    nodes.wait_for(lambda: _is_stable(nodes), "what the other tests wrote is there")
    before = read(nodes)
    old = producer_of(nodes, "replaced")
    old.begin_transaction()
    write_everywhere(old, b"of the old one")
    new = producer_of(nodes, "replaced")
    new.begin_transaction()
    write_everywhere(new, b"of the new one")
    new.commit_transaction(WAIT_S)
    with pytest.raises(KafkaException):
        old.commit_transaction(WAIT_S)
    slow = producer_of(nodes, "slow", timeout_ms=1_000)
    slow.begin_transaction()
    write_everywhere(slow, b"of the slow one")
    nodes.wait_for(lambda: _is_stable(nodes), "the slow one is aborted")
    assert read(nodes) == [[*values, b"of the new one"] for values in before]


def _is_stable(nodes: TwoNodes) -> bool:
    """Say whether no transaction holds a partition up."""
    limits = [server.node.handler.limits for server in nodes.servers.values()]
    entries = nodes.servers[1].node.storage_cache.entries()
    return all(one.stable_until(entry.name) is None for entry in entries for one in limits)
