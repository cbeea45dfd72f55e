"""Starts all nodes of a local cluster, watches them and stops them within a bounded time."""

from __future__ import annotations

import shlex
import signal
import threading
from contextlib import closing
from typing import Final, Protocol

from penstock.cli.local_cluster.node_process import NodeProcess
from penstock.cli.local_cluster.supervised_directory import SupervisedDirectory
from penstock.errors import DeadlineError, SetupError, StoreError
from penstock.meta import STORAGE_LISTENER, RemoteMetaClient
from penstock.platform.clock import Clock

_LOOK_S: Final = 0.1
_QUERY_S: Final = 3.0
_RESTART_S: Final = 1.0
_RESTART_S_MAX: Final = 30.0
_STABLE_S: Final = 60.0
"""A node that has run for so long is restarted without a pause when it dies."""
_KILLED_S: Final = 10.0


class NodeWatcher(Protocol):
    """Receives what happens to the nodes."""

    def state(self, node: int, text: str) -> None:
        """A node is in another state: starting, waiting for others, ready."""

    def output(self, node: int, line: str) -> None:
        """A node has printed a warning or an error."""

    def event(self, text: str) -> None:
        """A node ended, or is started again."""


class LocalCluster:
    """The processes of a local cluster. All methods belong to the main thread."""

    def __init__(
        self,
        directory: SupervisedDirectory,
        watcher: NodeWatcher,
        stopping: threading.Event,
        clock: Clock,
        *,
        restarts: bool = False,
    ) -> None:
        """`stopping` ends every wait. With `restarts`, nodes that die are started again."""
        self._directory: Final = directory
        self._watcher: Final = watcher
        self._stopping: Final = stopping
        self._clock: Final = clock
        self._restarts: Final = restarts
        self._states: Final[dict[int, str]] = {}
        self._started_at: Final[dict[int, float]] = {}
        self._ended: Final[dict[int, float]] = {}
        """When each node that has ended is started again; infinity: never."""
        self._pauses: Final[dict[int, float]] = {}
        self.nodes: Final = [
            NodeProcess(directory, ports, watcher.output) for ports in directory.nodes
        ]

    def start(self) -> None:
        for node in self.nodes:
            self._start(node)

    def _start(self, node: NodeProcess) -> None:
        node.start()
        self._started_at[node.node] = self._clock.monotonic()
        self._ended.pop(node.node, None)
        self._report(node.node, "starting")

    def _report(self, node: int, text: str) -> None:
        if self._states.get(node) != text:
            self._states[node] = text
            self._watcher.state(node, text)

    def wait_ready(self, seconds: float) -> bool:
        """Wait until all nodes serve clients and know each other. Return False when `stopping` was
        set meanwhile; raise `SetupError` when a node ends, `DeadlineError` after `seconds`."""
        deadline = self._clock.monotonic() + seconds
        while not self._stopping.is_set():
            for node in self.nodes:
                self._check_running(node)
                self._report(node.node, node.problem() or "ready")
            if set(self._states.values()) == {"ready"}:
                missing = self._unregistered()
                if not missing:
                    return True
                for absent in missing:
                    self._report(absent, "not registered in the cluster yet")
            if self._clock.monotonic() > deadline:
                states = "; ".join(f"node {node}: {text}" for node, text in self._states.items())
                raise DeadlineError(
                    f"the cluster is not ready after {seconds:g} s: {states}. The logs are "
                    f"{self._directory.logs}; --wait waits longer"
                )
            self._clock.wait(self._stopping, _LOOK_S)
        return False

    def _check_running(self, node: NodeProcess) -> None:
        code = node.exit_code()
        if code is not None:
            said = f": {node.last_words}" if node.last_words else ""
            raise SetupError(
                f"node {node.node} {describe_exit(code)} before the cluster was ready{said}; the "
                f"logs are {self._directory.logs}"
            )

    def _unregistered(self) -> list[int]:
        """Return the nodes that cannot be given shards yet."""
        addresses = [node.ports.storage_address for node in self.nodes]
        try:
            with closing(RemoteMetaClient(addresses, node_id=1, deadline_s=_QUERY_S)) as client:
                serving = {
                    node.node_id
                    for node in client.list_nodes()
                    if STORAGE_LISTENER in node.listeners
                }
        except StoreError:
            return [node.node for node in self.nodes]
        return [node.node for node in self.nodes if node.node not in serving]

    def watch(self) -> None:
        """Report nodes that end, and restart them if that is wanted, until `stopping` is set.
        Raises `SetupError` when all nodes have ended."""
        while not self._stopping.is_set():
            for node in self.nodes:
                self._watch_one(node)
            if len(self._ended) == len(self.nodes) and not self._restarts:
                raise SetupError(
                    f"all {len(self.nodes)} nodes have ended; their logs are {self._directory.logs}"
                )
            self._clock.wait(self._stopping, _LOOK_S)

    def _watch_one(self, node: NodeProcess) -> None:
        now = self._clock.monotonic()
        due = self._ended.get(node.node)
        if due is not None:
            if now >= due:
                self._start(node)
                self._watcher.event(f"node {node.node} was started again, process {node.pid}")
            return
        code = node.exit_code()
        if code is None:
            return
        how = describe_exit(code)
        if not self._restarts:
            self._ended[node.node] = float("inf")
            by_hand = shlex.join(
                ["penstock", "serve", *self._directory.launch(node.node).arguments]
            )
            self._watcher.event(f"node {node.node} {how}; start it again with: {by_hand}")
            return
        has_run = now - self._started_at[node.node]
        last = self._pauses.get(node.node, 0.0)
        pause = 0.0 if has_run > _STABLE_S else min(max(_RESTART_S, 2 * last), _RESTART_S_MAX)
        self._pauses[node.node] = pause
        self._ended[node.node] = now + pause
        self._watcher.event(f"node {node.node} {how}; it is started again in {pause:g} s")

    def stop(self, seconds: float, hurry: threading.Event, *, each_s: float = 0.0) -> list[int]:
        """Ask all nodes to stop, the last one first; kill those that run after `seconds`, or when
        `hurry` is set. Return the killed ones. With `each_s` the next node is asked when the one
        before has ended or that time has passed, so that the leads of a stopping node move to
        those that still run."""
        deadline = self._clock.monotonic() + seconds
        running = [node for node in self.nodes if node.pid and node.exit_code() is None]
        for node in reversed(running):
            node.signal(signal.SIGTERM)
            node.signal(signal.SIGCONT)  # a stopped process would not see the first one
            if each_s:
                soon = min(deadline, self._clock.monotonic() + each_s)
                self._wait_stopped([node], soon, hurry)
        running = self._wait_stopped(running, deadline, hurry)
        killed = [node.node for node in running]
        for node in running:
            node.signal(signal.SIGKILL)
        self._wait_stopped(running, self._clock.monotonic() + _KILLED_S, threading.Event())
        return killed

    def _wait_stopped(
        self, nodes: list[NodeProcess], deadline: float, hurry: threading.Event
    ) -> list[NodeProcess]:
        """Wait until the nodes have ended; return those that have not at the deadline."""
        running = self._still_running(nodes)
        while running and self._clock.monotonic() < deadline and not hurry.is_set():
            self._clock.wait(hurry, _LOOK_S)
            running = self._still_running(running)
        return running

    def _still_running(self, nodes: list[NodeProcess]) -> list[NodeProcess]:
        left = []
        for node in nodes:
            if node.exit_code() is None:
                left.append(node)
            else:
                self._report(node.node, "stopped")
        return left


def describe_exit(code: int) -> str:
    """Return how a process ended, from its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
