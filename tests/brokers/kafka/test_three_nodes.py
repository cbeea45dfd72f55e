"""Kafka clients against three real nodes: any of them leads to all, and groups are spread."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.cimpl import NewTopic
from tests.meta.raft.cluster_in_process import free_ports

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

WAIT_S = 120.0
NODES = (1, 2, 3)
COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()", "serve"]
EACH = 40
PARTITIONS = 3


def wait_for(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class Cluster:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ports = free_ports(9)
        self._peers = [f"{node}@127.0.0.1:{ports[node - 1]}" for node in NODES]
        self._ports = {node: str(ports[node + 2]) for node in NODES}
        self.kafka = {node: f"127.0.0.1:{ports[node + 5]}" for node in NODES}
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int) -> None:
        port = self.kafka[node].rpartition(":")[2]
        with (self._directory / f"{node}.log").open("ab") as log:
            self._running[node] = subprocess.Popen(
                [
                    *(*COMMAND, "--data", str(self._directory / str(node))),
                    *("--port", self._ports[node], "--http-port", "0", "--kafka-port", port),
                    *("--set", f"node.id={node}", "--set", f"node.peers={json.dumps(self._peers)}"),
                ],
                stdout=log,
                stderr=log,
            )

    def stop(self, node: int) -> None:
        process = self._running.pop(node)
        process.terminate()
        assert process.wait(WAIT_S) == 0

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def metadata(self, node: int) -> ClusterMetadata | None:
        """What a client is told that knows only this node."""
        admin = AdminClient({"bootstrap.servers": self.kafka[node], "log_level": 0})
        try:
            return admin.list_topics(timeout=5)
        except KafkaException:
            return None

    def is_whole(self, node: int) -> bool:
        found = self.metadata(node)
        return found is not None and len(found.brokers) == len(NODES)

    def leaders(self, node: int) -> dict[tuple[str, int], int]:
        found = self.metadata(node)
        topics = {} if found is None else found.topics
        return {
            (name, number): one.leader
            for name, topic in topics.items()
            for number, one in topic.partitions.items()
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("three-nodes"))
    try:
        for node in NODES:
            made.start(node)

        for node in NODES:
            wait_for(partial(made.is_whole, node), f"node {node} names all three")
        for node in NODES:
            admin = AdminClient({"bootstrap.servers": made.kafka[node]})
            new = [NewTopic(f"{kind}-{node}", PARTITIONS, 1) for kind in ("of", "txn")]
            for future in admin.create_topics(new).values():
                future.result(WAIT_S)
        yield made
    finally:
        made.close()


def all_topics(kind: str = "of") -> list[str]:
    return [f"{kind}-{node}" for node in NODES]


def produce(address: str, start: int, kind: str = "of") -> int:
    """Send messages to all topics through one node; return how many there are."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for topic in all_topics(kind):
        for number in range(start, start + EACH):
            value = f"{topic} {number}".encode()
            producer.produce(topic, value, key=str(number).encode(), on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    assert failed == []
    return EACH * len(NODES)


def consume(consumer: Consumer, count: int) -> Counter[bytes | None]:
    seen: Counter[bytes | None] = Counter()
    deadline = time.monotonic() + WAIT_S
    while seen.total() < count and time.monotonic() < deadline:
        for message in consumer.consume(100, timeout=1):
            if message.error() is None:
                seen[message.value()] += 1
    return seen


def test_three_nodes_serve_kafka_clients_together(cluster: Cluster) -> None:
    wait_for(
        lambda: (
            len({tuple(sorted(cluster.leaders(node).items())) for node in NODES}) == 1
            and len(cluster.leaders(1)) == 2 * PARTITIONS * len(NODES)
        ),
        "all nodes tell of the same leaders",
    )
    leaders = cluster.leaders(1)
    assert set(leaders.values()) <= set(NODES)
    count = sum(produce(cluster.kafka[node], 1_000 * node) for node in NODES)
    wanted = {
        f"{topic} {1_000 * node + number}".encode(): 1
        for topic in all_topics()
        for node in NODES
        for number in range(EACH)
    }
    partitions = [TopicPartition(topic, n) for topic in all_topics() for n in range(PARTITIONS)]
    for number in range(6):  # groups of different coordinators, most likely
        options = {"group.id": f"group-{number}", "auto.offset.reset": "earliest"}
        address = cluster.kafka[NODES[number % 3]]
        consumer = Consumer({"bootstrap.servers": address, **options})
        consumer.subscribe(all_topics())
        assert consume(consumer, count) == wanted
        consumer.commit(asynchronous=False)
        consumer.close()
        other = Consumer({"bootstrap.servers": cluster.kafka[NODES[(number + 1) % 3]], **options})
        committed = other.committed(partitions, timeout=WAIT_S)
        other.close()
        assert sum(max(0, one.offset) for one in committed) == count


def test_transactions_work_where_coordinator_and_leader_are_one_and_are_refused_elsewhere(
    cluster: Cluster,
) -> None:
    outcomes: Counter[str] = Counter()
    for number in range(9):
        topic = all_topics("txn")[number % 3]
        options = {"transactional.id": f"tx-{number}", "transaction.timeout.ms": 10_000}
        producer = Producer({"bootstrap.servers": cluster.kafka[1], "log_level": 0, **options})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"in a transaction", partition=0)
        try:
            producer.commit_transaction(WAIT_S)
            outcomes["committed"] += 1
        except KafkaException as error:
            outcomes[str(error.args[0].name())] += 1
    assert set(outcomes) <= {"committed", "NOT_LEADER_FOR_PARTITION"}
    assert outcomes["committed"] > 0
    seen = 0
    for topic in all_topics("txn"):
        options = {"group.id": "committed", "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": cluster.kafka[2], **options})
        part = TopicPartition(topic, 0, 0)
        consumer.assign([part])
        _, end = consumer.get_watermark_offsets(part, timeout=WAIT_S)
        reached = 0
        deadline = time.monotonic() + WAIT_S
        while reached < end and time.monotonic() < deadline:
            for message in consumer.consume(100, timeout=1):
                if message.error() is None:
                    seen += message.value() == b"in a transaction"
            (at,) = consumer.position([part])
            reached = max(reached, at.offset)
        consumer.close()
    assert seen == outcomes["committed"], "what was refused left nothing behind"


def begin_writing(address: str, name: str, topic: str, partition: int) -> tuple[Producer, bool]:
    """Return a producer in the middle of a transaction, and whether it may write."""
    options = {"transactional.id": name, "transaction.timeout.ms": 600_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": address, **options})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    before = end_of(address, topic, partition)
    producer.produce(topic, b"open", partition=partition)
    producer.flush(WAIT_S)
    return producer, end_of(address, topic, partition) > before


def end_of(address: str, topic: str, partition: int) -> int:
    """Return behind which offset nothing was written, committed or not."""
    options = {"group.id": "ends", "isolation.level": "read_uncommitted"}
    consumer = Consumer({"bootstrap.servers": address, **options})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_S)
    finally:
        consumer.close()
    return end


def test_a_node_that_restarts_goes_on_and_harms_no_transaction_of_the_others(
    cluster: Cluster,
) -> None:
    leaders = cluster.leaders(1)
    elsewhere = [
        place
        for place, leader in leaders.items()
        if leader != 3 and place[0] in all_topics("txn") and place[1] > 0
    ]
    tried: list[tuple[Producer, bool]] = []  # held: a client must not end in its transaction
    while len(tried) < 50 and not any(may_write for _, may_write in tried):
        place = elsewhere[len(tried) % len(elsewhere)]
        tried.append(begin_writing(cluster.kafka[1], f"open-{len(tried)}", *place))
    producer, may_write = tried[-1]
    assert may_write, "some coordinator leads a partition"
    cluster.stop(3)
    cluster.start(3)
    wait_for(lambda: len(cluster.leaders(3)) > 0, "node 3 is back")
    before = len(leaders)
    wait_for(lambda: len(cluster.leaders(3)) == before, "it knows all partitions")
    producer.commit_transaction(WAIT_S)
    produce(cluster.kafka[3], 9_000, "txn")
