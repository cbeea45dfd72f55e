"""Kafka clients against three real nodes: any of them leads to all, and groups are spread."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.cimpl import NewTopic
from tests.free_ports import free_ports
from tests.kafka_clients import AdminClient, Consumer, Producer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

WAIT_S = 120.0
NODES = (1, 2, 3)
COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()", "serve"]
SMALL = ("--set", f"broker.commit_log_file_size={16 << 20}")
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
                    *SMALL,
                ],
                stdout=log,
                stderr=log,
            )

    def stop(self, node: int) -> None:
        process = self._running.pop(node)
        process.terminate()
        assert process.wait(WAIT_S) == 0

    def kill(self, node: int) -> None:
        process = self._running.pop(node)
        process.kill()
        process.wait(WAIT_S)

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
            # Transactions over topics of two kinds: with markers, and without.
            rows = {"penstock.storage": "rocksdb"} if node == NODES[0] else {}
            new = [
                NewTopic(f"of-{node}", PARTITIONS, 1),
                NewTopic(f"txn-{node}", PARTITIONS, 1, config=rows),
            ]
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
    requested = {
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
        assert consume(consumer, count) == requested
        consumer.commit(asynchronous=False)
        consumer.close()
        other = Consumer({"bootstrap.servers": cluster.kafka[NODES[(number + 1) % 3]], **options})
        committed = other.committed(partitions, timeout=WAIT_S)
        other.close()
        assert sum(max(0, one.offset) for one in committed) == count


def read_committed(cluster: Cluster, address: str) -> dict[tuple[str, int], list[bytes]]:
    """Return what the topics for transactions show, up to where each partition ends."""
    options = {
        "group.id": "committed",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer({"bootstrap.servers": address, **options})
    places = {(topic, n) for topic in all_topics("txn") for n in range(PARTITIONS)}
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in places])
    found: dict[tuple[str, int], list[bytes]] = {place: [] for place in places}
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + WAIT_S
    try:
        while ended != places:
            assert time.monotonic() < deadline, f"the ends are reached of all but {places - ended}"
            for message in consumer.consume(500, timeout=1):
                topic, number, error = message.topic(), message.partition(), message.error()
                assert topic is not None
                assert number is not None
                if error is None:
                    found[topic, number].append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add((topic, number))
    finally:
        consumer.close()
    return found


class Writer(threading.Thread):
    """Commits one transaction after the other to a partition of every topic, whatever happens."""

    def __init__(self, cluster: Cluster, name: str, partition: int) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self.transactional_id = name
        self.partition = partition
        self.stopping = threading.Event()
        self.begun = 0
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        producer: Producer | None = None
        while not self.stopping.is_set():
            try:
                producer = producer or self.new_producer()
                self._write_one(producer)
            except KafkaException as raised:
                error = raised.args[0]
                if producer is not None and error.txn_requires_abort():
                    producer = self._abort(producer)
                else:
                    producer = None  # whoever comes next fences what this one left

    def new_producer(self) -> Producer:
        options = {
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": 20_000,
            "linger.ms": 0,
        }
        servers = ",".join(self._cluster.kafka.values())
        producer = Producer({"bootstrap.servers": servers, "log_level": 0, **options})
        producer.init_transactions(WAIT_S)
        return producer

    def _write_one(self, producer: Producer) -> None:
        self.begun += 1
        value = f"{self.transactional_id} {self.begun}".encode()
        producer.begin_transaction()
        for topic in all_topics("txn"):
            producer.produce(topic, value, partition=self.partition)
        producer.commit_transaction(30)
        self.acknowledged.append(value)

    def _abort(self, producer: Producer) -> Producer | None:
        try:
            producer.abort_transaction(30)
        except KafkaException:
            return None
        return producer


def have_written(writers: list[Writer], requested: list[int]) -> bool:
    return all(
        len(one.acknowledged) >= count for one, count in zip(writers, requested, strict=True)
    )


def test_transactions_over_all_nodes_are_all_or_nothing_while_nodes_are_killed(
    cluster: Cluster,
) -> None:
    """Whoever coordinates, leads or neither is killed in turn, in the middle of transactions."""
    writers = [Writer(cluster, f"w{number}", number % PARTITIONS) for number in range(4)]
    for writer in writers:
        writer.start()
    for node in (*NODES, *NODES):
        requested = [len(writer.acknowledged) + 3 for writer in writers]
        wait_for(partial(have_written, writers, requested), "all writers get on")
        cluster.kill(node)
        cluster.start(node)
        wait_for(partial(cluster.is_whole, node), f"node {node} is back")
    for writer in writers:
        writer.stopping.set()
    for writer in writers:
        writer.join(WAIT_S)
        assert not writer.is_alive()
    check_all_or_nothing(cluster, writers)


def check_all_or_nothing(cluster: Cluster, writers: list[Writer]) -> None:
    final = [f"{writer.transactional_id} last".encode() for writer in writers]
    for writer, value in zip(writers, final, strict=True):
        # It fences what its predecessor left; behind it nothing is open.
        producer = writer.new_producer()
        producer.begin_transaction()
        for topic in all_topics("txn"):
            producer.produce(topic, value, partition=writer.partition)
        producer.commit_transaction(WAIT_S)

    def shows_the_last() -> bool:
        shown = Counter(
            one for values in read_committed(cluster, address).values() for one in values
        )
        return all(shown[value] == len(NODES) for value in final)

    address = cluster.kafka[2]
    wait_for(shows_the_last, "markers follow the answer")
    shown = Counter(one for values in read_committed(cluster, address).values() for one in values)
    assert set(shown.values()) == {len(NODES)}, "each is in every topic once, or in none"
    lost = {value for writer in writers for value in writer.acknowledged} - set(shown)
    assert not lost
    assert sum(len(writer.acknowledged) for writer in writers) > 6 * len(writers)
