"""A clock that moves only when a test says so."""

from __future__ import annotations

import threading
from itertools import count
from typing import Final

_BOOTS: Final = count()


class ManualClock:
    """A `Clock` for tests; safe to use from many threads.

    `wait` returns when its event is set or when `advance` has passed its deadline. An event that
    is set while a thread waits is noticed within `_POLL_SECONDS`, for an event cannot wake two
    kinds of waiters.
    """

    _POLL_SECONDS = 0.002

    def __init__(
        self, now_ms: int = 1_700_000_000_000, *, boot: str | None = None, uptime_ms: int = 0
    ) -> None:
        """`boot` and `uptime_ms` let a clock stand for an earlier one's machine, still running;
        without them each clock is that of a machine that was booted just now."""
        self._moved = threading.Condition()
        self._now_ms = now_ms
        self._monotonic_ms = uptime_ms
        self._waiting = 0
        self._boot = boot if boot is not None else f"manual-{id(self)}-{next(_BOOTS)}"

    def now_ms(self) -> int:
        with self._moved:
            return self._now_ms

    def expiry_ms(self) -> int:
        return self.now_ms()

    def uptime_ms(self) -> int:
        with self._moved:
            return self._monotonic_ms

    def boot_id(self) -> str:
        return self._boot

    def monotonic(self) -> float:
        with self._moved:
            return self._monotonic_ms / 1000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        with self._moved:
            deadline_ms = self._monotonic_ms + seconds * 1000
            self._waiting += 1
            try:
                while not event.is_set() and self._monotonic_ms < deadline_ms:
                    self._moved.wait(self._POLL_SECONDS)
            finally:
                self._waiting -= 1
        return event.is_set()

    @property
    def waiting(self) -> int:
        """How many threads are inside `wait`; a test can let them arrive before it advances."""
        with self._moved:
            return self._waiting

    def advance(self, seconds: float = 0.0, *, milliseconds: int = 0) -> None:
        """Let time pass, on both clocks."""
        step_ms = round(seconds * 1000) + milliseconds
        assert step_ms >= 0, "time passes forwards; `set_now_ms` turns the wall clock back"
        with self._moved:
            self._now_ms += step_ms
            self._monotonic_ms += step_ms
            self._moved.notify_all()

    def set_now_ms(self, now_ms: int) -> None:
        """Move the wall clock alone, as an operator or a time service does: a step."""
        with self._moved:
            self._now_ms = now_ms
