"""`SuspectedNodes`: nodes whose processes seem to have ended, which the metadata do not know yet.

The metadata name a killed leader until the controller has fenced it, a fraction of a second later.
A client that asks meanwhile and is given the old leader believes the answer: librdkafka asks again
after a second, or two. So Metadata names no leader (LEADER_NOT_AVAILABLE) in place of a suspected
one, and clients ask again after their short pause.

A connection that ended is the first sign, and holds until the node's internal port was tried. When
that refuses connections the process is gone: the node is suspected until the port accepts them
again, for `SUSPECTED_S` at most. By then the controller has decided.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Literal, Protocol

from penstock.errors import StoreError
from penstock.platform.clock import Clock

SUSPECTED_S: Final = 2.5
PROBE_PAUSE_S: Final = 0.1
NODES_MAX: Final = 64
"""More nodes are not suspected at a time."""

Probe = Literal["up", "refused", "silent"]


class Peers(Protocol):
    """The other nodes; see `penstock.meta.client.PeerNetwork`."""

    def probe(self, node_id: int) -> Probe: ...
    def watch_connections(self, on_lost: Callable[[int], None]) -> None: ...


class SuspectedNodes:
    """Made on the event loop, like all else here but `report_lost_connection`."""

    def __init__(
        self,
        peers: Peers,
        clock: Clock,
        run_blocking: Callable[[Callable[[], Probe]], Awaitable[Probe]],
    ) -> None:
        self._peers: Final = peers
        self._clock: Final = clock
        self._run_blocking: Final = run_blocking
        self._loop: Final = asyncio.get_running_loop()
        self._lock: Final = threading.Lock()
        self._until: Final[dict[int, float]] = {}
        """The suspected nodes, and until when they are."""
        self._lost: Final = asyncio.Event()
        self._tasks: Final[dict[int, asyncio.Task[None]]] = {}
        peers.watch_connections(self.report_lost_connection)

    def __contains__(self, node_id: object) -> bool:
        until = self._until.get(node_id) if isinstance(node_id, int) else None
        return until is not None and self._clock.monotonic() < until

    def report_lost_connection(self, node_id: int) -> None:
        """Suspect a node from now on; a thread of the network calls."""
        with self._lock:
            if len(self._until) < NODES_MAX:
                self._until[node_id] = self._clock.monotonic() + SUSPECTED_S
        try:
            self._loop.call_soon_threadsafe(self._lost.set)
        except RuntimeError:
            return  # the front end has stopped

    async def watch(self) -> None:
        """Probe the nodes to which connections are lost; runs until it is cancelled."""
        try:
            while True:
                await self._lost.wait()
                self._lost.clear()
                for node_id in list(self._until):
                    if node_id not in self._tasks:
                        self._tasks[node_id] = self._loop.create_task(self._probe(node_id))
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _probe(self, node_id: int) -> None:
        try:
            while (until := self._until.get(node_id)) is not None:
                found = await self._try(node_id)
                if found != "refused" or self._clock.monotonic() >= until:
                    self._clear(node_id, until)
                else:
                    await asyncio.sleep(PROBE_PAUSE_S)
        finally:
            del self._tasks[node_id]

    async def _try(self, node_id: int) -> Probe:
        try:
            return await self._run_blocking(partial(self._peers.probe, node_id))
        except StoreError:
            return "silent"  # the node stops

    def _clear(self, node_id: int, until: float) -> None:
        """End a suspicion, unless another connection was lost meanwhile: the port of a process that
        ends may have accepted the attempt just before."""
        with self._lock:
            if self._until.get(node_id) == until:
                del self._until[node_id]
