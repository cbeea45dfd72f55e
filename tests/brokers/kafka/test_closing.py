"""What a server that closes, or does not start, leaves open: nothing."""

from __future__ import annotations

import gc
import socket
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.brokers.kafka.running import running

from penstock.brokers.kafka import server as serving
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.server import KafkaServer
from penstock.brokers.network import ListenerSettings, listener
from penstock.errors import BusyError, SetupError


def test_a_connection_that_comes_while_the_server_closes_is_closed_too(data_path: Path) -> None:
    ports: list[str] = []
    with warnings.catch_warnings(record=True) as told, running(data_path) as started:
        warnings.simplefilter("always")
        node, settings = started.node, started.broker.all_settings
        for _ in range(20):
            broker = KafkaBroker(node.driver_manager, node.meta, node.clock, settings)
            server = KafkaServer(broker, "127.0.0.1")
            ports.append(f"laddr=('127.0.0.1', {server.port})")
            with ExitStack() as clients:
                for _ in range(4):
                    clients.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                server.close()
            assert server.connection_count == 0
            del server, broker
        gc.collect()
    unclosed = [str(one.message) for one in told if one.category is ResourceWarning]
    assert not [text for text in unclosed if any(port in text for port in ports)]


def test_a_server_that_does_not_start_listens_no_more(
    data_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[socket.socket] = []
    listen = listener._listen

    def note(settings: ListenerSettings) -> socket.socket:
        listeners.append(listen(settings))
        return listeners[-1]

    def fail(_: KafkaBroker) -> None:
        raise BusyError("no majority")

    with running(data_path) as started:
        monkeypatch.setattr(listener, "_listen", note)
        monkeypatch.setattr(serving, "register_all", fail)
        node, settings = started.node, started.broker.all_settings
        broker = KafkaBroker(node.driver_manager, node.meta, node.clock, settings)
        with pytest.raises(SetupError, match="no majority"):
            KafkaServer(broker, "127.0.0.1")
    assert [one.fileno() for one in listeners] == [-1]
