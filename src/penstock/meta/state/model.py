"""What the metadata state machine holds, and how each is stored.

Every structure is stored as a MessagePack array: a later version may append fields that have a
default, and must never remove, reorder or retype one. `tests/meta/test_golden.py` holds bytes of
this version.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import astuple

from penstock.record import ShardId

INT_MAX: Final = (1 << 63) - 1
NAME_SIZE_MAX: Final = 65_535
PARTITIONS_MAX: Final = 10_000
RECORD_SIZE_MAX: Final = 4 << 20
TOMBSTONE_RETENTION_MS: Final = 24 * 3_600_000

UNLIMITED: Final = -1
"""A retention without a limit, whatever the node's settings say; None is the node's default."""

Count = Annotated[int, Meta(ge=0, le=INT_MAX)]
Limit = Annotated[int, Meta(ge=UNLIMITED, le=INT_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INT_MAX)]
Signed = Annotated[int, Meta(ge=-INT_MAX, le=INT_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_SIZE_MAX)]
TagHeader = Annotated[str, Meta(max_length=255, pattern=r"^[^\x00-\x1f]*$")]
KafkaSetting = tuple[
    Annotated[str, Meta(min_length=1, max_length=255)], Annotated[str, Meta(max_length=4_096)]
]
Partition = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
NodeId = Annotated[int, Meta(ge=1, le=INT_MAX)]


class TieringPolicy(Struct, frozen=True, array_like=True, kw_only=True):
    """Where and when old data of a topic goes."""

    provider: str = ""
    """Address of the tier, as `file:///tier` or `s3://bucket/prefix`; empty: the node's own."""
    storage_level: str = "NOT_IN_DISK"
    uploader: str = "broker"
    local_retention_ms: Limit | None = None
    """How long the local log keeps what the tier already holds; None: as the node's settings."""
    local_retention_bytes: Limit | None = None
    tier_retention_ms: Limit | None = None
    """How long the tier keeps records; None: as the topic's `retention_ms`."""
    upload_interval_ms: Positive | None = None
    """Records wait so long for others to go up with; None: as the node's settings."""
    upload_bytes: Positive | None = None
    """Bytes of records in one object, with which an upload begins; None: as the node's settings."""


class TopicConfig(Struct, frozen=True, array_like=True, kw_only=True):
    """How a topic is kept. `storage_type` and `queue_kind` are fixed when it is created."""

    storage_type: str = "EngineSegment"
    replication: Positive = 1
    min_insync: Positive | None = None
    """Replicas that must hold a write of `acks = all`; None: a majority."""
    retention_ms: Limit | None = None
    """How long records are kept. None: the node's default, `broker.file_reserved_time` in the
    segment engine, no limit in the others. `UNLIMITED`: no limit anywhere."""
    retention_bytes: Limit | None = None
    """Here and below, a node has no default: None limits as little as `UNLIMITED`."""
    retention_records: Limit | None = None
    flush: str = "ASYNC_FLUSH"
    cleanup: str = "delete"
    partitioner: str = "round_robin"
    record_size_max: Positive = RECORD_SIZE_MAX
    queue_kind: str = "SimpleCQ"
    tiering: TieringPolicy | None = None
    memory_records_max: Positive | None = None
    memory_bytes_max: Positive | None = None
    segment_size: Positive | None = None
    """Bytes at which a segment of a shard ends; None: as the node's settings."""
    segment_age_ms: Positive | None = None
    tombstone_retention_ms: Count = TOMBSTONE_RETENTION_MS
    """How long a compacted topic keeps a tombstone."""
    compaction_lag_ms: Count = 0
    """How long compaction leaves a record alone."""
    tag_header: TagHeader | None = None
    """Kafka's header whose values are a record's tags; None: as the node's settings."""
    kafka_settings: tuple[KafkaSetting, ...] = ()
    """Settings that only Kafka's clients know, by Kafka's names; each name once."""


class Topic(Struct, frozen=True, array_like=True, kw_only=True):
    topic_id: str
    """Unique and never used again; part of every shard's name."""
    namespace: str
    name: str
    partitions: int
    config: TopicConfig
    status: str
    created_at_ms: int
    revision: int
    """That of the last change; `alter_topic` can ask for it."""


class Shard(Struct, frozen=True, array_like=True, kw_only=True):
    """One partition: who holds it and who leads it."""

    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    """Grows with every change of leader; a message that carries a lower one is refused."""
    active_segment: int
    """Number of the segment that takes, or last took, writes."""
    first_segment: int
    status: str
    revision: int
    eligible: tuple[int, ...] = ()
    """Replicas that left the in-sync set when it fell below its minimum: they have every committed
    record, because nothing was committed since, and may lead when no replica in sync can."""
    partition_epoch: int = 0
    """Grows with every change of replicas, in-sync set or leader."""
    last_leader: int | None = None
    """The leader before the shard had none."""
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment adds; they count when they are in sync."""
    removing: tuple[int, ...] = ()
    """Replicas that go once those of `adding` are in sync."""
    throttle: int = 0
    """Bytes per second at which those of `adding` copy at most; 0: no limit but the node's."""
    min_insync: int = 0
    """How many replicas must have a record while the shard gets more of them than it had: the
    topic's minimum counts from when so many are in sync. 0: it does."""
    previous: tuple[int, ...] = ()
    """The replicas before the reassignment that is under way, the preferred leader first: what a
    cancellation restores. Empty: none is, or it began under a release that did not store them."""

    @property
    def is_moving(self) -> bool:
        """Return whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    @property
    def preferred_leader(self) -> int:
        """The first replica that stays."""
        return next((node for node in self.replicas if node not in self.removing), self.replicas[0])

    @property
    def id(self) -> ShardId:
        return ShardId(self.topic_id, self.partition)

    @property
    def name(self) -> str:
        return f"{self.topic_id}_{self.partition}"


_UNREPLICATED_FIELDS: Final = 10
_UNCHANGING_FIELDS: Final = 15
_UNORDERED_FIELDS: Final = 17


def stored_fields(shard: Shard) -> tuple[object, ...]:
    """Return a shard as it is stored. Without those fields that only replication sets: rows of a
    shard with one replica stay as they were before there were others."""
    fields: tuple[object, ...] = astuple(shard)
    is_replicated = (
        shard.partition_epoch
        or shard.eligible
        or shard.last_leader is not None
        or shard.adding
        or shard.removing
    )
    if not is_replicated:
        return fields[:_UNREPLICATED_FIELDS]
    if shard.previous:
        return fields
    is_changing = shard.throttle or shard.min_insync
    return fields[: _UNORDERED_FIELDS if is_changing else _UNCHANGING_FIELDS]


def stored_node(node: Node) -> tuple[object, ...]:
    """Return a node as it is stored: without the last fields that have their defaults, as older
    releases store it."""
    fields: tuple[object, ...] = astuple(node)
    if node.is_draining:
        return fields
    return fields[:-1] if node.free_bytes >= 0 else fields[:-2]


class Segment(Struct, frozen=True, array_like=True, kw_only=True):
    """The offsets [start, end) of a shard; `end` is unset while it accepts writes."""

    topic_id: str
    partition: int
    number: int
    start_offset: int
    end_offset: int | None
    status: str
    leader: int | None
    leader_epoch: int
    created_at_ms: int
    sealed_at_ms: int | None = None

    @property
    def shard(self) -> ShardId:
        return ShardId(self.topic_id, self.partition)


class Node(Struct, frozen=True, array_like=True, kw_only=True):
    node_id: int
    address: str
    """`host:port` of the internal protocol."""
    listeners: dict[str, str]
    """Addresses that clients use, by protocol: `{"kafka": "host:port"}`."""
    roles: tuple[str, ...]
    boot_id: str
    """Identifies one run of the node; a new one means that it was restarted."""
    epoch: int
    """Grows with every registration."""
    status: str
    registered_at_ms: int
    free_bytes: int = -1
    """Free space where the node keeps records, at its last report; -1: it has not reported any."""
    is_draining: bool = False
    """Whether an operator empties the node, also while it is offline or about to stop."""


class Member(Struct, frozen=True, array_like=True, kw_only=True):
    """A node that takes part in the Raft groups."""

    node_id: int
    address: str
    """`host:port` of the internal protocol."""
    incarnation: str
    """Identifies one life of the node's directory; a wiped node has another."""


class Store(Struct, frozen=True, array_like=True, kw_only=True):
    """Which data directory a node was last seen with. The row outlives the node's own."""

    node_id: int
    store_id: str


class Loss(Struct, frozen=True, array_like=True, kw_only=True):
    """The engine directory with which a shard was lost. The row stays when the directory was put
    back, and is removed when an operator accepts the loss."""

    engine_id: str


class Lease(Struct, frozen=True, array_like=True, kw_only=True):
    """The right to act for a shard (uploads) until a time, under an epoch that is granted once."""

    topic_id: str
    partition: int
    holder: str
    epoch: int
    until_ms: int

    @property
    def shard(self) -> ShardId:
        return ShardId(self.topic_id, self.partition)
