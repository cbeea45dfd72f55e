"""A server on free ports whose protocol answers lines, and clients for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.brokers.network import (
    Connection,
    ListenerSettings,
    NetworkLimits,
    NetworkServer,
)

WAIT_S = 60.0


class Lines:
    """Answers every line with itself; some lines are commands. Keeps what happened."""

    def __init__(self, connection: Connection, seen: list[Lines]) -> None:
        self.connection = connection
        self.lines: list[bytes] = []
        self.largest_view = 0
        self.writable_calls = 0
        self.reasons: list[str] = []
        seen.append(self)

    def received(self, view: memoryview) -> int:
        self.largest_view = max(self.largest_view, len(view))
        data = bytes(view)
        position = 0
        while self.connection.accepts_input:
            end = data.find(b"\n", position)
            if end < 0:
                break
            line = data[position:end]
            position = end + 1
            self.lines.append(line)
            self._answer(line)
        return position

    def _answer(self, line: bytes) -> None:
        command, _, argument = line.partition(b" ")
        if command == b"hello":
            self.connection.established()
        elif command == b"pause":
            self.connection.pause_reading()
            self.connection.loop.call_later(float(argument), self.connection.resume_reading)
        elif command == b"bye":
            self.connection.send(b"bye\n")
            self.connection.close_after_sending("bye")
            return
        elif command == b"fail":
            raise ValueError("as asked")
        elif command == b"large":
            self.connection.send(bytes(int(argument)))
            return
        self.connection.send(line, b"\n")

    def writable(self) -> None:
        self.writable_calls += 1

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)

    def timed_out(self) -> None:
        self.connection.close_after_sending("silent")


class Serving:
    def __init__(self, server: NetworkServer, protocols: list[Lines]) -> None:
        self.server = server
        self.protocols = protocols

    @property
    def port(self) -> int:
        port = self.server.listeners[0].port
        assert isinstance(port, int)
        return port

    def end_reason(self) -> str:
        """Wait for the end of the first connection, and return why it ended."""
        wait_until(lambda: len(self.protocols) > 0 and len(self.protocols[0].reasons) > 0)
        return self.protocols[0].reasons[0]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)


LISTENER = ListenerSettings(host="127.0.0.1", port=0, clients="Test")
LIMITS = NetworkLimits(message_size_max=1 << 20, sweep_interval_s=0.05)


@contextmanager
def serving(
    limits: NetworkLimits = LIMITS,
    listener: ListenerSettings = LISTENER,
    make: Callable[[Connection, list[Lines]], Lines] = Lines,
) -> Iterator[Serving]:
    protocols: list[Lines] = []
    server = NetworkServer(
        "test", [listener], lambda connection: make(connection, protocols), limits
    )
    with server:
        yield Serving(server, protocols)


def read_all(client: socket.socket) -> bytes:
    """Return everything until the server ends the connection."""
    data = b""
    while True:
        try:
            part = client.recv(65536)
        except ConnectionError:
            return data
        if not part:
            return data
        data += part


def read_exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        if not part:
            raise ConnectionError(f"the server ended the connection after {data!r}")
        data += part
    return data


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
