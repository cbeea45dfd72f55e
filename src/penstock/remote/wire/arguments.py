"""Requests whose arguments are not named as the fields of their messages, as messages and back."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from penstock.adapter.requests import ReadByTag, ReadColumns, TopicRequest
from penstock.api.requests.groups import (
    CommitOffsets,
    CommittedOffsets,
    GroupRequest,
    HeartbeatGroup,
    JoinGroup,
    LeaveGroup,
    ResetOffsets,
    SyncGroup,
)
from penstock.api.requests.topics import AlterTopic, CreateTopic, LocateTopic
from penstock.api.validation import check_name, check_places
from penstock.codec.validation import INT64_MAX
from penstock.errors import BadRequestError, UnknownTopicError
from penstock.record import Offset
from penstock.remote import storage_pb2 as pb
from penstock.remote.wire import groups as group_wire
from penstock.remote.wire import records as wire
from penstock.remote.wire.call import Arguments, build
from penstock.remote.wire.fields import arguments_of, check_place, message_of, topic_name
from penstock.remote.wire.option_checks import check_option
from penstock.remote.wire.records import MESSAGE_SIZE_MAX, TopicPartition

_COLUMNS_SIZE_MAX: Final = MESSAGE_SIZE_MAX // 4

T = TypeVar("T", CreateTopic, AlterTopic)
C = TypeVar("C", HeartbeatGroup, LeaveGroup)
N = TypeVar("N", bound=TopicRequest[object])
G = TypeVar("G", bound=GroupRequest[object])


# Topics


def of_topic(request: type[N]) -> Arguments[N]:
    """For a request that has only the name of a topic."""
    return Arguments(
        pb.TopicName,
        lambda value: topic_name(value.namespace, value.topic),
        lambda name: build(request, {"topic": name.topic, "namespace": name.namespace}),
    )


def _locate_to_wire(request: LocateTopic) -> pb.TopicName:
    try:
        return topic_name(request.namespace, request.topic)
    except BadRequestError as error:
        # No topic has a name that is not valid: a caller that asks whether it exists gets a reply.
        raise UnknownTopicError(request.topic) from error


def _topic_request(request: CreateTopic | AlterTopic) -> pb.TopicRequest:
    name = topic_name(request.namespace, request.topic)
    for option, value in request.options.items():
        check_option(option, value)
    try:
        options = msgspec.json.encode(dict(request.options)).decode()
        return pb.TopicRequest(name=name, partitions=request.partitions, options=options)
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"such a topic cannot be asked for: {error}") from error


def topic_options(request: type[T]) -> Arguments[T]:
    def from_wire(message: pb.TopicRequest) -> T:
        try:
            options = msgspec.json.decode(message.options or "{}", type=dict[str, object])
        except msgspec.DecodeError as error:
            raise BadRequestError(f"a topic's options are a JSON object: {error}") from error
        partitions = message.partitions if message.HasField("partitions") else None
        name = message.name
        return request(name.topic, partitions, options, namespace=name.namespace)

    return Arguments(pb.TopicRequest, _topic_request, from_wire)


# Records


def _tag_to_wire(request: ReadByTag) -> pb.ReadByTagRequest:
    arguments = msgspec.structs.asdict(request)
    start = request.start_offset
    if isinstance(start, Mapping):
        arguments["start_offset"] = 0
        arguments["start_offsets"] = {p: min(offset, INT64_MAX) for p, offset in start.items()}
    return message_of(pb.ReadByTagRequest, arguments)


def _tag_from_wire(message: pb.ReadByTagRequest) -> ReadByTag:
    arguments = arguments_of(message)
    offsets = arguments.pop("start_offsets")
    if message.start_offsets:
        arguments["start_offset"] = offsets
    return build(ReadByTag, arguments)


def _columns_to_wire(request: ReadColumns) -> pb.ColumnsRequest:
    return message_of(pb.ColumnsRequest, msgspec.structs.asdict(request))


def _columns_from_wire(message: pb.ColumnsRequest) -> ReadColumns:
    arguments = arguments_of(message)
    arguments["max_size"] = min(message.max_size, _COLUMNS_SIZE_MAX)
    return build(ReadColumns, arguments)


READ_BY_TAG: Final = Arguments(pb.ReadByTagRequest, _tag_to_wire, _tag_from_wire)
READ_COLUMNS: Final = Arguments(pb.ColumnsRequest, _columns_to_wire, _columns_from_wire)


# Groups


def of_group(request: type[G]) -> Arguments[G]:
    """For a request that has only the name of a group."""
    return Arguments(
        pb.GroupName,
        lambda value: group_name(value.namespace, value.group),
        lambda name: build(request, {"group": name.group, "namespace": name.namespace}),
    )


def group_name(namespace: str, group: str) -> pb.GroupName:
    check_name(namespace, "a namespace")
    check_name(group, "a group")
    return pb.GroupName(namespace=namespace, group=group)


def positions_to_wire(
    offsets: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, str] = {}
) -> list[pb.TopicPosition]:
    """Return checked positions; offsets beyond 64 bits become the largest one."""
    check_places(offsets)
    for _, partition in offsets:
        check_place(partition)
    bounded = {place: Offset(min(offset, INT64_MAX)) for place, offset in offsets.items()}
    return wire.positions_to_wire(bounded, topic_ids)


def _offsets_to_wire(request: CommitOffsets | ResetOffsets) -> pb.GroupOffsets:
    topic_ids = request.topic_ids if isinstance(request, CommitOffsets) else {}
    positions = positions_to_wire(request.offsets, topic_ids)
    for offset in request.offsets.values():
        if offset > INT64_MAX:
            raise BadRequestError(f"an offset must fit in 64 bits, but is {offset}")
    message = pb.GroupOffsets(
        name=group_name(request.namespace, request.group), positions=positions
    )
    if isinstance(request, CommitOffsets) and request.caller is not None:
        message.caller.CopyFrom(group_wire.caller_to_wire(None, request.caller))
    return message


def _commit_from_wire(message: pb.GroupOffsets) -> CommitOffsets:
    caller = group_wire.caller_from_wire(message.caller) if message.HasField("caller") else None
    return CommitOffsets(
        message.name.group,
        wire.positions_from_wire(message.positions),
        wire.topic_ids_from_wire(message.positions),
        caller,
        namespace=message.name.namespace,
    )


def _reset_from_wire(message: pb.GroupOffsets) -> ResetOffsets:
    offsets = wire.positions_from_wire(message.positions)
    return ResetOffsets(message.name.group, offsets, namespace=message.name.namespace)


def _committed_to_wire(request: CommittedOffsets) -> pb.CommittedRequest:
    return pb.CommittedRequest(
        name=group_name(request.namespace, request.group),
        topics=request.topics or [],
        all_topics=request.topics is None,
    )


def _committed_from_wire(message: pb.CommittedRequest) -> CommittedOffsets:
    topics = None if message.all_topics else list(message.topics)
    return CommittedOffsets(message.name.group, topics, namespace=message.name.namespace)


def _join_to_wire(request: JoinGroup) -> pb.GroupJoin:
    name = group_name(request.namespace, request.group)
    message = group_wire.join_to_wire(name, request.join, request.seconds)
    message.client_host = socket.gethostname()
    return message


def _join_from_wire(message: pb.GroupJoin) -> JoinGroup:
    name = message.caller.name
    join = group_wire.join_from_wire(message)
    return JoinGroup(name.group, join, message.wait_s, namespace=name.namespace)


def _sync_to_wire(request: SyncGroup) -> pb.GroupSync:
    name = group_name(request.namespace, request.group)
    return group_wire.sync_to_wire(name, request.sync, request.seconds)


def _sync_from_wire(message: pb.GroupSync) -> SyncGroup:
    name = message.caller.name
    sync = group_wire.sync_from_wire(message)
    return SyncGroup(name.group, sync, message.wait_s, namespace=name.namespace)


def of_member(request: type[C]) -> Arguments[C]:
    def to_wire(value: C) -> pb.GroupCaller:
        return group_wire.caller_to_wire(group_name(value.namespace, value.group), value.caller)

    def from_wire(message: pb.GroupCaller) -> C:
        caller = group_wire.caller_from_wire(message)
        return request(message.name.group, caller, namespace=message.name.namespace)

    return Arguments(pb.GroupCaller, to_wire, from_wire)


LOCATE: Final = Arguments(
    pb.TopicName,
    _locate_to_wire,
    lambda name: LocateTopic(name.topic, namespace=name.namespace),
)
COMMIT: Final = Arguments(pb.GroupOffsets, _offsets_to_wire, _commit_from_wire)
RESET: Final = Arguments(pb.GroupOffsets, _offsets_to_wire, _reset_from_wire)
COMMITTED: Final = Arguments(pb.CommittedRequest, _committed_to_wire, _committed_from_wire)
JOIN: Final = Arguments(pb.GroupJoin, _join_to_wire, _join_from_wire)
SYNC: Final = Arguments(pb.GroupSync, _sync_to_wire, _sync_from_wire)
