"""A node with a bridge to Mosquitto, which is stopped and started again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.brokers.mqtt.mosquitto import BINARY, Mosquitto
from tests.brokers.mqtt.serving import node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory

from penstock.brokers.mqtt.client import BlockingMqttClient, ClientOptions
from penstock.brokers.mqtt.wire.packets import Publish
from penstock.remote.server.node_server import Server
from penstock.settings import Settings

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(BINARY is None, reason="mosquitto is not installed"),
]
WAIT_S = 60.0
BATCH = 40
STARTS = 4


def bridged_to(remote: Mosquitto) -> Settings:
    connection = {"name": "old", "address": f"127.0.0.1:{remote.port}"}
    topics = [
        {"connection": "old", "filter": "out/#", "direction": "out", "qos": 2},
        {"connection": "old", "filter": "in/#", "direction": "in", "qos": 2},
        {"connection": "old", "filter": "both/#", "direction": "both", "qos": 2},
    ]
    return node_settings(
        mqtt_bridge__connections=[connection],
        mqtt_bridge__topics=topics,
        mqtt_bridge__retry_min_ms=20,
        mqtt_bridge__retry_max_ms=200,
    )


def session(port: int, client_id: str) -> BlockingMqttClient:
    options = ClientOptions(
        port=port, client_id=client_id, clean_start=False, session_expiry_s=3600
    )
    return BlockingMqttClient(options)


def until_subscribed(server: Server) -> None:
    """Wait until the bridge has its session at the node."""
    assert server.mqtt is not None
    sessions = server.mqtt.broker.sessions
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        session = sessions.find("$bridge-old")
        if session is not None and session.subscriptions:
            return
        time.sleep(0.01)
    raise AssertionError("the bridge did not subscribe")


def test_each_message_reaches_the_other_broker_once_over_restarts(tmp_path: Path) -> None:
    received: list[Publish] = []
    with quick_directory() as directory, Mosquitto(tmp_path) as remote:
        settings = bridged_to(remote)
        with session(remote.port, "there") as there:
            there.subscribe("out/#", qos=2)
            for start in range(STARTS):
                with (
                    serve(Path(directory) / "data", settings) as server,
                    session(port_of(server), "here") as here,
                ):
                    until_subscribed(server)
                    for number in range(start * BATCH, (start + 1) * BATCH):
                        here.publish("out/a", b"%d" % number, qos=2)
                    if start == STARTS - 1:
                        received = [there.next_message(WAIT_S) for _ in range(STARTS * BATCH)]
        assert [int(message.payload) for message in received] == list(range(STARTS * BATCH))


def test_messages_of_the_other_broker_arrive_and_do_not_return(tmp_path: Path) -> None:
    with quick_directory() as directory, Mosquitto(tmp_path) as remote:
        settings = bridged_to(remote)
        with (
            serve(Path(directory) / "data", settings) as server,
            session(port_of(server), "here") as here,
            session(remote.port, "there") as there,
        ):
            until_subscribed(server)
            here.subscribe("+/a", qos=2)
            there.subscribe("both/a", qos=2)
            there.publish("in/a", b"kept", qos=1, retain=True)
            assert here.next_message(WAIT_S).payload == b"kept"
            there.publish("both/a", b"from there", qos=2)
            here.publish("both/a", b"from here", qos=2)
            here.publish("both/a", b"end", qos=2)
            for client in (here, there):
                received = [client.next_message(WAIT_S).payload for _ in range(3)]
                assert sorted(received) == [b"end", b"from here", b"from there"]


def test_messages_wait_in_the_log_while_the_other_broker_is_away(tmp_path: Path) -> None:
    with quick_directory() as directory, Mosquitto(tmp_path, is_persistent=True) as remote:
        settings = bridged_to(remote)
        with session(remote.port, "there") as there:
            there.subscribe("out/#", qos=1)
        with serve(Path(directory) / "data", settings) as server:
            remote.stop()
            until_subscribed(server)
            with session(port_of(server), "here") as here:
                for number in range(BATCH):
                    here.publish("out/a", b"%d" % number, qos=1)
            remote.start()
            with session(remote.port, "there") as there:
                received: set[int] = set()
                while len(received) < BATCH:
                    received.add(int(there.next_message(WAIT_S).payload))
