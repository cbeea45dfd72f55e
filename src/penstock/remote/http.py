"""The HTTP port of a server: `/metrics` for Prometheus, `/health` for whoever watches it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from penstock.errors import SetupError

Health = Callable[[], dict[str, object]]
"""Returns what to say of the node; a key `problem` makes the answer 503."""

_TIMEOUT_S: Final = 10.0


class MonitoringServer:
    """Answers in threads of its own; `close` ends it."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        handler = _handler(registry, health)
        try:
            self._server: Final = _Server((host, port), handler)
        except OSError as error:
            raise SetupError(
                f"{host}:{port} cannot be listened on ({error.strerror}); choose another http port"
            ) from error
        self.port: Final = int(self._server.server_address[1])
        self._thread: Final = threading.Thread(
            target=self._server.serve_forever, name="penstock-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_TIMEOUT_S)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def _handler(registry: CollectorRegistry, health: Health) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif self.path == "/health":
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
