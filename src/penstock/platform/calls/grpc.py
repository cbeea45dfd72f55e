"""Serves an object over gRPC: it has a method for every method of a `.proto` file.

`CreateTopic` of the file is `create_topic` of the object. What it raises as a `StoreError` ends the
call as `describe` says, which knows the service's codes and how its errors keep their types.

A method that may wait is a generator of replies and pauses (`wakeup`), also when the `.proto` file
has one reply for it: on the wire such a call is a stream of one message.
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
from penstock.platform.calls.parked_calls import Describe, Send, Steps, WaitingCalls
from penstock.platform.calls.waiting_calls import WaitingThreads
from penstock.platform.calls.wakeup import Pause

Q = TypeVar("Q", bound=WireMessage)
R = TypeVar("R", bound=WireMessage)

_SLICE_S: Final = 0.5
"""How long a thread that serves a call which waits does not look for the client."""


class WaitingPools(NamedTuple):
    """Where calls that wait are served."""

    streams: WaitingCalls
    """For the streams of replies that `FOLLOWING` names."""
    waits: WaitingCalls
    """For the calls with one reply that `WAITING` names."""
    writes: WaitingThreads
    """For streams of requests: gRPC has no other way to wait for a request than in a thread."""

    def wake_all(self) -> None:
        """Have calls that wait look again whether they still should."""
        self.streams.wake_all()
        self.waits.wake_all()

    def shutdown(self) -> None:
        self.streams.resumer.close()
        for calls in (self.streams, self.waits):
            calls.threads.shutdown(wait=False)
        self.writes.shutdown(wait=False)


FOLLOWING: Final = frozenset({"ReadStream", "Watch", "UpdateCache"})
"""Streams that last as long as their client likes."""
WAITING: Final = frozenset({"WaitForRecords", "JoinGroup", "SyncGroup", "AskGroup"})
"""Calls with one reply that last until something happens."""


def service_handlers(
    messages: ModuleType,
    full_name: str,
    service: object,
    describe: Describe,
    pools: WaitingPools | None = None,
) -> grpc.GenericRpcHandler:
    """Return the service as a gRPC server takes it. Without `pools` all calls are served by the
    server's own threads, and hold them while they wait."""
    handlers: dict[str, grpc.RpcMethodHandler[object, object]] = {}
    short_name = full_name.rpartition(".")[2]
    for method in messages.DESCRIPTOR.services_by_name[short_name].methods:
        request_type = getattr(messages, method.input_type.name)
        call = getattr(service, attribute_of(method.name))
        if method.name in FOLLOWING or method.name in WAITING:
            calls = None
            if pools is not None:
                calls = pools.streams if method.name in FOLLOWING else pools.waits
            make, behavior = grpc.unary_stream_rpc_method_handler, _waiting(call, describe, calls)
        elif method.client_streaming:
            threads = pools.writes if pools is not None else None
            make = grpc.stream_stream_rpc_method_handler
            behavior = _streaming(call, describe, threads)
        elif method.server_streaming:
            make, behavior = grpc.unary_stream_rpc_method_handler, _streaming(call, describe, None)
        else:
            make, behavior = grpc.unary_unary_rpc_method_handler, _unary(call, describe)
        handlers[method.name] = make(behavior, request_type.FromString, _serialize)
    return grpc.method_handlers_generic_handler(full_name, handlers)


def attribute_of(method: str) -> str:
    """Return the name that a service has for a method of its `.proto` file."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in method).lstrip("_")


_current: Final = threading.local()


def when_ended(callback: Callable[[], None]) -> bool:
    """Run `callback` when the unary call that this thread serves has ended: its reply was sent, or
    its client disconnected. False outside of such a call, or after its end."""
    context: grpc.ServicerContext | None = getattr(_current, "context", None)
    return context is not None and bool(context.add_callback(callback))


def _serialize(message: object) -> bytes:
    assert isinstance(message, WireMessage)
    return message.SerializeToString()


def _abort(context: grpc.ServicerContext, error: StoreError, describe: Describe) -> None:
    code, details, metadata = describe(error)
    context.set_trailing_metadata(metadata)
    context.abort(code, details)


def _unary(call: Callable[[Q], R], describe: Describe) -> Callable[[Q, grpc.ServicerContext], R]:
    def behavior(request: Q, context: grpc.ServicerContext) -> R:
        _current.context = context
        try:
            return call(request)
        except StoreError as error:
            _abort(context, error, describe)
            raise AssertionError("abort raises") from error
        finally:
            _current.context = None

    return behavior


def _streaming(
    call: Callable[[Q], Iterator[R]], describe: Describe, pool: WaitingThreads | None
) -> Callable[[Q, grpc.ServicerContext], Iterator[R]]:
    def behavior(request: Q, context: grpc.ServicerContext) -> Iterator[R]:
        try:
            with pool.admit(context.peer()) if pool is not None else nullcontext():
                for reply in call(request):
                    if not context.is_active():
                        return
                    yield reply
        except StoreError as error:
            _abort(context, error, describe)

    if pool is not None:
        vars(behavior)["experimental_thread_pool"] = pool
    return behavior


def _waiting(
    call: Callable[[Q], Steps], describe: Describe, calls: WaitingCalls | None
) -> Callable[[Q, grpc.ServicerContext], Iterator[object]]:
    """Serve a call in steps. gRPC has had both attributes for years, for its own health service; a
    version without them would call with two arguments, and serve the call in a thread."""

    def behavior(
        request: Q, context: grpc.ServicerContext, send: Send | None = None
    ) -> Iterator[object]:
        steps = call(request)
        if send is None or calls is None:
            return _in_thread(steps, context, describe)
        calls.begin(steps, context, send, describe)
        return iter(())

    if calls is not None:
        vars(behavior)["experimental_thread_pool"] = calls.executor
        vars(behavior)["experimental_non_blocking"] = True
    return behavior


def _in_thread(steps: Steps, context: grpc.ServicerContext, describe: Describe) -> Iterator[object]:
    woken: bool | None = None
    try:
        while context.is_active():
            step = steps.send(woken)
            woken = None
            if isinstance(step, Pause):
                step.wakeup.wait(min(step.seconds, _SLICE_S))
                woken = step.wakeup.clear()
            else:
                yield step
    except StopIteration:
        return
    except StoreError as error:
        _abort(context, error, describe)
    finally:
        steps.close()
