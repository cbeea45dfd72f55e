"""Stops a command on SIGINT or SIGTERM after its current step, so that the step is neither lost nor
repeated. A second signal raises `KeyboardInterrupt` immediately."""

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
    """Raises `KeyboardInterrupt` on a signal, deferred within `held` blocks."""

    def __init__(self) -> None:
        self._is_held = False
        self._came = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer signals to the end of the block."""
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
    """Sets `is_asked` on a signal and ends a wait; the command polls the flag."""

    def __init__(self, woken: int) -> None:
        self.is_asked = False
        self._woken: Final = woken

    def wait_readable(self, descriptor: int, seconds: float | None) -> bool:
        """Wait until the descriptor is readable or at its end; return False after `seconds` or when
        the command is asked to stop."""
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
    # The wakeup pipe also ends a wait that begins just after the signal.
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
            # Shells make background commands ignore Ctrl-C.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
