"""How a call that waits says so: it yields a `Pause`, and goes on when its `Wakeup` is set.

A method of a service that may wait is a generator of replies and pauses. While it pauses it has no
thread; `parked_calls` resumes it. Each resumption may come too early: the method looks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple


class Wakeup:
    """Set by any thread, as often as it likes; a setter never waits."""

    __slots__ = ("_is_set", "_lock", "_resume")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._resume: Callable[[], None] | None = None

    def set(self) -> None:
        if self._is_set:
            return  # the waiter clears it before it looks, so it sees what this setter has done
        with self._lock:
            self._is_set = True
            resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def clear(self) -> bool:
        """Clear it, before the waiter looks again; return whether it was set."""
        with self._lock:
            was_set, self._is_set = self._is_set, False
            return was_set

    def park(self, resume: Callable[[], None]) -> bool:
        """Have the next `set` call `resume`, once. False when it is set already."""
        with self._lock:
            if self._is_set:
                return False
            self._resume = resume
            return True

    def unpark(self) -> bool:
        """Take `resume` back; return whether it was still to be called."""
        with self._lock:
            was_parked, self._resume = self._resume is not None, None
            return was_parked

    def wait(self, seconds: float) -> None:
        """Wait in this thread, at most `seconds`."""
        woken = threading.Event()
        if self.park(woken.set):
            woken.wait(seconds)
            self.unpark()


class Pause(NamedTuple):
    """Yielded in place of a reply: go on when `wakeup` is set, or after `seconds`."""

    wakeup: Wakeup
    seconds: float
