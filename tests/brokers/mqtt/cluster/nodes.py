"""Three nodes with the MQTT front end, each in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from tests.brokers.mqtt.serving import PATIENCE_S
from tests.free_ports import free_ports

import penstock
from penstock.api import Store

COMMAND: Final = [sys.executable, "-c", "from penstock.cli import main; main()"]
NODES: Final = (1, 2, 3)
SETTINGS: Final[dict[str, object]] = {
    "node.secret": "the secret of all nodes",
    "kafka.enabled": "false",
    "broker.commit_log_file_size": 16 << 20,
    "engine.index_slots": 20_000,
    "engine.index_entries_max": 80_000,
    "server.http_port": 0,
    "topics.replication": 3,
    "mqtt.websocket": "false",
}


def wait_until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.05)


class MqttNodes:
    def __init__(self, directory: Path, **settings: object) -> None:
        """`settings` are for all nodes, such as `topics__replication`."""
        self.directory: Final = directory
        ports = free_ports(9)
        self._peers: Final = [f"{node}@127.0.0.1:{ports[node - 1]}" for node in NODES]
        self._storage: Final = {node: ports[node + 2] for node in NODES}
        self.mqtt: Final = {node: ports[node + 5] for node in NODES}
        self._settings: Final = SETTINGS | {
            name.replace("__", "."): value for name, value in settings.items()
        }
        self.running: Final[dict[int, subprocess.Popen[bytes]]] = {}
        self._begun: Final[dict[int, int]] = {}
        """Where the log of the present process of a node begins."""

    def start(self, *nodes: int) -> None:
        """Start nodes; return when all of them serve clients."""
        for node in nodes:
            settings = self._settings | {
                "node.id": node,
                "node.peers": json.dumps(self._peers),
                "mqtt.port": self.mqtt[node],
            }
            arguments = ["serve", "--data", str(self.directory / str(node))]
            arguments += ["--port", str(self._storage[node])]
            for name, value in settings.items():
                arguments += ["--set", f"{name}={value}"]
            with (self.directory / f"{node}.log").open("ab") as log:
                self._begun[node] = len(self.log(node))
                self.running[node] = subprocess.Popen(
                    [*COMMAND, *arguments], stdout=log, stderr=log
                )
        for node in nodes:
            wait_until(partial(self._is_serving, node), f"node {node} serves")

    def _is_serving(self, node: int) -> bool:
        assert self.running[node].poll() is None, self.log(node)[-3_000:]
        return f"MQTT         127.0.0.1:{self.mqtt[node]}" in self.present_log(node)

    def log(self, node: int) -> str:
        return (self.directory / f"{node}.log").read_text("utf-8", "replace")

    def present_log(self, node: int) -> str:
        """Return what the present process of a node has logged."""
        return self.log(node)[self._begun[node] :]

    def kill(self, node: int) -> None:
        process = self.running.pop(node)
        process.kill()
        process.wait()

    def stop(self, node: int) -> None:
        process = self.running.pop(node)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0

    def pause(self, node: int) -> None:
        self.running[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self.running[node].send_signal(signal.SIGCONT)

    @property
    def alive(self) -> list[int]:
        return sorted(self.running)

    def store(self) -> Store:
        addresses = ",".join(f"127.0.0.1:{self._storage[node]}" for node in self.alive)
        return penstock.connect(addresses)

    def close(self) -> None:
        for node in list(self.running):
            self.kill(node)


@contextmanager
def mqtt_nodes(directory: Path, **settings: object) -> Iterator[MqttNodes]:
    nodes = MqttNodes(directory, **settings)
    try:
        nodes.start(*NODES)
        yield nodes
    finally:
        nodes.close()
