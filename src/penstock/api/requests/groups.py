"""Consumer groups: their offsets, members and administration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.adapter import StorageDriverManager, lag_of
from penstock.adapter.requests import NamespaceRequest, R_co, StoreRequest
from penstock.api.live_groups import LiveGroups
from penstock.api.topic_info import GroupInfo
from penstock.errors import UnknownGroupError
from penstock.groups.codes import GroupCode
from penstock.groups.model import Caller, Join, Joined, Sync, Synced
from penstock.groups.routing import Question
from penstock.meta import check_text
from penstock.record import Offset

TopicPartition = tuple[str, int]


class GroupRequest(NamespaceRequest[R_co], frozen=True):
    group: str


# Offsets


class CommitOffsets(GroupRequest[None], frozen=True):
    """Commit offsets, all or none.

    `topic_ids` has the ids of topics by name: `TopicReplacedError` when another topic has the name
    by now. A topic without an id there is the one that has the name. `caller` is the member that
    commits: `GroupFencedError` when it is not a member any more, or another member has one of the
    partitions; `RebalanceInProgressError` until the group has decided. Without `caller` the group
    must have no members: `GroupNotEmptyError`.
    """

    offsets: Mapping[TopicPartition, Offset]
    topic_ids: Mapping[str, str] = {}
    caller: Caller | None = None

    def run(self, drivers: StorageDriverManager) -> None:
        groups = LiveGroups(drivers.group_router)
        groups.check_commit(self.namespace, self.group, self.offsets, self.caller)
        drivers.offsets.commit_offset(
            self.group, self.offsets, namespace=self.namespace, topic_ids=self.topic_ids
        )


class CommittedOffsets(GroupRequest[dict[TopicPartition, Offset]], frozen=True):
    """Return the committed offsets of some topics, or of all."""

    topics: Sequence[str] | None = None

    def run(self, drivers: StorageDriverManager) -> dict[TopicPartition, Offset]:
        return drivers.offsets.get_offset_by_group(
            self.group, self.topics, namespace=self.namespace
        )


class ResetOffsets(GroupRequest[None], frozen=True):
    """Set offsets, also backwards, so that no commit made before can undo it."""

    offsets: Mapping[TopicPartition, Offset]

    def run(self, drivers: StorageDriverManager) -> None:
        groups = LiveGroups(drivers.group_router)
        groups.check_empty(self.namespace, self.group, "a reset of its offsets")
        drivers.offsets.reset_offsets(self.group, self.offsets, namespace=self.namespace)


# Members


class JoinGroup(GroupRequest[Joined], frozen=True):
    """Join a group, and wait up to `seconds` until all of its members have; `still_waiting`: join
    again, with the member's id."""

    join: Join
    seconds: float

    def question(self) -> Question:
        check_text("a group", self.group)
        return Question(self.namespace, self.group, join=self.join, seconds=self.seconds)

    def run(self, drivers: StorageDriverManager) -> Joined:
        reply = drivers.group_router.ask(self.question())
        return reply.joined or Joined(GroupCode.invalid_request)


class SyncGroup(GroupRequest[Synced], frozen=True):
    """Ask for the member's assignment, or bring those of all members, and wait as `JoinGroup`."""

    sync: Sync
    seconds: float

    def question(self) -> Question:
        return Question(self.namespace, self.group, sync=self.sync, seconds=self.seconds)

    def run(self, drivers: StorageDriverManager) -> Synced:
        reply = drivers.group_router.ask(self.question())
        return reply.synced or Synced(GroupCode.invalid_request)


class HeartbeatGroup(GroupRequest[GroupCode], frozen=True):
    caller: Caller

    def run(self, drivers: StorageDriverManager) -> GroupCode:
        question = Question(self.namespace, self.group, heartbeat=self.caller)
        return drivers.group_router.ask(question).code


class LeaveGroup(GroupRequest[GroupCode], frozen=True):
    caller: Caller

    def run(self, drivers: StorageDriverManager) -> GroupCode:
        question = Question(self.namespace, self.group, leave=self.caller)
        return drivers.group_router.ask(question).code


# Administration


class ListGroups(StoreRequest[list[GroupInfo]], frozen=True):
    """Return the groups of a namespace, or of all, with members or committed offsets."""

    namespace: str | None = None

    def run(self, drivers: StorageDriverManager) -> list[GroupInfo]:
        drivers.offset_manager.flush()
        stored = [
            GroupInfo(group.group, group.namespace, group.last_commit_ms)
            for group in drivers.offset_manager.list_groups(self.namespace)
        ]
        return LiveGroups(drivers.group_router).with_live(self.namespace, stored)


class DescribeGroup(GroupRequest[GroupInfo], frozen=True):
    """Return the committed offsets, lag and members of a group."""

    def run(self, drivers: StorageDriverManager) -> GroupInfo:
        groups = LiveGroups(drivers.group_router)
        drivers.offset_manager.flush()
        stored = drivers.offset_manager.get_group(self.group, namespace=self.namespace)
        if stored is None:
            live = groups.describe(GroupInfo(self.group, self.namespace, 0))
            if not live.members:
                raise UnknownGroupError(self.group)
            return live
        offsets = drivers.offsets.get_offset_by_group(self.group, namespace=self.namespace)
        lag, problems = lag_of(drivers, offsets, self.namespace)
        return groups.describe(
            GroupInfo(self.group, self.namespace, stored.last_commit_ms, offsets, lag, problems)
        )


class DeleteGroup(GroupRequest[None], frozen=True):
    """Delete a group and its offsets. Raises `GroupNotEmptyError` while it has members."""

    def run(self, drivers: StorageDriverManager) -> None:
        groups = LiveGroups(drivers.group_router)
        groups.check_empty(self.namespace, self.group, "its deletion")
        drivers.offset_manager.delete_group(self.group, namespace=self.namespace)
