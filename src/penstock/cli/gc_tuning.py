"""Limits the pauses of Python's garbage collector in a server.

A full collection visits every tracked object: about 10 ms per thousand partitions, during which the
server stands still. Objects that survive a slow full collection are likely to be permanent, so they
are frozen (`gc.freeze`) and later collections skip them. Reference counting still frees them;
only reference cycles among frozen objects stay, until `gc.unfreeze` once an hour.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

SLOW_S: Final = 0.003
FULL_COLLECTION_INTERVAL_S: Final = 3_600.0
_FULL: Final = 2


class GcPauseLimiter:
    """A `gc.callbacks` entry that freezes the survivors of slow full collections."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic: Final = monotonic
        self._began = self._unfrozen_at = monotonic()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _FULL:
            return
        now = self._monotonic()
        if phase == "start":
            self._began = now
            if now - self._unfrozen_at >= FULL_COLLECTION_INTERVAL_S:
                self._unfrozen_at = now
                gc.unfreeze()
        elif now - self._began >= SLOW_S:
            gc.freeze()


def limit_gc_pauses() -> None:
    """Freeze the present objects, and later the survivors of slow collections."""
    gc.freeze()
    gc.callbacks.append(GcPauseLimiter())
