"""Calls of the meta service, at the first of several nodes that answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message as WireMessage

from penstock import errors
from penstock.errors import (
    ClosedError,
    DeadlineError,
    DiskFailedError,
    RetryableError,
    StoreError,
)
from penstock.meta.service import ERROR_KEY, SERVICE
from penstock.platform.clock import Clock

_TRY_S: Final = 10.0
_PAUSE_S: Final = 0.1
_MESSAGE_SIZE_MAX: Final = 16 << 20

R = TypeVar("R", bound=WireMessage)
T = TypeVar("T")


class MetaConnection:
    """Calls of the service, at the first of several addresses that answers."""

    def __init__(self, addresses: Sequence[str], *, deadline_s: float, clock: Clock) -> None:
        self._addresses = list(addresses)
        self._deadline_s = deadline_s
        self._clock = clock
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._calls: dict[
            tuple[str, str], grpc.UnaryUnaryMultiCallable[WireMessage, WireMessage]
        ] = {}
        self._never = threading.Event()
        self.is_closed = False

    def call(self, method: str, request: WireMessage, reply_type: type[R]) -> R:
        return self.retry(lambda address: self._call(address, method, request, reply_type))

    def retry(self, work: Callable[[str], T]) -> T:
        """Run `work` with an address, and again with others after retryable errors, until the
        deadline."""
        deadline = self._clock.monotonic() + self._deadline_s
        while True:
            address = self._addresses[0]
            try:
                return work(address)
            except (RetryableError, DiskFailedError, ClosedError) as error:
                if self._is_final(error) or self._clock.monotonic() > deadline:
                    raise
                self.rotate_from(address)
                self._clock.wait(self._never, _PAUSE_S)

    def channel(self, address: str | None = None) -> grpc.Channel:
        if self.is_closed:
            raise ClosedError("the connection to the meta service was closed")
        address = address or self._addresses[0]
        with self._lock:
            if address not in self._channels:
                options = [("grpc.max_receive_message_length", _MESSAGE_SIZE_MAX)]
                self._channels[address] = grpc.insecure_channel(address, options=options)
            return self._channels[address]

    def close(self) -> None:
        self.is_closed = True
        self._never.set()
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()
            self._calls.clear()

    def _call(self, address: str, method: str, request: WireMessage, reply_type: type[R]) -> R:
        call = self._calls.get((address, method))
        if call is None or self.is_closed:
            parse: Callable[[bytes], WireMessage] = reply_type.FromString
            call = self.channel(address).unary_unary(
                f"/{SERVICE}/{method}", request_serializer=serialize, response_deserializer=parse
            )
            self._calls[address, method] = call
        try:
            reply = call(request, timeout=min(_TRY_S, self._deadline_s))
        except grpc.RpcError as error:
            raise error_of_call(address, error) from error
        assert isinstance(reply, reply_type), "the deserializer makes it"
        return reply

    def _is_final(self, error: StoreError) -> bool:
        """Whether retries are useless: the node's disk has failed, or it stops, and it is the only
        one."""
        has_others = len(self._addresses) > 1 or isinstance(error, RetryableError)
        return self.is_closed or not has_others

    @property
    def address(self) -> str:
        """The address that is tried first."""
        return self._addresses[0]

    def rotate_from(self, address: str) -> None:
        """Try the other addresses before this one, which did not answer."""
        with self._lock:
            if self._addresses[0] == address:
                self._addresses.append(self._addresses.pop(0))


def error_of_call(address: str, error: grpc.RpcError) -> StoreError:
    """Return the error that the server raised, or a `DeadlineError` when it was not reached."""
    # The errors of gRPC are both RpcError and Call, which its types do not say.
    call: object = error
    if not isinstance(call, grpc.Call):
        return DeadlineError(f"{address}: {error}")
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            named = error_named(value.decode(), call.details() or "")
            if named is not None:
                return named
    return DeadlineError(f"{address}: {call.details()}")


def error_named(name: str, reason: str) -> StoreError | None:
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, StoreError):
        return None
    error: StoreError = kind.__new__(kind)
    error.args = (reason,)
    return error


def serialize(message: WireMessage) -> bytes:
    return message.SerializeToString()
