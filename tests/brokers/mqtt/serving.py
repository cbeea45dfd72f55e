"""A node with the MQTT front end, in this process or in one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, Settings, merge_settings

PATIENCE_S = 60.0


def node_settings(*, kafka: bool = False, **mqtt: object) -> Settings:
    """Small files, any free ports; `mqtt` are settings of the section or of others by name, such as
    `broker__flush_disk_type`."""
    own = {name: value for name, value in mqtt.items() if "__" not in name}
    others = {name: value for name, value in mqtt.items() if "__" in name}
    return merge_settings(
        EMBEDDED,
        {
            "server": {"port": 0, "http_port": 0},
            "kafka": {"enabled": kafka, "port": 0},
            "mqtt": {"port": 0, "websocket": False, **own},
            **others,
        },
    )


@contextmanager
def serve(directory: Path, settings: Settings | None = None) -> Iterator[Server]:
    with Server(str(directory), settings or node_settings()) as server:
        assert server.mqtt is not None
        yield server


def port_of(server: Server) -> int:
    assert server.mqtt is not None
    port: int = server.mqtt.port
    return port
