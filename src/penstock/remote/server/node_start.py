"""Starts the node of a server, however long the other nodes of its cluster take to come.

While it waits, the HTTP port answers `/health` with 503 and the reason; the ports of clients open
when the node can serve them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry

from penstock.adapter import NodeLinks
from penstock.errors import DiskFullError, RetryableError
from penstock.meta.raft import StartEvent, StartWait
from penstock.node.node import Node
from penstock.platform.clock import Clock, SystemClock
from penstock.remote.monitoring.http_server import MonitoringServer
from penstock.settings import Settings

_PAUSE_SECONDS: Final = 1.0


class _StartPage:
    """What the HTTP port shows of a node that waits for its cluster."""

    def __init__(self, settings: Settings, stopping: threading.Event) -> None:
        self._node_id = settings.node.id
        self._stopping = stopping
        listen = settings.server
        # A port that the system chooses would be another one afterwards.
        self._server: Final = (
            MonitoringServer(listen.host, listen.http_port, CollectorRegistry(), self._health)
            if listen.http_port
            else None
        )

    def _health(self) -> dict[str, object]:
        cause = self._stopping.waits_for if isinstance(self._stopping, StartEvent) else ""
        problem = cause or "the node starts"
        reason = {"check": "start", "level": "error", "reason": problem}
        return {
            "status": "not_ready",
            "node": self._node_id,
            "problem": problem,
            "reasons": [reason],
        }

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def start_node(
    path: str,
    settings: Settings,
    *,
    forwarder: NodeLinks | None,
    registry: Callable[[], CollectorRegistry],
    stopping: threading.Event | None,
    clock: Clock | None = None,
) -> Node:
    """Return the node once it runs. In a cluster what can be tried again is, until `stopping` is
    set: then the error that came last is raised. Each try has a registry of its own."""
    if not settings.node.peers:
        return Node(path, settings, forwarder=forwarder, registry=registry(), stopping=stopping)
    clock = clock if clock is not None else SystemClock()
    ended = stopping if stopping is not None else threading.Event()
    page = _StartPage(settings, ended)
    start_wait = StartWait(clock, ended)
    try:
        while True:
            try:
                return Node(
                    path, settings, forwarder=forwarder, registry=registry(), stopping=ended
                )
            except DiskFullError:
                raise
            except RetryableError as error:
                # The majority went away in the midst of the start.
                start_wait.report(str(error))
                if ended.is_set() or clock.wait(ended, _PAUSE_SECONDS):
                    raise
    finally:
        page.close()
