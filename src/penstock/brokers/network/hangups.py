"""Finds connections that were reset.

uvloop calls the reader of a socket in error once, and never again: when that call reads the last
bytes, the error after them is not reported, and the connection would stay until a timeout. A
second epoll instance watches for errors only, and costs nothing per message. Other loops report
errors until they are read.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable
from typing import Final

EVENTS_PER_CALL: Final = 256


class HangupWatch:
    """Calls back, on the loop, once for every descriptor that has an error."""

    __slots__ = ("_epoll", "_hung_up", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, hung_up: Callable[[int], None]) -> None:
        self._loop: Final = loop
        self._hung_up: Final = hung_up
        self._epoll: select.epoll | None = None
        if _is_needed(loop):
            self._epoll = select.epoll()
            loop.add_reader(self._epoll.fileno(), self._read)

    def add(self, descriptor: int) -> None:
        if self._epoll is not None:
            # Errors are always reported; nothing else is asked for.
            self._epoll.register(descriptor, select.EPOLLET)

    def remove(self, descriptor: int) -> None:
        """Call before the descriptor is closed."""
        if self._epoll is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _read(self) -> None:
        if self._epoll is None:
            return
        for descriptor, _ in self._epoll.poll(0, EVENTS_PER_CALL):
            self._hung_up(descriptor)


def _is_needed(loop: asyncio.AbstractEventLoop) -> bool:
    return type(loop).__module__.partition(".")[0] == "uvloop" and hasattr(select, "epoll")
