"""Features beyond the standard, at a node that serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.brokers.mqtt.serving import node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory

from penstock.brokers.mqtt.client import BlockingMqttClient, ClientOptions, RefusedError
from penstock.brokers.mqtt.wire.packets import Properties
from penstock.settings import merge_settings

WAIT_S = 60.0


@contextmanager
def connected(port: int, client_id: str, **more: object) -> Iterator[BlockingMqttClient]:
    options = ClientOptions(port=port, client_id=client_id, **more)  # type: ignore[arg-type] # plain keywords
    with BlockingMqttClient(options) as client:
        yield client


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    features = {
        "sparkplug": True,
        "sys_interval_ms": 50,
        "rewrite": [{"filter": "old/#", "pattern": "old/(.*)", "topic": "new/$1"}],
        "auto_subscribe": [{"filter": "inbox/${clientid}", "qos": 1}],
    }
    settings = merge_settings(node_settings(), {"mqtt_features": features})
    with quick_directory() as directory, serve(Path(directory) / "data", settings) as server:
        yield port_of(server)


def test_a_delayed_message_arrives_with_its_properties(port: int) -> None:
    with connected(port, "delayed") as client:
        client.subscribe("later/#", qos=2)
        properties = Properties(content_type="text", user_properties=[("a", "b")])
        client.publish("$delayed/0/later/x", b"late", qos=2, properties=properties)
        message = client.next_message(WAIT_S)
        assert (message.topic, message.payload, message.qos) == ("later/x", b"late", 2)
        assert message.properties is not None
        assert message.properties.content_type == "text"
        assert message.properties.user_properties == [("a", "b")]


def test_delayed_messages_are_bounded_and_their_names_checked(tmp_path: Path) -> None:
    settings = node_settings(mqtt_features__delayed_max=3)
    with (
        serve(tmp_path / "data", settings) as server,
        connected(port_of(server), "many") as client,
    ):
        for _ in range(3):
            client.publish("$delayed/3600/later/y", b"", qos=1)
        with pytest.raises(RefusedError, match="quota exceeded"):
            client.publish("$delayed/3600/later/y", b"", qos=1)
        with pytest.raises(RefusedError, match="topic name invalid"):
            client.publish("$delayed/soon/later/y", b"", qos=1)


def test_system_topics_are_generated_and_cannot_be_published(port: int) -> None:
    with connected(port, "sys") as client:
        client.subscribe("$SYS/broker/clients/connected")
        while int(client.next_message(WAIT_S).payload) < 1:
            pass  # generated before the client has connected
        with pytest.raises(RefusedError, match="not authorized"):
            client.publish("$SYS/broker/uptime", b"0", qos=1)


def test_an_exclusive_subscription_has_one_subscriber(port: int) -> None:
    with connected(port, "first") as first, connected(port, "second") as second:
        assert first.subscribe("$exclusive/alone", qos=1) == 1
        with pytest.raises(RefusedError, match="quota exceeded"):
            second.subscribe("$exclusive/alone", qos=1)
        second.publish("alone", b"x", qos=1)
        assert first.next_message(WAIT_S).topic == "alone"
        first.unsubscribe("$exclusive/alone")
        assert second.subscribe("$exclusive/alone", qos=1) == 1


def test_topics_are_rewritten_for_publishers_and_subscribers(port: int) -> None:
    with connected(port, "rewritten") as client:
        client.subscribe("old/+", qos=1)
        client.publish("old/a", b"x", qos=1)
        assert client.next_message(WAIT_S).topic == "new/a"


def test_a_client_is_subscribed_when_it_connects(port: int) -> None:
    with connected(port, "auto") as client, connected(port, "other") as other:
        other.publish("inbox/auto", b"hello", qos=1)
        assert client.next_message(WAIT_S).payload == b"hello"


def test_birth_certificates_of_sparkplug_are_retained(port: int) -> None:
    with connected(port, "edge") as client:
        client.publish("spBv1.0/G1/NBIRTH/E1", b"birth", qos=1)
        client.subscribe("$sparkplug/certificates/#", qos=1)
        message = client.next_message(WAIT_S)
        assert message.topic == "$sparkplug/certificates/spBv1.0/G1/NBIRTH/E1"
        assert message.payload == b"birth"
        with pytest.raises(RefusedError, match="not authorized"):
            client.publish("$sparkplug/certificates/spBv1.0/G1/NBIRTH/E1", b"", qos=1)


def test_a_delayed_message_survives_a_restart_and_is_published_once() -> None:
    persistent = {"clean_start": False, "session_expiry_s": 3600}
    with quick_directory() as directory:
        data = Path(directory) / "data"
        with serve(data) as server, connected(port_of(server), "s", **persistent) as client:
            client.subscribe("later/z", qos=1)
            client.publish("$delayed/1/later/z", b"once", qos=1)
        with serve(data) as server, connected(port_of(server), "s", **persistent) as client:
            assert client.next_message(WAIT_S).payload == b"once"
        with serve(data) as server, connected(port_of(server), "s", **persistent) as client:
            client.publish("later/z", b"end", qos=1)
            assert client.next_message(WAIT_S).payload == b"end"
