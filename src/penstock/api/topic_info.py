"""What a store says about its topics and groups."""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import RetryableError
from penstock.meta import TopicConfig
from penstock.record import Offset


class PartitionInfo(Struct, frozen=True):
    """Where a partition begins and ends: offsets in [earliest, commit) can be read, `latest` is
    given to the next record."""

    partition: int
    earliest: Offset
    commit: Offset
    latest: Offset
    size: int
    """Approximate bytes of its records."""
    leader: int | None = None
    segments: int = 1
    log_start: Offset | None = None
    """With a tier: the first offset that the log still holds; older records are in the tier."""
    problem: str = ""
    """Why the offsets are unknown; if not empty, the numbers are invalid."""


class TopicInfo(Struct, frozen=True):
    """A topic; `partitions` is filled by `describe` and empty in a list."""

    name: str
    namespace: str
    topic_id: str
    partition_count: int
    config: TopicConfig
    created_at_ms: int
    revision: int
    partitions: tuple[PartitionInfo, ...] = ()

    @property
    def storage(self) -> str:
        """`memory`, `rocksdb` or `segment`."""
        return self.config.storage_type.removeprefix("Engine").lower()

    @property
    def bounded(self) -> tuple[PartitionInfo, ...]:
        """The partitions with valid offsets; raises `RetryableError` while those of a partition are
        unknown."""
        for partition in self.partitions:
            if partition.problem:
                raise RetryableError(
                    f"partition {partition.partition} of {self.name!r}: {partition.problem}"
                )
        return self.partitions

    @property
    def records(self) -> int:
        """How many offsets can be read, deleted ones included."""
        return sum(partition.commit - partition.earliest for partition in self.partitions)

    @property
    def size(self) -> int:
        """Bytes of all partitions, as the engine counts them."""
        return sum(partition.size for partition in self.partitions)


class GroupMember(Struct, frozen=True):
    """A live member of a group."""

    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()
    """Topics and partitions that it reads; none while the group rebalances."""


class GroupInfo(Struct, frozen=True):
    """A group of consumers and how far it has read."""

    group: str
    namespace: str
    last_commit_ms: int
    offsets: dict[tuple[str, int], Offset] = {}
    """The next offset to read, by topic and partition."""
    lag: dict[tuple[str, int], int] = {}
    """Offsets that can be read and are not committed; partitions in `problems` are left out."""
    problems: dict[tuple[str, int], str] = {}
    """Partitions whose end is not known now, and why: their node is away, say."""
    state: str = "Empty"
    """As Kafka's tools name it: Empty, PreparingRebalance, CompletingRebalance, Stable."""
    protocol: str = ""
    """How partitions are assigned: range, cooperative-sticky, …"""
    members: tuple[GroupMember, ...] = ()

    @property
    def total_lag(self) -> int:
        """The sum of what is known; a lower bound where there are problems."""
        return sum(self.lag.values())
