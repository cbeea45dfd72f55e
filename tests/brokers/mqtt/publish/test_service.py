"""Publishes of the node itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import PATIENCE_S, node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory

from penstock.brokers.mqtt.broker import MqttBroker
from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Connect,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.remote.server.node_server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # Appends run in the pool.
    settings = node_settings(broker__flush_disk_type="SYNC_FLUSH")
    with quick_directory() as directory, serve(Path(directory) / "data", settings) as running:
        yield running


def publish(server: Server, message: Publish) -> int:
    assert server.mqtt is not None
    work = server.mqtt.broker.publisher.publish(message)
    code: int = server.mqtt.network.run(work).result(PATIENCE_S)
    return code


def test_a_message_of_the_node_is_stored_delivered_and_retained(server: Server) -> None:
    with RawClient(port_of(server)) as live, RawClient(port_of(server)) as late:
        for client, name in ((live, "live"), (late, "late")):
            client.connect(Connect(MQTT_5, name))
        live.send(Subscribe(1, [SubscriptionRequest("own/#", 0)]))
        live.receive(Suback)
        assert publish(server, Publish("own/a", b"1", 1, retain=True)) == ReasonCode.SUCCESS
        assert live.receive(Publish).payload == b"1"
        late.send(Subscribe(1, [SubscriptionRequest("own/#", 0)]))
        late.receive(Suback)
        message = late.receive(Publish)
        assert (message.payload, message.retain) == (b"1", True)


def test_a_retained_message_is_found_as_soon_as_it_is_delivered(server: Server) -> None:
    """A subscription at any moment gets it, live or retained."""
    assert server.mqtt is not None
    broker: MqttBroker = server.mqtt.broker

    async def work() -> list[bool]:
        seen: list[bool] = []
        appended = broker.delivery.appended

        def look(*arguments: object) -> None:
            appended(*arguments)  # type: ignore[arg-type] # passed on
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: seen.append(broker.retained.index.get("own/b") is not None))

        broker.delivery.appended = look  # type: ignore[method-assign,assignment] # until the test ends
        try:
            await broker.publisher.publish(Publish("own/b", b"1", 1, retain=True))
            await asyncio.sleep(0)
        finally:
            broker.delivery.appended = appended  # type: ignore[method-assign] # as it was
        return seen

    seen = server.mqtt.network.run(work()).result(PATIENCE_S)
    assert seen
    assert all(seen)


def test_a_message_for_connected_subscribers_is_not_stored(server: Server) -> None:
    assert server.mqtt is not None
    broker = server.mqtt.broker
    with RawClient(port_of(server)) as client:
        client.connect(Connect(MQTT_5, "live-only"))
        client.send(Subscribe(1, [SubscriptionRequest("passing", 1)]))
        client.receive(Suback)
        server.mqtt.network.loop.call_soon_threadsafe(
            broker.publisher.publish_live, [Publish("passing", b"1", 1)]
        )
        message = client.receive(Publish)
        assert (message.payload, message.qos) == (b"1", 0)
        assert broker.mapping.resolve("passing").stored_topic == "mqtt"
    with RawClient(port_of(server)) as client:
        client.connect(Connect(MQTT_5, "history"))
        client.send(Subscribe(1, [SubscriptionRequest("$replay/earliest/passing", 1)]))
        client.receive(Suback)
        publish(server, Publish("passing", b"2", 1))
        assert client.receive(Publish).payload == b"2"
