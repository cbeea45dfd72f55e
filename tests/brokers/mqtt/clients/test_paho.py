"""Paho's client, with MQTT 3.1, 3.1.1 and 5."""

from __future__ import annotations

import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from tests.brokers.mqtt.clients.paho_client import VERSIONS, paho_client
from tests.brokers.mqtt.serving import PATIENCE_S, port_of, serve

from penstock.remote.server.node_server import Server


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_subscriber_receives_what_is_published(server: Server, version: str, qos: int) -> None:
    topic = f"paho/{version}/{qos}"
    with (
        paho_client(port_of(server), f"s{version}{qos}", version) as subscriber,
        paho_client(port_of(server), f"p{version}{qos}", version) as publisher,
    ):
        assert subscriber.subscribe(f"paho/{version}/{qos}", qos) == qos
        for number in range(20):
            publisher.publish(topic, b"%d" % number, qos)
        assert subscriber.payloads(20) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_subscriber_receives_the_retained_message(server: Server, version: str) -> None:
    topic = f"paho/retained/{version}"
    with paho_client(port_of(server), f"rp{version}", version) as publisher:
        publisher.publish(topic, b"old", 1, retain=True)
        publisher.publish(topic, b"new", 1, retain=True)
    with paho_client(port_of(server), f"rs{version}", version) as subscriber:
        subscriber.subscribe("paho/retained/+", 1)
        message = subscriber.receive()
        while message.topic != topic:
            message = subscriber.receive()
        assert (message.payload, message.retain) == (b"new", True)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_receives_what_was_published_while_it_was_away(
    server: Server, version: str, qos: int
) -> None:
    name, topic = f"away{version}{qos}", f"paho/away/{version}/{qos}"
    port = port_of(server)
    with paho_client(port, name, version, clean=False, expiry_s=600) as subscriber:
        assert not subscriber.is_session_present
        subscriber.subscribe(topic, qos)
    with paho_client(port, f"{name}-publisher", version) as publisher:
        for number in range(10):
            publisher.publish(topic, b"%d" % number, qos)
    with paho_client(port, name, version, clean=False, expiry_s=600) as subscriber:
        assert subscriber.is_session_present
        assert subscriber.payloads(10) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_sessions_and_retained_messages_survive_a_restart(directory: Path, version: str) -> None:
    with serve(directory) as server:
        port = port_of(server)
        with paho_client(port, "s", version, clean=False, expiry_s=600) as subscriber:
            subscriber.subscribe("a/#", 2)
            with paho_client(port, "p", version) as publisher:
                publisher.publish("a/b", b"before", 2)
                publisher.publish("a/r", b"retained", 1, retain=True)
            assert sorted(subscriber.payloads(2)) == [b"before", b"retained"]
        with paho_client(port, "p", version) as publisher:
            publisher.publish("a/b", b"away", 2)
    with serve(directory) as server:
        port = port_of(server)
        with paho_client(port, "s", version, clean=False, expiry_s=600) as subscriber:
            assert subscriber.is_session_present
            assert subscriber.payloads(1) == [b"away"]
            with paho_client(port, "p", version) as publisher:
                publisher.publish("a/b", b"after", 2)
            assert subscriber.payloads(1) == [b"after"]
        with paho_client(port, "fresh", version) as fresh:
            fresh.subscribe("a/r", 0)
            assert fresh.receive().payload == b"retained"


def test_a_will_is_published_when_the_connection_is_lost(server: Server) -> None:
    with paho_client(port_of(server), "watcher") as watcher:
        watcher.subscribe("wills/+", 1)
        lost = paho.Client(CallbackAPIVersion.VERSION2, client_id="lost")
        lost.will_set("wills/lost", b"gone", 1)
        lost.connect("127.0.0.1", port_of(server))
        lost.loop_start()
        deadline = time.monotonic() + PATIENCE_S
        while not lost.is_connected():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lost.loop_stop()
        connection = lost.socket()
        assert connection is not None
        connection.close()
        message = watcher.receive()
        assert (message.topic, message.payload) == ("wills/lost", b"gone")
