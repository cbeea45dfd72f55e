"""The directory of a local cluster: which nodes it has, on which ports, with which secret.

    DIR/cluster.json           the nodes and their ports, fixed when the cluster is created
    DIR/secret                 the secret that the nodes share
    DIR/up.lock                locked by the `penstock cluster up` that runs on it
    DIR/node-N/penstock.toml   settings of node N, written at every start
    DIR/node-N/data            its data directory
    DIR/node-N/log             what it logs

A directory that holds anything else is refused and not changed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from pathlib import Path
from random import SystemRandom
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import BadRequestError, LockedError, NotAStoreError, SetupError
from penstock.platform.addresses import explain
from penstock.platform.local_lock import LocalLock
from penstock.settings import EMBEDDED, load_settings

HOST: Final = "127.0.0.1"
NODES_DEFAULT: Final = 3
NODES_MAX: Final = 9
PORT_STEP: Final = 10
"""Distance between the ports of two nodes: node 1 at the base, node 2 at base + 10."""
_FIRST_BASE: Final = 9190
_OTHER_BASES: Final = range(20_000, 29_900, 10)
"""Below the ports that the system gives to outgoing connections, so that a stopped node finds its
ports free again."""
_TRIES: Final = 50
_CONNECTIONS_MAX: Final = 1_000
"""Few enough for the usual limit of open files."""
_VERSION: Final = 1
_PORT_MAX: Final = 65_535
_LOCK: Final = "up.lock"
_PLAN: Final = "cluster.json"
_SECRET: Final = "secret"


class NodePorts(Struct, frozen=True):
    """The ports of one node."""

    node: int
    storage: int
    http: int
    kafka: int
    internal: int

    @property
    def storage_address(self) -> str:
        return f"{HOST}:{self.storage}"

    @property
    def kafka_address(self) -> str:
        return f"{HOST}:{self.kafka}"

    @property
    def all(self) -> dict[str, int]:
        return {
            "the storage API": self.storage,
            "HTTP": self.http,
            "Kafka": self.kafka,
            "the other nodes": self.internal,
        }


class _Plan(Struct, frozen=True):
    version: int
    nodes: tuple[NodePorts, ...]


class ClusterDirectory:
    """A local cluster's directory, locked by this process until `close`."""

    def __init__(
        self, path: str, *, nodes: int | None = None, port_base: int | None = None
    ) -> None:
        """Open or create it. `nodes` and `port_base` must be those of an existing cluster."""
        self.path: Final = Path(path).absolute()
        _check_contents(self.path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock: Final = LocalLock(str(self.path / _LOCK))
        except LockedError as error:
            raise LockedError(
                f"another `penstock cluster up` runs on {self.path} ({error}); stop it first, or "
                "choose another directory"
            ) from error
        try:
            self.nodes: Final = self._load(nodes, port_base)
        except BaseException:
            self._lock.release()
            raise

    def _load(self, nodes: int | None, port_base: int | None) -> tuple[NodePorts, ...]:
        plan = self.path / _PLAN
        if not plan.exists():
            made = _choose_ports(nodes or NODES_DEFAULT, port_base)
            self._write_private(_SECRET, secrets.token_hex(32) + "\n")
            text = json.dumps(msgspec.to_builtins(_Plan(_VERSION, made)), indent=1)
            self._write_private(f"{_PLAN}.new", text)
            (self.path / f"{_PLAN}.new").replace(plan)
            return made
        found = _read_plan(plan)
        if nodes is not None and nodes != len(found):
            raise BadRequestError(
                f"{self.path} has a cluster of {len(found)} nodes, and --nodes is {nodes}: leave "
                "--nodes out, or choose another directory; `penstock cluster add` adds nodes to a "
                "running cluster"
            )
        if port_base is not None and port_base != found[0].storage:
            raise BadRequestError(
                f"the cluster in {self.path} has its ports from {found[0].storage} on, and "
                f"--port-base is {port_base}: leave --port-base out, or choose another directory"
            )
        _check_ports(found)
        return found

    def _write_private(self, name: str, text: str) -> None:
        with open(
            os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            "w",
            encoding="utf-8",
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def home(self, node: int) -> Path:
        return self.path / f"node-{node}"

    def data(self, node: int) -> Path:
        return self.home(node) / "data"

    def config(self, node: int) -> Path:
        return self.home(node) / "penstock.toml"

    def log(self, node: int) -> Path:
        return self.home(node) / "log"

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
        peers = [f"{one.node}@{HOST}:{one.internal}" for one in self.nodes]
        small, engine = EMBEDDED.broker, EMBEDDED.engine
        return {
            "node": {
                "id": ports.node,
                "peers": peers,
                "secret_file": str(self.path / _SECRET),
            },
            "server": {"host": HOST, "port": ports.storage, "http_port": ports.http},
            "kafka": {"port": ports.kafka, "connections_max": _CONNECTIONS_MAX},
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

    def close(self) -> None:
        self._lock.release()


def _assignments(values: dict[str, object]) -> list[str]:
    # A JSON scalar or list is also a TOML value.
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]


def _check_contents(path: Path) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir():
        raise NotAStoreError(f"{path} is not a directory; choose an empty or a new one")
    if (path / _PLAN).exists():
        return
    others = sorted({one.name for one in path.iterdir()} - {_LOCK, _SECRET, f"{_PLAN}.new"})
    if others:
        raise NotAStoreError(
            f"{path} is not the directory of a local cluster: it holds "
            f"{', '.join(others[:3])}{', …' if len(others) > 3 else ''}; choose an empty or a new "
            "directory"
        )


def _read_plan(path: Path) -> tuple[NodePorts, ...]:
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=_Plan)
    except (OSError, msgspec.MsgspecError) as error:
        raise SetupError(
            f"{path} cannot be read ({error}); restore it, or choose another directory"
        ) from error
    if plan.version != _VERSION or not plan.nodes:
        raise SetupError(
            f"{path} has version {plan.version}, and this release reads version {_VERSION}"
        )
    return plan.nodes


def _ports_from(base: int, nodes: int) -> tuple[NodePorts, ...]:
    return tuple(
        NodePorts(node, first, first + 1, first + 2, first + 3)
        for node, first in ((one, base + PORT_STEP * (one - 1)) for one in range(1, nodes + 1))
    )


def _choose_ports(nodes: int, base: int | None) -> tuple[NodePorts, ...]:
    """Return the ports of a new cluster: from `base` on, or where all of them are free."""
    if base is not None:
        chosen = _ports_from(base, nodes)
        if chosen[-1].internal > _PORT_MAX:
            raise BadRequestError(
                f"--port-base {base} leaves no ports for {nodes} nodes, which need "
                f"{PORT_STEP} each: the highest possible one is "
                f"{_PORT_MAX - PORT_STEP * (nodes - 1) - 3}"
            )
        _check_ports(chosen)
        return chosen
    bases = [_FIRST_BASE, *SystemRandom().sample(_OTHER_BASES, _TRIES)]
    for candidate in bases:
        chosen = _ports_from(candidate, nodes)
        try:
            _check_ports(chosen)
        except SetupError:
            continue
        return chosen
    raise SetupError(
        f"{len(bases)} ranges of ports were tried, and each had a port in use; choose one with "
        "--port-base"
    )


def _check_ports(nodes: tuple[NodePorts, ...]) -> None:
    for ports in nodes:
        for purpose, port in ports.all.items():
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    trial.bind((HOST, port))
                    trial.listen()
                except OSError as error:
                    choose = (
                        f"another --port-base, or end the process that has it: node {ports.node} "
                        f"needs it for {purpose}"
                    )
                    raise explain(HOST, port, error, choose=choose) from error


def parse_overrides(pairs: list[str]) -> dict[str, dict[str, object]]:
    """Return `SECTION.KEY=VALUE` pairs as a tree; those that differ between nodes are refused."""
    tree: dict[str, dict[str, object]] = {}
    for pair in pairs:
        found = re.fullmatch(r"(\w+)\.(\w+)=(.*)", pair, re.DOTALL)
        if found is None:
            raise BadRequestError(f"{pair!r} is not a setting: write SECTION.KEY=VALUE")
        section, key, text = found.groups()
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
}
