"""Real Kafka clients against a server of ours: what goes in comes out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from tests.brokers.kafka.running import Running, running
from tests.brokers.kafka.waiting import wait_until_ended
from tests.free_ports import free_ports
from tests.kafka_clients import AdminClient, Consumer, Producer

from penstock.adapter.requests import DeleteBefore, DeleteByKey, OffsetsAt, ReadByKey, ReadByTag
from penstock.record import Offset, Record

WAIT_S = 90.0


def produce(
    address: str,
    topic: str,
    values: Sequence[tuple[bytes | None, bytes | None]],
    options: Mapping[str, str | int | bool] | None = None,
    *,
    headers: Sequence[tuple[str, bytes | None]] | None = None,
) -> list[int]:
    """Return the offsets of (key, value) pairs, sent by librdkafka."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, **(options or {})})
    offsets: list[int] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)

    for key, value in values:
        producer.produce(
            topic, key=key, value=value, headers=list(headers or ()), on_delivery=delivered
        )
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    return offsets


def consume(address: str, topic: str, count: int, offset: int = 0) -> list[Message]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                if message.error() is not None:
                    raise KafkaException(message.error())
                found.append(message)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_goes_round(server: Running, codec: str) -> None:
    topic = f"codec-{codec}"
    sent = [(b"k%d" % n, b"value %d " % n * 20) for n in range(300)]
    offsets = produce(server.address, topic, sent, {"compression.type": codec})
    assert sorted(offsets) == list(range(300))
    found = consume(server.address, topic, 300)
    assert [(one.key(), one.value()) for one in found] == sent
    assert [one.offset() for one in found] == list(range(300))


def test_headers_and_null_keys_and_values_stay_what_they_are(server: Running) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", b"2"), ("empty", b"")]
    sent: list[tuple[bytes | None, bytes | None]] = [
        (None, b"v"),
        (b"", b""),
        (b"gone", None),
        (None, None),
    ]
    produce(server.address, "nulls", sent, headers=headers)
    found = consume(server.address, "nulls", 4)
    # librdkafka's binding hands an empty key out as None or b"": the bytes decide.
    assert [one.value() for one in found] == [b"v", b"", None, None]
    assert [one.key() or None for one in found] == [None, None, b"gone", None]
    assert [one.headers() for one in found] == [headers] * 4


def test_a_message_of_three_megabytes(server: Running) -> None:
    value = bytes(range(256)) * 12_000
    produce(server.address, "big", [(b"k", value)], {"message.max.bytes": 4_000_000})
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "big",
            "fetch.message.max.bytes": 1_000,
        }
    )
    consumer.assign([TopicPartition("big", 0, 0)])
    message = consumer.poll(WAIT_S)
    consumer.close()
    assert message is not None
    assert message.value() == value


def test_a_message_that_is_too_large_is_refused_and_the_rest_goes_on(server: Running) -> None:
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": server.address, "message.max.bytes": 20_000_000, "linger.ms": 0}
    )
    producer.produce(
        "too-large", b"x" * 5_000_000, on_delivery=lambda error, _: failed.append(error)
    )
    assert producer.flush(WAIT_S) == 0
    assert "MSG_SIZE_TOO_LARGE" in str(failed[0])
    assert produce(server.address, "too-large", [(None, b"fits")]) == [0]


def test_a_consumer_seeks_by_time(server: Running) -> None:
    producer = Producer({"bootstrap.servers": server.address})
    for n in range(10):
        producer.produce("times", b"%d" % n, timestamp=1_000_000 + n * 1_000)
        producer.flush(WAIT_S)
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "times"})
    requested = {1_000_000: 0, 1_004_500: 5, 1_009_000: 9}
    for time_ms, offset in requested.items():
        found = consumer.offsets_for_times([TopicPartition("times", 0, time_ms)], timeout=WAIT_S)
        assert found[0].offset == offset
    # Behind the last one: librdkafka says "the end".
    late = consumer.offsets_for_times([TopicPartition("times", 0, 2_000_000)], timeout=WAIT_S)
    assert late[0].offset == -1
    assert consumer.get_watermark_offsets(TopicPartition("times", 0), timeout=WAIT_S) == (0, 10)
    consumer.close()


def test_a_waiting_consumer_is_woken_by_a_write(server: Running) -> None:
    produce(server.address, "waiting", [(None, b"first")])
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "w",
            "fetch.wait.max.ms": 100_000,
            "socket.timeout.ms": 120_000,
        }
    )
    consumer.assign([TopicPartition("waiting", 0, 1)])
    assert consumer.poll(0.5) is None
    # From another thread and by another door: the Python API.
    server.node.driver_manager.write("waiting", Record(b"second", key=b"k", headers=(("h", b"1"),)))
    message = consumer.poll(WAIT_S)
    consumer.close()
    assert message is not None
    assert (message.value(), message.key(), message.headers()) == (b"second", b"k", [("h", b"1")])


def test_idempotent_producers_get_numbers_of_their_own(server: Running) -> None:
    for n in range(3):
        offsets = produce(
            server.address,
            "idempotent",
            [(None, b"%d" % one) for one in range(100)],
            {"enable.idempotence": True},
        )
        assert offsets == list(range(n * 100, n * 100 + 100))


@pytest.mark.parametrize("storage", ["segment", "memory", "rocksdb"])
def test_a_topic_may_have_a_header_of_its_own_for_tags(server: Running, storage: str) -> None:
    topic = f"own-header-{storage}"
    admin = AdminClient({"bootstrap.servers": server.address})
    config = {"penstock.tag.header": "region", "penstock.storage": storage}
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(WAIT_S)
    produce(server.address, topic, [(b"a", b"1")], headers=[("tag", b"x"), ("region", b"eu")])
    produce(server.address, topic, [(b"b", b"2")], headers=[("tag", b"eu")])
    topics = server.node.driver_manager
    assert [one.record.value for one in topics.execute(ReadByTag(topic, "eu"))] == [b"1"]
    assert topics.execute(ReadByTag(topic, "x")) == []
    topics.write(topic, Record(b"3", tags=("us",)))
    assert [one.headers() for one in consume(server.address, topic, 3)] == [
        [("tag", b"x"), ("region", b"eu")],
        [("tag", b"eu")],
        [("region", b"us")],
    ]
    server.node.admin.alter_topic(topic, options={"tag_header": None})
    produce(server.address, topic, [(b"c", b"4")], headers=[("tag", b"now"), ("region", b"eu")])
    assert [one.record.value for one in topics.execute(ReadByTag(topic, "now"))] == [b"4"]
    assert [one.record.value for one in topics.execute(ReadByTag(topic, "eu"))] == [b"1"]


def test_records_are_found_by_key_tag_and_time_from_python(server: Running) -> None:
    produce(server.address, "seen", [(b"a", b"1"), (b"b", b"2")], headers=[("tag", b"eu")])
    produce(server.address, "seen", [(b"a", b"3")], headers=[("tag", b"us")])
    topics = server.node.driver_manager
    newest = topics.execute(ReadByKey("seen", b"a"))
    assert newest is not None
    assert (newest.record.value, newest.record.offset) == (b"3", 2)
    assert [one.record.value for one in topics.execute(ReadByTag("seen", "eu"))] == [b"1", b"2"]
    stamp = newest.record.timestamp_ms
    assert topics.execute(OffsetsAt("seen", stamp))[0] <= 2


@pytest.mark.parametrize("options", [{"storage": "memory"}, {"storage": "rocksdb"}, {}])
def test_any_engine_serves_kafka(server: Running, options: dict[str, str]) -> None:
    topic = f"engine-{options.get('storage', 'simple')}"
    server.node.admin.create_topic_full(topic, 1, options)
    server.node.driver_manager.write(topic, Record(b"from python", key=b"p", tags=("t",)))
    sent = [(b"k%d" % n, b"v%d" % n) for n in range(50)]
    offsets = produce(server.address, topic, sent, {"enable.idempotence": True})
    assert offsets == list(range(1, 51))
    found = consume(server.address, topic, 51)
    assert [one.offset() for one in found] == list(range(51))
    assert (found[0].value(), found[0].headers()) == (b"from python", [("tag", b"t")])
    assert [(one.key(), one.value()) for one in found[1:]] == sent
    assert [one.offset() for one in consume(server.address, topic, 5, 46)] == list(range(46, 51))


def test_deleted_records_are_holes_for_consumers(server: Running) -> None:
    produce(server.address, "holes", [(b"k%d" % n, b"v") for n in range(10)])
    server.node.driver_manager.execute(DeleteByKey("holes", b"k3"))
    server.node.driver_manager.execute(DeleteBefore("holes", 0, Offset(2)))
    found = consume(server.address, "holes", 7, 2)
    assert [one.offset() for one in found] == [2, 4, 5, 6, 7, 8, 9]


def test_aiokafka_goes_round(server: Running) -> None:
    async def go() -> list[tuple[int, bytes | None]]:
        producer = AIOKafkaProducer(
            bootstrap_servers=server.address, enable_idempotence=True, compression_type="gzip"
        )
        await producer.start()
        for n in range(50):
            await producer.send_and_wait("aio", b"%d" % n, key=b"k")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            "aio", bootstrap_servers=server.address, auto_offset_reset="earliest"
        )
        await consumer.start()
        found = [await consumer.getone() for _ in range(50)]
        await consumer.stop()
        return [(one.offset, one.value) for one in found]

    found = asyncio.run(asyncio.wait_for(go(), WAIT_S))
    assert found == [(n, b"%d" % n) for n in range(50)]


@pytest.mark.parametrize("queue", ["batch", "simple"])
def test_aiokafka_moves_records_and_offsets_in_transactions(server: Running, queue: str) -> None:
    given, out, group = f"aio-in-{queue}", f"aio-out-{queue}", f"aio-movers-{queue}"

    async def go() -> tuple[list[bytes | None], int | None]:
        producer = AIOKafkaProducer(bootstrap_servers=server.address, transactional_id=group)
        await producer.start()
        position = {AioPartition(given, 0): 7}
        async with producer.transaction():
            await producer.send(out, b"kept", partition=0)
            await producer.send_offsets_to_transaction(position, group)
        with contextlib.suppress(KeyError):
            async with producer.transaction():
                await producer.send_and_wait(out, b"dropped", partition=0)
                raise KeyError("what the program stumbles over aborts the transaction")
        async with producer.transaction():
            await producer.send(out, b"kept, too", partition=0)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=server.address,
            group_id=group,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        consumer.assign([AioPartition(out, 0)])
        found = [(await consumer.getone()).value for _ in range(2)]
        committed = await consumer.committed(AioPartition(given, 0))
        await consumer.stop()
        return found, committed

    for topic in (given, out):
        server.node.admin.create_topic_full(topic, 1, {"queue": queue})
    found, committed = asyncio.run(asyncio.wait_for(go(), WAIT_S))
    assert (found, committed) == ([b"kept", b"kept, too"], 7)


def test_kafka_python_goes_round(server: Running) -> None:
    producer = KafkaProducer(bootstrap_servers=server.address, compression_type="lz4")
    for n in range(50):
        producer.send("kpy", b"%d" % n, headers=[("h", b"1")])
    producer.flush(WAIT_S)
    producer.close()
    consumer = KafkaConsumer(
        "kpy",
        bootstrap_servers=server.address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    found = [next(consumer) for _ in range(50)]
    consumer.close()
    assert [(one.offset, one.value) for one in found] == [(n, b"%d" % n) for n in range(50)]


@pytest.mark.parametrize("storage", ["segment", "rocksdb"])
def test_kafka_python_writes_in_transactions_and_comes_to_the_end(
    server: Running, storage: str
) -> None:
    topic = f"kpy-{storage}"
    server.node.admin.create_topic_full(topic, 1, {"storage": storage})
    producer = KafkaProducer(bootstrap_servers=server.address, transactional_id=topic)
    producer.init_transactions()
    for value, is_commit in ((b"kept", True), (b"dropped", False)):
        producer.begin_transaction()
        producer.send(topic, value, partition=0).get(WAIT_S)
        if is_commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    wait_until_ended(server.node, topic)
    consumer = KafkaConsumer(bootstrap_servers=server.address, isolation_level="read_committed")
    place = PythonPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while consumer.position(place) < 2:
        assert time.monotonic() < deadline
        for records in consumer.poll(200).values():
            found += [one.value for one in records]
    consumer.close()
    assert found == [b"kept"]


def test_an_idempotent_producer_survives_restarts_with_every_message_once(tmp_path: Path) -> None:
    path = tmp_path / "restarts"
    [port] = free_ports(1)
    with running(path, {"port": port}) as first:
        producer = Producer(
            {
                "bootstrap.servers": first.address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                producer.produce("restarts", b"%d" % sent)
                sent += 1
                producer.poll(0)
            producer.poll(0.05)

        send(2_000)
        producer.flush(WAIT_S)
        send(2_000)
    for _ in range(2):
        send(1_000)
        with running(path, {"port": port}):
            send(3_000)
            producer.poll(0.3)
            send(1_000)
    with running(path, {"port": port}) as last:
        assert producer.flush(WAIT_S) == 0
        found = consume(last.address, "restarts", sent)
        assert [one.value() for one in found] == [b"%d" % n for n in range(sent)]
