"""`MetaService`: the gRPC interface of the groups of this node.

A single node has the service, too, so that tools work alike with a node and with a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

import grpc
from msgspec.msgpack import Encoder

from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    DeadlineError,
    NotSupportedError,
    RequestError,
    RetryableError,
    StaleWriteError,
    StoreError,
    UnknownShardError,
    UnknownTopicError,
)
from penstock.meta.client import (
    DEFAULT_NAMESPACE,
    GroupName,
    GroupOffsets,
    MetaClient,
    NewGroupOffsets,
    NewOffset,
    OffsetEntry,
    Update,
)
from penstock.meta.client_api.local_reads import STALENESS_MS, LocalReads, LocalRows, current
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.state.answers import Rejected
from penstock.meta.state.metadata.rows import encode_events
from penstock.meta.state.model import Member
from penstock.meta.storage.groups import GroupLog
from penstock.meta.topology_calls import TopologyCalls
from penstock.platform.calls.grpc import WaitingPools, service_handlers
from penstock.platform.calls.parked_calls import CallFailure, Steps

SERVICE: Final = "penstock.meta.v1.MetaService"
ERROR_KEY: Final = "penstock-meta-error-bin"
_SCAN_ROWS_MAX: Final = 1_000

_encoder: Final = Encoder()
_CODES: Final[list[tuple[type[StoreError], grpc.StatusCode]]] = [
    (UnknownTopicError, grpc.StatusCode.NOT_FOUND),
    (UnknownShardError, grpc.StatusCode.NOT_FOUND),
    (AlreadyExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (BadRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (RequestError, grpc.StatusCode.FAILED_PRECONDITION),
    (RetryableError, grpc.StatusCode.UNAVAILABLE),
]


CommitGroups = Callable[[Sequence[NewGroupOffsets]], list[StoreError | None]]
"""Commits offsets of groups; returns for each the error that prevented it, or None."""


class Cluster(Protocol):
    """The operations that only a node of a cluster has."""

    @property
    def raft_status(self) -> list[RaftStatus]: ...
    @property
    def members(self) -> list[Member]: ...
    def remove_member(self, node_id: int, *, is_forced: bool = False) -> list[str]: ...
    def transfer(self, group: str, to: int) -> None: ...
    def cut_logs(self) -> None: ...
    def make_join_token(self, node_id: int, address: str) -> tuple[str, str]: ...
    def problems(self) -> list[str]: ...


class MetaService(TopologyCalls):
    """The handlers of `meta.proto`."""

    def __init__(
        self,
        client: MetaClient,
        groups: Sequence[GroupLog[object]],
        locals_: Sequence[LocalReads],
        cluster: Cluster | None = None,
        *,
        deliver: Callable[[], None] = lambda: None,
    ) -> None:
        """`deliver` is called after each change: on a single node the thread that made a change
        calls the watchers."""
        super().__init__(client)
        self._deliver = deliver
        self._groups = groups
        self._locals = locals_
        self._cluster = cluster
        self.commit_groups: CommitGroups = self._commit_directly
        """Commits offsets of groups. A server replaces it by a function that involves their
        coordinators; the default leaves the groups without a holder."""
        self.problems: Callable[[], list[str]] = list if cluster is None else cluster.problems
        """Returns what went wrong lately between this node and others."""

    def propose(self, request: pb.ProposeRequest) -> pb.ProposeReply:
        answer = self._group(request.group).propose(request.request)
        self._deliver()
        return pb.ProposeReply(
            is_rejected=isinstance(answer, Rejected), answer=_encoder.encode(answer)
        )

    def propose_many(self, request: pb.ProposeManyRequest) -> pb.ProposeManyReply:
        outcomes = self._group(request.group).propose_many(request.requests)
        self._deliver()
        return pb.ProposeManyReply(outcomes=[_outcome(outcome) for outcome in outcomes])

    def get(self, request: pb.GetRequest) -> pb.GetReply:
        local = self._rows(request)
        row = local.rows.get(request.key)
        return pb.GetReply(is_there=row is not None, row=row or b"", age_ms=local.age_ms())

    def scan(self, request: pb.ScanRequest) -> pb.ScanReply:
        local = self._rows(request)
        rows = list(islice(local.rows.scan(request.start, request.end), _SCAN_ROWS_MAX + 1))
        return pb.ScanReply(
            rows=[pb.Row(key=key, row=row) for key, row in rows[:_SCAN_ROWS_MAX]],
            has_more=len(rows) > _SCAN_ROWS_MAX,
            age_ms=local.age_ms(),
        )

    def watch(self, request: pb.WatchRequest) -> Steps:
        return self.push_updates(
            request.after,
            lambda update: (_watch_reply(update),),
            level=pb.WatchReply(is_level=True),
            idle=pb.WatchReply(),
        )

    def save_offset_data(self, request: pb.SaveOffsetDataRequest) -> pb.SaveOffsetDataReply:
        if not request.cluster_name:
            own = self._client.cluster_id
            raise BadRequestError(f"cluster_name is empty; set it to the id of the cluster, {own}")
        self._check_cluster(request.cluster_name)
        ordered: dict[GroupName, list[OffsetEntry]] = {}
        commits: dict[GroupName, list[NewOffset]] = {}
        for group in request.offsets:
            for offset in group.offsets:
                name = GroupName(offset.namespace or DEFAULT_NAMESPACE, group.group)
                if offset.coordinator_epoch:
                    ordered.setdefault(name, []).append(_entry(offset))
                else:
                    commits.setdefault(name, []).append(_new_offset(offset))
        stale = self._client.save_offsets(
            [GroupOffsets(*_parts(name), tuple(entries)) for name, entries in ordered.items()]
        )
        outcomes = self.commit_groups(
            [NewGroupOffsets(*_parts(name), tuple(offsets)) for name, offsets in commits.items()]
        )
        rejected = [
            len(offsets)
            for offsets, error in zip(commits.values(), outcomes, strict=True)
            if error is not None
        ]
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, StaleWriteError):
                raise outcome
        return pb.SaveOffsetDataReply(stale=len(stale) + sum(rejected))

    def _commit_directly(self, commits: Sequence[NewGroupOffsets]) -> list[StoreError | None]:
        self._client.commit_groups((), commits, node=0)
        return [None] * len(commits)

    def cluster_status(self, _request: pb.ClusterStatusRequest) -> pb.ClusterStatusReply:
        reply = pb.ClusterStatusReply(
            cluster_id=self._client.cluster_id,
            node_id=self._client.node_id,
            offset_groups=len(self._groups) - 1,
        )
        if self._cluster is not None:
            reply.groups.extend(_group_status(item) for item in self._cluster.raft_status)
            reply.members.extend(
                pb.ClusterMember(node_id=item.node_id, address=item.address)
                for item in self._cluster.members
            )
        reply.problems.extend(self.problems())
        return reply

    def remove_node(self, request: pb.RemoveNodeRequest) -> pb.RemoveNodeReply:
        lost = self._of_cluster().remove_member(request.node_id, is_forced=request.is_forced)
        return pb.RemoveNodeReply(lost_shards=lost)

    def transfer(self, request: pb.TransferRequest) -> pb.Nothing:
        self._of_cluster().transfer(request.group, request.to)
        return pb.Nothing()

    def cut_logs(self, _request: pb.Nothing) -> pb.Nothing:
        self._of_cluster().cut_logs()
        return pb.Nothing()

    def make_join_token(self, request: pb.MakeJoinTokenRequest) -> pb.MakeJoinTokenReply:
        cluster = self._of_cluster()
        token, problem = cluster.make_join_token(request.node_id, request.address)
        return pb.MakeJoinTokenReply(token=token, problem=problem)

    def _of_cluster(self) -> Cluster:
        if self._cluster is None:
            raise NotSupportedError("this is a single node; set node.peers to make a cluster")
        return self._cluster

    def _group(self, number: int) -> GroupLog[object]:
        if number >= len(self._groups):
            raise BadRequestError(
                f"group {number} does not exist; the last one is {len(self._groups) - 1}"
            )
        return self._groups[number]

    def _rows(self, request: pb.GetRequest | pb.ScanRequest) -> LocalRows:
        group = self._group(request.group)
        if not request.is_local:
            return current(group.reader)
        has_bound = request.HasField("max_staleness_ms")
        bound = request.max_staleness_ms if has_bound else STALENESS_MS
        return self._locals[request.group].within(bound)


def _parts(name: GroupName) -> tuple[str, str]:
    return name.namespace, name.group


def _entry(offset: pb.SaveOffsetDataRequestOffset) -> OffsetEntry:
    return OffsetEntry(
        shard=offset.shard_name,
        offset=offset.offset,
        epoch=offset.coordinator_epoch,
        sequence=offset.sequence,
        commit_timestamp_ms=offset.commit_timestamp,
        leader_epoch=_leader_epoch(offset),
        metadata=offset.metadata,
    )


def _new_offset(offset: pb.SaveOffsetDataRequestOffset) -> NewOffset:
    return NewOffset(offset.shard_name, offset.offset, _leader_epoch(offset), offset.metadata)


def _leader_epoch(offset: pb.SaveOffsetDataRequestOffset) -> int:
    return offset.leader_epoch if offset.HasField("leader_epoch") else -1


def _outcome(outcome: object) -> pb.ProposeOutcome:
    if isinstance(outcome, StoreError):
        return pb.ProposeOutcome(error=type(outcome).__name__, reason=str(outcome)[:1024])
    return pb.ProposeOutcome(
        is_rejected=isinstance(outcome, Rejected), answer=_encoder.encode(outcome)
    )


def _watch_reply(update: Update) -> pb.WatchReply:
    return pb.WatchReply(
        revision=update.revision, events=encode_events(update.events), is_reset=update.is_reset
    )


def _group_status(status: RaftStatus) -> pb.GroupStatus:
    return pb.GroupStatus(
        name=status.name,
        role=status.role,
        term=status.term,
        leader=status.leader,
        commit=status.commit,
        applied=status.applied,
        first=status.first,
        last=status.last,
        voters=status.configuration.voters,
        learners=status.configuration.learners,
        progress=[
            pb.MemberProgress(node=node, matched=matched, state=state, is_active=is_active)
            for node, matched, _, state, is_active in status.progress
        ],
    )


def meta_handlers(
    service: MetaService, pools: WaitingPools | None = None
) -> grpc.GenericRpcHandler:
    """Return the service as a gRPC server takes it."""
    return service_handlers(pb, SERVICE, service, _failure_of, pools)


def _failure_of(error: StoreError) -> CallFailure:
    code = next((c for kind, c in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    return CallFailure(code, str(error)[:1024], ((ERROR_KEY, type(error).__name__.encode()),))
