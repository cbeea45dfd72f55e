"""The deadlines of groups, and the thread that waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

from penstock.groups.coordinator.persistence import GroupKey
from penstock.platform.clock import Clock

STOP_S: Final = 5.0


def monotonic_ms(clock: Clock) -> int:
    return int(clock.monotonic() * 1000)


class GroupTimers:
    """The thread starts with the first deadline."""

    def __init__(
        self, clock: Clock, lock: threading.RLock, expire: Callable[[GroupKey, int], None]
    ) -> None:
        """`expire` is called with `lock` held, with each deadline that was scheduled: also with
        those that a later call has replaced."""
        self._clock: Final = clock
        self._lock: Final = lock
        self._expire: Final = expire
        self._due: Final[list[tuple[int, int, GroupKey]]] = []
        self._order: Final = count()
        self._wake: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def schedule(self, key: GroupKey, due_ms: int) -> None:
        """Call `expire` at a moment of the monotonic clock. The caller holds the lock."""
        heappush(self._due, (due_ms, next(self._order), key))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-groups", daemon=True)
            self._thread.start()
        elif self._due[0][2] is key:
            self._wake.set()

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
                self._wake.clear()
                while self._due and self._due[0][0] <= monotonic_ms(self._clock):
                    due_ms, _, key = heappop(self._due)
                    self._expire(key, due_ms)
                next_ms = self._due[0][0] if self._due else None
            wait_s = float("inf")
            if next_ms is not None:
                wait_s = (next_ms - monotonic_ms(self._clock)) / 1000
            if wait_s > 0:
                self._clock.wait(self._wake, wait_s)
