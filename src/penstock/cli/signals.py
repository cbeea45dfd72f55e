"""Ending a command by SIGINT or SIGTERM, without losing or doing twice what it has begun.

Who asks a second time does not want to wait for that: it is `KeyboardInterrupt` at once.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Signals are `KeyboardInterrupt`, but not in the midst of what belongs together."""

    def __init__(self) -> None:
        self._is_held = False
        self._came = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Finish what runs in here; a signal interrupts behind it."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._came:
            raise KeyboardInterrupt

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_held or self._came:
            raise KeyboardInterrupt
        self._came = True


class Stopping:
    """Signals interrupt nothing but a wait; the command looks whether it is asked to stop."""

    def __init__(self, woken: int) -> None:
        self.is_asked = False
        self._woken: Final = woken

    def wait_readable(self, descriptor: int, seconds: float | None) -> bool:
        """Wait until there is something to read, or its end; not longer than `seconds`, and not
        when the command is to stop."""
        if self.is_asked:
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        ready = poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        readable = {ready_descriptor for ready_descriptor, _ in ready}
        if self._woken in readable:
            os.read(self._woken, select.PIPE_BUF)
        return descriptor in readable

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    handler = Interrupts()
    with _handled_by(handler.handle):
        yield handler


@contextmanager
def stopping() -> Iterator[Stopping]:
    # A signal that comes just before a wait writes to a pipe, and so ends that wait, too.
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    before = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    handler = Stopping(woken)
    try:
        with _handled_by(handler.handle):
            yield handler
    finally:
        signal.set_wakeup_fd(before)
        os.close(wakes)
        os.close(woken)


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {}
    try:
        for number in _SIGNALS:
            # A shell lets commands in the background ignore Ctrl-C.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
