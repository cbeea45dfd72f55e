"""A service behind gRPC: a method of an object for every method of a `.proto` file.

`CreateTopic` of the file is `create_topic` of the object. What it raises as a `StoreError` ends the
call through `abort`, which knows the service's codes and how its errors keep their types.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import ModuleType
from typing import Final, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message as WireMessage

from penstock.errors import StoreError
from penstock.platform.waiting_calls import WaitingThreads

Q = TypeVar("Q", bound=WireMessage)
R = TypeVar("R", bound=WireMessage)
B = TypeVar("B")
Abort = Callable[[grpc.ServicerContext, StoreError], None]


class WaitingPools(NamedTuple):
    """Where calls that wait are served: see `waiting_calls`."""

    streams: WaitingThreads
    """For the streams that `FOLLOWING` names."""
    waits: WaitingThreads
    """For the unary calls that `WAITING` names."""

    def shutdown(self) -> None:
        for pool in self:
            pool.shutdown(wait=False)


FOLLOWING: Final = frozenset({"ReadStream", "WriteStream", "Watch"})
"""Streams that last as long as their client likes."""
WAITING: Final = frozenset({"WaitForRecords", "JoinGroup", "SyncGroup"})
"""Unary calls that last until something happens."""


def service_handlers(
    messages: ModuleType,
    full_name: str,
    service: object,
    abort: Abort,
    pools: WaitingPools | None = None,
) -> grpc.GenericRpcHandler:
    """Return the service of `messages` as a gRPC server takes it. Without `pools` all calls are
    served by the server's own threads."""
    handlers: dict[str, grpc.RpcMethodHandler[object, object]] = {}
    short_name = full_name.rpartition(".")[2]
    for method in messages.DESCRIPTOR.services_by_name[short_name].methods:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in method.name).lstrip("_")
        request_type = getattr(messages, method.input_type.name)
        call = getattr(service, name)
        streams = pools.streams if pools is not None and method.name in FOLLOWING else None
        if method.client_streaming:
            make, behavior = grpc.stream_stream_rpc_method_handler, _streaming(call, abort, streams)
        elif method.server_streaming:
            make, behavior = grpc.unary_stream_rpc_method_handler, _streaming(call, abort, streams)
        else:
            waits = pools.waits if pools is not None and method.name in WAITING else None
            make, behavior = grpc.unary_unary_rpc_method_handler, _unary(call, abort, waits)
        handlers[method.name] = make(behavior, request_type.FromString, _serialize)
    return grpc.method_handlers_generic_handler(full_name, handlers)


_current: Final = threading.local()


def when_ended(callback: Callable[[], None]) -> bool:
    """Let `callback` run when the unary call that this thread serves has ended: its reply is sent,
    or its client has gone. False when there is no such call, or it has ended."""
    context: grpc.ServicerContext | None = getattr(_current, "context", None)
    return context is not None and bool(context.add_callback(callback))


def _serialize(message: object) -> bytes:
    assert isinstance(message, WireMessage)
    return message.SerializeToString()


def _unary(
    call: Callable[[Q], R], abort: Abort, pool: WaitingThreads | None
) -> Callable[[Q, grpc.ServicerContext], R]:
    def behavior(request: Q, context: grpc.ServicerContext) -> R:
        _current.context = context
        try:
            if pool is None:
                return call(request)
            with pool.admit(context.peer()):
                return call(request)
        except StoreError as error:
            abort(context, error)
            raise AssertionError("abort raises") from error
        finally:
            _current.context = None

    return _in_pool(behavior, pool)


def _streaming(
    call: Callable[[Q], Iterator[R]], abort: Abort, pool: WaitingThreads | None
) -> Callable[[Q, grpc.ServicerContext], Iterator[R]]:
    def behavior(request: Q, context: grpc.ServicerContext) -> Iterator[R]:
        try:
            with pool.admit(context.peer()) if pool is not None else nullcontext():
                for reply in call(request):
                    if not context.is_active():
                        return
                    yield reply
        except StoreError as error:
            abort(context, error)

    return _in_pool(behavior, pool)


def _in_pool(behavior: B, pool: WaitingThreads | None) -> B:
    """Have a call served by threads of `pool`; an experimental attribute of gRPC's for years."""
    if pool is not None:
        vars(behavior)["experimental_thread_pool"] = pool
    return behavior
