"""What goes wrong between this node and others, for `penstock cluster status`.

A problem is kept for `KEPT_SECONDS` after it was last seen; of each kind and node the last one, and
at most `PROBLEMS_MAX` in all: strangers can cause them.
"""

from __future__ import annotations

import threading
from typing import Final

from penstock.platform.clock import Clock, SystemClock

KEPT_SECONDS: Final = 60.0
PROBLEMS_MAX: Final = 32


class PeerProblems:
    """Any thread may call."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Final = clock if clock is not None else SystemClock()
        self._lock: Final = threading.Lock()
        self._known: Final[dict[tuple[str, int], tuple[str, float]]] = {}

    def record(self, kind: str, node: int, text: str) -> None:
        """Keep a problem with a node; 0: it is not known which."""
        with self._lock:
            self._known.pop((kind, node), None)
            self._known[kind, node] = text, self._clock.monotonic()
            while len(self._known) > PROBLEMS_MAX:
                del self._known[next(iter(self._known))]

    def current(self) -> list[str]:
        since = self._clock.monotonic() - KEPT_SECONDS
        with self._lock:
            return [text for text, refused_at in self._known.values() if refused_at >= since]
