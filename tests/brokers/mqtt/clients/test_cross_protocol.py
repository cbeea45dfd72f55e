"""One topic, written and read over MQTT, over Kafka's protocol and in Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.clients.paho_client import paho_client
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import PATIENCE_S, node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory
from tests.kafka_clients import Consumer, Producer

import penstock
from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Ack,
    Connect,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.remote.server.node_server import Server

pytest.importorskip("kio")

RULES = [
    {"filter": "orders", "topic": "orders", "partitions": 2},
    {"filter": "plant/+/telemetry/#", "topic": "plant.{1}", "partitions": 2},
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = node_settings(kafka=True, map=RULES)
    with quick_directory() as directory, serve(Path(directory) / "data", settings) as running:
        yield running


def kafka_address(server: Server) -> str:
    assert server.kafka is not None
    return f"127.0.0.1:{server.kafka.port}"


def consume(
    server: Server, topic: str, count: int
) -> list[tuple[bytes | None, bytes | None, dict[str, object]]]:
    """Return key, value and headers of the records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka_address(server),
            "group.id": f"read-{topic}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[tuple[bytes | None, bytes | None, dict[str, object]]] = []
    try:
        while len(found) < count:
            record = consumer.poll(PATIENCE_S)
            assert record is not None, f"{len(found)} records"
            assert record.error() is None, record.error()
            found.append((record.key(), record.value(), dict(record.headers() or ())))
    finally:
        consumer.close()
    return found


def test_a_kafka_consumer_reads_what_was_published(server: Server) -> None:
    properties = Properties(
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\1\2",
        user_properties=[("trace", "t-1")],
    )
    with RawClient(port_of(server)) as client:
        client.connect(Connect(MQTT_5, "to-kafka"))
        client.send(
            Publish("plant/berlin/telemetry/a", b"20", 1, True, packet_id=1, properties=properties)
        )
        assert client.receive(Ack).reason_code == 0
    [(key, value, headers)] = consume(server, "plant.berlin", 1)
    assert (key, value) == (b"plant/berlin/telemetry/a", b"20")
    expected = {
        "mqtt.qos": b"1",
        "mqtt.retain": b"1",
        "content-type": b"text/plain",
        "mqtt.response-topic": b"answers",
        "mqtt.correlation-data": b"\1\2",
        "trace": b"t-1",
    }
    assert headers.items() >= expected.items()


def test_a_subscriber_receives_what_kafka_and_python_write(server: Server) -> None:
    with RawClient(port_of(server)) as subscriber, RawClient(port_of(server)) as publisher:
        publisher.connect(Connect(MQTT_5, "makes-topic"))
        publisher.send(Publish("plant/paris/telemetry/first", b"0", 1, packet_id=1))
        publisher.receive(Ack)
        subscriber.connect(Connect(MQTT_5, "from-others"))
        subscriber.send(Subscribe(1, [SubscriptionRequest("plant/paris/#", 2)]))
        subscriber.receive(Suback)
        producer = Producer({"bootstrap.servers": kafka_address(server)})
        producer.produce(
            "plant.paris", b"from kafka", key=b"plant/paris/telemetry/k", headers={"h": b"1"}
        )
        assert producer.flush(PATIENCE_S) == 0
        message = subscriber.receive(Publish)
        assert (message.topic, message.payload) == ("plant/paris/telemetry/k", b"from kafka")
        assert message.qos == 1
        assert message.properties is not None
        assert message.properties.user_properties == [("h", "1")]
        with penstock.connect(f"{server.host}:{server.port}") as store:
            store.topic("plant.paris").write(b"from python", key=b"no topic of the rule/#")
        message = subscriber.receive(Publish)
        assert (message.topic, message.payload) == ("plant/paris", b"from python")


def test_an_existing_kafka_topic_is_published_to(server: Server) -> None:
    producer = Producer({"bootstrap.servers": kafka_address(server)})
    producer.produce("orders", b"1", key=b"orders")
    assert producer.flush(PATIENCE_S) == 0
    with paho_client(port_of(server), "orders-both") as client:
        client.subscribe("orders", 1)
        client.publish("orders", b"2", 2)
        assert client.payloads(1) == [b"2"]
        producer.produce("orders", b"3", key=b"orders")
        assert producer.flush(PATIENCE_S) == 0
        assert client.payloads(1) == [b"3"]
    assert [value for _, value, _ in consume(server, "orders", 3)] == [b"1", b"2", b"3"]


def test_a_kafka_producer_and_a_publisher_use_the_same_partition(server: Server) -> None:
    names = [f"plant/rome/telemetry/{number}" for number in range(20)]
    with paho_client(port_of(server), "partitions") as client:
        for name in names:
            client.publish(name, b"mqtt", 1)
    partitions: dict[str, int] = {}

    def delivered(error: object, record: object) -> None:
        assert error is None
        partitions[record.key().decode()] = record.partition()  # type: ignore[attr-defined] # untyped library

    producer = Producer(
        {"bootstrap.servers": kafka_address(server), "partitioner": "murmur2_random"}
    )
    for name in names:
        producer.produce("plant.rome", b"kafka", key=name.encode(), on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    with penstock.connect(f"{server.host}:{server.port}") as store:
        topic = store.topic("plant.rome")
        for partition in range(2):
            for message in topic.read(partition=partition, offset=0, max_records=100):
                assert message.key is not None
                assert partitions[message.key.decode()] == partition
