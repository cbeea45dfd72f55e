"""Bytes of one connection that its protocol has not consumed.

    [ consumed ........ | bytes of incomplete messages ........ | room ]
                      start                                    end

A connection between messages has no buffer of its own: it receives into one that all connections of
the server share, and only what is left of it (the beginning of a message) is copied. A message that
is larger is received in place. A buffer grows with what has arrived, never with what a client says
will come.
"""

from __future__ import annotations

from typing import Final

SHARED_SIZE: Final = 256 << 10
FIRST_SIZE: Final = 4 << 10
FIRST_STEP_MAX: Final = 16 << 10
"""Bytes for a message of which only the size has arrived."""
GROWTH: Final = 8
GROWN_PER_STEP_MAX: Final = 2 << 20
"""Larger buffers only double, and are not kept when they are empty."""


class ReceiveBuffer:
    """`start` and `end` are those of the bytes that wait. Who receives moves `end`, who consumes
    moves `start`."""

    __slots__ = ("_shared", "_view", "end", "start")

    def __init__(self, shared: memoryview) -> None:
        self._shared = shared
        self._view = shared
        self.start = self.end = 0

    @property
    def is_shared(self) -> bool:
        return self._view is self._shared

    @property
    def waiting(self) -> int:
        """Bytes that were received and not consumed."""
        return self.end - self.start

    @property
    def size(self) -> int:
        """Bytes that this connection alone holds."""
        return 0 if self._view is self._shared else len(self._view)

    def room(self) -> memoryview:
        """The memory to receive into; empty while the buffer accepts no more."""
        return self._view[self.end :]

    def view(self) -> memoryview:
        """Return the bytes that wait, valid until the next call of `compact`."""
        return self._view[self.start : self.end]

    def compact(self, expected: int = 0) -> None:
        """Call after every read: returns the shared buffer, enlarges a full one.

        `expected` is the size of the message whose beginning waits; 0: unknown, the buffer may
        grow to twice what waits.
        """
        waiting = self.end - self.start
        if waiting == 0:
            self.start = self.end = 0
            if len(self._view) > GROWN_PER_STEP_MAX:
                self._view = self._shared
            return
        size = _size_for(expected, waiting)
        if self._view is self._shared:
            self._move_to(max(size, FIRST_SIZE))
        elif self.end == len(self._view) or (self.start and size > len(self._view)):
            self._move_to(max(size, len(self._view)))

    def release(self) -> None:
        """Give a buffer of its own back, when it is empty."""
        if self.end == self.start:
            self._view = self._shared
            self.start = self.end = 0

    def drop(self) -> None:
        """Forget what waits."""
        self.end = self.start
        self.release()

    def _move_to(self, size: int) -> None:
        waiting = self.end - self.start
        rest = self._view[self.start : self.end]
        if self._view is not self._shared and size <= len(self._view):
            self._view[:waiting] = bytes(rest)
        else:
            view = memoryview(bytearray(size))
            view[:waiting] = rest
            self._view = view
        self.start, self.end = 0, waiting


def _size_for(expected: int, waiting: int) -> int:
    """How large the buffer should be: the whole next message, as far as it has arrived."""
    if not expected:
        return max(FIRST_SIZE, 2 * waiting) if waiting >= FIRST_SIZE else FIRST_SIZE
    step = max(FIRST_STEP_MAX, min(GROWTH * waiting, GROWN_PER_STEP_MAX), 2 * waiting)
    return max(min(expected, step), waiting)
