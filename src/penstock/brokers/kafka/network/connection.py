"""One client connection: its requests run in order, one at a time, and so do the responses.

As in Kafka, a request that waits (a long poll, a join of a group) holds up the later ones of its
connection, and no other connection. Bounds: no request is begun while `UNSENT_MAX` bytes of
responses wait for the client, and nothing more is received while a whole request waits.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol

from penstock.brokers.kafka.metrics import KafkaMetrics
from penstock.brokers.kafka.network.receive_buffer import ReceiveBuffer, RequestTooLargeError
from penstock.brokers.kafka.network.send_queue import Part, SendQueue
from penstock.platform.log import get_logger

UNSENT_MAX: Final = 1 << 20
READS_AT_ONCE: Final = 8
"""Reads of one connection before the next is served."""

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
    __slots__ = (
        "_asked_key",
        "_asked_s",
        "_busy",
        "_closed",
        "_dispatch",
        "_in",
        "_is_reading",
        "_is_writing",
        "_loop",
        "_metrics",
        "_on_close",
        "_out",
        "_owed",
        "_owed_since",
        "_partial_since",
        "_pending",
        "_processing",
        "cancel_waiting",
        "client_id",
        "fetching",
        "id",
        "last_active",
        "peer",
        "producing",
        "socket",
    )

    def __init__(
        self,
        number: int,
        connected: socket.socket,
        peer: str,
        buffer: ReceiveBuffer,
        dispatch: Dispatch,
        on_close: Callable[[Connection], None],
        metrics: KafkaMetrics,
    ) -> None:
        self.id: Final = number
        self.socket: Final = connected
        self.peer: Final = peer
        self.client_id = ""
        self.last_active = 0.0
        self.cancel_waiting: Callable[[], object] | None = None
        """Called when the connection ends while a request waits."""
        self.fetching: Closable | None = None
        """Fetch's state of this connection."""
        self.producing: object = None
        """Produce's state of this connection."""
        self._in: Final = buffer
        self._out: Final = SendQueue(connected)
        self._dispatch: Final = dispatch
        self._on_close: Final = on_close
        self._metrics: Final = metrics
        self._asked_key = 0
        """The API that is asked for."""
        self._asked_s = 0.0
        """Since when, by the clock of the loop."""
        self._loop: Final = asyncio.get_running_loop()
        self._pending: list[Part] = []
        self._busy = False
        self._processing = False
        self._is_reading = self._is_writing = False
        self._closed = False
        self._partial_since: float | None = None
        """Since when a request is only partly here."""
        self._owed = 0
        self._owed_since: float | None = None
        """Since when the client has not taken so many bytes."""
        self._start_reading()

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for something else than this client."""
        return self._busy

    @property
    def buffer_size(self) -> int:
        return self._in.size

    def is_slower_than(self, moment: float) -> bool:
        """Say whether the client began to send a request, or to receive, before `moment` and has
        not finished."""
        partial, owed = self._partial_since, self._owed_since
        return (partial is not None and partial < moment) or (owed is not None and owed < moment)

    # Receiving

    def _start_reading(self) -> None:
        if not self._is_reading and not self._closed:
            self._is_reading = True
            self._loop.add_reader(self.socket.fileno(), self._readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self.socket.fileno())

    def _readable(self) -> None:
        for _ in range(READS_AT_ONCE):
            room = self._in.room()
            if not room:
                self._stop_reading()
                return
            try:
                size = self.socket.recv_into(room)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            if size == 0:
                self.close()
                return
            self._in.received(size)
            self._metrics.received_bytes += size
            self.process()
            if self._closed or size < len(room):
                return

    def process(self) -> None:
        """Begin the requests that are here, as far as the bounds allow."""
        self._processing = True
        try:
            while not self._busy and self._out.size < UNSENT_MAX and not self._closed:
                request = self._in.next_request()
                if request is None:
                    break
                self.last_active = self._asked_s = self._loop.time()
                self._partial_since = None
                self._asked_key = key_of(request)
                if self._dispatch(self, request):
                    self._record_request_end()
                else:
                    self._busy = True
        except RequestTooLargeError as error:
            _log.warning("kafka_request_refused", peer=self.peer, reason=str(error))
            self.close()
        finally:
            self._processing = False
        if not self._closed:
            if self._partial_since is None and self._in.waiting and not self._busy:
                self._partial_since = self._loop.time()
            self._in.compact()
            self._flush()
            if not self._is_reading and self._in.room():
                self._start_reading()

    # Responding

    def send(self, *parts: Part) -> None:
        """Respond to the request that is being dispatched."""
        self._pending.extend(parts)

    def send_parts(self, parts: list[Part]) -> None:
        self._pending += parts

    def respond(self, parts: list[Part]) -> None:
        """Respond to the request that waited, and go on with the next ones."""
        if self._closed:
            return
        assert self._busy, "a response without a request"
        self._busy = False
        self._record_request_end()
        self.cancel_waiting = None
        self._pending += parts
        self.last_active = self._loop.time()
        if not self._processing:
            self.process()

    def _record_request_end(self) -> None:
        self._metrics.record_request(self._asked_key, self._loop.time() - self._asked_s)

    def on_failure(self, task: asyncio.Task[None]) -> None:
        """Close the connection when the task that should respond fails."""
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            self.close()

    def _flush(self) -> None:
        if self._pending:
            before = self._out.size
            self._out.push(self._pending)
            self._metrics.sent_bytes += self._out.size - before
            self._pending = []
        if not self._out.size or self._is_writing:
            return
        try:
            if self._out.flush():
                return
        except OSError:
            self.close()
            return
        self._is_writing = True
        self._owed, self._owed_since = self._out.size, self._loop.time()
        self._loop.add_writer(self.socket.fileno(), self._writable)

    def _writable(self) -> None:
        before = self._out.size
        try:
            done = self._out.flush()
        except OSError:
            self.close()
            return
        if self._out.size < before:
            self.last_active = self._loop.time()
            self._owed -= before - self._out.size
            if self._owed <= 0:
                self._owed, self._owed_since = self._out.size, self.last_active
        if done:
            self._is_writing = False
            self._owed_since = None
            self._loop.remove_writer(self.socket.fileno())
        if self._out.size < UNSENT_MAX:
            self.process()

    def close(self) -> None:
        """End the connection; a request that waits is dropped. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._stop_reading()
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self.socket.fileno())
        if self.cancel_waiting is not None:
            self.cancel_waiting()
            self.cancel_waiting = None
        if self.fetching is not None:
            self.fetching.close()
        self._out.clear()
        self._pending = []
        self.socket.close()
        self._on_close(self)

    def rest(self) -> None:
        """Give back memory that an idle connection does not need."""
        self._in.release()


def key_of(request: memoryview) -> int:
    """Return the API that a request asks for; -1 for one that is cut short."""
    return request[0] << 8 | request[1] if len(request) > 1 else -1
