"""What the clocks of a cluster's other nodes show, for a node that doubts its own.

A thread asks each node every `INTERVAL_S`. The time of the question and of the answer bound the
moment at which the other clock was read; half of the time between them is the uncertainty, and an
answer that took longer than `ROUND_TRIP_S_MAX` says nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock.errors import StoreError
from penstock.platform.clock_guard import GuardedClock, PeerTime
from penstock.platform.log import get_logger
from penstock.remote.peers.connections import ClientConnectionManager

INTERVAL_S: Final = 10.0
ROUND_TRIP_S_MAX: Final = 2.0
OFF_MS_MAX: Final = 5_000
"""A clock that differs by more is reported."""
PEERS_MAX: Final = 32
"""Nodes that are asked in one round; their majority decides."""
_JOIN_S: Final = 5.0
_log: Final = get_logger(__name__)


def _ignore(_kind: str, _node: int, _text: str) -> None:
    """Without a cluster: no status shows it."""


class PeerClocks:
    """Compares clocks until `close`."""

    def __init__(
        self,
        clock: GuardedClock,
        forwarder: ClientConnectionManager,
        node_id: int,
        *,
        interval_s: float = INTERVAL_S,
        report_problem: Callable[[str, int, str], None] = _ignore,
    ) -> None:
        """`report_problem` gets a kind, a node and a sentence: its clock is far off."""
        self._clock: Final = clock
        self._forwarder: Final = forwarder
        self._node_id: Final = node_id
        self._interval_s: Final = interval_s
        self._report_problem: Final = report_problem
        self._far: Final[set[int]] = set()
        """Nodes whose clocks are known to be far off."""
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
        time = PeerTime(node, offset_ms, held=status.held or taken_s > ROUND_TRIP_S_MAX)
        self._report(time, taken_s)
        return time

    def _report(self, time: PeerTime, taken_s: float) -> None:
        is_far = abs(time.offset_ms) > OFF_MS_MAX and taken_s <= ROUND_TRIP_S_MAX
        if not is_far:
            self._far.discard(time.node)
            return
        text = (
            f"the clocks of node {time.node} and node {self._node_id} differ by "
            f"{abs(time.offset_ms) / 1_000:.1f} s: let the machines synchronize them"
        )
        if time.node not in self._far:
            self._far.add(time.node)
            _log.warning("clock_far_off", node=time.node, offset_ms=time.offset_ms)
        self._report_problem("clock", time.node, text)

    def _run(self) -> None:
        while not self._clock.wait(self._stopping, self._interval_s):
            self.compare()
