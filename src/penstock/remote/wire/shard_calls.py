"""The operations of the engine contract as calls of `shards.proto`: one entry each, for both sides.

The arguments of an operation are the fields of its message, by name. `RemoteEngine` encodes them
and sends the message to the node that leads the shard; `ShardService` there decodes them and calls
the driver's method of the same name. Nothing here depends on how messages travel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, cast

from google.protobuf.message import Message as WireMessage

from penstock.engine.contract import ForwardingEngine, ShardInfo, StorageEngine, Written
from penstock.record import Offset, StoredRecord
from penstock.remote import shards_pb2 as pb
from penstock.remote import storage_pb2
from penstock.remote.wire import records as wire
from penstock.remote.wire.call import Reply
from penstock.remote.wire.fields import arguments_of, message_of
from penstock.remote.wire.replies import (
    COMPACTED,
    COUNT,
    IS_DELETED,
    NOTHING,
    OFFSET,
    json_reply,
)

SERVICE: Final = "penstock.storage.v1.ShardService"
CALL_S: Final = 30.0
INFO_S: Final = 5.0
"""Timeout for the bounds of a shard, which a node has in memory."""

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _DriverMethod(Protocol[R_co]):
    def __call__(self, shard_name: str, /, **arguments: object) -> R_co: ...


class ServedCall(Protocol):
    """A call as the leader sees it, whatever its types."""

    @property
    def method(self) -> str: ...

    @property
    def is_paged(self) -> bool: ...

    @property
    def message(self) -> type[WireMessage]: ...

    def run(self, driver: object, shard_name: str, message: WireMessage) -> WireMessage: ...


class ShardCall(Generic[P, R]):
    def __init__(
        self,
        method: str,
        operation: Callable[Concatenate[StorageEngine, P], R]
        | Callable[Concatenate[ForwardingEngine, P], R],
        message: type[WireMessage],
        reply: Reply[object, R],
        *,
        driver_method: str = "",
        timeout_s: float = CALL_S,
    ) -> None:
        """`driver_method`: what the leader calls, if its name is not that of `operation`."""
        parameters = list(inspect.signature(operation).parameters.values())[1:]
        self.method: Final = method
        self.message: Final = message
        self.reply: Final = reply
        self.timeout_s: Final = timeout_s
        self._driver_method: Final = driver_method or operation.__name__
        self._names: Final = [parameter.name for parameter in parameters]
        self._defaults: Final[Mapping[str, object]] = {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.default is not parameter.empty
        }
        service = pb.DESCRIPTOR.services_by_name["ShardService"]
        self.is_paged: Final[bool] = service.methods_by_name[method].server_streaming
        """Whether the reply comes in pages; all of them together are the reply."""

    def encode(self, *arguments: P.args, **named: P.kwargs) -> WireMessage:
        positional = dict(zip(self._names, arguments, strict=False))
        return message_of(self.message, {**self._defaults, **positional, **named})

    def decode(self, reply: WireMessage) -> R:
        return self.reply.from_wire(reply, None)

    def run(self, driver: object, shard_name: str, message: WireMessage) -> WireMessage:
        """Do on the leader what the message asks for; return the reply."""
        received = arguments_of(message)
        arguments = {name: received[name] for name in self._names[1:]}
        operation = cast("_DriverMethod[R]", getattr(driver, self._driver_method))
        return self.reply.to_wire(operation(shard_name, **arguments), None)


def _records_to_wire(records: Sequence[StoredRecord]) -> storage_pb2.RecordsReply:
    return storage_pb2.RecordsReply(records=[wire.stored_to_wire(record) for record in records])


def _newest_of(reply: storage_pb2.RecordsReply) -> StoredRecord | None:
    return wire.stored_from_wire(reply.records[0]) if reply.records else None


_RECORDS: Final[Reply[object, list[StoredRecord]]] = Reply(
    storage_pb2.RecordsReply,
    lambda records, _: _records_to_wire(records),
    lambda reply, _: [wire.stored_from_wire(record) for record in reply.records],
)
_NEWEST: Final[Reply[object, StoredRecord | None]] = Reply(
    storage_pb2.RecordsReply,
    lambda record, _: _records_to_wire([] if record is None else [record]),
    lambda reply, _: _newest_of(reply),
)
_WRITTEN: Final[Reply[object, Written]] = Reply(
    pb.ShardWritten,
    lambda written, _: pb.ShardWritten(
        first=written.first, count=written.count, repeated_write=written.repeated
    ),
    lambda reply, _: Written(Offset(reply.first), reply.count, reply.repeated_write),
)

SEAL: Final = ShardCall("Seal", StorageEngine.seal_shard, pb.ShardName, NOTHING)
INFO: Final = ShardCall(
    "Info",
    StorageEngine.shard_info,
    pb.ShardName,
    json_reply(ShardInfo),
    driver_method="stable_info",  # only the leader knows which records open transactions hide
    timeout_s=INFO_S,
)
WRITE: Final = ShardCall(
    "Write",
    ForwardingEngine.forward_write,
    pb.ShardWrite,
    _WRITTEN,
    driver_method="batch_write",
)
READ: Final = ShardCall("Read", StorageEngine.read_by_offset, pb.ShardRead, _RECORDS)
READ_BY_TAG: Final = ShardCall("ReadByTag", StorageEngine.read_by_tag, pb.ShardTagRead, _RECORDS)
READ_BY_KEY: Final = ShardCall("ReadByKey", StorageEngine.read_by_key, pb.ShardKey, _NEWEST)
QUERY_BY_KEY: Final = ShardCall("QueryByKey", StorageEngine.query_by_key, pb.ShardKey, _RECORDS)
DELETE_BY_KEY: Final = ShardCall("DeleteByKey", StorageEngine.delete_by_key, pb.ShardKey, COUNT)
DELETE_BY_OFFSET: Final = ShardCall(
    "DeleteByOffset", StorageEngine.delete_by_offset, pb.ShardPlace, IS_DELETED
)
DELETE_BEFORE: Final = ShardCall(
    "DeleteBefore", StorageEngine.delete_records_before, pb.ShardPlace, OFFSET
)
OFFSET_AT: Final = ShardCall(
    "OffsetAt", StorageEngine.get_offset_by_timestamp, pb.ShardMoment, OFFSET
)
COMPACT: Final = ShardCall("Compact", StorageEngine.compact, pb.ShardName, COMPACTED)

FORWARDED: Final = (WRITE, READ, READ_BY_TAG, READ_BY_KEY, INFO, OFFSET_AT)
"""Short calls with one reply, which nodes make over the channel `forward`."""

SHARD_CALLS: Final[tuple[ServedCall, ...]] = (
    SEAL,
    INFO,
    WRITE,
    READ,
    READ_BY_TAG,
    READ_BY_KEY,
    QUERY_BY_KEY,
    DELETE_BY_KEY,
    DELETE_BY_OFFSET,
    DELETE_BEFORE,
    OFFSET_AT,
    COMPACT,
)
