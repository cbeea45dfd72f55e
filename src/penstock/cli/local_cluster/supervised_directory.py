"""A directory of several nodes that one process supervises: their ports, secret and data.

    DIR/cluster.json           the nodes and their ports
    DIR/secret                 the secret that the nodes share
    DIR/up.lock                locked by the command that runs on it
    DIR/node-N/data            data directory of node N

A directory that holds anything else is refused and not changed.
"""

from __future__ import annotations

import json
import os
import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from msgspec import Struct

from penstock.cli.local_cluster.node_ports import NodePorts
from penstock.errors import LockedError, NotAStoreError, SetupError
from penstock.platform.local_lock import LocalLock

PLAN: Final = "cluster.json"
_VERSION: Final = 1
_LOCK: Final = "up.lock"
_SECRET: Final = "secret"
_TRIAL: Final = "cluster up"


class Plan(Struct, frozen=True, omit_defaults=True):
    """The contents of `cluster.json`."""

    version: int
    nodes: tuple[NodePorts, ...]
    command: str = _TRIAL
    """The command that made the directory."""


class Launch(Struct, frozen=True):
    """How the process of a node is started."""

    arguments: list[str]
    environment: dict[str, str]
    log: Path | None
    """The file that receives its output; None: the output of the supervising command."""


class SupervisedDirectory(ABC):
    """Locked by this process until `close`. Subclasses say which nodes it has, and how each of them
    starts."""

    COMMAND: ClassVar[str]

    def __init__(self, path: str) -> None:
        self.path: Final = Path(path).absolute()
        self._check_contents()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock: Final = LocalLock(str(self.path / _LOCK))
        except LockedError as error:
            raise LockedError(
                f"another `penstock {self.COMMAND}` runs on {self.path} ({error}); stop it first, "
                "or choose another directory"
            ) from error
        try:
            self.nodes: Final = self._load()
        except BaseException:
            self._lock.release()
            raise

    @abstractmethod
    def launch(self, node: int) -> Launch:
        """Return how a node is started."""

    @abstractmethod
    def _arrange(self, known: tuple[NodePorts, ...]) -> tuple[NodePorts, ...]:
        """Return the nodes of this run; `found` are those of the last one, none in a new
        directory. Raises `BadRequestError` for a change that is not possible."""

    @property
    def logs(self) -> str:
        """Where the output of the nodes is found."""
        return f"{self.path}/node-*/log"

    def _load(self) -> tuple[NodePorts, ...]:
        plan = self.path / PLAN
        known = self._read_plan(plan) if plan.exists() else ()
        arranged = self._arrange(known)
        if not known:
            self._write_private(_SECRET, secrets.token_hex(32) + "\n")
        if arranged != known:
            made = Plan(_VERSION, arranged, self.COMMAND)
            self._write_private(f"{PLAN}.new", json.dumps(msgspec.to_builtins(made), indent=1))
            (self.path / f"{PLAN}.new").replace(plan)
        return arranged

    def _read_plan(self, path: Path) -> tuple[NodePorts, ...]:
        try:
            plan = msgspec.json.decode(path.read_bytes(), type=Plan)
        except (OSError, msgspec.MsgspecError) as error:
            raise SetupError(
                f"{path} cannot be read ({error}); restore it, or choose another directory"
            ) from error
        if plan.version != _VERSION or not plan.nodes:
            raise SetupError(
                f"{path} has version {plan.version}, and this release reads version {_VERSION}"
            )
        if plan.command != self.COMMAND:
            raise NotAStoreError(
                f"{self.path} was made by `penstock {plan.command}`: run that command on it, or "
                "choose another directory"
            )
        return plan.nodes

    def _check_contents(self) -> None:
        path = self.path
        if not path.exists() and not path.is_symlink():
            return
        if not path.is_dir():
            raise NotAStoreError(f"{path} is not a directory; choose an empty or a new one")
        if (path / PLAN).exists():
            return
        names = {entry.name for entry in path.iterdir()}
        others = sorted(names - {_LOCK, _SECRET, f"{PLAN}.new"} - self._expected)
        if others:
            raise NotAStoreError(
                f"{path} is not the directory of a local cluster: it holds "
                f"{', '.join(others[:3])}{', …' if len(others) > 3 else ''}; {self._advice}"
            )

    @property
    def _expected(self) -> set[str]:
        """What a directory without a plan may hold."""
        return set()

    @property
    def _advice(self) -> str:
        return "choose an empty or a new directory"

    def _write_private(self, name: str, text: str) -> None:
        with open(
            os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            "w",
            encoding="utf-8",
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    @property
    def secret_file(self) -> Path:
        return self.path / _SECRET

    def home(self, node: int) -> Path:
        return self.path / f"node-{node}"

    def data(self, node: int) -> Path:
        return self.home(node) / "data"

    def close(self) -> None:
        self._lock.release()


def node_environment(*, with_settings: bool) -> dict[str, str]:
    """Return the environment of a node: without the service manager of this process and, unless
    `with_settings`, without settings, which would be those of all nodes."""
    return {
        name: value
        for name, value in os.environ.items()
        if (with_settings or not (name.startswith("PENSTOCK_") and "__" in name))
        and name != "NOTIFY_SOCKET"
    }
