"""Groups of real consumers: librdkafka's, aiokafka's and kafka-python's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaException, TopicPartition
from kafka import KafkaConsumer
from tests.brokers.kafka.running import Running, running
from tests.free_ports import free_ports
from tests.kafka_clients import AdminClient, Consumer, Producer

WAIT_S = 90.0
PARTITIONS = 4


@pytest.fixture
def server(data_path: Path) -> Iterator[Running]:
    with running(data_path) as started:
        started.node.admin.create_topic_full("orders", PARTITIONS, {"queue": "batch"})
        yield started


def fill(address: str, count: int, start: int = 0) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for number in range(start, start + count):
        producer.produce("orders", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0


class Member:
    """A consumer of librdkafka that polls in a thread of its own."""

    def __init__(self, address: str, **options: str | int | bool) -> None:
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 100,
            "enable.auto.commit": False,
        }
        self.values: list[bytes | None] = []
        self.rebalances = 0
        self.partitions: set[int] = set()
        """As its own thread saw them last."""
        renamed = {name.replace("_", "."): value for name, value in options.items()}
        self._consumer = Consumer({**settings, **renamed})
        self._consumer.subscribe(["orders"], on_assign=self._assigned)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, _consumer: object, _partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            self.partitions = {one.partition for one in self._consumer.assignment()}
            if message is not None and message.error() is None:
                self.values.append(message.value())
                # Refused while the group rebalances; then whoever gets the partition reads again.
                with suppress(KafkaException):
                    self._consumer.commit(message=message, asynchronous=False)
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions_and_take_over_from_who_leaves(
    server: Running, strategy: str
) -> None:
    fill(server.address, 40)
    first = Member(server.address, partition_assignment_strategy=strategy)
    try:
        wait_until(lambda: len(first.partitions) == PARTITIONS, "one member reads everything")
        second = Member(server.address, partition_assignment_strategy=strategy)
        try:
            wait_until(
                lambda: len(first.partitions) == 2 and len(second.partitions) == 2, "two share"
            )
            assert not first.partitions & second.partitions
        finally:
            second.stop()
        wait_until(lambda: len(first.partitions) == PARTITIONS, "the first takes over again")
        fill(server.address, 40, start=40)
        wait_until(
            lambda: set(first.values + second.values) == {b"%d" % n for n in range(80)},
            "everything was read",
        )
    finally:
        first.stop()


def test_a_static_member_that_restarts_gets_its_partitions_without_a_rebalance(
    server: Running,
) -> None:
    stays = Member(server.address, group_instance_id="a")
    goes = Member(server.address, group_instance_id="b")
    try:
        wait_until(lambda: len(stays.partitions) == len(goes.partitions) == 2, "two share")
        before, had = stays.rebalances, goes.partitions
    finally:
        goes.stop()  # a static member does not leave when it stops
    returned = Member(server.address, group_instance_id="b")
    try:
        wait_until(lambda: returned.partitions == had, "the partitions come back")
        assert stays.rebalances == before
    finally:
        returned.stop()
        stays.stop()


def test_a_group_goes_on_where_it_was_after_a_restart_of_the_server(data_path: Path) -> None:
    path = data_path
    [port] = free_ports(1)
    with running(path, {"port": port}) as server:
        server.node.admin.create_topic_full("orders", PARTITIONS, {"queue": "batch"})
        fill(server.address, 20)
        member = Member(server.address)
        try:
            wait_until(lambda: len(member.values) == 20, "the first half is read")
        except AssertionError:
            member.stop()
            raise
    with running(path, {"port": port}) as server:
        try:
            fill(server.address, 20, start=20)
            wait_until(lambda: len(member.values) >= 40, "the second half is read")
        finally:
            member.stop()
    assert {int(value or b"") for value in member.values} == set(range(40))
    assert len(member.values) < 50  # it went on where it was, give or take a commit cut short


def test_groups_of_other_clients_work_and_can_be_looked_at(server: Running) -> None:
    fill(server.address, 20)

    async def read_with_aiokafka() -> int:
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=server.address,
            group_id="async",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            found = 0
            while found < 20:
                found += sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))
            await consumer.commit()
            return found
        finally:
            await consumer.stop()

    assert asyncio.run(asyncio.wait_for(read_with_aiokafka(), WAIT_S)) == 20
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=server.address,
        group_id="python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=10_000,
    )
    try:
        values = [next(consumer).value for _ in range(20)]
        consumer.commit()
    finally:
        consumer.close()
    assert {int(value) for value in values} == set(range(20))
    admin = AdminClient({"bootstrap.servers": server.address})
    listed = admin.list_consumer_groups().result(WAIT_S)
    assert {one.group_id for one in listed.valid} == {"async", "python"}
    (described,) = admin.describe_consumer_groups(["python"]).values()
    assert described.result(WAIT_S).group_id == "python"
    (deleted,) = admin.delete_consumer_groups(["python"]).values()
    deleted.result(WAIT_S)
    listed = admin.list_consumer_groups().result(WAIT_S)
    assert {one.group_id for one in listed.valid} == {"async"}
