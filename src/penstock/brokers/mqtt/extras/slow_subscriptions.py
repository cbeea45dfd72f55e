"""The slowest subscribers: the longest time from a message's arrival to its acknowledgement.

The statistics keep a bounded number of (client, topic) pairs with the highest latency of the last
interval.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

INTERVAL_MS: Final = 300_000


class SlowSubscription(Struct, frozen=True, order=True):
    latency_ms: int
    client_id: str
    topic: str
    seen_ms: int


class SlowSubscriptions:
    def __init__(self, count_max: int) -> None:
        self._count_max: Final = count_max
        self._slowest: Final[dict[tuple[str, str], SlowSubscription]] = {}
        self.threshold_ms = 0
        """Latencies below need not be recorded."""

    def record(self, client_id: str, topic: str, latency_ms: int, now_ms: int) -> None:
        """Record the latency of one delivery."""
        if not self._count_max or latency_ms < self.threshold_ms:
            return
        key = (client_id, topic)
        known = self._slowest.get(key)
        is_kept = known is not None and now_ms - known.seen_ms <= INTERVAL_MS
        if known is None or not is_kept or latency_ms >= known.latency_ms:
            self._slowest[key] = SlowSubscription(latency_ms, client_id, topic, now_ms)
        if len(self._slowest) > self._count_max:
            self._remove_fastest(now_ms)

    def slowest(self, now_ms: int) -> Sequence[SlowSubscription]:
        """Return the entries of the last interval, the slowest first."""
        self._remove_old(now_ms)
        return sorted(self._slowest.values(), reverse=True)

    def _remove_fastest(self, now_ms: int) -> None:
        self._remove_old(now_ms)
        excess = len(self._slowest) - self._count_max
        for entry in heapq.nsmallest(excess, self._slowest.values()) if excess > 0 else ():
            del self._slowest[entry.client_id, entry.topic]
        is_full = len(self._slowest) >= self._count_max
        lowest = min((entry.latency_ms for entry in self._slowest.values()), default=0)
        self.threshold_ms = lowest if is_full else 0

    def _remove_old(self, now_ms: int) -> None:
        for key, entry in list(self._slowest.items()):
            if now_ms - entry.seen_ms > INTERVAL_MS:
                del self._slowest[key]
                self.threshold_ms = 0
