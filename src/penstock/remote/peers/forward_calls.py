"""Calls between nodes over the channel `forward` of the internal port.

    request   1 · id u64 · milliseconds u32 · size of the method u8 · method · message
    reply     2 · id u64 · message
    error     3 · id u64 · message `Error`

The messages are those of `shards.proto`; gRPC serves the same methods, and is used where the
channel is not connected: with an earlier release, and with a node that has no internal port.

A caller waits for its own reply, at most as long as it says. When a connection with the node is
lost, its pending calls end with `DeadlineError`: their outcome is unknown. The number of pending
calls is bounded by `ClientConnectionManager`, that of served ones by `SERVED_MAX`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Final, Protocol

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as WireMessage

from penstock.errors import (
    BadRequestError,
    BusyError,
    DeadlineError,
    NotSupportedError,
    StoreError,
)
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger
from penstock.remote import storage_pb2
from penstock.remote.wire.errors import error_from_wire, error_to_wire

_log: Final = get_logger(__name__)

MESSAGE_SIZE_MAX: Final = 31 << 20
"""A larger request is sent over gRPC; a larger reply is an error that says so."""
SERVED_MAX: Final = 1_024
"""Calls that this node serves, or that wait for one of its threads."""
_REPLY_SECONDS: Final = 2.0
_REPLY_PAUSE_SECONDS: Final = 0.01
_REQUEST, _REPLY, _ERROR = 1, 2, 3
_HEAD: Final = struct.Struct(">BQ")
_REQUEST_HEAD: Final = struct.Struct(">BQIB")

Serve = Callable[[bytes], WireMessage]
"""Does what a serialized request asks for."""


class ForwardChannel(Protocol):
    """A data channel of the internal port; see `penstock.meta.PeerNetwork`."""

    on_receive: Callable[[int, bytes], None]
    on_connection_lost: Callable[[int], None]

    def send(self, node: int, data: bytes) -> bool: ...

    def is_connected(self, node: int) -> bool: ...


class _PendingCall:
    """One reply, for one waiting thread. A lock wakes it: an event costs ten times as much."""

    __slots__ = ("_woken", "node", "outcome")

    def __init__(self, node: int) -> None:
        self.node = node
        self.outcome: bytes | StoreError | None = None
        self._woken = threading.Lock()
        self._woken.acquire()

    def finish(self, outcome: bytes | StoreError) -> None:
        """Called once: by the thread that removed the call from the table."""
        self.outcome = outcome
        self._woken.release()

    def wait(self, seconds: float) -> bool:
        return self._woken.acquire(timeout=seconds)


class ForwardCalls:
    """Both sides: `call` asks another node, `methods` serve what others ask."""

    def __init__(
        self,
        channel: ForwardChannel,
        methods: Mapping[str, Serve],
        threads: Executor,
        clock: Clock | None = None,
    ) -> None:
        self._channel: Final = channel
        self._methods: Final = {name.encode(): method for name, method in methods.items()}
        self._threads: Final = threads
        self._clock: Final = clock if clock is not None else SystemClock()
        self._pending: Final[dict[int, _PendingCall]] = {}
        self._lock: Final = threading.Lock()
        self._last_id = 0
        self._served = 0
        self._stopping: Final = threading.Event()
        channel.on_connection_lost = self._lose
        channel.on_receive = self._receive

    def close(self, seconds: float = 0.0) -> None:
        """Accept no further calls, let those that are served end within `seconds`, and end the
        pending ones of this node."""
        until = self._clock.monotonic() + seconds
        with self._lock:
            self._stopping.set()
        while self._served and self._clock.monotonic() < until:
            self._clock.wait(threading.Event(), _REPLY_PAUSE_SECONDS)
        self._threads.shutdown(wait=False)
        self._fail(None, "this node stops")

    # -- the node that asks -----------------------------------------------------------------------

    def call(self, node: int, method: str, message: bytes, seconds: float) -> bytes | None:
        """Return the reply of another node; None: nothing was sent, as the channel is not connected
        or the message is too large for it. Raises the error that the node raised, or
        `DeadlineError`."""
        if len(message) > MESSAGE_SIZE_MAX:
            return None
        if not self._channel.is_connected(node):
            self._channel.send(node, b"")  # opens the connection for later calls
            return None
        pending = _PendingCall(node)
        with self._lock:
            self._last_id += 1
            number = self._last_id
            self._pending[number] = pending
        name = method.encode()
        head = _REQUEST_HEAD.pack(_REQUEST, number, round(seconds * 1_000), len(name))
        if not self._channel.send(node, b"".join((head, name, message))):
            with self._lock:
                self._pending.pop(number, None)
            return None
        is_answered = pending.wait(seconds)
        if not is_answered:
            with self._lock:
                is_answered = self._pending.pop(number, None) is None
        outcome = pending.outcome if is_answered else None
        if isinstance(outcome, StoreError):
            raise outcome
        if outcome is None:
            raise DeadlineError(
                f"node {node} did not answer within {seconds:g} s; the outcome is unknown"
            )
        return outcome

    def _finish(self, node: int, number: int, outcome: bytes | StoreError) -> None:
        with self._lock:
            pending = self._pending.get(number)
            if pending is None or pending.node != node:
                return  # it came too late
            del self._pending[number]
        pending.finish(outcome)

    def _lose(self, node: int) -> None:
        self._fail(node, f"the connection with node {node} was lost")

    def _fail(self, node: int | None, reason: str) -> None:
        with self._lock:
            numbers = [
                number
                for number, pending in self._pending.items()
                if node is None or pending.node == node
            ]
            failed = [self._pending.pop(number) for number in numbers]
        for pending in failed:
            pending.finish(DeadlineError(f"{reason}; the outcome is unknown"))

    # -- on the network's thread ------------------------------------------------------------------

    def _receive(self, node: int, data: bytes) -> None:
        if not data:
            return  # it opened the connection
        try:
            kind, number = _HEAD.unpack_from(data)
            if kind == _REQUEST:
                self._accept(node, number, data)
            elif kind == _REPLY:
                self._finish(node, number, data[_HEAD.size :])
            elif kind == _ERROR:
                error = storage_pb2.Error.FromString(data[_HEAD.size :])
                self._finish(node, number, error_from_wire(error))
            else:
                _log.warning("forwarded_message_unknown", peer=node, kind=kind)
        except (struct.error, DecodeError) as error:
            _log.warning("forwarded_message_malformed", peer=node, reason=str(error))

    # -- the node that serves ---------------------------------------------------------------------

    def _accept(self, node: int, number: int, data: bytes) -> None:
        _, _, milliseconds, name_size = _REQUEST_HEAD.unpack_from(data)
        end = _REQUEST_HEAD.size + name_size
        method = self._methods.get(data[_REQUEST_HEAD.size : end])
        with self._lock:
            is_refused = self._served >= SERVED_MAX or self._stopping.is_set()
            self._served += not is_refused
        if is_refused:
            reason = (
                f"the node stops, or serves {SERVED_MAX} forwarded requests, the limit; try again"
            )
            # Once: this thread must not wait.
            self._channel.send(node, _pack_error(number, BusyError(reason)))
            return
        until = self._clock.monotonic() + milliseconds / 1_000
        try:
            self._threads.submit(self._serve, node, number, method, data[end:], until)
        except RuntimeError:  # the node stops, and waits no longer for what it serves
            with self._lock:
                self._served -= 1

    def _serve(
        self, node: int, number: int, method: Serve | None, message: bytes, until: float
    ) -> None:
        try:
            if self._clock.monotonic() >= until:
                return  # the caller does not wait any longer, and reports an unknown outcome
            if method is None:
                raise NotSupportedError("this node does not serve the forwarded method: update it")
            reply = method(message).SerializeToString()
            if len(reply) > MESSAGE_SIZE_MAX:
                raise NotSupportedError(
                    f"the answer takes {len(reply)} bytes; the limit of a forwarded one is "
                    f"{MESSAGE_SIZE_MAX}: ask for less, or ask the node that leads the shard"
                )
            self._answer(node, _HEAD.pack(_REPLY, number) + reply)
        except StoreError as error:
            self._answer(node, _pack_error(number, error))
        except DecodeError as error:
            malformed = BadRequestError(f"malformed request: {error}")
            self._answer(node, _pack_error(number, malformed))
        finally:
            with self._lock:
                self._served -= 1

    def _answer(self, node: int, data: bytes) -> None:
        """Send an answer. The connection may stand a moment later here than at the other node, and
        its buffer may be full; when it is lost, the caller knows without an answer."""
        until = self._clock.monotonic() + _REPLY_SECONDS
        while not self._channel.send(node, data):
            is_late = self._clock.monotonic() >= until
            if is_late or self._clock.wait(self._stopping, _REPLY_PAUSE_SECONDS):
                _log.warning("forwarded_answer_dropped", peer=node)
                return


def _pack_error(number: int, error: StoreError) -> bytes:
    return _HEAD.pack(_ERROR, number) + error_to_wire(error).SerializeToString()
