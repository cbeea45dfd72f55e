"""What the clocks of a cluster's other nodes show, for a node that doubts its own.

A thread asks each node every `INTERVAL_S`. The time of the question and of the answer bound the
moment at which the other clock was read; half of the time between them is the uncertainty, and an
answer that took longer than `ROUND_TRIP_S_MAX` says nothing.
"""

from __future__ import annotations

import threading
from typing import Final

from penstock.errors import StoreError
from penstock.platform.clock_guard import GuardedClock, PeerTime
from penstock.platform.log import get_logger
from penstock.remote.peers.connections import ClientConnectionManager

INTERVAL_S: Final = 10.0
ROUND_TRIP_S_MAX: Final = 2.0
PEERS_MAX: Final = 32
"""Nodes that are asked in one round; their majority decides."""
_JOIN_S: Final = 5.0
_log: Final = get_logger(__name__)


class PeerClocks:
    """Compares clocks until `close`."""

    def __init__(
        self,
        clock: GuardedClock,
        forwarder: ClientConnectionManager,
        node_id: int,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._clock: Final = clock
        self._forwarder: Final = forwarder
        self._node_id: Final = node_id
        self._interval_s: Final = interval_s
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-clocks", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(_JOIN_S)

    def compare(self) -> None:
        """Ask the other nodes once."""
        times: list[PeerTime] = []
        for node in sorted(self._forwarder.nodes())[:PEERS_MAX]:
            if node == self._node_id or self._stopping.is_set():
                continue
            try:
                times.append(self._ask(node))
            except StoreError as error:
                _log.debug("clock_not_compared", node=node, reason=str(error))
        self._clock.compare(times)

    def _ask(self, node: int) -> PeerTime:
        asked_s, asked_ms = self._clock.monotonic(), self._clock.now_ms()
        status = self._forwarder.clock_of(node)
        taken_s = self._clock.monotonic() - asked_s
        offset_ms = status.now_ms - asked_ms - round(taken_s * 500)
        return PeerTime(node, offset_ms, held=status.held or taken_s > ROUND_TRIP_S_MAX)

    def _run(self) -> None:
        while not self._clock.wait(self._stopping, self._interval_s):
            self.compare()
