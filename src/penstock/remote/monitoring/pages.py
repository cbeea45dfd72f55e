"""What the HTTP port shows, and the threads that make it.

Each page is made by one thread, one at a time: requests that come meanwhile share the next one. A
page that is not there after its time is answered without it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from penstock.platform.log import get_logger
from penstock.remote.monitoring.request import Request

Health = Callable[[], dict[str, object]]
"""Returns what to say of the node; a key `problem` makes the answer 503."""

CHECK_S: Final = 3.0
"""How long the checks of a node's health may take."""
METRICS_S: Final = 9.0
_JOIN_S: Final = 2.0
_JSON: Final = "application/json"
_PATHS: Final = "/metrics, /health, /health/live and /health/ready"
_log: Final = get_logger(__name__)


def answer(status: int, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def json_answer(document: dict[str, object]) -> bytes:
    return answer(503 if "problem" in document else 200, _JSON, msgspec.json.encode(document))


class Page:
    """Something that a thread of its own makes when it is wanted."""

    def __init__(
        self, name: str, make: Callable[[], bytes], late: bytes, seconds_max: float, ready: _Ready
    ) -> None:
        self.late: Final = late
        """Sent when it is not there in time."""
        self.seconds_max: Final = seconds_max
        self._make: Final = make
        self._ready: Final = ready
        self._wanted: list[int] = []
        self._wants: Final = threading.Condition()
        self._is_closed = False
        self._thread: Final = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def want(self, number: int) -> None:
        """Make it, from now on, for the connection `number`."""
        with self._wants:
            self._wanted.append(number)
            self._wants.notify()

    def remove_request(self, number: int) -> None:
        """Drop the request of a connection that has its answer, or is gone."""
        with self._wants:
            if number in self._wanted:
                self._wanted.remove(number)

    def close(self) -> None:
        with self._wants:
            self._is_closed = True
            self._wants.notify()
        self._thread.join(_JOIN_S)  # one that hangs ends with the process

    def _run(self) -> None:
        while True:
            with self._wants:
                while not self._wanted and not self._is_closed:
                    self._wants.wait()
                if self._is_closed:
                    return
                numbers, self._wanted = self._wanted, []
            self._ready(self, numbers, self._made())

    def _made(self) -> bytes:
        try:
            return self._make()
        except Exception as error:  # noqa: BLE001 - a fault of ours, answered as one
            _log.error("http_request_failed", cause=error)
            problem = f"{type(error).__name__}: {error}"
            return json_answer({"status": "failed", "problem": problem})


_Ready = Callable[[Page, list[int], bytes], None]


class Pages:
    def __init__(
        self,
        registry: CollectorRegistry,
        health: Health,
        live: Health | None,
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when a page is ready."""
        self._wake: Final = wake
        self._finished: Final[deque[tuple[Page, list[int], bytes]]] = deque()
        late = f"the checks did not finish within {CHECK_S:g} s"
        reason: dict[str, object] = {"check": "health", "level": "error", "reason": late}
        not_ready = json_answer({"status": "not_ready", "problem": late, "reasons": [reason]})
        metrics = Page(
            "penstock-http-metrics",
            lambda: answer(200, CONTENT_TYPE_LATEST, generate_latest(registry)),
            answer(503, "text/plain", f"no metrics within {METRICS_S:g} s\n".encode()),
            METRICS_S,
            self._finish,
        )
        ready = Page(
            "penstock-http-health", lambda: json_answer(health()), not_ready, CHECK_S, self._finish
        )
        # A node that is slow is alive: only what a new start would help makes it appear dead.
        alive = Page(
            "penstock-http-live",
            lambda: json_answer({"status": "up"} if live is None else live()),
            json_answer({"status": "up", "note": late}),
            CHECK_S,
            self._finish,
        )
        self._pages: Final = {
            "/metrics": metrics,
            "/health": ready,
            "/health/ready": ready,
            "/health/live": alive,
        }

    def find(self, asked: Request) -> Page | bytes:
        """Return the page that was asked for, or the answer to a request for none."""
        if asked.is_too_long:
            return answer(431, "text/plain", b"the request is too long\n")
        if not asked.path:
            return answer(400, "text/plain", b"not an HTTP request\n")
        if asked.method != "GET":
            return answer(405, "text/plain", b"only GET is served here\n")
        page = self._pages.get(asked.path)
        if page is None:
            return answer(404, "text/plain", f"there are {_PATHS}\n".encode())
        return page

    def pop_ready(self) -> Iterator[tuple[Page, list[int], bytes]]:
        while self._finished:
            yield self._finished.popleft()

    def close(self) -> None:
        for page in dict.fromkeys(self._pages.values()):
            page.close()

    def _finish(self, page: Page, numbers: list[int], data: bytes) -> None:
        self._finished.append((page, numbers, data))
        self._wake()
