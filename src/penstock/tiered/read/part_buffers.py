"""Memory for what streams by: a few buffers, used again and again.

Bytes that are allocated by eight threads and freed by another stay with the allocator's arenas, and
a process grows to twice what it asks for. A buffer that is still in use when it comes back
is left to them.

A request gets its buffer when its answer begins, and in the order of the stream: so the requests
in flight may be more than the buffers, which bound the memory.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Final

from penstock.errors import ClosedError, TierUnavailableError

_ALIGNED: Final = 64
"""Copies to an address that is 16 past a page's begin take several times as long on some machines,
and that is where large blocks of an allocator begin."""
_ROUNDED: Final = 256 << 10
_PATIENCE_S: Final = 600.0
"""How long a request waits for a reader that keeps everything; then it is made anew."""


class SpareBuffers:
    """Buffers that no stream uses just now: the next one begins with memory that was touched."""

    def __init__(self, count_max: int) -> None:
        self._count_max: Final = count_max
        self._lock: Final = threading.Lock()
        self._buffers: list[bytearray] = []

    def pop_all(self) -> list[bytearray]:
        with self._lock:
            spare, self._buffers = self._buffers, []
            return spare

    def give_back(self, buffers: list[bytearray]) -> None:
        with self._lock:
            self._buffers = (self._buffers + buffers)[: self._count_max]


class PartBuffers:
    """Buffers for the requests of one stream, numbered from 0; `count` of them at a time."""

    def __init__(self, count: int, spare: SpareBuffers | None = None) -> None:
        self._count: Final = count
        self._spare: Final = spare or SpareBuffers(0)
        self._changed: Final = threading.Condition()
        self._free: list[bytearray] = self._spare.pop_all()[:count]
        self._done = 0
        self._made = len(self._free)
        self.closed = False

    def acquire(self, number: int, size: int) -> memoryview:
        """Return a view of `size` bytes, whatever they are; wait until it is the turn of request
        `number`."""
        with self._changed:
            turn = self._changed.wait_for(lambda: self._may_acquire(number), _PATIENCE_S)
            if self.closed:
                raise ClosedError("the stream was closed")
            if not turn:
                raise TierUnavailableError(
                    f"the reader of this stream asked for nothing for {_PATIENCE_S:.0f} s; begin a "
                    "new stream"
                )
            buffer = self._pop()
        return _fitting(buffer, size)

    def try_acquire(self, number: int, size: int) -> memoryview | None:
        """As `acquire`; None when that would wait."""
        with self._changed:
            if self.closed or not self._may_acquire(number):
                return None
            buffer = self._pop()
        return _fitting(buffer, size)

    def _pop(self) -> bytearray | None:
        """Return the buffer that was used last, some of which may be in a processor's cache."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return None

    def _may_acquire(self, number: int) -> bool:
        is_turn = number < self._done + self._count
        return self.closed or (is_turn and (bool(self._free) or self._made < self._count))

    def prepare(self, size: int) -> bool:
        """Make a buffer for requests in flight; say whether one was missing. What
        was never touched takes longer to fill than the network does."""
        with self._changed:
            if self._made >= self._count:
                return False
            self._made += 1
        buffer = _new(size)
        with self._changed:
            self._free.append(buffer)
            self._changed.notify_all()
        return True

    def give_back(self, view: memoryview, requests: int) -> None:
        """Take back the buffer into which so many requests went."""
        buffer = view.obj
        view.release()
        assert isinstance(buffer, bytearray)
        free = requests == 1 and not _is_seen(buffer)
        with self._changed:
            if free:
                self._free.append(buffer)
            else:
                self._made -= 1
            self._done += requests
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._spare.give_back(self._free)
            self._free = []
            self._changed.notify_all()


def _new(size: int) -> bytearray:
    return bytearray(-(-size // _ROUNDED) * _ROUNDED + _ALIGNED)


def _fitting(buffer: bytearray | None, size: int) -> memoryview:
    fits = buffer is not None and len(buffer) >= size + _ALIGNED
    return _aligned(buffer if buffer is not None and fits else _new(size), size)


def _aligned(buffer: bytearray, size: int) -> memoryview:
    start = -ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % _ALIGNED
    return memoryview(buffer)[start : start + size]


def _is_seen(buffer: bytearray) -> bool:
    """Say whether there is a view of it left: it cannot change its size then."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False
