"""Time, as everything that needs it receives it.

Code takes a `Clock` and never asks the operating system: retention, expiry, flush intervals and
deadlines can then be tested in no time at all (`penstock.testing.ManualClock`).

What deletes by age asks for `expiry_ms`, everything else for `now_ms`: a clock that was set wrong
must not delete what is young (`penstock.platform.clock_guard`).
"""

from __future__ import annotations

import threading
import time
from functools import cached_property
from typing import Final, Protocol, runtime_checkable
from uuid import uuid4

_WAIT_S_MAX: Final = 3_600.0
"""The longest single wait: threads cannot wait for arbitrarily many seconds."""
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_BOOT_ID_SIZE_MAX: Final = 64


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since 1970; it may jump, also backwards."""
        ...

    def expiry_ms(self) -> int:
        """Return the wall time by which records, groups and files are old enough to delete. It is
        `now_ms`, or earlier while a step of the clock is suspected."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment; never goes backwards. For intervals."""
        ...

    def uptime_ms(self) -> int:
        """Return milliseconds since the machine was booted, with the time that it slept. No
        setting of the wall clock changes it, and all processes of one boot agree on it."""
        ...

    def boot_id(self) -> str:
        """Return what identifies this boot of the machine."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until `event` is set or `seconds`, which may be infinite, have passed; return
        whether it is set."""
        ...


@runtime_checkable
class WrappingClock(Protocol):
    """A clock that takes its time from another one."""

    @property
    def inner(self) -> Clock: ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def expiry_ms(self) -> int:
        return self.now_ms()

    def monotonic(self) -> float:
        return time.monotonic()

    def uptime_ms(self) -> int:
        return time.clock_gettime_ns(_UPTIME_CLOCK) // 1_000_000

    def boot_id(self) -> str:
        return self._boot_id

    @cached_property
    def _boot_id(self) -> str:
        try:
            with open(_BOOT_ID, encoding="ascii", errors="replace") as file:
                return file.read(_BOOT_ID_SIZE_MAX).strip()
        except OSError:
            return f"process-{uuid4().hex}"  # uptimes of other processes are not compared

    def wait(self, event: threading.Event, seconds: float) -> bool:
        while seconds > _WAIT_S_MAX:
            if event.wait(_WAIT_S_MAX):
                return True
            seconds -= _WAIT_S_MAX
        return event.wait(seconds)


_UPTIME_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def shows_system_time(clock: Clock) -> bool:
    """Say whether native code, which reads the machine's clock by itself, gets the same time."""
    inner = clock.inner if isinstance(clock, WrappingClock) else clock
    return isinstance(inner, SystemClock)
