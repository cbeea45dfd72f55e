"""Metrics of access rules, the blacklist, delayed messages and bridges."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.brokers.mqtt.serving import node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory

from penstock.brokers.mqtt.client import BlockingMqttClient, ClientOptions, RefusedError
from penstock.remote.server.node_server import Server

WAIT_S = 60.0


def value_of(server: Server, name: str, **labels: str) -> float:
    return server.node.registry.get_sample_value(f"penstock_mqtt_{name}", labels) or 0.0


def until(server: Server, name: str, value: float, **labels: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while value_of(server, name, **labels) != value:
        assert time.monotonic() < deadline, name
        time.sleep(0.02)


def test_features_are_counted(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic a/#\n", "utf-8")
    with (
        quick_directory() as directory,
        quick_directory() as other_directory,
        serve(Path(other_directory) / "data") as other,
    ):
        bridge = {"name": "b", "address": f"127.0.0.1:{port_of(other)}"}
        settings = node_settings(
            mqtt_access__acl_file=str(acl),
            mqtt_bridge__connections=[bridge],
            mqtt_bridge__topics=[{"connection": "b", "filter": "a/#", "direction": "both"}],
        )
        with serve(Path(directory) / "data", settings) as server:
            until(server, "bridge_connected", 1.0, bridge="b")
            options = ClientOptions(port=port_of(server), client_id="c")
            with BlockingMqttClient(options) as client:
                client.publish("a/b", b"", qos=1)
                client.publish("$delayed/3600/a/b", b"", qos=1)
                client.publish("$delayed/0/a/c", b"", qos=1)
                with pytest.raises(RefusedError):
                    client.publish("b", b"", qos=1)
            until(server, "bridge_messages_total", 2.0, bridge="b", direction="out")
            until(server, "delayed_published_total", 1.0)
            assert value_of(server, "delayed_messages") == 1.0
            assert value_of(server, "access_denials_total") == 1.0
            assert value_of(server, "blacklist_entries") == 0.0
