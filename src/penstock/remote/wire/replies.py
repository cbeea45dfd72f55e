"""Results of requests as messages of `storage.proto`, and back; one entry per type of result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from penstock.adapter import Message
from penstock.adapter.requests import ReadByKey, TopicRequest
from penstock.api import GroupInfo, PartitionInfo, TopicInfo
from penstock.api.requests.groups import CommittedOffsets
from penstock.engine.contract import Compacted
from penstock.groups.codes import GroupCode
from penstock.groups.model import Joined, Synced
from penstock.platform.clock_guard import ClockStatus
from penstock.record import Offset
from penstock.remote import storage_pb2 as pb
from penstock.remote.wire import groups as group_wire
from penstock.remote.wire import records as wire
from penstock.remote.wire.call import Reply
from penstock.remote.wire.records import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

J = TypeVar("J")


def json_reply(kind: type[J]) -> Reply[object, J]:
    # Created at import: msgspec must not inspect a type for the first time in two threads.
    decoder = msgspec.json.Decoder(kind)
    return Reply(
        pb.JsonReply,
        lambda value, _: pb.JsonReply(json=msgspec.json.encode(value).decode()),
        lambda reply, _: decoder.decode(reply.json),
    )


def _columns_to_wire(batches: list[pa.RecordBatch] | None, _: object) -> pb.ColumnsReply:
    return pb.ColumnsReply(arrow=None if batches is None else wire.columns_to_wire(batches))


def _columns_of(reply: pb.ColumnsReply, _: object) -> list[pa.RecordBatch] | None:
    return wire.columns_from_wire(reply.arrow) if reply.HasField("arrow") else None


def _newest_of(reply: pb.RecordsReply, request: ReadByKey) -> Message | None:
    messages = wire.messages_from_wire(request.topic, reply.records)
    return messages[0] if messages else None


NOTHING: Final[Reply[object, None]] = Reply(
    pb.Nothing, lambda _, __: pb.Nothing(), lambda _, __: None
)
COUNT: Final[Reply[object, int]] = Reply(
    pb.CountReply, lambda count, _: pb.CountReply(count=count), lambda reply, _: reply.count
)
IS_DELETED: Final[Reply[object, bool]] = Reply(
    pb.CountReply,
    lambda is_deleted, _: pb.CountReply(count=int(is_deleted)),
    lambda reply, _: reply.count == 1,
)
OFFSET: Final[Reply[object, Offset]] = Reply(
    pb.CountReply,
    lambda offset, _: pb.CountReply(count=offset),
    lambda reply, _: Offset(reply.count),
)
OFFSETS: Final[Reply[object, dict[int, Offset]]] = Reply(
    pb.PartitionOffsets,
    lambda offsets, _: pb.PartitionOffsets(offsets=dict(offsets)),
    lambda reply, _: {p: Offset(offset) for p, offset in sorted(reply.offsets.items())},
)
COMPACTED: Final[Reply[object, Compacted]] = Reply(
    pb.CompactReply,
    lambda result, _: pb.CompactReply(records=result.records, size=result.size),
    lambda reply, _: Compacted(reply.records, reply.size),
)
MESSAGES: Final[Reply[TopicRequest[object], list[Message]]] = Reply(
    pb.RecordsReply,
    lambda messages, _: wire.messages_to_wire(messages),
    lambda reply, request: wire.messages_from_wire(request.topic, reply.records),
)
NEWEST: Final[Reply[ReadByKey, Message | None]] = Reply(
    pb.RecordsReply,
    lambda message, _: wire.messages_to_wire([] if message is None else [message]),
    _newest_of,
)
COLUMNS: Final = Reply(pb.ColumnsReply, _columns_to_wire, _columns_of)
TOPIC: Final[Reply[object, TopicInfo]] = Reply(
    pb.TopicReply,
    lambda info, _: pb.TopicReply(info=wire.topic_to_wire(info)),
    lambda reply, _: wire.topic_from_wire(reply.info),
)
TOPICS: Final[Reply[object, list[TopicInfo]]] = Reply(
    pb.TopicsReply,
    lambda infos, _: pb.TopicsReply(infos=[wire.topic_to_wire(info) for info in infos]),
    lambda reply, _: [wire.topic_from_wire(info) for info in reply.infos],
)
PLACE: Final[Reply[object, tuple[str, int]]] = Reply(
    pb.TopicPlace,
    lambda place, _: pb.TopicPlace(topic_id=place[0], partitions=place[1]),
    lambda reply, _: (reply.topic_id, reply.partitions),
)
POSITIONS: Final[Reply[CommittedOffsets, dict[TopicPartition, Offset]]] = Reply(
    pb.GroupOffsets,
    lambda offsets, request: pb.GroupOffsets(
        name=pb.GroupName(namespace=request.namespace, group=request.group),
        positions=wire.positions_to_wire(offsets),
    ),
    lambda reply, _: wire.positions_from_wire(reply.positions),
)
GROUP: Final[Reply[object, GroupInfo]] = Reply(
    pb.GroupReply,
    lambda info, _: group_wire.info_to_wire(info),
    lambda reply, _: group_wire.info_from_wire(reply),
)
GROUPS: Final[Reply[object, list[GroupInfo]]] = Reply(
    pb.GroupsReply,
    lambda infos, _: pb.GroupsReply(groups=[group_wire.info_to_wire(info) for info in infos]),
    lambda reply, _: [group_wire.info_from_wire(info) for info in reply.groups],
)
CODE: Final[Reply[object, GroupCode]] = Reply(
    pb.GroupCodeReply,
    lambda code, _: pb.GroupCodeReply(code=code),
    lambda reply, _: group_wire.code_from_wire(reply.code),
)
JOINED: Final[Reply[object, Joined]] = Reply(
    pb.GroupJoined,
    lambda joined, _: group_wire.joined_to_wire(joined),
    lambda reply, _: group_wire.joined_from_wire(reply),
)
SYNCED: Final[Reply[object, Synced]] = Reply(
    pb.GroupSynced,
    lambda synced, _: group_wire.synced_to_wire(synced),
    lambda reply, _: group_wire.synced_from_wire(reply),
)
CLOCK: Final = json_reply(ClockStatus)
PARTITION: Final = json_reply(PartitionInfo)
