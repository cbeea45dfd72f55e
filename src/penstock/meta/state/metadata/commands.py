"""The commands of the metadata state machine and their results.

Both, and the events in `penstock.meta.events`, are closed unions of tagged structures, stored as
MessagePack arrays with the rules of `model`: append fields with defaults, never change one. A tag
is never used again for another meaning. Bounds stand in the types and are checked when a command is
decoded, before it is logged: no command in the log can fail a type check.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from penstock.meta.events import Event
from penstock.meta.state.answers import Head, Rejected
from penstock.meta.state.model import (
    INT_MAX,
    PARTITIONS_MAX,
    Count,
    Lease,
    Name,
    Node,
    NodeId,
    Partition,
    Positive,
    Segment,
    Shard,
    Topic,
    TopicConfig,
)

PLACEMENTS_MAX: Final = 1_000
"""Shards that one command creates or removes; more take several commands."""
PRODUCER_IDS_MAX: Final = 1_000_000
REQUEST_ID_SIZE_MAX: Final = 128

PartitionCount = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
RequestId = Annotated[str, Meta(max_length=REQUEST_ID_SIZE_MAX)]
Nodes = Annotated[tuple[NodeId, ...], Meta(min_length=1, max_length=64)]


class Placement(Struct, frozen=True, array_like=True):
    """The nodes that hold one shard, and the one that leads it."""

    partition: Partition
    replicas: Nodes
    leader: NodeId


Placements = Annotated[tuple[Placement, ...], Meta(max_length=PLACEMENTS_MAX)]


class CreateTopic(Struct, frozen=True, array_like=True, tag="create-topic"):
    topic_id: Name
    namespace: Name
    name: Name
    partitions: PartitionCount
    config: TopicConfig
    placements: Placements = ()


class AlterTopic(Struct, frozen=True, array_like=True, tag="alter-topic"):
    """Partitions can only grow; the shards of new ones are created by `placements` or later."""

    topic_id: Name
    partitions: PartitionCount | None = None
    config: TopicConfig | None = None
    expected_revision: Count | None = None
    placements: Placements = ()


class DeleteTopic(Struct, frozen=True, array_like=True, tag="delete-topic"):
    """Free the name immediately; the shards are removed one by one after their data."""

    topic_id: Name


class AcceptDataLoss(Struct, frozen=True, array_like=True, tag="accept-loss"):
    """Reopen a shard whose records are lost, empty."""

    topic_id: Name
    partition: Partition


class ReportEngineLoss(Struct, frozen=True, array_like=True, tag="lose-engine"):
    """A node has lost the engine directory of one storage type, with all of its records."""

    node_id: NodeId
    storage_type: Name
    engine_id: Name
    """Id of the lost directory, which may be put back."""


class RestoreShard(Struct, frozen=True, array_like=True, tag="find-shard"):
    """A node has the records of a lost shard again: the directory was put back."""

    topic_id: Name
    partition: Partition
    node_id: NodeId
    engine_id: Name


class CreateShards(Struct, frozen=True, array_like=True, tag="create-shards"):
    """Create shards with their first segment; those that exist stay as they are."""

    topic_id: Name
    placements: Annotated[tuple[Placement, ...], Meta(min_length=1, max_length=PLACEMENTS_MAX)]


class DeleteShards(Struct, frozen=True, array_like=True, tag="delete-shards"):
    """Remove shards of a deleted topic, or ones whose creation is undone."""

    topic_id: Name
    partitions: Annotated[tuple[Partition, ...], Meta(min_length=1, max_length=PLACEMENTS_MAX)]
    node_id: NodeId | None = None
    """Only the replicas of this node are gone; a shard goes with its last one."""


class AssignLeader(Struct, frozen=True, array_like=True, tag="assign-leader"):
    """Give a shard a leader (or none) under a new epoch, and possibly other replicas."""

    topic_id: Name
    partition: Partition
    leader: NodeId | None
    epoch: Positive
    replicas: Nodes | None = None
    in_sync: Nodes | None = None
    expected_revision: Count | None = None
    """The shard's, when this was decided: who was in sync then may not be so any more."""


class ChangeInSync(Struct, frozen=True, array_like=True, tag="change-in-sync"):
    """Replicas in sync, as reported by the leader of `epoch`. For shards that are not replicated:
    it has none of the epochs that guard a set; see `ChangeInSyncSets`."""

    topic_id: Name
    partition: Partition
    epoch: Count
    in_sync: Nodes


class InSyncChange(Struct, frozen=True, array_like=True):
    """The in-sync set of one shard, as its leader asks for it. Each member is named with the broker
    epoch under which the leader heard of it."""

    topic_id: Name
    partition: Partition
    leader_epoch: Count
    partition_epoch: Count
    members: Annotated[tuple[tuple[NodeId, Count], ...], Meta(min_length=1, max_length=64)]


class ChangeInSyncSets(Struct, frozen=True, array_like=True, tag="change-in-sync-sets"):
    """Change the in-sync sets of shards that one node leads, each on its own."""

    node_id: NodeId
    broker_epoch: Count
    changes: Annotated[tuple[InSyncChange, ...], Meta(min_length=1, max_length=PLACEMENTS_MAX)]


class LeaveInSync(Struct, frozen=True, array_like=True, tag="leave-in-sync"):
    """A node found damage in its copy of a shard: it may be counted no more."""

    node_id: NodeId
    broker_epoch: Count
    topic_id: Name
    partition: Partition
    partition_epoch: Count


class Election(Struct, frozen=True, array_like=True):
    topic_id: Name
    partition: Partition
    partition_epoch: Count
    leader: NodeId | None = None
    """None: any replica that may lead, if the shard has no leader."""


class ElectLeaders(Struct, frozen=True, array_like=True, tag="elect-leaders"):
    """Give replicated shards other leaders, each on its own."""

    elections: Annotated[tuple[Election, ...], Meta(min_length=1, max_length=PLACEMENTS_MAX)]


class ElectUnclean(Struct, frozen=True, array_like=True, tag="elect-unclean"):
    """Let a replica lead that may lack committed records, by an operator's word."""

    topic_id: Name
    partition: Partition
    node_id: NodeId
    partition_epoch: Count


class ReassignReplicas(Struct, frozen=True, array_like=True, tag="reassign-replicas"):
    """Move a shard to other nodes. Those that are added copy it first; the others go when all of
    them are in sync."""

    topic_id: Name
    partition: Partition
    partition_epoch: Count
    replicas: Nodes
    throttle: Count = 0
    """Bytes per second at which each node copies; 0: no limit but its own."""


class CancelReassignment(Struct, frozen=True, array_like=True, tag="cancel-reassignment"):
    topic_id: Name
    partition: Partition


class ReportUnproven(Struct, frozen=True, array_like=True, tag="report-unproven"):
    """A node has found, since it registered, that its logs may lack records."""

    node_id: NodeId
    epoch: Count
    is_synced_lost: bool = False
    """Also records that were synced may be lost."""


class NextSegment(Struct, frozen=True, array_like=True, tag="next-segment"):
    """Seal segment `number` at `end_offset` and open the next one there: one step."""

    topic_id: Name
    partition: Partition
    number: Count
    end_offset: Count
    epoch: Count | None = None


class SetSegmentStatus(Struct, frozen=True, array_like=True, tag="set-segment-status"):
    topic_id: Name
    partition: Partition
    number: Count
    status: Name
    end_offset: Count | None = None


class DeleteSegments(Struct, frozen=True, array_like=True, tag="delete-segments"):
    """Remove the segments below `before`; each must be `deleting`."""

    topic_id: Name
    partition: Partition
    before: Count


class RegisterNode(Struct, frozen=True, array_like=True, tag="register-node"):
    node_id: NodeId
    address: str
    listeners: dict[str, str] = {}
    roles: tuple[str, ...] = ()
    boot_id: str = ""
    store_id: str = ""
    """Which data directory the node has; another one than before means that its records are
    gone. Empty: it keeps none."""
    is_proven: bool = False
    """Whether the node can prove that its logs have what they had under `previous_epoch`."""
    previous_epoch: Count = 0
    free_bytes: Annotated[int, Meta(ge=-1, le=INT_MAX)] = -1
    """Free space where the node keeps records; -1: not known."""


class SetNodeStatus(Struct, frozen=True, array_like=True, tag="set-node-status"):
    node_id: NodeId
    status: Name
    epoch: Count | None = None
    """Only if the node has not registered again since."""


class RemoveNode(Struct, frozen=True, array_like=True, tag="remove-node"):
    node_id: NodeId


class Heartbeat(Struct, frozen=True, array_like=True, tag="heartbeat"):
    """A node outside of the Raft groups is alive; watchers are not notified."""

    node_id: NodeId
    boot_id: str


class PutMember(Struct, frozen=True, array_like=True, tag="put-member"):
    """Where a member of the Raft groups is reached, and which life of its directory counts."""

    node_id: NodeId
    address: Name
    incarnation: Name


class RemoveMember(Struct, frozen=True, array_like=True, tag="remove-member"):
    node_id: NodeId


class AcquireLease(Struct, frozen=True, array_like=True, tag="acquire-lease"):
    """Take the lease of a shard under a new epoch, if it is free, over, or the holder's own."""

    topic_id: Name
    partition: Partition
    holder: Name
    duration_ms: Positive


class RenewLease(Struct, frozen=True, array_like=True, tag="renew-lease"):
    topic_id: Name
    partition: Partition
    holder: Name
    epoch: Count
    duration_ms: Positive


class ReleaseLease(Struct, frozen=True, array_like=True, tag="release-lease"):
    topic_id: Name
    partition: Partition
    holder: Name
    epoch: Count


class AllocateProducerIds(Struct, frozen=True, array_like=True, tag="allocate-producer-ids"):
    count: Annotated[int, Meta(ge=1, le=PRODUCER_IDS_MAX)]


Command = (
    CreateTopic
    | AlterTopic
    | DeleteTopic
    | CreateShards
    | DeleteShards
    | AssignLeader
    | ChangeInSync
    | NextSegment
    | SetSegmentStatus
    | DeleteSegments
    | RegisterNode
    | SetNodeStatus
    | RemoveNode
    | AcquireLease
    | RenewLease
    | ReleaseLease
    | AllocateProducerIds
    | PutMember
    | RemoveMember
    | Heartbeat
    | AcceptDataLoss
    | ReportEngineLoss
    | RestoreShard
    | ChangeInSyncSets
    | LeaveInSync
    | ElectLeaders
    | ElectUnclean
    | ReassignReplicas
    | CancelReassignment
    | ReportUnproven
)


class Request(Struct, frozen=True, array_like=True):
    """What the log holds: a command, the moment it was made, and an id that retries keep."""

    time_ms: Count
    command: Command
    request_id: RequestId = ""


class Done(Struct, frozen=True, array_like=True, tag="done"):
    pass


class TopicResult(Struct, frozen=True, array_like=True, tag="topic"):
    topic: Topic


class ShardsResult(Struct, frozen=True, array_like=True, tag="shards"):
    shards: tuple[Shard, ...]


class SegmentResult(Struct, frozen=True, array_like=True, tag="segment"):
    segment: Segment


class NodeResult(Struct, frozen=True, array_like=True, tag="node"):
    node: Node


class LeaseResult(Struct, frozen=True, array_like=True, tag="lease"):
    lease: Lease


class ProducerIds(Struct, frozen=True, array_like=True, tag="producer-ids"):
    first: int
    count: int


class ReplicaOutcome(Struct, frozen=True, array_like=True):
    """What became of one change of a shard's replicas."""

    is_accepted: bool
    partition_epoch: int
    """That of the shard, after the change or at the refusal."""
    reason: str = ""
    is_last: bool = False
    """Refused because no other replica has every committed record."""


class ReplicaOutcomes(Struct, frozen=True, array_like=True, tag="replica-outcomes"):
    """One for each change that the command names, in its order."""

    outcomes: tuple[ReplicaOutcome, ...]


Result = (
    Done
    | TopicResult
    | ShardsResult
    | SegmentResult
    | NodeResult
    | LeaseResult
    | ProducerIds
    | ReplicaOutcomes
)


class Applied(Struct, frozen=True, array_like=True):
    """A command that changed the state: its revision, its result and the events for watchers."""

    revision: int
    result: Result
    events: tuple[Event, ...] = ()
    repeated: bool = False
    """True when this request was answered before: nothing was changed again."""


Answer = Applied | Rejected


class Moment(Struct, frozen=True):
    """When a command is applied: the time it carries, and the revision it will have."""

    time_ms: int
    revision: int
    head: Head
    """Counters that the handler may move."""


class Change(Struct, frozen=True):
    """What a command did. A handler that answers `Rejected` must not have changed any row."""

    result: Result
    events: tuple[Event, ...] = ()
