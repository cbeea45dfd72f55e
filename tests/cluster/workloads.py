"""The clients of a drill, each in a thread with a history of its own.

Shards of a history are numbered `TOPICS.index(topic) * PARTITIONS + partition`. A client keeps
trying whatever happens to the nodes; an error without an explanation ends it and fails the drill.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from random import Random
from typing import Final

from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from tests.cluster.history import Client, Commit, Outcome, Transaction, value_of
from tests.kafka_clients import Consumer, Producer

import penstock
from penstock.api import Store
from penstock.errors import CorruptionError, RetryableError, StoreError

API, KAFKA, COPIES = "api", "kafka", "copies"
TOPICS: Final = (API, KAFKA, COPIES)
PARTITIONS: Final = 3
CALL_S: Final = 10.0
FLUSH_S: Final = 120.0
PAUSE_S: Final = 0.02
COPIER_WRITER: Final = 100
"""Writer of partition 0 of the copies; the other partitions have the next numbers."""


def shard_of(topic: str, partition: int) -> int:
    return TOPICS.index(topic) * PARTITIONS + partition


def encode(value: int, random: Random) -> bytes:
    return b"%d:%s" % (value, b"x" * random.randrange(200))


def decode(data: bytes | None) -> int:
    return int((data or b"").partition(b":")[0])


class Worker(threading.Thread):
    """A client that acts until it is asked to stop."""

    def __init__(self, name: str, seed: int, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.random: Final = Random(f"{seed} {name}")
        self.stopping: Final = stopping
        self.failure: BaseException | None = None

    def histories(self) -> list[Client]:
        raise NotImplementedError

    def act(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            self.act()
        except BaseException as error:  # noqa: BLE001 - reported to the drill, which fails by it
            self.failure = error

    def pause(self, seconds: float = PAUSE_S) -> None:
        self.stopping.wait(seconds * self.random.uniform(0.5, 1.5))


class ApiWorker(Worker):
    """A client of the Python interface over gRPC."""

    def __init__(
        self, name: str, writer: int, addresses: list[str], seed: int, stopping: threading.Event
    ) -> None:
        super().__init__(name, seed, stopping)
        self.client: Final = Client(name, writer)
        self._addresses: Final = addresses
        self._store: Store | None = None

    def histories(self) -> list[Client]:
        return [self.client]

    def store(self) -> Store:
        if self._store is None:
            self._store = penstock.connect(self._addresses, deadline_s=CALL_S)
        return self._store

    def note(self, error: StoreError) -> None:
        self.client.notes[:] = [*self.client.notes[-9:], f"{type(error).__name__}: {error}"]
        # Damage that a drill has done may be reported until it is repaired from another copy.
        if not isinstance(error, RetryableError | CorruptionError):
            raise error
        self.pause(0.1)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


class ApiWriter(ApiWorker):
    """Writes records one by one through any node; a failed one is followed by the next number."""

    def act(self) -> None:
        number = 0
        try:
            while not self.stopping.is_set():
                number += 1
                self._write(number)
                self.pause()
        finally:
            self.close()

    def _write(self, number: int) -> None:
        partition = self.random.randrange(PARTITIONS)
        shard, value = shard_of(API, partition), value_of(self.client.writer, number)
        began = self.client.begin(time.monotonic())
        try:
            topic = self.store().topic(API)
            place = topic.write(encode(value, self.random), partition=partition)
        except StoreError as error:
            # Whether it was stored is not always known; it is never assumed to have failed.
            times = (began, time.monotonic())
            self.client.wrote(shard, value, times, Outcome.UNKNOWN)
            self.note(error)
        else:
            times = (began, time.monotonic())
            self.client.wrote(shard, value, times, Outcome.OK, place.offset)


class ApiReader(ApiWorker):
    """Reads all partitions from the start, through one node; begins anew at the end."""

    def act(self) -> None:
        positions = dict.fromkeys(range(PARTITIONS), 0)
        try:
            while not self.stopping.is_set():
                for partition in positions:
                    self._read(partition, positions)
                if self.random.random() < 0.02:
                    positions = dict.fromkeys(range(PARTITIONS), 0)
                self.pause(2 * PAUSE_S)
        finally:
            self.close()

    def _read(self, partition: int, positions: dict[int, int]) -> None:
        began = self.client.begin(time.monotonic())
        position = positions[partition]
        try:
            page = self.store().topic(API).read(partition, position, max_records=500)
        except StoreError as error:
            self.client.end(began, Outcome.FAILED)
            self.note(error)
            return
        offsets = [record.offset for record in page]
        values = [decode(record.value) for record in page]
        times = (began, time.monotonic())
        self.client.polled(shard_of(API, partition), position, times, offsets, values)
        if offsets:
            positions[partition] = offsets[-1] + 1


class KafkaWriter(Worker):
    """An idempotent producer; several batches are on their way at one time."""

    def __init__(self, name: str, writer: int, bootstrap: str, seed: int, stop: threading.Event):
        super().__init__(name, seed, stop)
        self.client: Final = Client(name, writer)
        self._servers: Final = bootstrap
        self._errors: list[KafkaError] = []

    def histories(self) -> list[Client]:
        return [self.client]

    def act(self) -> None:
        number = 0
        while not self.stopping.is_set():
            number = self._produce_until_fatal(number)

    def _produce_until_fatal(self, number: int) -> int:
        """Return the last number; librdkafka asks for a new producer after some errors."""
        options = {
            "bootstrap.servers": self._servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "delivery.timeout.ms": int(FLUSH_S * 1_000),
            "socket.timeout.ms": 10_000,
            "retry.backoff.max.ms": 300,
            "reconnect.backoff.max.ms": 500,
        }
        self._errors = []
        producer = Producer(options | {"error_cb": self._failed})
        is_fatal = False
        while not self.stopping.is_set() and not is_fatal:
            number += 1
            self._produce(producer, number)
            producer.poll(0)
            self.pause()
            is_fatal = any(error.fatal() for error in self._errors)
        self.client.begin(time.monotonic())
        left = producer.flush(FLUSH_S)
        self.client.open_since = None
        assert left == 0, f"{left} messages were neither stored nor refused in {FLUSH_S:g} s"
        return number

    def _failed(self, error: KafkaError) -> None:
        self._errors = [*self._errors[-20:], error]
        self.client.notes[:] = [*self.client.notes[-9:], str(error)]

    def _produce(self, producer: Producer, number: int) -> None:
        partition = self.random.randrange(PARTITIONS)
        value, began = value_of(self.client.writer, number), time.monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            outcome = Outcome.OK if error is None else Outcome.UNKNOWN
            offset = message.offset() if error is None else None
            self.client.wrote(
                shard_of(KAFKA, partition),
                value,
                (began, time.monotonic()),
                outcome,
                -1 if offset is None else offset,
            )

        producer.produce(
            KAFKA, encode(value, self.random), partition=partition, on_delivery=delivered
        )


class KafkaReader(Worker):
    """A consumer with assigned partitions, which reads a topic from its start on."""

    def __init__(self, name: str, topic: str, bootstrap: str, seed: int, stop: threading.Event):
        super().__init__(name, seed, stop)
        self.client: Final = Client(name)
        self._topic: Final = topic
        self._servers: Final = bootstrap

    def histories(self) -> list[Client]:
        return [self.client]

    def act(self) -> None:
        options = {
            "bootstrap.servers": self._servers,
            "group.id": f"none-{self.name}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 200,
            "reconnect.backoff.max.ms": 500,
            "auto.offset.reset": "error",
        }
        positions = dict.fromkeys(range(PARTITIONS), 0)
        with closing(Consumer(options)) as consumer:
            consumer.assign([TopicPartition(self._topic, one, 0) for one in positions])
            while not self.stopping.is_set():
                began = time.monotonic()
                page = consumer.consume(200, timeout=0.3)
                self._record(page, positions, (began, time.monotonic()))

    def _record(
        self, page: list[Message], positions: dict[int, int], times: tuple[float, float]
    ) -> None:
        by_partition: dict[int, list[Message]] = {}
        for message in page:
            error = message.error()
            partition = message.partition()
            if error is not None:
                self.client.notes[:] = [*self.client.notes[-9:], str(error)]
                assert error.code() != KafkaError._AUTO_OFFSET_RESET, str(error)
            elif partition is not None:
                by_partition.setdefault(partition, []).append(message)
        for partition, messages in by_partition.items():
            offsets = [message.offset() or 0 for message in messages]
            values = [decode(message.value()) for message in messages]
            shard = shard_of(self._topic, partition)
            self.client.polled(shard, positions[partition], times, offsets, values)
            positions[partition] = offsets[-1] + 1


class GroupMember(Worker):
    """A member of a consumer group that commits what it has read; reads the offsets back."""

    def __init__(self, name: str, group: str, bootstrap: str, seed: int, stop: threading.Event):
        super().__init__(name, seed, stop)
        self.client: Final = Client(name)
        self._group: Final = group
        self._servers: Final = bootstrap

    def histories(self) -> list[Client]:
        return [self.client]

    def act(self) -> None:
        options = {
            "bootstrap.servers": self._servers,
            "group.id": self._group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 200,
            "reconnect.backoff.max.ms": 500,
        }
        with closing(Consumer(options)) as consumer:
            consumer.subscribe([KAFKA])
            while not self.stopping.is_set():
                page = consumer.consume(100, timeout=0.3)
                seen = {
                    message.partition() or 0: (message.offset() or 0) + 1
                    for message in page
                    if message.error() is None
                }
                if seen:
                    self._commit(consumer, seen)
                if seen or self.random.random() < 0.3:
                    self._fetch(consumer)
                self.pause(5 * PAUSE_S)

    def _commit(self, consumer: Consumer, seen: Mapping[int, int]) -> None:
        places = [TopicPartition(KAFKA, one, offset) for one, offset in seen.items()]
        self._call(seen, lambda: consumer.commit(offsets=places, asynchronous=False), False)

    def _fetch(self, consumer: Consumer) -> None:
        places = [TopicPartition(KAFKA, one) for one in range(PARTITIONS)]
        self._call({}, lambda: consumer.committed(places, timeout=CALL_S), True)

    def _call(
        self,
        seen: Mapping[int, int],
        call: Callable[[], list[TopicPartition] | None],
        is_fetch: bool,
    ) -> None:
        began = self.client.begin(time.monotonic())
        outcome, answer = Outcome.OK, None
        try:
            answer = call()
        except KafkaException as error:
            outcome = Outcome.UNKNOWN
            self.client.notes[:] = [*self.client.notes[-9:], str(error)]
        ended = time.monotonic()
        self.client.end(began, outcome)
        offsets = dict(seen)
        if is_fetch:
            offsets = {
                one.partition: -1 if one.offset == OFFSET_INVALID else one.offset
                for one in answer or []
                if one.error is None
            }
        for partition, offset in offsets.items():
            shard = shard_of(KAFKA, partition)
            commit = Commit(self._group, shard, offset, began, ended, outcome, is_fetch)
            self.client.commits.append(commit)


class Copier(Worker):
    """Copies a topic to another in transactions, with the offsets in them; aborts some."""

    GROUP: Final = "copier"

    def __init__(self, name: str, bootstrap: str, seed: int, stop: threading.Event) -> None:
        super().__init__(name, seed, stop)
        self.clients: Final = [
            Client(f"{name}-{partition}", COPIER_WRITER + partition)
            for partition in range(PARTITIONS)
        ]
        self._servers: Final = bootstrap
        self._transaction = 0
        self.committed = 0
        self.aborted = 0
        self.hung = 0

    def histories(self) -> list[Client]:
        return self.clients

    def _end(self, began: float, outcome: Outcome) -> None:
        for client in self.clients:
            client.end(began, outcome)

    def act(self) -> None:
        while not self.stopping.is_set():
            try:
                self._copy_until_error()
            except (KafkaException, ClientHangsError) as error:
                self._end(time.monotonic(), Outcome.FAILED)
                self.hung += isinstance(error, ClientHangsError)
                for client in self.clients:
                    client.notes[:] = [*client.notes[-9:], str(error)]
                self.pause(0.3)

    def _copy_until_error(self) -> None:
        base = {"bootstrap.servers": self._servers, "reconnect.backoff.max.ms": 500}
        producer = Producer(
            base
            | {
                "transactional.id": "copier",
                "transaction.timeout.ms": 60_000,
                "socket.timeout.ms": 10_000,
                "linger.ms": 5,
            }
        )
        began = self._begin()
        producer.init_transactions(60)
        self._end(began, Outcome.OK)
        options = base | {
            "group.id": self.GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 200,
        }
        with closing(Consumer(options)) as consumer:
            self._rewind(consumer)
            while not self.stopping.is_set():
                page = [one for one in consumer.consume(50, timeout=0.3) if one.error() is None]
                if page and not self._copy(producer, consumer, page):
                    self._rewind(consumer)

    def _begin(self) -> float:
        now = time.monotonic()
        for client in self.clients:
            client.begin(now)
        return now

    def _rewind(self, consumer: Consumer) -> None:
        """Continue where the last transaction that was committed has ended."""
        places = [TopicPartition(KAFKA, one) for one in range(PARTITIONS)]
        found = consumer.committed(places, timeout=CALL_S)
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
            one.offset = max(0, one.offset)
        consumer.assign(found)

    def _copy(self, producer: Producer, consumer: Consumer, page: list[Message]) -> bool:
        """Return whether the copies were committed."""
        self._transaction += 1
        number, began = self._transaction, self._begin()
        is_aborted = self.random.random() < 0.2
        outcome, commit_began = Outcome.UNKNOWN, float("inf")
        try:
            producer.begin_transaction()
            failures = self._produce(producer, page, number)
            producer.flush(60)
            if is_aborted or failures:
                producer.abort_transaction(60)
                outcome = Outcome.FAILED
                self.aborted += 1
            else:
                ends = {one.partition() or 0: (one.offset() or 0) + 1 for one in page}
                places = [TopicPartition(KAFKA, one, end) for one, end in ends.items()]
                metadata = consumer.consumer_group_metadata()
                _bounded(lambda: producer.send_offsets_to_transaction(places, metadata, CALL_S))
                commit_began = time.monotonic()
                _commit(producer)
                outcome = Outcome.OK
                self.committed += 1
        except KafkaException as error:
            outcome = self._after_error(producer, error, commit_began)
        finally:
            ended = time.monotonic()
            for client in self.clients:
                made = Transaction(number, commit_began, ended, outcome)
                client.transactions.append(made)
            self._end(began, Outcome.OK if outcome is not Outcome.UNKNOWN else outcome)
        return outcome is Outcome.OK

    @staticmethod
    def _after_error(producer: Producer, error: KafkaException, commit_began: float) -> Outcome:
        """Abort if librdkafka says so; else the outcome is unknown, and the caller makes a new
        producer, which ends the transaction."""
        reason = error.args[0]
        if reason.txn_requires_abort() and commit_began == float("inf"):
            producer.abort_transaction(60)
            return Outcome.FAILED
        raise error

    def _produce(self, producer: Producer, page: list[Message], number: int) -> list[KafkaError]:
        failures: list[KafkaError] = []
        for message in page:
            partition = message.partition() or 0
            client = self.clients[partition]
            value = value_of(client.writer, message.offset() or 0, attempt=number)
            began = time.monotonic()

            def delivered(
                error: KafkaError | None,
                made: Message,
                client: Client = client,
                value: int = value,
                began: float = began,
            ) -> None:
                if error is not None:
                    failures.append(error)
                offset = made.offset() if error is None else None
                client.wrote(
                    shard_of(COPIES, client.writer - COPIER_WRITER),
                    value,
                    (began, time.monotonic()),
                    Outcome.OK if error is None else Outcome.UNKNOWN,
                    -1 if offset is None else offset,
                    transaction=number,
                )

            data = encode(value, self.random)
            producer.produce(COPIES, data, partition=partition, on_delivery=delivered)
            producer.poll(0)
        return failures


class ClientHangsError(Exception):
    """A call of librdkafka did not end within its own timeout."""


def _bounded(call: Callable[[], None]) -> None:
    """Call librdkafka's `send_offsets_to_transaction`, which ignores its timeout while the group
    coordinator that it remembers is missing from the metadata. Its producer is given up then: the
    next one with the same transactional id ends the transaction."""
    errors: list[KafkaException] = []

    def run() -> None:
        try:
            call()
        except KafkaException as error:
            errors.append(error)

    calling = threading.Thread(target=run, daemon=True)
    calling.start()
    calling.join(CALL_S + 2.0)
    if calling.is_alive():
        raise ClientHangsError("send_offsets_to_transaction did not end within its timeout")
    if errors:
        raise errors[0]


def _commit(producer: Producer, seconds: float = 60.0) -> None:
    """Commit; librdkafka asks to repeat some calls."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            producer.commit_transaction(10)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return
