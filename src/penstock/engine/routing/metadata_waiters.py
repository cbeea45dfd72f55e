"""Waiting until a cache of the metadata shows something, for a bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock.platform.clock import Clock


class CacheWaiters:
    """A caller that changes the cache calls `wake` afterwards."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._waiting: list[threading.Event] = []

    def wake(self) -> None:
        with self._lock:
            for woken in self._waiting:
                woken.set()

    def wait(self, is_there: Callable[[], bool], seconds: float) -> bool:
        """Return whether `is_there` became true within `seconds`."""
        if is_there():
            return True
        woken = threading.Event()
        deadline = self._clock.monotonic() + seconds
        with self._lock:
            self._waiting.append(woken)
        try:
            # Cleared before each look: a change between look and wait is never missed.
            while not is_there():
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                self._clock.wait(woken, left)
                woken.clear()
            return True
        finally:
            with self._lock:
                self._waiting.remove(woken)
