"""Time, as everything that needs it receives it.

Code takes a `Clock` and never asks the operating system: retention, expiry, flush intervals and
deadlines can then be tested in no time at all (`penstock.testing.ManualClock`).
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since 1970; it may jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment; never goes backwards. For intervals."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until `event` is set or `seconds` have passed; return whether it is set."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)
