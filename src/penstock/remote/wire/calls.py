"""The requests of a store as calls of `storage.proto`: one entry each, for both sides.

An entry has the method, the request's type, its message and its reply. The client sends what
`RemoteBackend.execute` gets, the server runs what `StorageService` receives. Methods without an
entry (writes, reads by offset, waits for records) are written by hand on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.adapter.requests import (
    Compact,
    DeleteBefore,
    DeleteByKey,
    DeleteByOffset,
    OffsetsAt,
    QueryByKey,
    ReadByKey,
    ReadByTag,
    ReadColumns,
)
from penstock.api.requests.groups import (
    CommitOffsets,
    CommittedOffsets,
    DeleteGroup,
    DescribeGroup,
    HeartbeatGroup,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    ResetOffsets,
    SyncGroup,
)
from penstock.api.requests.node import (
    AllocateProducerId,
    ConfirmClock,
    ReadClock,
    RunUpkeep,
)
from penstock.api.requests.topics import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DescribePartition,
    DescribeTopic,
    ListTopics,
    LocateTopic,
)
from penstock.remote import storage_pb2 as pb
from penstock.remote.wire import arguments, replies
from penstock.remote.wire.arguments import of_group, of_member, of_topic, topic_options
from penstock.remote.wire.call import Call

REPLY_MARGIN_S: Final = 5.0
"""How much longer than the server may wait the client waits for the reply."""
LEAVE_S: Final = 2.0
"""A program that ends does not wait for a server that is gone."""

JOIN: Final = Call(
    "JoinGroup",
    JoinGroup,
    arguments.JOIN,
    replies.JOINED,
    may_repeat=True,
    deadline_s=lambda request: request.seconds + REPLY_MARGIN_S,
)
SYNC: Final = Call(
    "SyncGroup",
    SyncGroup,
    arguments.SYNC,
    replies.SYNCED,
    may_repeat=True,
    deadline_s=lambda request: request.seconds + REPLY_MARGIN_S,
)

CALLS: Final[tuple[Call, ...]] = (
    # Topics
    Call("CreateTopic", CreateTopic, topic_options(CreateTopic), replies.TOPIC),
    Call("AlterTopic", AlterTopic, topic_options(AlterTopic), replies.TOPIC),
    Call("DeleteTopic", DeleteTopic, of_topic(DeleteTopic), replies.NOTHING),
    Call("DescribeTopic", DescribeTopic, of_topic(DescribeTopic), replies.TOPIC, may_repeat=True),
    Call("ListTopics", ListTopics, pb.ListRequest, replies.TOPICS, may_repeat=True),
    Call("LocateTopic", LocateTopic, arguments.LOCATE, replies.PLACE, may_repeat=True),
    Call(
        "PartitionInfo",
        DescribePartition,
        pb.PartitionRequest,
        replies.PARTITION,
        may_repeat=True,
    ),
    # Records
    Call(
        "ReadColumns",
        ReadColumns,
        arguments.READ_COLUMNS,
        replies.COLUMNS,
        may_repeat=True,
        is_read=True,
    ),
    Call(
        "ReadByTag",
        ReadByTag,
        arguments.READ_BY_TAG,
        replies.MESSAGES,
        may_repeat=True,
        is_read=True,
    ),
    Call("ReadByKey", ReadByKey, pb.KeyRequest, replies.NEWEST, may_repeat=True, is_read=True),
    Call("QueryByKey", QueryByKey, pb.KeyRequest, replies.MESSAGES, may_repeat=True),
    Call("OffsetsAt", OffsetsAt, pb.OffsetsAtRequest, replies.OFFSETS, may_repeat=True),
    Call("DeleteByKey", DeleteByKey, pb.KeyRequest, replies.COUNT),
    Call("DeleteByOffset", DeleteByOffset, pb.PartitionRequest, replies.IS_DELETED),
    Call("DeleteBefore", DeleteBefore, pb.PartitionRequest, replies.OFFSET),
    Call("Compact", Compact, of_topic(Compact), replies.COMPACTED),
    # Groups
    Call("Commit", CommitOffsets, arguments.COMMIT, replies.NOTHING),
    Call("Committed", CommittedOffsets, arguments.COMMITTED, replies.POSITIONS, may_repeat=True),
    Call("Reset", ResetOffsets, arguments.RESET, replies.NOTHING),
    Call("ListGroups", ListGroups, pb.ListRequest, replies.GROUPS, may_repeat=True),
    Call("DescribeGroup", DescribeGroup, of_group(DescribeGroup), replies.GROUP, may_repeat=True),
    Call("DeleteGroup", DeleteGroup, of_group(DeleteGroup), replies.NOTHING),
    JOIN,
    SYNC,
    Call(
        "HeartbeatGroup",
        HeartbeatGroup,
        of_member(HeartbeatGroup),
        replies.CODE,
        may_repeat=True,
        deadline_s=lambda _: REPLY_MARGIN_S,
    ),
    Call(
        "LeaveGroup",
        LeaveGroup,
        of_member(LeaveGroup),
        replies.CODE,
        waits=False,
        deadline_s=lambda _: LEAVE_S,
    ),
    # The node
    Call("AllocateProducerId", AllocateProducerId, pb.Nothing, replies.COUNT, may_repeat=True),
    Call("RunUpkeep", RunUpkeep, pb.Nothing, replies.NOTHING),
    Call("ClockStatus", ReadClock, pb.Nothing, replies.CLOCK, may_repeat=True),
    Call("ConfirmClock", ConfirmClock, pb.Nothing, replies.CLOCK),
)
CALL_OF: Final[Mapping[type[object], Call]] = {call.request: call for call in CALLS}
