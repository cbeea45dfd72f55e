"""Requests that real clients made, changed at random: an error or a closed connection, no more."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tests.brokers.kafka.running import Running, WireClient, running
from tests.kafka_clients import AdminClient, Consumer, Producer

from penstock.brokers.kafka.connection import Connection
from penstock.brokers.kafka.dispatch import Dispatcher

WAIT_S = 60.0
GROWTH_MAX_MB = 32.0
"""One request may become a million objects, whose memory the process then keeps for the next; what
is held for each of thousands of requests would soon be more."""
FILES_MAX = 64
"""Files that may be open besides: of topics that changed requests have created."""

K = TypeVar("K")
V = TypeVar("V")
Recorded = dict[tuple[int, int], list[bytes]]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The frames of every API and version that the server gets from here on."""
    found: Recorded = {}
    dispatch = Dispatcher.__call__

    def record(self: Dispatcher, connection: Connection, request: memoryview) -> bool:
        key, version = struct.unpack_from(">hh", request)
        kept = found.setdefault((key, version), [])
        if len(kept) < 5:
            kept.append(bytes(request))
        return dispatch(self, connection, request)

    monkeypatch.setattr(Dispatcher, "__call__", record)
    return found


@pytest.fixture
def server(
    recorded: Recorded, data_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Running]:
    # pytest keeps every line that is logged, and each refusal is one.
    caplog.set_level(logging.ERROR, "penstock")
    with running(data_path, {"request_size_max": 1 << 20}) as one:
        yield one


def produce_and_consume(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["fuzz"])
    producer.begin_transaction()
    producer.produce("fuzz", b"value", key=b"key", headers={"h": b"v"})
    producer.commit_transaction(WAIT_S)
    found = consumer.poll(WAIT_S)
    while found is not None and (error := found.error()) is not None:
        # The consumer may have asked for the topic before the producer made it.
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        found = consumer.poll(WAIT_S)
    assert found is not None
    consumer.commit(asynchronous=False)
    consumer.committed([TopicPartition("fuzz", 0)], timeout=WAIT_S)
    consumer.offsets_for_times([TopicPartition("fuzz", 0, 1)], timeout=WAIT_S)
    producer.begin_transaction()
    positions = [TopicPartition("fuzz", 0, 1)]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_S)
    producer.abort_transaction(WAIT_S)
    consumer.close()


def all_of(futures: Mapping[K, Future[V]]) -> None:
    for one in futures.values():
        one.result(WAIT_S)


def administer(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    all_of(admin.create_topics([NewTopic("other", 1, 1)]))
    all_of(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "other")]))
    entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, "other", incremental_configs=[entry])
    all_of(admin.incremental_alter_configs([changed]))
    all_of(admin.create_partitions([NewPartitions("other", 2)]))
    admin.list_consumer_groups().result(WAIT_S)
    all_of(admin.describe_consumer_groups(["g"]))
    all_of(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")]))
    admin.describe_cluster().result(WAIT_S)
    all_of(admin.delete_records([TopicPartition("fuzz", 0, 1)]))
    all_of(admin.delete_consumer_groups(["g"]))
    all_of(admin.delete_topics(["other"]))


def mutate(request: bytes, rng: random.Random) -> bytes:
    """Change a few bytes behind the API's key and version."""
    data = bytearray(request)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(4, len(data)) if len(data) > 4 else 4
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            case 3:
                del data[at : at + rng.randint(1, 9)]
            case _:
                data[at : at + 4] = rng.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4])
    return bytes(data)


def send(port: int, request: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(struct.pack(">i", len(request)) + request)
        client.settimeout(0.02)
        # It may wait, as a fetch or a group does; or end the connection.
        with contextlib.suppress(TimeoutError, ConnectionError):
            client.recv(65536)


class Held(NamedTuple):
    """What this process, and so the server in it, holds on to."""

    memory_mb: float
    files: int
    threads: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        with Path("/proc/self/status").open() as status:
            memory = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
        return cls(memory / 1024, len(os.listdir("/proc/self/fd")), threading.active_count())


def wait_until_gone(server: Running) -> None:
    """The connections of changed requests end; those of real clients may stay."""
    deadline = time.monotonic() + WAIT_S
    while server.server.connection_count > 20:
        assert time.monotonic() < deadline, "connections stayed"
        time.sleep(0.05)


def fuzz(server: Running, recorded: Recorded, per_request: int) -> None:
    produce_and_consume(server.address)
    administer(server.address)
    frames = [(key, list(requests)) for key, requests in recorded.items()]
    rng = random.Random(20261116)

    def send_changed(times: int) -> Held:
        for _, requests in frames:
            for _ in range(times):
                send(server.server.port, mutate(rng.choice(requests), rng))
        wait_until_gone(server)
        return Held.now()

    # What is used for the first time is there for good: threads, layouts, caches, room for the
    # largest request.
    before = send_changed(per_request)
    after = send_changed(per_request)
    assert after.memory_mb - before.memory_mb < GROWTH_MAX_MB
    assert after.files - before.files < FILES_MAX
    assert after.threads <= before.threads + server.node.settings.engine.threads
    with WireClient(server.server.port) as client:
        assert client.ask(18, 3).number("error_code") == 0
    # And real clients still go round.
    producer = Producer({"bootstrap.servers": server.address})
    producer.produce("after", b"value")
    assert producer.flush(WAIT_S) == 0


def test_changed_requests_of_real_clients_harm_nobody(server: Running, recorded: Recorded) -> None:
    fuzz(server, recorded, per_request=6)
    keys = {key for key, _ in recorded}
    assert keys >= {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22}
    assert keys >= {24, 25, 26, 28, 32, 37, 42, 44}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_changes_of_each_request_harm_nobody(
    server: Running, recorded: Recorded
) -> None:
    fuzz(server, recorded, per_request=1_000)
