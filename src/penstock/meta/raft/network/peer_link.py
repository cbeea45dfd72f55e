"""The way to one node on a data channel: a connection that is kept, and what waits for it.

`offer` may be called from any thread and never blocks. While nothing waits, it writes to the socket
itself, which saves the way through the network's thread. What waits takes at most `BUFFERED_MAX`
bytes; the transport below holds `WRITE_SIZE` more. When the connection ends, what waits is dropped.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    FRAME_HEAD_2,
    FRAME_VERSION,
    DataChannelName,
    frame_head,
)
from penstock.meta.raft.network.outgoing import Outgoing, keep_connected
from penstock.meta.raft.network.traffic import ChannelTraffic
from penstock.meta.state.model import Member

BUFFERED_MAX: Final = 64 << 20
WRITE_SIZE: Final = 256 << 10
_WRITES_MAX: Final = 16
"""Writes in one turn of the loop, so that other connections get theirs."""
_JOINED_SIZE_MAX: Final = 64 << 10
"""A smaller frame is joined with its head; a larger one is not copied."""
_PAUSE_SECONDS_MAX: Final = 0.5


class PeerLink:
    """Created on the loop's thread; `close` ends it there."""

    def __init__(
        self,
        channel: DataChannelName,
        member: Member,
        *,
        loop: asyncio.AbstractEventLoop,
        traffic: ChannelTraffic,
        open_to: Callable[[], Opener],
        on_connected: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.member: Final = member
        self._channel: Final = channel
        self._loop: Final = loop
        self._traffic: Final = traffic
        self._open_to: Final = open_to
        self._on_connected: Final = on_connected
        self._on_lost: Final = on_lost
        self._lock: Final = threading.Lock()
        self._outbox: deque[bytes] = deque()
        self._size = 0
        """Bytes that wait, those of a frame that is partly written included."""
        self._rest = memoryview(b"")
        """What is left of a large frame."""
        self._is_busy = False
        """Whether the network's thread has bytes to write, and so must write all that follow."""
        self._direct: socket.socket | None = None
        """The connection's socket, for writes of other threads."""
        self._limit = 0
        """Of `_size`; 0 without a connection."""
        self._connection: Outgoing | None = None
        self.address: tuple[str, int] | None = None
        """Where the node was reached last, as numbers."""
        self._task: Final = loop.create_task(
            keep_connected(member, self._connect, pause_max=_PAUSE_SECONDS_MAX)
        )

    def offer(self, data: bytes) -> bool:
        """Queue a message, or return False: not connected, or too much waits for it."""
        if self._limit == 0:
            return False
        head = frame_head(data, FRAME_VERSION)
        size = len(head) + len(data)
        joined = len(data) < _JOINED_SIZE_MAX
        parts: tuple[bytes, ...] = (head + data,) if joined else (head, data)
        with self._lock:
            if self._size + size > self._limit:
                return False
            if not self._is_busy:
                parts = self._write_now(parts)
                if not parts:
                    return True
            self._outbox.extend(parts)
            self._size += sum(map(len, parts))
            was_busy, self._is_busy = self._is_busy, True
        if not was_busy:
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop is closed: so is the connection
                return False
        return True

    @property
    def is_connected(self) -> bool:
        return self._limit > 0

    def _write_now(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Write what the socket's buffer takes; return the rest."""
        assert self._direct is not None, "there is a connection"
        try:
            written = self._direct.sendmsg(parts)
        except OSError:  # the buffer is full; or the connection has ended, as the loop will notice
            return parts
        self._traffic.count_sent(written)
        rest: list[bytes] = []
        for part in parts:
            if written < len(part):
                rest.append(part[written:])
            written = max(0, written - len(part))
        return tuple(rest)

    def close(self) -> asyncio.Task[None]:
        """Return the task that ends with this."""
        self._task.cancel()
        if self._connection is not None:
            self._connection.abort()
        return self._task

    def _connect(self) -> Outgoing:
        connection = Outgoing(
            self._open_to(),
            self._loop,
            self._channel,
            on_welcome=self._welcome,
            on_writable=self._flush,
            on_lost=self._lose,
        )
        self._connection = connection
        return connection

    def _welcome(self) -> None:
        assert self._connection is not None, "it is the connection that says so"
        self.address = self._connection.address
        with self._lock:
            self._direct = self._connection.copy_socket()
            self._limit = BUFFERED_MAX
            self._is_busy = False
        self._on_connected()

    def _lose(self) -> None:
        with self._lock:
            self._limit = 0
            dropped, self._size = self._size, 0
            self._outbox.clear()
            if self._direct is not None:
                self._direct.close()
                self._direct = None
        self._traffic.drop(dropped)
        self._rest = memoryview(b"")
        self._on_lost()

    def _flush(self) -> None:
        connection = self._connection
        for _ in range(_WRITES_MAX):
            if connection is None or not (connection.is_welcome and connection.is_writable):
                return  # it is called again when the connection is writable
            part = self._pop_part()
            if not part:
                return
            connection.write(part)
            self._traffic.count_sent(len(part))
        self._loop.call_soon(self._flush)

    def _pop_part(self) -> bytes | memoryview:
        """Return the next bytes to write, at most `WRITE_SIZE`; none: other threads may write."""
        with self._lock:
            if not self._rest and self._outbox and len(self._outbox[0]) > WRITE_SIZE:
                self._rest = memoryview(self._outbox.popleft())
            if self._rest:
                part, self._rest = self._rest[:WRITE_SIZE], self._rest[WRITE_SIZE:]
                self._size -= len(part)
                return part
            small: list[bytes] = []
            size = 0
            while self._outbox and size + len(self._outbox[0]) <= WRITE_SIZE:
                size += len(self._outbox[0])
                small.append(self._outbox.popleft())
            self._size -= size
            if not small:
                self._is_busy = False
        return small[0] if len(small) == 1 else b"".join(small)


def frame_size(data: bytes) -> int:
    """Return how many bytes a message takes on the wire."""
    return FRAME_HEAD_2.size + len(data)
