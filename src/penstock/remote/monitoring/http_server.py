"""The HTTP port of a server: `/metrics` for Prometheus, `/health` for load balancers and operators.

One thread serves all connections, without ever waiting for one of them: a client that sends or
reads slowly takes a socket and a few KiB, no thread. A connection is for one request and lasts
`SECONDS_MAX` at most. When `CONNECTIONS_MAX` are open, the one that has been without a complete
request for longest makes room for a new one; so a flood of silent sockets delays a probe, but does
not keep it out. Some descriptors are kept in reserve for a process that has run out of them.

What is shown is made by other threads (`http_pages`), so that a check that hangs is reported as
such instead of hanging the port.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from prometheus_client import CollectorRegistry

from penstock.platform.addresses import explain, resolve
from penstock.remote.monitoring.pages import Health, Page, Pages, answer
from penstock.remote.monitoring.request import parse_request

CONNECTIONS_MAX: Final = 256
SECONDS_MAX: Final = 10.0
BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 64
_READ_SIZE: Final = 4096
_LOOK_S: Final = 0.05
"""How often the loop looks at deadlines when nothing happens."""
_ACCEPT_PAUSE_S: Final = 0.1
_SPARE: Final = 4
"""Descriptors in reserve."""
_JOIN_S: Final = 10.0
_FULL: Final = answer(503, "text/plain", b"too many connections at once; try again\n")


class _Connection:
    """A client: what it has sent so far, and what is still to be sent to it."""

    __slots__ = ("asked", "end", "incoming", "number", "outgoing", "page", "socket")

    def __init__(self, number: int, connected: socket.socket, end: float) -> None:
        self.number: Final = number
        self.socket: Final = connected
        self.end: Final = end
        self.incoming = b""
        self.outgoing: memoryview | None = None
        self.page: Page | None = None
        """What it has asked for, while that is made."""
        self.asked = 0.0


class MonitoringServer:
    """Answers in a thread of its own; `close` ends it."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        health: Health,
        *,
        live: Health | None = None,
        connections_max: int = CONNECTIONS_MAX,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._connections_max: Final = connections_max
        self._seconds_max: Final = seconds_max
        self._connections: dict[int, _Connection] = {}
        self._numbers: Final = count()
        self._stopping: Final = threading.Event()
        self._accept_after = 0.0
        self._is_accepting = True
        self._listener: Final = _listen(host, port)
        self.port: Final = int(self._listener.getsockname()[1])
        self._wake_from, self._wake_to = socket.socketpair()
        for end in (self._wake_from, self._wake_to):
            end.setblocking(False)
        self._spare: list[int] = []
        self._keep_spare()
        self._pages: Final = Pages(registry, health, live, self._wake)
        self._selector: Final = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_from, selectors.EVENT_READ, self._drain_wakes)
        self._thread: Final = threading.Thread(target=self._run, name="penstock-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._wake()
        self._thread.join(_JOIN_S)
        self._pages.close()

    def _wake(self) -> None:
        with suppress(OSError):  # full: the loop wakes anyway; closed: it has ended
            self._wake_to.send(b"\0")

    # The loop

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                for key, _ in self._selector.select(_LOOK_S):
                    if isinstance(key.data, _Connection):
                        self._serve(key.data)
                    else:
                        react: Callable[[], None] = key.data
                        react()
                self._answer_ready()
                self._look_at_deadlines(time.monotonic())
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection)
            self._selector.close()
            for resource in (self._listener, self._wake_from, self._wake_to):
                resource.close()
            for descriptor in self._spare:
                os.close(descriptor)

    def _drain_wakes(self) -> None:
        with suppress(BlockingIOError):
            while len(self._wake_from.recv(_READ_SIZE)) == _READ_SIZE:
                pass

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connected, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # of descriptors or memory there is none left
                if not self._spare:
                    self._pause_accepting()
                    return
                os.close(self._spare.pop())
                continue
            connected.setblocking(False)
            if len(self._connections) >= self._connections_max and not self._make_room():
                with suppress(OSError):
                    connected.send(_FULL)
                connected.close()
                continue
            end = time.monotonic() + self._seconds_max
            connection = _Connection(next(self._numbers), connected, end)
            self._connections[connection.number] = connection
            self._selector.register(connected, selectors.EVENT_READ, connection)

    def _make_room(self) -> bool:
        """Drop the oldest connection that has not asked for anything yet, if there is one."""
        for connection in self._connections.values():
            if connection.page is None and connection.outgoing is None:
                self._drop(connection)
                return True
        return False

    def _pause_accepting(self) -> None:
        self._make_room()
        self._accept_after = time.monotonic() + _ACCEPT_PAUSE_S
        self._is_accepting = False
        self._selector.unregister(self._listener)

    def _keep_spare(self) -> None:
        while len(self._spare) < _SPARE:
            try:
                self._spare.append(os.dup(self._wake_from.fileno()))
            except OSError:
                return

    # A connection

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.outgoing is not None:
                self._send(connection)
            else:
                self._receive(connection)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # the client went away
            self._drop(connection)

    def _receive(self, connection: _Connection) -> None:
        data = connection.socket.recv(_READ_SIZE)
        if connection.page is not None:
            if not data:  # no more will come; the answer is still wanted
                self._selector.unregister(connection.socket)
            return
        if not data:
            self._drop(connection)
            return
        connection.incoming += data
        asked = parse_request(connection.incoming)
        if asked is None:
            return
        page = self._pages.find(asked)
        if isinstance(page, bytes):
            self._reply(connection, page)
        else:
            connection.page, connection.asked = page, time.monotonic()
            page.want(connection.number)

    def _reply(self, connection: _Connection, data: bytes) -> None:
        self._drop_page(connection)
        connection.outgoing = memoryview(data)
        try:
            self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
        except KeyError:  # its client had ended its side
            self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
        self._serve(connection)

    def _send(self, connection: _Connection) -> None:
        assert connection.outgoing is not None, "asked by the caller"
        sent = connection.socket.send(connection.outgoing)
        connection.outgoing = connection.outgoing[sent:]
        if not connection.outgoing:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._drop_page(connection)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()
        if len(self._spare) < _SPARE:
            self._keep_spare()

    def _drop_page(self, connection: _Connection) -> None:
        if connection.page is not None:
            connection.page.remove_request(connection.number)
            connection.page = None

    def _answer_ready(self) -> None:
        for page, numbers, data in self._pages.pop_ready():
            for number in numbers:
                connection = self._connections.get(number)
                if connection is not None and connection.page is page:
                    self._reply(connection, data)

    def _look_at_deadlines(self, now: float) -> None:
        if not self._is_accepting and now >= self._accept_after:
            self._is_accepting = True
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for connection in list(self._connections.values()):
            page = connection.page
            if connection.end <= now:
                self._drop(connection)
            elif page is not None and connection.asked + page.seconds_max <= now:
                self._reply(connection, page.late)


def _listen(host: str, port: int) -> socket.socket:
    endpoint = resolve(host, port)
    listener = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(endpoint.address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise explain(host, port, error, choose="another http port") from error
    listener.setblocking(False)
    return listener
