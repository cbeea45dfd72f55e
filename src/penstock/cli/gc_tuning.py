"""Keeps the garbage collector from stopping a server for long.

A full collection walks through every object that it may find garbage in: a server with thousands of
partitions stands still for it, some 10 ms for each thousand. What is there when one ends has
outlived everything and is probably there to stay, so a slow one is the last that looks at it. What
is dropped later goes by its count of references; only a circle of such objects would stay, and
these are looked for once an hour.
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
    """Called by the collector before and after each collection."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic: Final = monotonic
        self._began = self._looked_at_all = monotonic()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _FULL:
            return
        now = self._monotonic()
        if phase == "start":
            self._began = now
            if now - self._looked_at_all >= FULL_COLLECTION_INTERVAL_S:
                self._looked_at_all = now
                gc.unfreeze()
        elif now - self._began >= SLOW_S:
            gc.freeze()


def limit_gc_pauses() -> None:
    """Take what there is now out of the collections, and what proves to stay."""
    gc.freeze()
    gc.callbacks.append(GcPauseLimiter())
