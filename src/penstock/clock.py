"""Time, as everything that needs it receives it.

Code takes a `Clock` and never asks the operating system: retention, expiry, flush intervals and
deadlines can then be tested in no time at all (`penstock.testing.ManualClock`).
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

_WAIT_S_MAX: Final = 3_600.0
"""In one go: threads cannot wait for every number of seconds, and nobody notices the pause."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since 1970; it may jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment; never goes backwards. For intervals."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until `event` is set or `seconds`, which may be infinite, have passed; return
        whether it is set."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        while seconds > _WAIT_S_MAX:
            if event.wait(_WAIT_S_MAX):
                return True
            seconds -= _WAIT_S_MAX
        return event.wait(seconds)
