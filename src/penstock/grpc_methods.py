"""A service behind gRPC: a method of an object for every method of a `.proto` file.

`CreateTopic` of the file is `create_topic` of the object. What it raises as a `StoreError` ends the
call through `abort`, which knows the service's codes and how its errors keep their types.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message as WireMessage

from penstock.errors import StoreError

Q = TypeVar("Q", bound=WireMessage)
R = TypeVar("R", bound=WireMessage)
Abort = Callable[[grpc.ServicerContext, StoreError], None]


def service_handlers(
    messages: ModuleType, full_name: str, service: object, abort: Abort
) -> grpc.GenericRpcHandler:
    """Return the service of `messages` as a gRPC server takes it."""
    handlers: dict[str, grpc.RpcMethodHandler[object, object]] = {}
    short_name = full_name.rpartition(".")[2]
    for method in messages.DESCRIPTOR.services_by_name[short_name].methods:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in method.name).lstrip("_")
        request_type = getattr(messages, method.input_type.name)
        call = getattr(service, name)
        if method.client_streaming:
            make, behavior = grpc.stream_stream_rpc_method_handler, _streaming(call, abort)
        elif method.server_streaming:
            make, behavior = grpc.unary_stream_rpc_method_handler, _streaming(call, abort)
        else:
            make, behavior = grpc.unary_unary_rpc_method_handler, _unary(call, abort)
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


def _unary(call: Callable[[Q], R], abort: Abort) -> Callable[[Q, grpc.ServicerContext], R]:
    def behavior(request: Q, context: grpc.ServicerContext) -> R:
        _current.context = context
        try:
            return call(request)
        except StoreError as error:
            abort(context, error)
            raise AssertionError("abort raises") from error
        finally:
            _current.context = None

    return behavior


def _streaming(
    call: Callable[[Q], Iterator[R]], abort: Abort
) -> Callable[[Q, grpc.ServicerContext], Iterator[R]]:
    def behavior(request: Q, context: grpc.ServicerContext) -> Iterator[R]:
        try:
            for reply in call(request):
                if not context.is_active():
                    return
                yield reply
        except StoreError as error:
            abort(context, error)

    return behavior
