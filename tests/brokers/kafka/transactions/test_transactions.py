"""Transactions through librdkafka: all or nothing, also over restarts of the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from tests.brokers.kafka.running import Running, WireClient, running
from tests.kafka_clients import Consumer, Producer

WAIT_S = 90.0


@pytest.fixture
def server(data_path: Path) -> Iterator[Running]:
    with running(data_path, {"transaction_check_interval_ms": 50}) as started:
        yield started


def transactional(address: str, name: str = "t", timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0


def in_transaction(producer: Producer, topic: str, *values: bytes, commit: bool = True) -> None:
    producer.begin_transaction()
    write(producer, topic, *values)
    if commit:
        producer.commit_transaction(WAIT_S)
    else:
        producer.abort_transaction(WAIT_S)


def read(address: str, topic: str, count: int, *, committed: bool = True) -> list[bytes | None]:
    """Return what a reader sees: `count` values, or what came while it waited a little longer."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "readers",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + WAIT_S
    ends = 0
    try:
        while time.monotonic() < deadline and (len(values) < count or not ends):
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value())
                ends = 0
            elif error.code() == KafkaError._PARTITION_EOF:
                ends += 1
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return values


def test_only_committed_records_are_seen(server: Running) -> None:
    producer = transactional(server.address)
    in_transaction(producer, "orders", b"a1", b"a2")
    in_transaction(producer, "orders", b"b1", b"b2", commit=False)
    in_transaction(producer, "orders", b"c1")
    assert read(server.address, "orders", 3) == [b"a1", b"a2", b"c1"]
    everything = read(server.address, "orders", 5, committed=False)
    assert everything == [b"a1", b"a2", b"b1", b"b2", b"c1"]


def test_an_open_transaction_holds_readers_of_committed_records_back(server: Running) -> None:
    producer = transactional(server.address)
    plain = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
    write(plain, "orders", b"before")
    producer.begin_transaction()
    write(producer, "orders", b"inside")
    write(plain, "orders", b"behind")
    assert read(server.address, "orders", 1) == [b"before"]
    assert len(read(server.address, "orders", 3, committed=False)) == 3
    producer.commit_transaction(WAIT_S)
    assert read(server.address, "orders", 3) == [b"before", b"inside", b"behind"]


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(server: Running) -> None:
    old = transactional(server.address)
    old.begin_transaction()
    write(old, "orders", b"old")
    new = transactional(server.address)
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(WAIT_S)
    assert raised.value.args[0].code() in {KafkaError._FENCED, KafkaError.PRODUCER_FENCED}
    in_transaction(new, "orders", b"new")
    assert read(server.address, "orders", 1) == [b"new"]


def test_a_transaction_that_takes_too_long_is_aborted(server: Running) -> None:
    slow = transactional(server.address, timeout_ms=1_000)
    plain = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
    slow.begin_transaction()
    write(slow, "orders", b"slow")
    write(plain, "orders", b"plain")
    assert read(server.address, "orders", 1) == [b"plain"]
    with pytest.raises(KafkaException):
        slow.commit_transaction(WAIT_S)


def test_offsets_are_committed_with_the_transaction(server: Running) -> None:
    plain = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
    write(plain, "in", b"1", b"2", b"3")
    producer = transactional(server.address)
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["in"])
    try:
        first = consumer.poll(WAIT_S)
        assert first is not None
        for outcome, expected in (("abort", -1001), ("commit", 1)):
            producer.begin_transaction()
            write(producer, "out", outcome.encode())
            producer.send_offsets_to_transaction(
                [TopicPartition("in", 0, 1)], consumer.consumer_group_metadata(), WAIT_S
            )
            if outcome == "abort":
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
            deadline = time.monotonic() + WAIT_S
            while True:
                (found,) = consumer.committed([TopicPartition("in", 0)], WAIT_S)
                if found.offset == expected or time.monotonic() > deadline:
                    break
            assert found.offset == expected
    finally:
        consumer.close()
    assert read(server.address, "out", 1) == [b"commit"]


def test_what_was_aborted_stays_so_after_a_restart(data_path: Path) -> None:
    path = data_path
    with running(path) as first:
        producer = transactional(first.address)
        for number in range(6):
            in_transaction(producer, "orders", b"%d" % number, commit=number % 2 == 0)
        del producer
    with running(path) as second:
        assert read(second.address, "orders", 3) == [b"0", b"2", b"4"]


def test_an_open_transaction_is_still_open_after_a_restart_and_times_out(data_path: Path) -> None:
    path = data_path
    with running(path, {"transaction_check_interval_ms": 60_000}) as first:
        producer = transactional(first.address, timeout_ms=2_000)
        producer.begin_transaction()
        write(producer, "orders", b"left")
        del producer
    with running(path, {"transaction_check_interval_ms": 50}) as second:
        plain = Producer({"bootstrap.servers": second.address, "linger.ms": 0})
        write(plain, "orders", b"plain")
        assert read(second.address, "orders", 1) == [b"plain"]


def test_topics_made_otherwise_take_transactions_when_they_have_batch_queues(
    data_path: Path,
) -> None:
    with running(data_path, store={"topics.queue": "batch"}) as server:
        server.node.admin.create_topic_full("made", 1)
        producer = transactional(server.address)
        in_transaction(producer, "made", b"a", b"b")
        in_transaction(producer, "made", b"gone", commit=False)
        assert read(server.address, "made", 2) == [b"a", b"b"]


def test_a_transaction_takes_all_of_its_partitions_or_none(server: Running) -> None:
    server.node.admin.create_topic_full("simple", 1)
    server.node.admin.create_topic_full("memory", 1, {"storage": "memory"})
    with WireClient(server.server.port) as client:
        begun = client.ask(22, 4, transactional_id="t", transaction_timeout=1_000)
        assert begun["error_code"] == 0

        def enlist(*names: str) -> list[object]:
            response = client.ask(
                24,
                3,
                v3_and_below_transactional_id="t",
                v3_and_below_producer_id=begun["producer_id"],
                v3_and_below_producer_epoch=begun["producer_epoch"],
                v3_and_below_topics=[{"name": name, "partitions": [0]} for name in names],
            )
            return [
                one.items_of("results_by_partition")[0]["partition_error_code"]
                for one in response.items_of("results_by_topic_v3_and_below")
            ]

        assert enlist("simple", "nothing", "memory") == [55, 3, 55]
        assert enlist("simple", "memory") == [0, 0]
