"""`Call`: a request of a store as a call of `storage.proto`, for both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar, cast

import msgspec
from google.protobuf.message import Message as WireMessage

from penstock.remote import storage_pb2 as pb
from penstock.remote.wire.fields import arguments_of, message_of

SERVICE: Final = "penstock.storage.v1.StorageService"
WAIT_S_MAX: Final = 30.0
"""How long one call may wait for records."""

Q = TypeVar("Q")
Q_co = TypeVar("Q_co", covariant=True)
Q_contra = TypeVar("Q_contra", contravariant=True)
R = TypeVar("R")
M = TypeVar("M", bound=WireMessage)


class Arguments(Generic[Q]):
    """How a request becomes a message, and back."""

    def __init__(
        self, message: type[M], to_wire: Callable[[Q], M], from_wire: Callable[[M], Q]
    ) -> None:
        self.message: Final[type[WireMessage]] = message
        self.to_wire: Final[Callable[[Q], WireMessage]] = to_wire
        self.from_wire: Final = cast("Callable[[WireMessage], Q]", from_wire)


class _Make(Protocol[Q_co]):
    def __call__(self, **arguments: object) -> Q_co: ...


def build(request: type[Q], arguments: Mapping[str, object]) -> Q:
    """Return a request with arguments that were converted by name."""
    make = cast("_Make[Q]", request)
    return make(**arguments)


def by_name(request: type[Q], message: type[M]) -> Arguments[Q]:
    """Convert arguments that have the names of the message's fields."""
    names = cast("type[msgspec.Struct]", request).__struct_fields__

    def to_wire(value: Q) -> M:
        return message_of(message, {name: getattr(value, name) for name in names})

    def from_wire(received: M) -> Q:
        arguments = arguments_of(received)
        return build(request, {name: arguments[name] for name in names})

    return Arguments(message, to_wire, from_wire)


class Reply(Generic[Q_contra, R]):
    """How the result of a request becomes a message, and back."""

    def __init__(
        self,
        message: type[M],
        to_wire: Callable[[R, Q_contra], M],
        from_wire: Callable[[M, Q_contra], R],
    ) -> None:
        self.message: Final[type[WireMessage]] = message
        self.to_wire: Final[Callable[[R, Q_contra], WireMessage]] = to_wire
        self.from_wire: Final = cast("Callable[[WireMessage, Q_contra], R]", from_wire)


class Call:
    """Typed where it is made; a table of calls has requests and results of every type."""

    def __init__(
        self,
        method: str,
        request: type[Q],
        arguments: Arguments[Q] | type[WireMessage],
        reply: Reply[Q, R],
        *,
        may_repeat: bool = False,
        is_read: bool = False,
        waits: bool = True,
        deadline_s: Callable[[Q], float] | None = None,
    ) -> None:
        """`arguments` may be the message alone, whose fields are named as the request's.
        `may_repeat`: a second call changes nothing that the first one did not. `is_read`: the
        reply has records of a topic, for which the server reserves memory. `waits`: the client
        waits for a server that is away."""
        if not isinstance(arguments, Arguments):
            arguments = by_name(request, arguments)
        self.method: Final = method
        self.request: Final[type[object]] = request
        self.to_wire: Final = cast("Callable[[object], WireMessage]", arguments.to_wire)
        self.from_wire: Final[Callable[[WireMessage], object]] = arguments.from_wire
        self.reply: Final = cast("Reply[object, object]", reply)
        self.may_repeat: Final = may_repeat
        self.is_read: Final = is_read
        self.waits: Final = waits
        self.deadline_s: Final = cast("Callable[[object], float] | None", deadline_s)
        service = pb.DESCRIPTOR.services_by_name["StorageService"]
        self.is_paged: Final[bool] = service.methods_by_name[method].server_streaming
        """Whether the reply comes in pages; all of them together are the reply."""
