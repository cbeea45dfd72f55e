"""Bytes that wait for the socket; large parts are sent from where they are, without a copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol

PARTS_PER_CALL: Final = 512
"""The system accepts 1,024; more than one call can send only costs time."""

JOINED_SIZE_MAX: Final = 4 << 10

Part = bytes | bytearray | memoryview


class Channel(Protocol):
    """What a connection needs of its socket; encryption can be put here. Each method raises
    BlockingIOError when it would block."""

    def fileno(self) -> int: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...

    def send(self, data: Part, /) -> int: ...

    def sendmsg(self, parts: Iterable[Part], /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class SendQueue:
    __slots__ = ("_channel", "_parts", "size")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._parts: deque[Part] = deque()
        self.size = 0
        """Bytes that wait."""

    def push(self, parts: Iterable[Part]) -> None:
        small: list[Part] = []
        for part in parts:
            size = len(part)
            self.size += size
            if size <= JOINED_SIZE_MAX:
                small.append(part)
                continue
            self._push_small(small)
            small = []
            self._parts.append(part)
        self._push_small(small)

    def _push_small(self, parts: list[Part]) -> None:
        """Join small parts: handing each to the system costs more than the copy."""
        joined = b"".join(parts) if len(parts) != 1 else parts[0]
        if joined:
            self._parts.append(joined)

    def flush(self) -> bool:
        """Send what the socket accepts; return whether nothing is left. Raises OSError when the
        connection is gone."""
        parts = self._parts
        while parts:
            try:
                if len(parts) == 1:
                    sent = self._channel.send(parts[0])
                else:
                    sent = self._channel.sendmsg(list(islice(parts, PARTS_PER_CALL)))
            except (BlockingIOError, InterruptedError):
                return False
            self.size -= sent
            while sent:
                first = parts[0]
                if sent < len(first):
                    parts[0] = memoryview(first)[sent:]
                    break
                sent -= len(first)
                parts.popleft()
        return True

    def clear(self) -> None:
        self._parts.clear()
        self.size = 0
