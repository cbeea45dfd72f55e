"""Kafka clients and consumers of the Python API in one group, and groups over a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from kafka import KafkaConsumer
from tests.brokers.kafka.running import Running, running
from tests.free_ports import free_ports
from tests.kafka_clients import AdminClient, Consumer

import penstock
from penstock.api import EmbeddedBackend, Store
from penstock.errors import GroupNotEmptyError, UnknownGroupError
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

WAIT_S = 60.0
PARTITIONS = 4


@pytest.fixture
def server(data_path: Path) -> Iterator[Running]:
    with running(data_path) as started:
        started.node.admin.create_topic_full("orders", PARTITIONS, {"queue": "batch"})
        yield started


def store_of(server: Running) -> Store:
    """The Python API of the server's own node; not closed, for the node is closed by others."""
    return Store(EmbeddedBackend(server.node))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def rdkafka(address: str, **options: str | int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 100,
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            **{name.replace("_", "."): value for name, value in options.items()},
        }
    )
    consumer.subscribe(["orders"])
    return consumer


class Polled:
    """Any member, polled in a thread of its own."""

    def __init__(self, poll: Callable[[], list[int]]) -> None:
        self.values: list[int] = []
        self._poll = poll
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.values += self._poll()

    def __enter__(self) -> Polled:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)


def poll_rdkafka(consumer: Consumer) -> list[int]:
    message = consumer.poll(0.05)
    if message is None or message.error() is not None:
        return []
    return [int(message.value() or b"")]


def write(store: Store, count: int, start: int = 0) -> None:
    orders = store["orders"]
    for number in range(start, start + count):
        orders.write(b"%d" % number, partition=number % PARTITIONS)


def assigned(store: Store) -> dict[str, int]:
    try:
        info = store.describe_group("g")
    except UnknownGroupError:  # its first member has not joined yet
        return {}
    return {one.client_id: len(one.partitions) for one in info.members}


def test_a_kafka_python_member_and_a_native_one_share_a_group(server: Running) -> None:
    store = store_of(server)
    theirs = KafkaConsumer(
        "orders",
        bootstrap_servers=server.address,
        group_id="g",
        client_id="kafka-python",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        session_timeout_ms=10_000,
        enable_auto_commit=False,
    )

    def poll_theirs() -> list[int]:
        found = theirs.poll(timeout_ms=50)
        return [int(one.value) for page in found.values() for one in page]

    with store.consumer("g", ["orders"]) as ours:

        def poll_ours() -> list[int]:
            return [int(message.value or b"") for message in ours.poll(0.05)]

        with Polled(poll_theirs) as a, Polled(poll_ours) as b:
            until(lambda: assigned(store) == {"kafka-python": 2, "penstock": 2})
            assert store.describe_group("g").protocol == "range"
            write(store, 200)
            until(lambda: len(a.values) + len(b.values) >= 200)
            assert sorted(a.values + b.values) == list(range(200))
            assert len(a.values) == len(b.values) == 100
        ours.commit()
        theirs.commit()
        assert store.describe_group("g").total_lag == 0
    theirs.close()


def test_a_cooperative_kafka_member_and_a_native_one_share_a_group(server: Running) -> None:
    store = store_of(server)
    write(store, 100)
    with store.consumer("g", ["orders"]) as ours:
        first = [int(message.value or b"") for message in ours]
        assert len(first) == 100
        ours.commit()
        theirs = rdkafka(
            server.address, partition_assignment_strategy="cooperative-sticky", client_id="theirs"
        )

        def poll_ours() -> list[int]:
            return [int(message.value or b"") for message in ours.poll(0.05)]

        with Polled(lambda: poll_rdkafka(theirs)) as a, Polled(poll_ours) as b:
            until(lambda: assigned(store) == {"theirs": 2, "penstock": 2})
            assert store.describe_group("g").protocol == "cooperative-sticky"
            write(store, 100, start=100)
            until(lambda: len(a.values) + len(b.values) >= 100)
            assert sorted(a.values + b.values) == list(range(100, 200))
        theirs.close()


def test_a_live_group_is_protected_from_every_side(server: Running) -> None:
    store = store_of(server)
    write(store, 10)
    admin = AdminClient({"bootstrap.servers": server.address})
    with store.consumer("g", ["orders"]) as ours:
        list(ours)
        ours.commit()
        (deleted,) = admin.delete_consumer_groups(["g"]).values()
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            deleted.result(WAIT_S)
        outside = Consumer({"bootstrap.servers": server.address, "group.id": "g"})
        with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
            outside.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        outside.close()
    theirs = rdkafka(server.address, client_id="theirs")
    with Polled(lambda: poll_rdkafka(theirs)):
        until(lambda: assigned(store) == {"theirs": 4})
        with pytest.raises(GroupNotEmptyError, match="theirs"):
            store.reset_group("g", {("orders", 0): 0})
        with pytest.raises(GroupNotEmptyError, match="theirs"):
            store.delete_group("g")
    theirs.close()
    until(lambda: not assigned(store))
    store.delete_group("g")


def test_members_keep_generation_and_assignment_over_a_restart(data_path: Path) -> None:
    [port] = free_ports(1)
    with running(data_path, {"port": port}) as server:
        server.node.admin.create_topic_full("orders", PARTITIONS, {"queue": "batch"})
        store = store_of(server)
        write(store, 100)
        members = [
            rdkafka(server.address, client_id=f"c{number}", **more)
            for number, more in enumerate(({}, {"group_instance_id": "static"}))
        ]
        read: list[list[int]] = [[], []]

        def poll_all() -> None:
            for number, member in enumerate(members):
                read[number] += poll_rdkafka(member)

        def shared() -> bool:
            poll_all()
            return assigned(store) == {"c0": 2, "c1": 2} and sum(map(len, read)) >= 100

        until(shared)
        before = store.describe_group("g")
        generation = server.node.groups.find("g")
        assert generation is not None
        number_before = generation.generation
    assert sorted(read[0] + read[1]) == list(range(100))
    time.sleep(1.0)
    with running(data_path, {"port": port}) as server:
        store = store_of(server)
        after = store.describe_group("g")
        assert (after.members, after.state) == (before.members, "Stable")
        write(store, 100, start=100)

        def all_read() -> bool:
            poll_all()
            return sum(map(len, read)) >= 200

        until(all_read)
        assert sorted(read[0] + read[1]) == list(range(200))  # none of them twice
        machine = server.node.groups.find("g")
        assert machine is not None
        assert machine.generation == number_before
        for member in members:
            member.commit(asynchronous=False)
        for member in members:
            member.close()
        until(lambda: server.node.groups.find("g") is None or assigned(store).keys() == {"c1"})


def test_a_member_that_is_gone_after_a_restart_is_removed_by_its_session(data_path: Path) -> None:
    with running(data_path) as server:
        server.node.admin.create_topic_full("orders", PARTITIONS, {"queue": "batch"})
        member = rdkafka(server.address, session_timeout_ms=2_000, heartbeat_interval_ms=100)
        store = store_of(server)
        with Polled(lambda: poll_rdkafka(member)):
            until(lambda: bool(store.groups()) and len(store.describe_group("g").members) == 1)
            until(lambda: store.describe_group("g").state == "Stable")
    with running(data_path) as server:  # at another port: the member does not find it
        store = store_of(server)
        assert len(store.describe_group("g").members) == 1
        until(lambda: store.groups() == [])
    with running(data_path) as server:
        assert store_of(server).groups() == []


def test_remote_members_keep_their_partitions_over_a_restart(data_path: Path) -> None:
    def serve(port: int) -> Server:
        ports = {"kafka": {"enabled": False}, "server": {"port": port, "http_port": 0}}
        return Server(str(data_path), merge_settings(EMBEDDED, ports))

    server = serve(0)
    with penstock.connect(f"127.0.0.1:{server.port}") as store:
        store.create_topic("orders", partitions=PARTITIONS)
        write(store, 40)
        lost: list[tuple[str, int]] = []
        with store.consumer("g", ["orders"], on_lost=lost.extend, on_revoked=lost.extend) as a:
            a.poll(max_records=15)
            before = store.describe_group("g")
            server.close()
            server = serve(server.port)
            assert store.describe_group("g").members == before.members
            rest = [message.value for message in a]
            assert len(rest) == 25
            a.commit()
            assert lost == []
    server.close()


def test_embedded_members_do_not_outlive_their_process(data_path: Path) -> None:
    with running(data_path) as server:
        server.node.admin.create_topic_full("orders", PARTITIONS, {"queue": "batch"})
        store = store_of(server)
        write(store, 8)
        forgotten = store.consumer("g", ["orders"])
        assert len(list(forgotten)) == 8
    with running(data_path) as server, store_of(server).consumer("g", ["orders"]) as member:
        assert len(list(member)) == 8
