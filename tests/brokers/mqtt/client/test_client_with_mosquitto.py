"""The client against Mosquitto, in both versions of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.mosquitto import BINARY, Mosquitto

from penstock.brokers.mqtt.client import BlockingMqttClient, ClientOptions

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(BINARY is None, reason="mosquitto is not installed"),
]
WAIT_S = 60.0


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as server:
        yield server


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_passes_through(mosquitto: Mosquitto, version: int, qos: int) -> None:
    options = ClientOptions(port=mosquitto.port, client_id=f"c{version}{qos}", version=version)
    with BlockingMqttClient(options) as client:
        assert client.subscribe("a/#", qos=qos) == qos
        client.publish("a/b", b"payload", qos=qos)
        message = client.next_message(WAIT_S)
        assert (message.topic, message.payload, message.qos) == ("a/b", b"payload", qos)
        client.unsubscribe("a/#")
