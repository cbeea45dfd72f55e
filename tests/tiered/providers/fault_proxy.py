"""A proxy in front of a real S3 server that fails as networks and servers do.

    busy       503, nothing was done
    lost       the request was carried out, its answer is not sent
    cut        an answer whose body ends half-way
    slow       no answer until the client has given up; the request was carried out
    is_gone    every connection is closed at once, until it is set back
    hold_before  requests from this number on are not carried out, nor answered

Each request meets at most one of them, at random, `ratio` of all together.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("busy", "lost", "cut", "slow")
_BUSY = b"<Error><Code>SlowDown</Code><Message>later</Message></Error>"
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})


class FaultProxy(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, backend_port: int, *, seed: int = 1, slow_s: float = 3.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend_port = backend_port
        self.ratio = 0.0
        self.faults: tuple[str, ...] = FAULTS
        self.slow_s = slow_s
        self.is_gone = False
        self.hold_before: int | None = None
        """The request with this number, and all behind it, are not carried out."""
        self.held = threading.Event()
        self.met: Counter[str] = Counter()
        self.closing = threading.Event()
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def choose(self) -> str:
        with self._lock:
            if self.hold_before is not None and self.met["requests"] >= self.hold_before:
                self.held.set()
                return "held"
            self.met["requests"] += 1
            if self._random.random() >= self.ratio:
                return ""
            found = self._random.choice(self.faults)
            self.met[found] += 1
            return found

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what this is about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: 40 ms for each answer
    server: FaultProxy

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base
        """Quiet."""

    def _serve(self) -> None:
        if self.server.is_gone:
            self._hang_up()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        fault = self.server.choose()
        if fault == "busy":
            self._answer(503, [("Content-Type", "application/xml")], _BUSY, len(_BUSY))
            return
        if fault == "held":
            self.server.closing.wait(self.server.slow_s)
            self._hang_up()
            return
        status, headers, data = self._forward(body)
        if fault == "slow":
            self.server.closing.wait(self.server.slow_s)
        if fault in ("lost", "slow"):
            self._hang_up()
            return
        if self.command == "HEAD":
            size = next((int(v) for k, v in headers if k.lower() == "content-length"), 0)
            self._answer(status, headers, b"", size)
            return
        if fault == "cut" and data:
            self._answer(status, headers, data[: len(data) // 2], len(data))
            self._hang_up()
            return
        self._answer(status, headers, data, len(data))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - names of the base

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        backend = http.client.HTTPConnection("127.0.0.1", self.server.backend_port, timeout=60)
        try:
            backend.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP:
                    backend.putheader(name, value)
            backend.putheader("Content-Length", str(len(body)))
            backend.endheaders(body)
            found = backend.getresponse()
            return found.status, found.getheaders(), found.read()
        finally:
            backend.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, size: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def running_proxy(backend_port: int, *, slow_s: float = 3.0) -> Iterator[FaultProxy]:
    proxy = FaultProxy(backend_port, slow_s=slow_s)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join(60)
