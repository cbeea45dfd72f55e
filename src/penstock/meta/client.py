"""`MetaClient`: what the storage layer asks of the meta service, on one node or in a cluster.

Methods are synchronous and may be called from any thread. When a method that changes something
returns, the change is on the device (in a cluster: of a majority) and every later read sees it.
Errors are those of `penstock.errors`: `RequestError`s mean that nothing was changed;
`RetryableError`s that the same call may be made again, under the same `request_id` where there is
one, and is then done once.

`StandaloneMetaClient` implements it over `StandaloneLog`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from msgspec import Struct

from penstock.errors import StoreError
from penstock.meta.state.constants import DEFAULT_NAMESPACE
from penstock.meta.state.metadata.commands import Election, ReplicaOutcome
from penstock.meta.state.model import Lease, Node, Segment, Shard, Topic, TopicConfig
from penstock.meta.state.offsets.commands import (
    GroupName,
    GroupOffsets,
    NewGroupOffsets,
    OffsetEntry,
    StaleEntry,
)
from penstock.meta.state.offsets.entries import NewOffset
from penstock.meta.state.offsets.rows import CommittedOffset
from penstock.meta.watch import Update, Watch
from penstock.record import ShardId

if TYPE_CHECKING:
    from penstock.meta.raft.network.data_network import DataChannel
    from penstock.meta.raft.network.messages import DataChannelName
    from penstock.meta.raft.network.traffic import ChannelTraffic
    from penstock.meta.raft.network.transport import Probe

__all__ = [
    "DEFAULT_NAMESPACE",
    "CommittedOffset",
    "Election",
    "GroupInfo",
    "GroupName",
    "GroupOffsets",
    "InSyncProposal",
    "LeaderOutcome",
    "Lease",
    "MetaClient",
    "MetadataClient",
    "NewGroupOffsets",
    "NewOffset",
    "NewTopic",
    "Node",
    "OffsetClient",
    "OffsetEntry",
    "PeerNetwork",
    "ReplicaClient",
    "ReplicaMove",
    "ReplicaOutcome",
    "Segment",
    "Shard",
    "StaleEntry",
    "StartProof",
    "Takeover",
    "Topic",
    "TopicConfig",
    "Update",
    "Watch",
]


class GroupInfo(Struct, frozen=True):
    namespace: str
    group: str
    epoch: int
    node: int
    """The node that took the group's epoch last."""
    last_commit_ms: int


class Takeover(Struct, frozen=True):
    """A group that a node became the coordinator of."""

    epoch: int
    previous: int
    """The node that held the group's epoch before; 0: none did."""


class NewTopic(Struct, frozen=True):
    name: str
    partitions: int
    config: TopicConfig
    replicas: tuple[tuple[int, ...], ...] = ()
    """The nodes of each partition, the preferred leader first; empty: the cluster chooses."""


class InSyncProposal(Protocol):
    """The in-sync set that the leader of a shard asks for."""

    @property
    def shard(self) -> str: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...
    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """Each with the broker epoch under which the leader heard of it."""
        ...


class ReplicaMove(Struct, frozen=True):
    """Where the replicas of a shard shall be, the preferred leader first."""

    shard: ShardId
    replicas: tuple[int, ...]
    throttle: int = 0
    """Bytes per second that each new replica's node copies at most; 0: no limit of its own."""


class LeaderOutcome(Struct, frozen=True):
    """What became of an election."""

    shard: ShardId
    leader: int | None
    """Who leads now."""
    kind: Literal["elected", "not-needed", "unavailable", "unknown"]
    """`unavailable`: no replica that was asked for may lead. `unknown`: no shard has the name."""
    reason: str = ""


class StartProof(Struct, frozen=True):
    """What a node can say of the logs with which it starts."""

    is_proven: bool = False
    """They have everything that they had when the node ran under `previous_epoch`."""
    previous_epoch: int = 0
    cluster_id: str = ""
    """That of the cluster in which the node ran."""


class ReplicaClient(Protocol):
    """The replicas of shards, and this node's part in them."""

    @property
    def broker_epoch(self) -> int | None:
        """The epoch under which this node is registered; it changes when the node was fenced and
        has registered again. None: it has not registered since its start. 0: it is alone."""
        ...

    def on_registered(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the broker epoch after every registration of this node, and now if
        it is registered. It must return soon, and must not register."""
        ...

    def lease_holds(self) -> bool:
        """Return whether no other node can lead the shards of this one by now. False: what the
        metadata said may be out of date."""
        ...

    def lease_left_s(self) -> float:
        """Return for how long the lease holds; 0: it does not."""
        ...

    def change_in_sync(self, proposals: Sequence[InSyncProposal]) -> list[int | None]:
        """Propose in-sync sets of shards that this node leads. Returns for each None when it was
        accepted, or the partition epoch at which it was refused. When this raises, any of them
        may have been accepted."""
        ...

    def leave_in_sync(self, shard: str, partition_epoch: int) -> bool:
        """Take this node, whose copy is damaged, out of the sets of a shard. False: refused,
        because no other replica has every committed record. True promises nothing: the metadata
        show when it is done."""
        ...

    def report_unproven(self, *, is_synced_lost: bool = False) -> None:
        """Report that this node's logs lack records, found after it has registered; also synced
        ones with `is_synced_lost`. Its replicas are not in sync any more."""
        ...

    def elect_leaders(self, elections: Sequence[Election]) -> list[ReplicaOutcome]: ...

    def elect_unclean(self, shard: ShardId, node_id: int, partition_epoch: int) -> Shard:
        """Let a replica lead that may lack committed records: they are given up."""
        ...

    def reassign_replicas(
        self, shard: ShardId, replicas: Sequence[int], partition_epoch: int
    ) -> Shard:
        """Move a shard to other nodes, the preferred leader first; new ones copy it before others
        go. `StaleWriteError` when its replicas were changed since."""
        ...

    def cancel_reassignment(self, shard: ShardId) -> Shard: ...

    def start_reassignments(self, moves: Sequence[ReplicaMove]) -> list[Shard | StoreError]:
        """Move many shards, each on its own: returns for each the shard on its way, or the error
        for which it was not changed. A shard that moves already goes to the new target; the same
        target again changes the throttle only. The cluster ends each move when its new replicas
        are in sync."""
        ...

    def cancel_reassignments(self, shards: Sequence[ShardId]) -> list[Shard | StoreError]:
        """End moves that are under way: what was added goes, what was to go stays.
        `BadRequestError` for a shard that does not move."""
        ...

    def list_reassignments(self, topic_id: str | None = None) -> list[Shard]:
        """Return the shards that move: `adding` copy, `removing` go once those are in sync, and
        `replicas` has both."""
        ...

    def elect_preferred(self, shards: Sequence[ShardId]) -> list[LeaderOutcome]:
        """Let the preferred leader (the first replica) of each shard lead, if it is in sync."""
        ...

    def elect_any(self, shards: Sequence[ShardId], *, is_unclean: bool) -> list[LeaderOutcome]:
        """Give each shard without a leader one; with `is_unclean` also a replica that may lack
        committed records, which are given up then."""
        ...

    def hand_over_leaders(
        self, node_id: int, shards: Sequence[ShardId] | None = None
    ) -> list[LeaderOutcome]:
        """Let other replicas in sync lead what a node leads (all of it, or some shards), evenly.
        The node stays a replica in sync. One outcome for each shard that it led."""
        ...


class MetadataClient(ReplicaClient, Protocol):
    """Topics, shards, segments, nodes, leases, producer ids."""

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    # -- topics -----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        partitions: int = 1,
        config: TopicConfig | None = None,
        request_id: str = "",
    ) -> Topic:
        """Create a topic with all of its shards and their first segments: one step, up to 1,000
        partitions. Raises `AlreadyExistsError`."""
        ...

    def create_topics(
        self, topics: Sequence[NewTopic], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Topic | StoreError]:
        """As `create_topic` of each, all in parallel; an error takes the place of a topic."""
        ...

    def placement_create_topic(
        self,
        name: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        partitions: int = 1,
        config: TopicConfig | None = None,
        request_id: str = "",
    ) -> Topic:
        """Create a topic without shards; `create_shard` adds them."""
        ...

    def alter_topic(
        self,
        topic_id: str,
        *,
        partitions: int | None = None,
        config: TopicConfig | None = None,
        expected_revision: int | None = None,
        replicas: Sequence[Sequence[int]] = (),
        request_id: str = "",
    ) -> Topic:
        """Change a topic and create the shards of new partitions, on the nodes that `replicas`
        names for each or the cluster chooses. With `expected_revision`,
        raises `StaleWriteError` when the topic was changed since. Partitions never shrink;
        storage type and queue kind are fixed (`BadRequestError`)."""
        ...

    def delete_topic(self, topic_id: str) -> Topic:
        """Free the topic's name and stop all use of its shards. Each shard is forgotten by
        `delete_shard`, when its data is gone; until then `list_deleting_topics` has the topic."""
        ...

    def get_topic(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> Topic | None: ...

    def get_topic_by_id(self, topic_id: str) -> Topic | None:
        """Return a topic by its id, also one that is being deleted."""
        ...

    def list_topics(self, namespace: str | None = None) -> list[Topic]:
        """Return the topics that can be used, sorted by namespace and name."""
        ...

    def list_deleting_topics(self) -> list[Topic]: ...

    # -- shards and segments ----------------------------------------------------------------------

    def create_shard(self, shard: ShardId) -> Shard:
        """Place a shard of a topic and open its first segment; do nothing if it exists."""
        ...

    def create_shards(self, topic_id: str, partitions: Sequence[int]) -> list[Shard]: ...

    def delete_shard(self, shard: ShardId) -> None:
        """Forget a shard, its segments and its lease; do nothing if it does not exist."""
        ...

    def delete_shards(
        self, topic_id: str, partitions: Sequence[int], *, node_id: int | None = None
    ) -> None:
        """Forget several shards of a topic, hundreds at a time; with `node_id` only the replicas of
        that node, and a shard with its last one."""
        ...

    def get_shard(self, shard: ShardId) -> Shard | None: ...

    def list_shards(self, topic_id: str | None = None) -> list[Shard]: ...

    def assign_leader(
        self,
        shard: ShardId,
        leader: int | None,
        epoch: int,
        *,
        replicas: Sequence[int] | None = None,
        in_sync: Sequence[int] | None = None,
    ) -> Shard:
        """Give a shard a leader under a new epoch; `StaleWriteError` if it is not new."""
        ...

    def next_segment(
        self, shard: ShardId, number: int, end_offset: int, *, epoch: int | None = None
    ) -> Segment:
        """Seal segment `number` at `end_offset`, open the next one there and return it. A repeat
        returns the same; `StaleWriteError` when the shard has rolled elsewhere."""
        ...

    def seal_segment(self, shard: ShardId, number: int, end_offset: int) -> Segment: ...

    def set_segment_status(
        self, shard: ShardId, number: int, status: str, *, end_offset: int | None = None
    ) -> Segment: ...

    def delete_segments(self, shard: ShardId, before: int) -> None:
        """Forget the segments with a lower number; each must be `deleting`."""
        ...

    def list_segments(self, shard: ShardId) -> list[Segment]: ...

    # -- nodes, leases, producer ids --------------------------------------------------------------

    def register_node(
        self,
        address: str,
        *,
        listeners: Mapping[str, str] | None = None,
        roles: Sequence[str] = (),
        boot_id: str = "",
        store_id: str = "",
        proof: StartProof | None = None,
        free_bytes: int = -1,
    ) -> Node:
        """Register this node. With another `store_id` than before its replicas count no more, and
        shards with one copy are lost. After a restart without a `proof` that names its last epoch
        the node is not in sync any more, but for topics that sync before they acknowledge."""
        ...

    def accept_data_loss(self, shard: ShardId) -> Shard:
        """Reopen a shard whose records are lost, empty; offsets that were committed for it stay."""
        ...

    def report_engine_loss(self, storage_type: str, engine_id: str) -> None:
        """Report that this node has lost the directory of one engine, with all of its records."""
        ...

    def restore_lost_shard(self, shard: ShardId, engine_id: str) -> bool:
        """Report that the engine has the records of a lost shard again. False when the loss was
        accepted meanwhile: the shard was reopened without them."""
        ...

    def set_node_status(self, node_id: int, status: str, *, epoch: int | None = None) -> Node: ...

    def remove_node(self, node_id: int) -> None: ...

    def list_nodes(self) -> list[Node]: ...

    def acquire_lease(self, shard: ShardId, holder: str, duration_ms: int) -> Lease | None:
        """Take a shard's lease under a new epoch, or return None while another holds it."""
        ...

    def renew_lease(self, lease: Lease, duration_ms: int) -> Lease:
        """Extend a lease; `StaleWriteError` when another holder has taken it since."""
        ...

    def release_lease(self, lease: Lease) -> None: ...

    def get_lease(self, shard: ShardId) -> Lease | None: ...

    def allocate_producer_ids(self, count: int, *, request_id: str = "") -> range:
        """Return `count` producer ids that were never allocated before."""
        ...

    # -- changes ----------------------------------------------------------------------------------

    def revision(self) -> int: ...

    def watch(self, after: int, callback: Callable[[Update], None]) -> Watch:
        """Call `callback` with each change after revision `after`, in order, each once; the past
        ones before this returns. `after=0` starts with everything that exists, too."""
        ...


class OffsetClient(Protocol):
    """Consumers' offsets."""

    def claim_groups(self, groups: Sequence[GroupName]) -> list[Takeover]:
        """Make this node the coordinator of groups; return for each an epoch that was never given
        before, and which node had the group before. A group that does not exist is created."""
        ...

    def commit_groups(
        self,
        saves: Sequence[GroupOffsets],
        firsts: Sequence[NewGroupOffsets],
        *,
        node: int | None = None,
    ) -> tuple[list[StaleEntry], list[Takeover]]:
        """Save `saves` as `save_offsets` does, and take over the groups of `firsts` together with
        their first commits, for this node or for `node` (0: for none, no node holds them then).
        Together they are one entry of each log that they touch, unless they are very large. When
        this raises, some may be stored, and all can be sent again."""
        ...

    def save_offsets(self, groups: Sequence[GroupOffsets]) -> list[StaleEntry]:
        """Store entries whose pair (epoch, sequence) is greater than the stored one; return those
        that were not, with the pair that stands. An entry sent again counts as stored. Large
        batches are split; when this raises, some may be stored, and all can be sent again."""
        ...

    def compare_and_set_offset(
        self, namespace: str, group: str, entry: OffsetEntry, *, expected: int | None
    ) -> None:
        """Store `entry` if the offset is `expected` (None: there is none), else raise
        `StaleWriteError`."""
        ...

    def reset_offsets(
        self, namespace: str, group: str, offsets: Sequence[NewOffset], *, request_id: str = ""
    ) -> int:
        """Set offsets, also backwards, under a new epoch of the group, and return it."""
        ...

    def get_offset(self, namespace: str, group: str, shard: str) -> CommittedOffset | None: ...

    def get_offsets(self, namespace: str, group: str) -> dict[str, CommittedOffset]:
        """Return all offsets of a group by shard name; unknown group: empty."""
        ...

    def get_group(self, namespace: str, group: str) -> GroupInfo | None: ...

    def list_groups(self, namespace: str | None = None) -> list[GroupInfo]: ...

    def delete_offsets(self, namespace: str, group: str, shards: Sequence[str]) -> int:
        """Remove offsets of a group; return how many there were. Raises `UnknownGroupError`."""
        ...

    def delete_group(self, namespace: str, group: str) -> None:
        """Remove a group and its offsets; no commit made before brings them back. Raises
        `UnknownGroupError`."""
        ...

    def expire_groups(self, before_ms: int, *, keep: Collection[GroupName] = ()) -> list[GroupName]:
        """Forget the groups whose last commit is older, except those in `keep`; return them."""
        ...

    def delete_topic_offsets(self, topic_id: str, partitions: Collection[int] | None = None) -> int:
        """Remove all groups' offsets of a deleted topic; return how many there were."""
        ...

    def save_group_state(self, namespace: str, group: str, generation: int, state: bytes) -> None:
        """Keep the members of a group's generation over a restart or a move of its coordinator; an
        empty `state` removes them. Raises `StaleWriteError` when a later generation is kept."""
        ...

    def get_group_state(self, namespace: str, group: str) -> bytes | None:
        """Return the members that were kept last, or None."""
        ...

    def list_group_states(self) -> list[tuple[str, str, bytes]]:
        """Return what is kept of all groups: namespace, group, members."""
        ...


@runtime_checkable
class ListenerAnnouncer(Protocol):
    """A client of a cluster, where other nodes want to know how to reach this one."""

    def announce(self, protocol: str, address: str) -> None:
        """Tell all nodes where this one serves the clients of a protocol."""
        ...


@runtime_checkable
class ClusterNode(ListenerAnnouncer, Protocol):
    """A client of a cluster that speaks for a node of it."""

    def leave(self) -> None:
        """Tell all nodes that this one stops."""
        ...

    def report_disk(self, free_bytes: int) -> None:
        """Tell all nodes how much free space this one has for records, if that has changed enough
        to matter for the placement of shards."""
        ...


@runtime_checkable
class LeadingNode(Protocol):
    """A node that leads shards and Raft groups, and can hand them over before it stops."""

    def can_announce_stop(self) -> bool:
        """Return whether all nodes of the cluster run a release that knows `announce_stop`."""
        ...

    def announce_stop(self) -> frozenset[str]:
        """Let other nodes lead what they can, and coordinate the groups; return the replicated
        shards that no other node can lead."""
        ...

    def give_up_groups(self, seconds: float) -> list[str]:
        """Let other voters lead the Raft groups of this node; return those that it still leads."""
        ...


@runtime_checkable
class PeerNetwork(Protocol):
    """A node with an internal port."""

    def channel(self, name: DataChannelName) -> DataChannel:
        """Return a data channel to the other nodes; each channel has connections of its own.
        Connections are accepted once `on_receive` of the channel is set."""
        ...

    def channel_traffic(self) -> dict[str, ChannelTraffic]:
        """Return what each channel in use has carried."""
        ...

    def report_problem(self, kind: str, node_id: int, text: str) -> None:
        """Show a problem with a node in the status of the cluster for a while."""
        ...

    def probe(self, node_id: int) -> Probe:
        """Try to connect to the internal port of a node; blocks for 0.3 s at most."""
        ...

    def watch_connections(self, on_lost: Callable[[int], None]) -> None:
        """Have `on_lost` called with a node's id when a connection from or to it has ended."""
        ...

    def broker_epoch_of(self, node_id: int) -> int:
        """Return the epoch of a node's registration, 0: none that is known here."""
        ...


class MetaClient(MetadataClient, OffsetClient, Protocol):
    """The whole meta service."""

    def leads_metadata(self) -> bool:
        """Return whether this node does what only one node of a cluster must do."""
        ...

    def close(self) -> None: ...
