"""Arguments of operations as fields of protobuf messages, and back, by name.

A name means the same in every operation: `offset` is an offset in all requests, for topics and for
shards. So a request whose arguments have the names of its message's fields needs no code of its
own: `message_of` checks and converts each argument, `arguments_of` converts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeVar, cast

import msgspec
from google.protobuf.message import Message as WireMessage

from penstock.api.validation import check_name, check_partition, check_start
from penstock.codec.validation import (
    INT64_MAX,
    check_key,
    check_limit,
    check_offset,
    check_shard,
    check_text,
    check_time,
)
from penstock.engine.contract import Acks, AdapterOffsetStrategy, Isolation, ShardConfig
from penstock.errors import BadRequestError
from penstock.record import Producer, Record, ShardId
from penstock.remote import storage_pb2 as pb
from penstock.remote.wire import records as wire
from penstock.remote.wire.records import READ_SIZE_MAX

M = TypeVar("M", bound=WireMessage)
E = TypeVar("E", bound=Enum)

# Created at import: msgspec must not inspect a type for the first time in two threads.
_configs: Final = msgspec.json.Decoder(ShardConfig)


def check_place(partition: object) -> None:
    """Check a partition before it is put into a message, which has 32 bits for it."""
    check_partition(partition)
    check_shard(ShardId("-", cast("int", partition)))


_CHECKS: Final[Mapping[str, Callable[[object], object]]] = {
    "begin_ms": lambda value: check_time(value, "begin_ms"),
    "key": check_key,
    "limit": lambda value: check_limit(value, "limit"),
    "max_records": lambda value: check_limit(value, "max_records"),
    "max_size": lambda value: check_limit(value, "max_size"),
    "offset": check_offset,
    "partition": check_place,
    "start_offset": check_start,
    "tag": lambda value: check_text(value, "tag"),
}


def message_of(message: type[M], arguments: Mapping[str, object]) -> M:
    """Return a message with the arguments that it has fields for, checked and converted. Numbers
    are limited to 64 bits. `namespace` and `topic` become the field `name`."""
    fields: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name == "name" and "topic" in arguments:
            fields["name"] = topic_name(arguments["namespace"], arguments["topic"])
        elif field.name in arguments:
            value = arguments[field.name]
            if value is not None or not field.has_presence:
                fields[field.name] = _to_wire(field.name, value)
    return message(**fields)


def arguments_of(message: WireMessage) -> dict[str, object]:
    """Return the fields of a message as arguments; None for an optional one that is not set."""
    arguments: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, pb.TopicName):
            arguments |= {"namespace": value.namespace, "topic": value.topic}
        elif field.has_presence and not message.HasField(field.name):
            arguments[field.name] = None
        else:
            arguments[field.name] = _FROM_WIRE.get(field.name, _unchanged)(value)
    return arguments


def topic_name(namespace: object, topic: object) -> pb.TopicName:
    check_name(namespace, "a namespace")
    check_name(topic, "a topic")
    return pb.TopicName(namespace=cast("str", namespace), topic=cast("str", topic))


def _to_wire(name: str, value: object) -> object:
    check = _CHECKS.get(name)
    if check is not None:
        check(value)
    if isinstance(value, str):
        return wire.to_bytes(value) if name == "tag" else value
    if isinstance(value, int):
        return max(-INT64_MAX, min(value, READ_SIZE_MAX if name == "max_size" else INT64_MAX))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, ShardId):
        return value.name
    if isinstance(value, ShardConfig):
        return msgspec.json.encode(value).decode()
    if isinstance(value, Producer):
        return wire.producer_to_wire(value)
    if name == "records":
        return wire.records_to_wire(cast("Sequence[Record]", value))
    return value


def _enum(kind: type[E]) -> Callable[[object], E]:
    def convert(text: object) -> E:
        try:
            return kind(text)
        except ValueError as error:
            names = ", ".join(str(member.value) for member in kind)
            raise BadRequestError(f"{text!r} is not one of {names}") from error

    return convert


def _config(text: object) -> ShardConfig:
    try:
        return _configs.decode(cast("str", text))
    except msgspec.DecodeError as error:
        raise BadRequestError(f"invalid shard configuration: {error}") from error


def _unchanged(value: object) -> object:
    return value


_acks: Final = _enum(Acks)


def acks_from_wire(text: str) -> Acks:
    """Return what a client asks for; clients of earlier releases name nothing."""
    return _acks(text) if text else Acks.ALL


_FROM_WIRE: Final[Mapping[str, Callable[[object], object]]] = {
    "acks": lambda value: acks_from_wire(cast("str", value)),
    "columns": lambda value: tuple(cast("list[str]", value)),
    "config": _config,
    "isolation": _enum(Isolation),
    "max_size": lambda value: min(cast("int", value), READ_SIZE_MAX),
    "producer": lambda value: wire.producer_from_wire(cast("pb.Producer", value)),
    "records": lambda value: wire.records_from_wire(cast("list[pb.Record]", value)),
    "strategy": _enum(AdapterOffsetStrategy),
    "tag": lambda value: wire.to_text(cast("bytes", value)),
}
