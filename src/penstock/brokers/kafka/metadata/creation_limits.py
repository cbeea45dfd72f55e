"""How many topics clients may create by naming them, and how fast.

A mistyped name, or a client that makes names up, must not fill the metadata. Each node has a rate,
of which one connection gets a part; both allow a burst after a pause. Topics that are created by
CreateTopics are not counted here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.platform.clock import Clock

BURST_S: Final = 10.0
"""Seconds without creations for which tokens accumulate."""
CONNECTION_PART: Final = 0.5
CONNECTIONS_MAX: Final = 1_000
"""Connections that are remembered; the one that has created nothing for longest is forgotten."""


class TokenBucket:
    def __init__(self, rate: float, now_s: float) -> None:
        self._rate: Final = rate
        self._burst: Final = max(1.0, rate * BURST_S)
        self._tokens = self._burst
        self._at_s = now_s

    def refill(self, now_s: float) -> bool:
        """Say whether a token may be spent."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return self._tokens >= 1.0

    def spend(self) -> None:
        self._tokens -= 1.0


class CreationLimits:
    """For one node; used on the event loop."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate: Final = rate
        self._clock: Final = clock
        self._node: Final = TokenBucket(rate, clock.monotonic())
        self._connections: Final[OrderedDict[int, TokenBucket]] = OrderedDict()

    def allow(self, connection_id: int) -> bool:
        """Count one topic that a connection creates; False when that is too fast."""
        now_s = self._clock.monotonic()
        own = self._connections.get(connection_id)
        if own is None:
            own = TokenBucket(self._rate * CONNECTION_PART, now_s)
            self._connections[connection_id] = own
            if len(self._connections) > CONNECTIONS_MAX:
                self._connections.popitem(last=False)
        self._connections.move_to_end(connection_id)
        if not (own.refill(now_s) and self._node.refill(now_s)):
            return False
        own.spend()
        self._node.spend()
        return True
