"""Errors on their way: a client raises the very error that the server raised.

An error of the store travels in the trailing metadata of its call, for which gRPC has little room:
its type always arrives, texts in it are shortened where they are long. What the store did not raise
is what happened on the way; only that may leave open what became of a request.
"""

from __future__ import annotations

from typing import Final

import grpc
import msgspec
from google.protobuf.message import EncodeError
from google.protobuf.message import Message as WireMessage

from penstock import errors
from penstock.platform.calls.parked_calls import CallFailure
from penstock.record import Location, Offset
from penstock.remote import storage_pb2 as pb
from penstock.remote.wire.records import MESSAGE_SIZE_MAX

ERROR_KEY: Final = "penstock-error-bin"
"""Trailing metadata that holds a serialized `Error`."""

# All metadata of a reply: gRPC refuses some above 8 KB and every one above 16 KB. Bytes become a
# third longer on their way, and characters of the status up to twelve times.
_TEXT_SIZE_MAX: Final = 2048
_FIELDS_SIZE_MAX: Final = 1024
_FIELD_SIZES: Final = (512, 64)
_DETAILS_MAX: Final = 200
_NOT_WRITTEN: Final = -1
_NOT_CONNECTED: Final = ("failed to connect to all addresses", "errors resolving ")
"""gRPC fails a call in this way before it gives it to a connection, or after the server has refused
the stream, unread, because it stops."""

_KINDS: Final[dict[str, type[errors.StoreError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.StoreError)
}
_PLAIN: Final = (str, int, float, bool, type(None))


def error_to_wire(error: errors.StoreError) -> pb.Error:
    """Return an error so that the other side can raise the same one."""
    kind = next(base for base in type(error).__mro__ if base.__name__ in _KINDS)
    wire = pb.Error(
        type=kind.__name__, message=shorten(str(error), _TEXT_SIZE_MAX), fields=_fields(error)
    )
    if isinstance(error, errors.PartialWriteError):
        wire.partial_write.CopyFrom(_partial_to_wire(error))
    return wire


def error_from_wire(wire: pb.Error) -> errors.StoreError:
    kind = _KINDS.get(wire.type, errors.StoreError)
    error = kind.__new__(kind)
    error.args = (wire.message,)
    for name, value in msgspec.json.decode(wire.fields or "{}", type=dict[str, object]).items():
        setattr(error, name, value)
    if isinstance(error, errors.PartialWriteError):
        partial = wire.partial_write
        error.locations = [
            None if partition == _NOT_WRITTEN else Location(partition, Offset(offset))
            for partition, offset in zip(partial.partitions, partial.offsets, strict=True)
        ]
        error.errors = _errors_from_wire(partial)
    return error


def error_to_metadata(error: errors.StoreError) -> tuple[str, bytes]:
    wire = error_to_wire(error)
    wire.ClearField("partial_write")  # as long as the batch: that one goes in a reply
    return ERROR_KEY, wire.SerializeToString()


def status_details(error: errors.StoreError) -> str:
    """Return what the status of a call says, for those who know gRPC only."""
    return shorten(str(error), _DETAILS_MAX)


def shorten(text: str, size_max: int) -> str:
    """Return a text of at most `size_max` bytes of UTF-8, and what `…` stands for."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= size_max:
        return data.decode()
    note = f" … ({len(text)} characters in all) … "
    room = size_max - len(note.encode())
    head, tail = data[: room * 2 // 3], data[len(data) - room // 3 :]
    return head.decode(errors="ignore") + note + tail.decode(errors="ignore")


def _fields(error: errors.StoreError) -> str:
    """Return the attributes, as far as they are plain."""
    plain = {name: value for name, value in vars(error).items() if isinstance(value, _PLAIN)}
    text = b""
    for size in _FIELD_SIZES:
        shortened = {
            name: shorten(value, size) if isinstance(value, str) else value
            for name, value in plain.items()
        }
        text = msgspec.json.encode(shortened)
        if len(text) <= _FIELDS_SIZE_MAX:
            break
    return text.decode()


def _partial_to_wire(error: errors.PartialWriteError) -> pb.PartialWrite:
    places = [
        location if location is not None else Location(_NOT_WRITTEN, Offset(0))
        for location in error.locations
    ]
    return pb.PartialWrite(
        partitions=[location.partition for location in places],
        offsets=[location.offset for location in places],
        errors=[_part_to_wire(part, why) for part, why in error.errors.items()],
    )


def _part_to_wire(part: int | tuple[str, int], why: errors.StoreError) -> pb.PartError:
    topic, partition = part if isinstance(part, tuple) else (None, part)
    return pb.PartError(topic=topic, partition=partition, error=error_to_wire(why))


def _errors_from_wire(
    partial: pb.PartialWrite,
) -> dict[int, errors.StoreError] | dict[tuple[str, int], errors.StoreError]:
    if partial.errors and partial.errors[0].HasField("topic"):
        return {
            (part.topic, part.partition): error_from_wire(part.error) for part in partial.errors
        }
    return {part.partition: error_from_wire(part.error) for part in partial.errors}


# What happened on the way


def error_of_call(failed: grpc.RpcError, peer: str, request: WireMessage) -> errors.StoreError:
    """Return the error that the server raised, or what happened on the way."""
    # What gRPC raises is both an RpcError and a Call, which its types do not say.
    call: object = failed
    if not isinstance(call, grpc.Call):
        return errors.DeadlineError(f"{peer}: {failed}; the outcome is unknown")
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            return error_from_wire(pb.Error.FromString(value))
    code = call.code()
    if code in _TOO_LARGE:
        size = _size(request)
        if size is None or size > MESSAGE_SIZE_MAX:
            takes = f"takes {size} bytes" if size is not None else "is far too large"
            return errors.BadRequestError(
                f"the request {takes}, and {peer} accepts {MESSAGE_SIZE_MAX}; nothing was sent: "
                "write fewer records in one call, or smaller ones"
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in str(call.details()):
            return errors.NotSupportedError(
                f"the answer of {peer} is larger than {MESSAGE_SIZE_MAX} bytes, the "
                "limit of a message; ask for less, or read it where the store is"
            )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.NotSupportedError(
            f"{peer} does not know this call: it is older than this program; update the server"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineError(f"{peer} did not answer in time; the outcome is unknown")
    if code is grpc.StatusCode.UNAVAILABLE and str(call.details()).startswith(_NOT_CONNECTED):
        return errors.NotSentError(f"{peer}: {call.details()}; nothing was sent")
    return errors.DeadlineError(f"{peer}: {call.details()}; the outcome is unknown")


# The latter: a message of more than two gigabytes cannot be made at all.
_TOO_LARGE: Final = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL})


def _size(request: WireMessage) -> int | None:
    try:
        return request.ByteSize()
    except (EncodeError, ValueError):
        return None


_CODES: Final[list[tuple[type[errors.StoreError], grpc.StatusCode]]] = [
    (errors.BadRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.RequestError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.RetryableError, grpc.StatusCode.UNAVAILABLE),
    (errors.SetupError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.CorruptionError, grpc.StatusCode.DATA_LOSS),
]


def failure_of(error: errors.StoreError) -> CallFailure:
    """Return how a call ends with an error that keeps its type."""
    code = next((c for kind, c in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    return CallFailure(code, status_details(error), (error_to_metadata(error),))
