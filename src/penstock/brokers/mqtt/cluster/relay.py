"""Relayed connections: the client is connected here, its session runs on another node.

    client ══ RelayedClient ──── frames of the channel `mqtt` ──── RelayedSession ══ Connection
              (this node)                                          (a pair of sockets)

At the node of the session a relayed connection is one of its server's connections, with the address
and the transport of the client. Each direction has a window of bytes: what the receiver has passed
on is granted again, so that a client that does not read stops the session, and a session that is
busy stops the client. When a node dies, the other one ends the connections between them.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.brokers.mqtt.cluster import frames
from penstock.brokers.mqtt.cluster.links import Links
from penstock.brokers.network import Connection

WINDOW: Final = 256 << 10
"""Bytes that may be on their way in one direction of a connection."""
GRANT_SIZE: Final = 32 << 10
"""Bytes that are granted together."""
READ_SIZE: Final = 64 << 10


class RelayedClient:
    """The end at which the client is; implements `Protocol` of `brokers.network`."""

    __slots__ = ("_connection", "_credit", "_links", "_on_end", "_owed", "node", "number")

    def __init__(
        self,
        connection: Connection,
        links: Links,
        node: int,
        number: int,
        on_end: Callable[[RelayedClient], None],
    ) -> None:
        self.node: Final = node
        self.number: Final = number
        self._connection: Final = connection
        self._links: Final = links
        self._on_end: Final = on_end
        self._credit = WINDOW
        self._owed = 0
        """Bytes that were received, and not granted again."""
        peer = connection.peer
        opened = frames.opened(peer.host, peer.port, connection.transport)
        links.post(node, frames.OPEN, number, opened)

    # From the client

    def received(self, view: memoryview) -> int:
        size = min(len(view), self._credit)
        if size:
            self._credit -= size
            self._links.post(self.node, frames.DATA, self.number, bytes(view[:size]))
        if not self._credit:
            self._connection.is_busy = True
            self._connection.pause_reading()
        return size

    def writable(self) -> None:
        self._grant()

    def closed(self, reason: str) -> None:
        self._links.post(self.node, frames.END, self.number, reason.encode())
        self._on_end(self)

    # From the node of the session

    def data(self, content: bytes) -> None:
        self._connection.send(content)
        self._owed += len(content)
        if self._owed >= GRANT_SIZE and not self._connection.is_congested:
            self._grant()

    def _grant(self) -> None:
        if self._owed:
            owed, self._owed = self._owed, 0
            self._links.post(self.node, frames.CREDIT, self.number, frames.credit(owed))

    def credit(self, size: int) -> None:
        self._credit += size
        if self._connection.is_busy:
            self._connection.is_busy = False
            self._connection.resume_reading()

    def end(self, reason: str) -> None:
        """The session has ended the connection, or its node is gone."""
        self._connection.close_after_sending(reason)


class RelayedSession:
    """The end at which the session is: a socket whose other end is a connection of the server."""

    __slots__ = (
        "_credit",
        "_is_ending",
        "_is_reading",
        "_links",
        "_loop",
        "_on_end",
        "_out",
        "_owed",
        "_socket",
        "node",
        "number",
    )

    def __init__(
        self,
        end: socket.socket,
        links: Links,
        node: int,
        number: int,
        on_end: Callable[[RelayedSession], None],
    ) -> None:
        self.node: Final = node
        self.number: Final = number
        self._socket: Final = end
        self._links: Final = links
        self._on_end: Final = on_end
        self._loop: Final = asyncio.get_running_loop()
        self._credit = WINDOW
        self._owed = 0
        self._out: Final[deque[bytes | memoryview]] = deque()
        """What the connection does not take yet; the window bounds it."""
        self._is_ending = False
        self._is_reading = False
        end.setblocking(False)
        self._read_again()

    # From the session

    def _read_again(self) -> None:
        if not self._is_reading and self._socket.fileno() >= 0:
            self._is_reading = True
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _readable(self) -> None:
        # What the session says to a client that has gone is not wanted.
        size = READ_SIZE if self._is_ending else min(READ_SIZE, self._credit)
        if not size:
            self._stop_reading()
            return
        try:
            content = self._socket.recv(size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            content = b""
        if not content:
            self.close("the session has ended the connection")
        elif not self._is_ending:
            self._credit -= len(content)
            self._links.post(self.node, frames.DATA | frames.BACK, self.number, content)

    # From the client

    def credit(self, size: int) -> None:
        self._credit += size
        self._read_again()

    def data(self, content: bytes) -> None:
        if self._is_ending or self._socket.fileno() < 0:
            return
        is_waiting = bool(self._out)
        self._out.append(content)
        if not is_waiting:
            self._write()
            if self._out and self._socket.fileno() >= 0:
                self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        self._write()
        if not self._out and self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket.fileno())
            if self._is_ending:
                self._shut()

    def _write(self) -> None:
        while self._out:
            part = self._out[0]
            try:
                sent = self._socket.send(part)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close("the session has ended the connection")
                return
            self._owed += sent
            if sent < len(part):
                self._out[0] = memoryview(part)[sent:]
            else:
                self._out.popleft()
        if self._owed >= GRANT_SIZE and not self._is_ending:
            owed, self._owed = self._owed, 0
            self._links.post(
                self.node, frames.CREDIT | frames.BACK, self.number, frames.credit(owed)
            )

    def end(self) -> None:
        """The client has gone: the session sees the end of its connection after what the client
        has sent."""
        self._is_ending = True
        self._read_again()
        if not self._out:
            self._shut()

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close("the connection has ended")

    def close(self, reason: str) -> None:
        """End both ends. May be called again."""
        if self._socket.fileno() < 0:
            return
        self._stop_reading()
        if self._out:
            self._loop.remove_writer(self._socket.fileno())
            self._out.clear()
        self._socket.close()
        if not self._is_ending:
            self._links.post(self.node, frames.END | frames.BACK, self.number, reason.encode())
        self._on_end(self)
