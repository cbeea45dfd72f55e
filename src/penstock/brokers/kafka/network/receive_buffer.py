"""Bytes of one connection that are not yet a whole request.

    [ read ........ | bytes of requests not yet taken ........ | room ]
                    start                                      end

A connection between requests has no buffer of its own: it receives into one that all connections of
the server share, and only what is left of it (the beginning of a request) is copied. A request that
is larger is received in place. A buffer grows with what has arrived, never with what a client says
will come.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

SHARED_SIZE: Final = 256 << 10
FIRST_SIZE: Final = 4 << 10
_GROWN_AT_ONCE_MAX: Final = 2 << 20

_SIZE: Final = Struct(">i").unpack_from


class RequestTooLargeError(Exception):
    """A client announced a request above the size limit."""


class ReceiveBuffer:
    __slots__ = ("_data", "_end", "_request_size_max", "_shared", "_start", "_view")

    def __init__(self, shared: bytearray, request_size_max: int) -> None:
        self._shared = shared
        self._request_size_max = request_size_max
        self._data = shared
        self._view = memoryview(shared)
        self._start = self._end = 0

    @property
    def is_shared(self) -> bool:
        return self._data is self._shared

    @property
    def waiting(self) -> int:
        """Bytes that were received and not taken."""
        return self._end - self._start

    @property
    def size(self) -> int:
        """Bytes that this connection alone holds."""
        return 0 if self.is_shared else len(self._data)

    def room(self) -> memoryview:
        """The memory to receive into; empty while the buffer accepts no more."""
        return self._view[self._end :]

    def received(self, size: int) -> None:
        self._end += size

    def next_request(self) -> memoryview | None:
        """Return the next whole request, valid until the next call of `room`, or None."""
        start = self._start
        waiting = self._end - start
        if waiting < 4:
            return None
        (size,) = _SIZE(self._data, start)
        if not 0 < size <= self._request_size_max:
            raise RequestTooLargeError(f"{size} bytes; {self._request_size_max} are allowed")
        if waiting < size + 4:
            return None
        self._start = start + 4 + size
        return self._view[start + 4 : self._start]

    def compact(self) -> None:
        """Call after every read: returns the shared buffer, enlarges a full one."""
        waiting = self.waiting
        if waiting == 0:
            self._start = self._end = 0
            if len(self._data) > _GROWN_AT_ONCE_MAX:
                self._use(self._shared)
            return
        size = self._size_for_next()
        if self.is_shared:
            self._move_to(max(size, FIRST_SIZE))
        elif self._end == len(self._data) or (self._start and size > len(self._data)):
            self._move_to(max(size, len(self._data)))

    def release(self) -> None:
        """Give a buffer of its own back, when it is empty."""
        if self.waiting == 0:
            self._use(self._shared)

    def _size_for_next(self) -> int:
        """How large the buffer should be: the whole next request, as far as it has arrived."""
        waiting = self.waiting
        if waiting < 4:
            return FIRST_SIZE
        (size,) = _SIZE(self._data, self._start)
        whole = int(size) + 4
        return max(min(whole, max(_GROWN_AT_ONCE_MAX, 2 * waiting)), waiting)

    def _move_to(self, size: int) -> None:
        waiting = self.waiting
        rest = self._view[self._start : self._end]
        if not self.is_shared and size <= len(self._data):
            self._view[:waiting] = bytes(rest)
        else:
            data = bytearray(size)
            data[:waiting] = rest
            self._data = data
            self._view = memoryview(data)
        self._start, self._end = 0, waiting

    def _use(self, data: bytearray) -> None:
        self._data = data
        self._view = memoryview(data)
        self._start = self._end = 0
