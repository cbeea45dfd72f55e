"""The HTTP port of a server: `/metrics` for Prometheus, `/health` for whoever watches it.

A connection is for one request and takes a thread. So there are few at a time, who comes beyond
that is told to come again, and none lasts longer than `SECONDS_MAX`, however slowly its client
reads or writes: the port is often open to a whole network.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from penstock.addresses import Endpoint, explain, resolve
from penstock.log import get_logger

Health = Callable[[], dict[str, object]]
"""Returns what to say of the node; a key `problem` makes the answer 503."""

CONNECTIONS_MAX: Final = 32
SECONDS_MAX: Final = 10.0
_LOOK_S: Final = 0.1
"""How often the server looks whether it is to end, and which connections are."""
_FULL: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: text/plain\r\n\r\n"
    b"too many connections at once; come again\n"
)
_Request = socket.socket | tuple[bytes, socket.socket]
_log: Final = get_logger(__name__)


class MonitoringServer:
    """Answers in threads of its own; `close` ends it."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        health: Health,
        *,
        connections_max: int = CONNECTIONS_MAX,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        handler = _handler(registry, health, seconds_max)
        endpoint = resolve(host, port)
        try:
            self._server: Final = _Server(endpoint, handler, connections_max, seconds_max)
        except OSError as error:
            raise explain(host, port, error, choose="another http port") from error
        self.port: Final = int(self._server.server_address[1])
        self._thread: Final = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_S,), name="penstock-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._server.cut_all()
        self._thread.join(SECONDS_MAX)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        endpoint: Endpoint,
        handler: type[BaseHTTPRequestHandler],
        connections_max: int,
        seconds_max: float,
    ) -> None:
        self._connections_max: Final = connections_max
        self._seconds_max: Final = seconds_max
        self._ends: Final[dict[socket.socket, float]] = {}
        """Every connection there is, and when its time is up."""
        self._lock: Final = threading.Lock()
        self.address_family, address = endpoint
        super().__init__(address, handler)

    def process_request(self, request: _Request, client_address: object) -> None:
        assert isinstance(request, socket.socket), "of a server of datagrams alone it is a pair"
        with self._lock:
            is_full = len(self._ends) >= self._connections_max
            if not is_full:
                self._ends[request] = time.monotonic() + self._seconds_max
        if is_full:
            request.settimeout(0)  # this thread takes all connections, and waits for none
            with suppress(OSError):
                request.send(_FULL)
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: _Request) -> None:
        assert isinstance(request, socket.socket), "as above"
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut connections whose time is up; called with every look."""
        self._cut(time.monotonic())

    def cut_all(self) -> None:
        self._cut(float("inf"))

    def _cut(self, until: float) -> None:
        with self._lock:
            for request, end in self._ends.items():
                if end <= until:
                    with suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and closes it

    def handle_error(self, *_: object) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # else the client went away
            _log.error("http_request_failed", cause=error)


def _handler(
    registry: CollectorRegistry, health: Health, seconds_max: float
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = seconds_max

        def do_GET(self) -> None:
            path, _, _ = self.path.partition("?")
            if path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif path == "/health":
                found = health()
                status = 503 if "problem" in found else 200
                self._answer(status, "application/json", msgspec.json.encode(found))
            else:
                self._answer(404, "text/plain", b"there are /metrics and /health\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not events of the store."""

    return Handler
