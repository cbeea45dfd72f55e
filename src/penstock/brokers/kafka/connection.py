"""The requests of one client connection run in order, one at a time, and so do the responses.

As in Kafka, a request that waits (a long poll, a join of a group) holds up the later ones of its
connection, and no other connection. `brokers.network` has the socket and its bounds: no request is
begun while too many bytes of responses wait for the client, and nothing more is received while a
whole request waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, Protocol

from penstock.brokers import network
from penstock.brokers.kafka.metrics import KafkaMetrics
from penstock.brokers.network import Part
from penstock.platform.log import get_logger

_SIZE: Final = Struct(">i").unpack_from
_SIZE_BYTES: Final = 4

_log: Final = get_logger(__name__)


class Dispatch(Protocol):
    """Serves whole requests."""

    def __call__(self, connection: Connection, request: memoryview) -> bool:
        """Respond to a request, now by `send` (return True) or later by `respond` (False). The
        bytes are only valid during this call."""
        ...


class Closable(Protocol):
    def close(self) -> None: ...


class Connection:
    """The protocol of a connection; see `network.Protocol`."""

    __slots__ = (
        "_asked_key",
        "_asked_s",
        "_busy",
        "_dispatch",
        "_metrics",
        "_network",
        "_request_size_max",
        "_time",
        "cancel_waiting",
        "client_id",
        "fetching",
        "id",
        "is_open",
        "peer",
        "producing",
    )

    def __init__(
        self,
        connection: network.Connection,
        request_size_max: int,
        dispatch: Dispatch,
        metrics: KafkaMetrics,
    ) -> None:
        self.id: Final = connection.id
        self.peer: Final = f"/{connection.peer.host}"
        self.is_open = True
        self.client_id = ""
        self.cancel_waiting: Callable[[], object] | None = None
        """Called when the connection ends while a request waits."""
        self.fetching: Closable | None = None
        """Fetch's state of this connection."""
        self.producing: object = None
        """Produce's state of this connection."""
        self._network: Final = connection
        connection.is_prompt = True
        self._time: Final = connection.loop.time
        self._request_size_max: Final = request_size_max
        self._dispatch: Final = dispatch
        self._metrics: Final = metrics
        self._asked_key = 0
        """The API that is asked for."""
        self._asked_s = 0.0
        """Since when, by the clock of the loop."""
        self._busy = False

    # Requests

    def received(self, view: memoryview) -> int:
        """Begin the requests that are here, as far as the bounds allow."""
        position, end = 0, len(view)
        now = self._network.last_active  # that of the last read, write or response
        while end - position >= _SIZE_BYTES:
            (size,) = _SIZE(view, position)
            if not 0 < size <= self._request_size_max:
                self._refuse(f"{size} bytes; {self._request_size_max} are allowed")
                break
            begin = position + _SIZE_BYTES
            if self._busy or begin + size > end:
                self._network.expected = _SIZE_BYTES + size
                break
            position = begin + size
            request = view[begin:position]
            self._asked_s = now
            self._asked_key = key = key_of(request)
            if self._dispatch(self, request):
                now = self._time()
                self._metrics.record_request(key, now - self._asked_s)
            else:
                self._busy = self._network.is_busy = True
            if not self.is_open:
                break
        return position

    def _refuse(self, reason: str) -> None:
        _log.warning("kafka_request_refused", peer=self.peer, reason=reason)
        self.close(reason)

    def writable(self) -> None:
        """Requests that wait are begun by the connection itself."""

    # Responses

    def send(self, *parts: Part) -> None:
        """Respond to the request that is being dispatched."""
        self._network.send_parts(parts)

    def send_parts(self, parts: Sequence[Part]) -> None:
        self._network.send_parts(parts)

    def respond(self, parts: Sequence[Part]) -> None:
        """Respond to the request that waited, and go on with the next ones."""
        connection = self._network
        if not self.is_open:
            return
        assert self._busy, "a response without a request"
        self._busy = connection.is_busy = False
        now = connection.last_active = self._time()
        self._metrics.record_request(self._asked_key, now - self._asked_s)
        self.cancel_waiting = None
        connection.respond(parts)

    def on_failure(self, task: asyncio.Task[None]) -> None:
        """Close the connection when the task that should respond fails."""
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            self.close("a request failed")

    def close(self, reason: str = "a request cannot be answered") -> None:
        """End the connection; a request that waits is dropped. May be called again."""
        self._network.close(reason)

    def closed(self, reason: str) -> None:  # noqa: ARG002 - of the interface
        """See `network.Protocol`."""
        self.is_open = False
        if self.cancel_waiting is not None:
            self.cancel_waiting()
            self.cancel_waiting = None
        if self.fetching is not None:
            self.fetching.close()


def key_of(request: memoryview) -> int:
    """Return the API that a request asks for; -1 for one that is cut short."""
    return request[0] << 8 | request[1] if len(request) > 1 else -1
