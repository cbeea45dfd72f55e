"""`GroupClient`: the requests of one member to its group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.api.backend import Backend, TopicPartition
from penstock.api.consumer.group_commits import GroupCommits
from penstock.api.requests.groups import (
    CommitOffsets,
    HeartbeatGroup,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from penstock.api.requests.topics import LocateTopic
from penstock.groups.codes import GroupCode
from penstock.groups.consumer_protocol import CONSUMER
from penstock.groups.model import Caller, Join, Joined, Sync, Synced
from penstock.platform.clock import SystemClock
from penstock.record import Offset

SESSION_TIMEOUT_S: Final = 10.0
MAX_POLL_INTERVAL_S: Final = 300.0
ANSWER_S: Final = 2.0
"""How long one call waits for the group to decide; then it is made again."""


class MemberOptions(Struct, frozen=True):
    session_timeout: float = SESSION_TIMEOUT_S
    max_poll_interval: float = MAX_POLL_INTERVAL_S
    instance_id: str | None = None
    client_id: str = "penstock"


class GroupClient:
    def __init__(
        self, backend: Backend, namespace: str, group: str, options: MemberOptions
    ) -> None:
        self._backend: Final = backend
        self._commits: Final = GroupCommits(backend, SystemClock())
        self._namespace: Final = namespace
        self._group: Final = group
        self._options: Final = options

    def join(self, member_id: str, protocols: tuple[tuple[str, bytes], ...]) -> Joined:
        options = self._options
        join = Join(
            member_id=member_id,
            instance_id=options.instance_id,
            client_id=options.client_id,
            client_host="/local",
            session_timeout_ms=round(options.session_timeout * 1000),
            rebalance_timeout_ms=round(options.max_poll_interval * 1000),
            protocol_type=CONSUMER,
            protocols=protocols,
            requires_known_id=True,
            skips_delay=True,
            is_local=True,
        )
        return self._backend.execute(
            JoinGroup(self._group, join, ANSWER_S, namespace=self._namespace)
        )

    def sync(self, sync: Sync) -> Synced:
        return self._backend.execute(
            SyncGroup(self._group, sync, ANSWER_S, namespace=self._namespace)
        )

    def heartbeat(self, caller: Caller) -> GroupCode:
        return self._backend.execute(HeartbeatGroup(self._group, caller, namespace=self._namespace))

    def leave(self, member_id: str) -> GroupCode:
        return self._backend.execute(
            LeaveGroup(self._group, Caller(member_id), namespace=self._namespace)
        )

    def commit(
        self,
        offsets: Mapping[TopicPartition, Offset],
        topic_ids: Mapping[str, str],
        caller: Caller,
    ) -> None:
        self._commits.send(
            CommitOffsets(self._group, offsets, topic_ids, caller, namespace=self._namespace)
        )

    def partition_count(self, topic: str) -> int:
        return self._backend.execute(LocateTopic(topic, namespace=self._namespace))[1]
