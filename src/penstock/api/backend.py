"""`Backend`: the calls that `Store`, `Topic` and `Consumer` need, in process or over the network.

Every call is synchronous and thread-safe; errors are those of `penstock.errors`. Topics are named
by (namespace, name).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.adapter.locations import Message
from penstock.api.topic_info import GroupInfo, PartitionInfo, TopicInfo
from penstock.engine.contract import AdapterOffsetStrategy, ColumnQuery, Compacted
from penstock.groups.codes import GroupCode
from penstock.groups.model import Caller, Join, Joined, Sync, Synced
from penstock.platform.clock_guard import ClockStatus
from penstock.record import Location, Offset, Producer, Record, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

TopicPartition = tuple[str, int]


class Backend(Protocol):
    @property
    def place(self) -> str:
        """The directory, or the address, of the store."""
        ...

    # Topics

    def create_topic(
        self, namespace: str, topic: str, partitions: int | None, options: Mapping[str, object]
    ) -> TopicInfo:
        """Create a topic; `partitions=None` takes the store's default."""
        ...

    def alter_topic(
        self, namespace: str, topic: str, partitions: int | None, options: Mapping[str, object]
    ) -> TopicInfo: ...

    def delete_topic(self, namespace: str, topic: str) -> None: ...

    def describe_topic(self, namespace: str, topic: str) -> TopicInfo: ...

    def list_topics(self, namespace: str | None) -> list[TopicInfo]: ...

    def locate_topic(self, namespace: str, topic: str) -> tuple[str, int]:
        """Return a topic's id and how many partitions it has; raise `UnknownTopicError`."""
        ...

    def partition_info(self, namespace: str, topic: str, partition: int) -> PartitionInfo: ...

    # Records

    def write(
        self,
        namespace: str,
        topic: str,
        record: Record,
        partition: int | None,
        producer: Producer | None,
    ) -> Location: ...

    @property
    def write_at_once(self) -> Callable[[str, str, Record, int | None], Location | None] | None:
        """Append a record if that takes microseconds; return None if nothing was written. None for
        a backend over the network."""
        ...

    def write_many(
        self,
        namespace: str,
        topic: str,
        records: Sequence[Record],
        partition: int | None,
        producer: Producer | None,
    ) -> Sequence[Location]: ...

    def write_topics(
        self, namespace: str, batch: Sequence[tuple[str, Record]]
    ) -> Sequence[Location]: ...

    def read(
        self,
        namespace: str,
        topic: str,
        partition: int,
        offset: Offset,
        max_records: int,
        max_size: int,
    ) -> list[StoredRecord]: ...

    def read_columns(
        self, namespace: str, topic: str, partition: int, wanted: ColumnQuery
    ) -> list[pa.RecordBatch] | None:
        """Return records as Arrow columns for bulk reads; None where only rows are available: other
        engines, tiers, shards with transactions, other nodes."""
        ...

    def read_by_tag(
        self,
        namespace: str,
        topic: str,
        tag: str,
        partition: int | None,
        start_offset: Offset | Mapping[int, Offset],
        max_records: int,
        max_size: int,
    ) -> list[Message]: ...

    def read_by_key(self, namespace: str, topic: str, key: bytes) -> Message | None: ...

    def query_by_key(
        self,
        namespace: str,
        topic: str,
        key: bytes,
        begin_ms: int,
        end_ms: int | None,
        limit: int,
    ) -> list[Message]: ...

    def offsets_at(
        self, namespace: str, topic: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> dict[int, Offset]: ...

    def delete_by_key(self, namespace: str, topic: str, key: bytes) -> int: ...

    def delete_by_offset(
        self, namespace: str, topic: str, partition: int, offset: Offset
    ) -> bool: ...

    def delete_before(
        self, namespace: str, topic: str, partition: int, offset: Offset
    ) -> Offset: ...

    def compact(self, namespace: str, topic: str) -> Compacted: ...

    def wait_for_records(
        self, namespace: str, positions: Mapping[TopicPartition, Offset], seconds: float
    ) -> bool:
        """Wait for a record at or after one of the positions; return whether there is one."""
        ...

    # Groups

    def commit(
        self,
        namespace: str,
        group: str,
        offsets: Mapping[TopicPartition, Offset],
        topic_ids: Mapping[str, str],
        caller: Caller | None = None,
    ) -> None:
        """Commit offsets, all or none. `topic_ids` says of topics by name which ones are meant:
        `TopicReplacedError` when the name is another's by now. One that is not there is taken by
        its name. `caller` is the member that commits: `GroupFencedError` when it is not one any
        more, or another member has one of the partitions; `RebalanceInProgressError` until the
        group has decided. Without it the group must have no members: `GroupNotEmptyError`."""
        ...

    def committed(
        self, namespace: str, group: str, topics: Sequence[str] | None
    ) -> dict[TopicPartition, Offset]: ...

    def reset(self, namespace: str, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Set offsets, also backwards, so that no commit made before can undo it."""
        ...

    def join_group(self, namespace: str, group: str, request: Join, seconds: float) -> Joined:
        """Join a group, and wait up to `seconds` until all of its members have; `still_waiting`:
        join again, with the member's id."""
        ...

    def sync_group(self, namespace: str, group: str, request: Sync, seconds: float) -> Synced:
        """Ask for the member's assignment, or bring those of all members, and wait as above."""
        ...

    def heartbeat_group(self, namespace: str, group: str, caller: Caller) -> GroupCode: ...

    def leave_group(
        self, namespace: str, group: str, member_id: str, instance_id: str | None
    ) -> GroupCode: ...

    def list_groups(self, namespace: str | None) -> list[GroupInfo]: ...

    def describe_group(self, namespace: str, group: str) -> GroupInfo: ...

    def delete_group(self, namespace: str, group: str) -> None: ...

    # The store

    def allocate_producer_id(self) -> int:
        """Return a new producer id."""
        ...

    def run_upkeep(self) -> None:
        """Run background maintenance now: retention, compaction, sealing."""
        ...

    def clock_status(self) -> ClockStatus:
        """Return whether the node believes its clock."""
        ...

    def confirm_clock(self) -> ClockStatus:
        """Take what the node's clock shows for the right time."""
        ...

    def close(self) -> None: ...
