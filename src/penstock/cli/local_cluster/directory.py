"""The directory of `penstock cluster up`: nodes with small files, for trying and for tests.

    DIR/node-N/penstock.toml   settings of node N, written at every start
    DIR/node-N/log             what it logs

`supervised_directory` describes the other files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.cli.local_cluster.node_ports import (
    MQTT_STEP,
    WEBSOCKET_STEP,
    NodePorts,
    check_ports,
    choose_ports,
)
from penstock.cli.local_cluster.supervised_directory import (
    Launch,
    SupervisedDirectory,
    node_environment,
)
from penstock.errors import BadRequestError
from penstock.settings import EMBEDDED, load_settings

NODES_DEFAULT: Final = 3
NODES_MAX: Final = 9
_BASE_DEFAULT: Final = 9190
_CONNECTIONS_MAX: Final = 1_000
"""Few enough for the usual limit of open files."""


class ClusterDirectory(SupervisedDirectory):
    """A trial cluster's directory; its nodes and ports are fixed when it is created."""

    COMMAND = "cluster up"

    def __init__(
        self, path: str, *, nodes: int | None = None, port_base: int | None = None
    ) -> None:
        """Open or create it. `nodes` and `port_base` must be those of an existing cluster."""
        self._wanted: Final = nodes
        self._port_base: Final = port_base
        super().__init__(path)

    def _arrange(self, known: tuple[NodePorts, ...]) -> tuple[NodePorts, ...]:
        nodes, port_base = self._wanted, self._port_base
        if not known:
            return choose_ports(nodes or NODES_DEFAULT, port_base, preferred=_BASE_DEFAULT)
        if nodes is not None and nodes != len(known):
            raise BadRequestError(
                f"{self.path} has a cluster of {len(known)} nodes, and --nodes is {nodes}: leave "
                "--nodes out, or choose another directory; `penstock cluster add` adds nodes to a "
                "running cluster"
            )
        if port_base is not None and port_base != known[0].storage:
            raise BadRequestError(
                f"the cluster in {self.path} has its ports from {known[0].storage} on, and "
                f"--port-base is {port_base}: leave --port-base out, or choose another directory"
            )
        known = tuple(
            replace(
                ports,
                mqtt=ports.mqtt or ports.storage + MQTT_STEP,
                websocket=ports.websocket or ports.storage + WEBSOCKET_STEP,
            )
            for ports in known
        )
        check_ports(known)
        return known

    def config(self, node: int) -> Path:
        return self.home(node) / "penstock.toml"

    def log(self, node: int) -> Path:
        return self.home(node) / "log"

    def launch(self, node: int) -> Launch:
        return Launch(
            ["--data", str(self.data(node)), "--config", str(self.config(node))],
            node_environment(with_settings=False),
            self.log(node),
        )

    def write_config(self, ports: NodePorts, extra: dict[str, dict[str, object]]) -> None:
        """Write the settings of a node; raises `SettingsError` for a wrong one."""
        self.home(ports.node).mkdir(mode=0o700, exist_ok=True)
        tree = self._settings(ports)
        for section, values in extra.items():
            tree.setdefault(section, {}).update(values)
        lines = [
            f"# Node {ports.node} of a local cluster; `penstock cluster up` writes this file.",
            *(
                line
                for section, values in tree.items()
                for line in ("", f"[{section}]", *_assignments(values))
            ),
            "",
        ]
        config = self.config(ports.node)
        config.write_text("\n".join(lines), encoding="utf-8")
        load_settings(str(config), environment={})

    def _settings(self, ports: NodePorts) -> dict[str, dict[str, object]]:
        peers = [f"{ports.node}@{ports.internal_address}" for ports in self.nodes]
        small, engine = EMBEDDED.broker, EMBEDDED.engine
        return {
            "node": {"id": ports.node, "peers": peers, "secret_file": str(self.secret_file)},
            "server": {"host": ports.host, "port": ports.storage, "http_port": ports.http},
            "kafka": {"port": ports.kafka, "connections_max": _CONNECTIONS_MAX},
            "mqtt": {
                "port": ports.mqtt,
                "websocket_port": ports.websocket,
                "connections_max": _CONNECTIONS_MAX,
            },
            # All nodes share one disk and one memory: sizes of an embedded store.
            "broker": {
                "commit_log_file_size": small.commit_log_file_size,
                "consume_queue_file_size": small.consume_queue_file_size,
            },
            "engine": {
                "index_slots": engine.index_slots,
                "index_entries_max": engine.index_entries_max,
            },
        }


def _assignments(values: dict[str, object]) -> list[str]:
    # A JSON scalar or list is also a TOML value.
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]


def parse_overrides(pairs: list[str]) -> dict[str, dict[str, object]]:
    """Return `SECTION.KEY=VALUE` pairs as a tree; those that differ between nodes are refused."""
    tree: dict[str, dict[str, object]] = {}
    for pair in pairs:
        parts = re.fullmatch(r"(\w+)\.(\w+)=(.*)", pair, re.DOTALL)
        if parts is None:
            raise BadRequestError(f"{pair!r} is not a setting: write SECTION.KEY=VALUE")
        section, key, text = parts.groups()
        if (section, key) in _OWN:
            raise BadRequestError(
                f"{section}.{key} differs from node to node, and `penstock cluster up` sets it"
            )
        try:
            value = msgspec.json.decode(text, type=object)
        except msgspec.DecodeError:
            value = text
        tree.setdefault(section, {})[key] = value
    return tree


_OWN: Final = {
    *(("node", key) for key in ("id", "peers", "meta_listen", "secret", "secret_file")),
    *(("server", key) for key in ("host", "port", "http_port", "advertised_port")),
    *(("kafka", key) for key in ("port", "advertised_port")),
    *(("mqtt", key) for key in ("port", "websocket_port")),
}
