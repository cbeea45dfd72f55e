"""`BrokerLease`: for how long this node may act as what the metadata say of it.

A node sends heartbeats to the controller; an answer grants `LEASE_MS` from the moment at which the
heartbeat was *sent*, on a clock that goes on while the machine sleeps. The controller fences a
silent node after `SESSION_MS`, counted from the moment at which it *received* the last heartbeat,
or from its own election. So a node whose lease is over stops by itself before others lead its
shards, as long as two clocks differ by less than the rest of a session.
"""

from __future__ import annotations

from typing import Final

from penstock.platform.clock import Clock

BEAT_MS: Final = 250
"""Between two heartbeats."""
LEASE_MS: Final = 2_000
SESSION_MS: Final = 2_500


class BrokerLease:
    """Safe to use from many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms = 0

    def sent_at(self) -> int:
        """Return the time to keep with a heartbeat that is sent now."""
        return self._clock.uptime_ms()

    def grant(self, sent_at: int) -> None:
        """Extend the lease: the heartbeat of that moment was answered."""
        self._until_ms = max(self._until_ms, sent_at + LEASE_MS)

    def left_s(self) -> float:
        """Return for how many seconds the lease holds, 0 when it does not."""
        return max(0, self._until_ms - self._clock.uptime_ms()) / 1_000
