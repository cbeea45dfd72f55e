"""Metrics that slow clients, limits and lost connections move."""

from __future__ import annotations

import time
from pathlib import Path

from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import PATIENCE_S, node_settings, port_of, serve

from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Connect,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.remote.server.node_server import Server


def total(server: Server, name: str) -> float:
    return sum(
        sample.value
        for family in server.node.registry.collect()
        if family.name == f"penstock_mqtt_{name}"
        for sample in family.samples
    )


def until_moved(server: Server, name: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not total(server, name):
        assert time.monotonic() < deadline, f"{name} does not move"
        time.sleep(0.02)


def connect(client: RawClient, *, receive_maximum: int) -> None:
    kept = Properties(
        session_expiry_interval=60, receive_maximum=receive_maximum, maximum_packet_size=100
    )
    client.connect(Connect(MQTT_5, "slow", clean_start=False, properties=kept))


def test_slow_clients_limits_and_lost_connections_are_counted(tmp_path: Path) -> None:
    settings = node_settings(connections_max=3)
    with serve(tmp_path / "data", settings) as server, RawClient(port_of(server)) as publisher:
        publisher.connect(client_id="publisher")
        with RawClient(port_of(server)) as slow:
            connect(slow, receive_maximum=1)
            slow.send(Subscribe(1, [SubscriptionRequest("a", 1)]))
            slow.receive(Suback)
            for number, payload in enumerate((b"x", bytes(200), b"y"), 1):
                publisher.send(Publish("a", payload, 1, packet_id=number))
                publisher.next()
            assert slow.receive(Publish).payload == b"x"
            until_moved(server, "slow_subscribers")
        with RawClient(port_of(server)) as slow:
            connect(slow, receive_maximum=10)
            until_moved(server, "messages_resent")
            until_moved(server, "messages_dropped")
            with RawClient(port_of(server)) as third, RawClient(port_of(server)) as refused:
                third.connect(client_id="third")
                refused.expect_end()
            until_moved(server, "connections_refused")
