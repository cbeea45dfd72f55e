"""All nodes are stopped in order and started again, one after the other, while clients work: none
of them sees an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.cimpl import NewTopic
from tests.cluster.nodes import Nodes, nodes, wait_until
from tests.kafka_clients import AdminClient, Consumer, Producer

import penstock
from penstock.errors import BadRequestError, RetryableError, StoreError
from penstock.record import Producer as ProducerId

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

PARTITIONS: Final = 3
WAIT_S: Final = 60.0
Record = Callable[[str, object], None]


class Client:
    """Works on a thread of its own until `stop`."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.done_at: list[tuple[int, float]] = []
        """Partition and time of each acknowledged write, or of each record read."""
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} is stuck"

    def is_working(self, count: int = 20) -> bool:
        """Return whether something was done just now in every partition."""
        recent = self.done_at[-count * PARTITIONS :]
        return {partition for partition, _ in recent} == set(range(PARTITIONS))

    def has_done(self, count: int) -> bool:
        return len(self.done_at) >= count

    def gap_s(self) -> float:
        """Return the longest time between two successes in one partition."""
        last: dict[int, float] = {}
        longest = 0.0
        for partition, at in self.done_at:
            longest = max(longest, at - last.get(partition, at))
            last[partition] = at
        return longest

    def _run(self) -> None:
        raise NotImplementedError


class KafkaWriter(Client):
    """librdkafka with an idempotent producer and its defaults."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.sent = 0
        self._producer: Final = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            partition = self.sent % PARTITIONS
            self._producer.produce(
                "k", b"%d" % self.sent, partition=partition, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0.01)
        if self._producer.flush(WAIT_S):
            self.errors.append("some records have no outcome")

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        partition = getattr(message, "partition", lambda: 0)()
        self.done_at.append((partition, time.monotonic()))


class KafkaReader(Client):
    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._consumer: Final = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "rolling",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )

    def _run(self) -> None:
        self._consumer.subscribe(["k"])
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            problem = message.error()
            if problem is not None:
                self.errors.append(str(problem))
                continue
            self.done_at.append((message.partition() or 0, time.monotonic()))
        self._consumer.close()


class PythonWriter(Client):
    """`penstock.connect` with a producer id per partition, so that calls may be repeated."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__()
        self._store: Final = penstock.connect(addresses)
        self.sent = 0

    def _run(self) -> None:
        topic = self._store.topic("p")
        ids = [self._store.allocate_producer_id() for _ in range(PARTITIONS)]
        while not self._stopping.wait(0.01):
            partition, sequence = self.sent % PARTITIONS, self.sent // PARTITIONS
            producer = ProducerId(ids[partition], 0, sequence)
            self.sent += 1
            try:
                topic.write(b"%d" % self.sent, partition=partition, producer=producer)
            except StoreError as error:
                self.errors.append(repr(error))
                continue
            self.done_at.append((partition, time.monotonic()))
        self._store.close()


class PythonReader(Client):
    def __init__(self, addresses: list[str]) -> None:
        super().__init__()
        self._store: Final = penstock.connect(addresses)
        self.values: list[bytes | None] = []

    def _run(self) -> None:
        topic = self._store.topic("p")
        positions = [0] * PARTITIONS
        while not self._stopping.wait(0.02):
            for partition in range(PARTITIONS):
                try:
                    page = topic.read(partition, positions[partition])
                except StoreError as error:
                    self.errors.append(repr(error))
                    continue
                for record in page:
                    positions[partition] = record.offset + 1
                    self.values.append(record.value)
                    self.done_at.append((partition, time.monotonic()))
        self._store.close()


def create_topics(made: Nodes) -> None:
    with penstock.connect(list(made.storage.values())) as store:

        def is_created() -> bool:
            try:
                store.create_topic("p", partitions=PARTITIONS, replication=3, exist_ok=True)
            except (RetryableError, BadRequestError):
                return False  # not all nodes are registered
            return True

        wait_until(is_created, "a topic on three nodes")
    admin = AdminClient({"bootstrap.servers": made.bootstrap})
    for created in admin.create_topics([NewTopic("k", PARTITIONS, 3)]).values():
        created.result(WAIT_S)
    wait_until(made.are_in_sync, "all replicas are in sync")


@pytest.mark.timeout(300)
def test_clients_see_no_error_while_every_node_is_stopped_and_started(
    tmp_path: Path, record_property: Record
) -> None:
    with nodes(tmp_path) as made:
        made.start_all()
        made.wait_ready()
        create_topics(made)
        addresses = list(made.storage.values())
        writers = (KafkaWriter(made.bootstrap), PythonWriter(addresses))
        readers = (KafkaReader(made.bootstrap), PythonReader(addresses))
        clients: tuple[Client, ...] = (*writers, *readers)
        for client in clients:
            client.start()
        for node in made.numbers:
            for client in clients:
                wait_until(client.is_working, f"{type(client).__name__} works")
                client.done_at.append(client.done_at[-1])
            made.stop(node)
            for client in clients:
                is_past = partial(client.has_done, len(client.done_at) + 30)
                wait_until(is_past, f"{type(client).__name__} goes on without node {node}")
            made.start(node)
            made.wait_ready()
            wait_until(made.are_in_sync, "the node has caught up")
        for writer in writers:
            writer.stop()
        reader = readers[1]
        wait_until(lambda: len(reader.values) >= writers[1].sent, "all records are read")
        for one in readers:
            one.stop()
        assert {type(client).__name__: client.errors for client in clients} == {
            type(client).__name__: [] for client in clients
        }
        assert sorted(map(int, filter(None, reader.values))) == list(range(1, writers[1].sent + 1))
        for client in clients:
            record_property("measured", f"{type(client).__name__}: gap {client.gap_s():.2f} s")
        logs = "".join((tmp_path / f"{node}.log").read_text() for node in made.numbers)
        for noise in ("metadata_leader_gone", "does not serve the channel"):
            assert noise not in logs
