"""When a server has the MQTT front end."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from tests.brokers.mqtt.serving import node_settings

from penstock.errors import SetupError
from penstock.remote.server import mqtt_front_end
from penstock.remote.server.mqtt_front_end import is_asked_for
from penstock.remote.server.node_server import Server
from penstock.settings import SERVE, merge_settings


@pytest.fixture
def busy_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


def test_settings_other_than_the_defaults_ask_for_it() -> None:
    def asks(mqtt: Mapping[str, object]) -> bool:
        return is_asked_for(merge_settings(SERVE, {"mqtt": mqtt}).mqtt)

    assert not asks({})
    assert not asks({"connections_max": 7})
    assert not asks({"enabled": False, "port": 7})
    assert asks({"port": 1884})


def test_a_port_in_use_that_was_asked_for_is_refused(directory: Path, busy_port: int) -> None:
    with pytest.raises(SetupError, match=r"mqtt\.port"):
        Server(str(directory), node_settings(port=busy_port))


def test_a_server_goes_on_without_mqtt_when_the_default_port_is_in_use(
    directory: Path, busy_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = merge_settings(SERVE, {"mqtt": {"port": busy_port, "websocket": False}})
    monkeypatch.setattr(mqtt_front_end, "SERVE", default)
    with Server(str(directory), node_settings(port=busy_port)) as server:
        assert server.mqtt is None


def test_websocket_is_left_out_when_its_default_port_is_in_use(
    directory: Path, busy_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.brokers.mqtt import server as mqtt_server

    default = merge_settings(SERVE, {"mqtt": {"websocket_port": busy_port}})
    monkeypatch.setattr(mqtt_server, "SERVE", default)
    settings = node_settings(websocket=True, websocket_port=busy_port)
    with Server(str(directory), settings) as server:
        assert server.mqtt is not None
        assert server.mqtt.websocket_port is None


def test_a_node_without_mqtt_has_none(directory: Path) -> None:
    with Server(str(directory), node_settings(enabled=False)) as server:
        assert server.mqtt is None
