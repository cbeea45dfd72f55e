"""A node with a Kafka server on a free port, and a client that speaks single messages."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.server import KafkaServer
from penstock.brokers.kafka.wire.cursor import Cursor
from penstock.brokers.kafka.wire.fields import Fields
from penstock.brokers.kafka.wire.schema import request_layout, response_layout
from penstock.node.node import Node
from penstock.platform.clock import Clock
from penstock.settings import EMBEDDED, KafkaSettings, Settings, merge_settings

API_VERSIONS = 18


class Running:
    def __init__(self, node: Node, server: KafkaServer, broker: KafkaBroker) -> None:
        self.node = node
        self.broker = broker
        self.server = server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@contextmanager
def running(
    path: Path,
    kafka: Mapping[str, int | str | bool] | None = None,
    store: Mapping[str, int | str | bool] | None = None,
    clock: Clock | None = None,
) -> Iterator[Running]:
    """Serve the data in `path`, with short timeouts unless `kafka` has others."""
    chosen = KafkaSettings()
    quick = {"port": 0, "group_initial_delay_ms": 50, "group_session_timeout_min_ms": 100}
    chosen = replace(chosen, **(quick | dict(kafka or {})))
    settings: Settings = replace(merge_settings(EMBEDDED, dict(store or {})), kafka=chosen)
    with Node(str(path), settings, clock=clock) as node:
        broker = KafkaBroker(node.driver_manager, node.meta, node.clock, settings)
        with KafkaServer(broker, "127.0.0.1") as server:
            yield Running(node, server, broker)


class WireClient:
    """One connection; requests are answered in their order."""

    def __init__(self, port: int, client_id: str = "test") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._client_id = client_id.encode()
        self._correlation_id = 0

    def ask(self, key: int, version: int, /, **fields: object) -> Fields:
        self.send(key, version, **fields)
        return self.receive(key, version)

    def send(self, key: int, version: int, /, **fields: object) -> None:
        layout = request_layout(key, version)
        self._correlation_id += 1
        data = bytearray(
            struct.pack(">hhih", key, version, self._correlation_id, len(self._client_id))
        )
        data += self._client_id
        if layout.flexible:
            data.append(0)
        layout.write(data, fields)
        self._socket.sendall(struct.pack(">i", len(data)) + data)

    def receive(self, key: int, version: int) -> Fields:
        (size,) = struct.unpack(">i", self._read(4))
        layout = response_layout(key, version)
        at = 4 + (1 if layout.flexible and key != API_VERSIONS else 0)
        return layout.read(Cursor(memoryview(self._read(size)), at))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return data

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
