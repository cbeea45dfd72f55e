"""Clients that write to and read from several topics while an operator works on the cluster, and
the check of what they saw."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, Message
from tests.cluster.checker import Anomaly, check
from tests.cluster.history import Client, FinalLog, History, Outcome, value_of
from tests.cluster.nodes import WAIT_S, Nodes, wait_until
from tests.cluster.workloads import ApiWorker, Worker, decode, encode
from tests.kafka_clients import Producer

import penstock
from penstock.errors import AlreadyExistsError, RetryableError, StoreError

PARTITIONS: Final = 2
FLUSH_S: Final = 120.0


class ApiWriter(ApiWorker):
    """Writes to all topics in turn, one record at a time."""

    def __init__(self, topics: Sequence[str], addresses: list[str], stop: threading.Event) -> None:
        super().__init__("api-writer", 1, addresses, 1, stop)
        self._topics: Final = topics
        self.last_ok: Final = dict.fromkeys(topics, 0.0)
        """When the last write to each topic began that succeeded."""

    def act(self) -> None:
        number = 0
        while not self.stopping.is_set():
            topic = self._topics[number % len(self._topics)]
            number += 1
            self._write(topic, number)
            self.pause()
        self.close()

    def _write(self, topic: str, number: int) -> None:
        partition = self.random.randrange(PARTITIONS)
        shard = self._topics.index(topic) * PARTITIONS + partition
        value, began = value_of(self.client.writer, number), self.client.begin(time.monotonic())
        try:
            made = self.store().topic(topic).write(encode(value, self.random), partition=partition)
        except StoreError as error:
            times = (began, time.monotonic())
            self.client.wrote(shard, value, times, Outcome.UNKNOWN)
            self.note(error)
        else:
            times = (began, time.monotonic())
            self.client.wrote(shard, value, times, Outcome.OK, made.offset)
            self.last_ok[topic] = began


class KafkaWriter(Worker):
    """An idempotent producer of librdkafka, with acks=all."""

    def __init__(self, topics: Sequence[str], bootstrap: str, stop: threading.Event) -> None:
        super().__init__("kafka-writer", 1, stop)
        self.client: Final = Client("kafka-writer", 2)
        self._topics: Final = topics
        self._servers: Final = bootstrap
        self.last_ok: Final = dict.fromkeys(topics, 0.0)

    def histories(self) -> list[Client]:
        return [self.client]

    def act(self) -> None:
        options = {
            "bootstrap.servers": self._servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "delivery.timeout.ms": int(FLUSH_S * 1_000),
            "socket.timeout.ms": 10_000,
            "retry.backoff.max.ms": 300,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
        producer, number = Producer(options), 0
        while not self.stopping.is_set():
            number += 1
            self._produce(producer, number)
            producer.poll(0)
            self.pause()
        left = producer.flush(FLUSH_S)
        self.client.open_since = None
        assert left == 0, f"{left} messages were neither stored nor refused in {FLUSH_S:g} s"

    def _produce(self, producer: Producer, number: int) -> None:
        topic, partition = self.random.choice(self._topics), self.random.randrange(PARTITIONS)
        shard = self._topics.index(topic) * PARTITIONS + partition
        value, began = value_of(self.client.writer, number), time.monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset() if error is None else None
            if error is not None:
                self.client.notes[:] = [*self.client.notes[-9:], f"{topic}: {error}"]
            else:
                self.last_ok[topic] = began
            outcome = Outcome.OK if error is None else Outcome.UNKNOWN
            times = (began, time.monotonic())
            self.client.wrote(shard, value, times, outcome, -1 if offset is None else offset)

        data = encode(value, self.random)
        producer.produce(topic, data, partition=partition, on_delivery=delivered)


class ApiReader(ApiWorker):
    """Reads all partitions of all topics from the start on; begins anew at times."""

    def __init__(self, topics: Sequence[str], addresses: list[str], stop: threading.Event) -> None:
        super().__init__("api-reader", 0, addresses, 2, stop)
        self._topics: Final = topics

    def act(self) -> None:
        places = [(topic, one) for topic in self._topics for one in range(PARTITIONS)]
        positions = dict.fromkeys(places, 0)
        while not self.stopping.is_set():
            for place in places:
                self._read(place, positions)
            if self.random.random() < 0.05:
                positions = dict.fromkeys(places, 0)
            self.pause(0.1)
        self.close()

    def _read(self, place: tuple[str, int], positions: dict[tuple[str, int], int]) -> None:
        began, position = self.client.begin(time.monotonic()), positions[place]
        topic, partition = place
        try:
            page = self.store().topic(topic).read(partition, position, max_records=500)
        except StoreError as error:
            self.client.end(began, Outcome.FAILED)
            self.note(error)
            return
        offsets = [record.offset for record in page]
        values = [decode(record.value) for record in page]
        shard = self._topics.index(topic) * PARTITIONS + partition
        self.client.polled(shard, position, (began, time.monotonic()), offsets, values)
        if offsets:
            positions[place] = offsets[-1] + 1


class Traffic:
    """Clients of some topics. `wait_for_writes`, as often as needed; `check` when they ended."""

    def __init__(self, cluster: Nodes, topics: Sequence[str], *, has_kafka: bool = True) -> None:
        self._cluster: Final = cluster
        self.topics: Final = tuple(topics)
        self.stopping: Final = threading.Event()
        addresses = list(cluster.storage.values())
        self._api: Final = ApiWriter(self.topics, addresses, self.stopping)
        self._kafka: Final = KafkaWriter(self.topics, cluster.bootstrap, self.stopping)
        reader = ApiReader(self.topics, addresses[1:] + addresses[:1], self.stopping)
        self.workers: Final[list[Worker]] = [self._api, reader, *[self._kafka] * has_kafka]
        self._writers: Final[list[ApiWriter | KafkaWriter]] = [
            self._api,
            *[self._kafka] * has_kafka,
        ]

    @property
    def notes(self) -> list[str]:
        """The last errors of the clients."""
        return [
            f"{client.name}: {note}"
            for worker in self.workers
            for client in worker.histories()
            for note in client.notes
        ]

    def wait_for_writes(self, topics: Sequence[str] | None = None) -> None:
        """Wait until each writer has written to each topic what it began after this call."""
        now = time.monotonic()
        wanted = self.topics if topics is None else topics

        def are_written() -> bool:
            for worker in self.workers:
                assert worker.failure is None, f"{worker.name}: {worker.failure!r}"
            return all(writer.last_ok[topic] > now for writer in self._writers for topic in wanted)

        try:
            wait_until(are_written, "writes continue")
        except AssertionError as error:
            late = [
                f"{writer.name} to {topic}"
                for writer in self._writers
                for topic in wanted
                if writer.last_ok[topic] <= now
            ]
            raise AssertionError(f"{error}: {late}, {self.notes}") from error

    def stop(self) -> None:
        self.stopping.set()
        for worker in self.workers:
            worker.join(WAIT_S)
            assert not worker.is_alive(), f"{worker.name} does not end"
            assert worker.failure is None, f"{worker.name}: {worker.failure!r}"

    def check(self, nodes: Sequence[int] | None = None) -> list[Anomaly]:
        """Return what went wrong, as every node shows it; none when every acknowledged record is
        there, once, at its offset."""
        clients = [client for worker in self.workers for client in worker.histories()]
        final: dict[int, FinalLog] = {}
        for node in nodes if nodes is not None else self._cluster.numbers:
            if node not in self._cluster.running:
                continue
            reader = Client(f"last-reader-at-{node}")
            for number in range(len(self.topics) * PARTITIONS):
                topic, partition = self.topics[number // PARTITIONS], number % PARTITIONS
                found = read_all(self._cluster.storage[node], topic, partition)
                known = final.setdefault(number, FinalLog())
                for offset, value in found if not known.end else ():
                    known.put(offset, value)
                assert known.end == (found[-1][0] + 1 if found else 0), (
                    f"node {node} shows {len(found)} records of {topic}/{partition}, another one "
                    f"shows offsets up to {known.end}"
                )
                now = time.monotonic()
                offsets = [offset for offset, _ in found]
                reader.polled(number, 0, (now, now), offsets, [value for _, value in found])
            clients.append(reader)
        assert sum(client.write_count for client in clients), "nothing was written"
        return [one for one in check(History(clients, final)) if one.kind != "stuck client"]

    def unknown_writes(self) -> int:
        """Return of how many writes through the Python API the outcome is not known."""
        return sum(one.outcome is Outcome.UNKNOWN for one in self._api.client.writes())


@contextmanager
def traffic(cluster: Nodes, topics: Sequence[str], *, has_kafka: bool = True) -> Iterator[Traffic]:
    made = Traffic(cluster, topics, has_kafka=has_kafka)
    for worker in made.workers:
        worker.start()
    try:
        yield made
    finally:
        made.stopping.set()
        for worker in made.workers:
            worker.join(WAIT_S)


def read_all(address: str, topic: str, partition: int) -> list[tuple[int, int]]:
    """Return the offsets and values of a partition as one node shows them."""
    found: list[tuple[int, int]] = []
    last: list[StoreError] = []

    def reads() -> bool:
        try:
            with penstock.connect(address, deadline_s=10) as store:
                records = store.topic(topic).records(partition)
                found[:] = [(one.offset, decode(one.value)) for one in records]
        except RetryableError as error:
            last[:] = [error]
            return False
        return True

    try:
        wait_until(reads, f"{topic}/{partition} can be read at {address}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from error
    return found


def create_topic(cluster: Nodes, name: str, storage: str, replication: int) -> None:
    """Create a topic whose shards are all led when this returns."""

    def creates() -> bool:
        try:
            with penstock.connect(list(cluster.storage.values()), deadline_s=10) as store:
                store.create_topic(
                    name, partitions=PARTITIONS, storage=storage, replication=replication
                )
        except AlreadyExistsError:
            return True
        except RetryableError:
            return False
        return True

    wait_until(creates, f"topic {name} is created")
    wait_until(
        lambda: all(cluster.leader(name, one) for one in range(PARTITIONS)),
        f"all shards of {name} are led",
    )
