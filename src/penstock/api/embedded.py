"""The backend of a store in this process: calls run in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock.adapter.driver_manager import StorageDriverManager
from penstock.adapter.group_lag import lag_of
from penstock.adapter.locations import Message
from penstock.adapter.record_watch import RecordWatch
from penstock.api.backend import TopicPartition
from penstock.api.fork_guard import disown_in_children
from penstock.api.live_groups import LiveGroups
from penstock.api.topic_info import GroupInfo, PartitionInfo, TopicInfo
from penstock.engine.contract import AdapterOffsetStrategy, ColumnQuery, Compacted, ShardInfo
from penstock.errors import UnknownGroupError
from penstock.groups.codes import GroupCode
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.model import Caller, Join, Joined, Sync, Synced
from penstock.groups.routing import GroupRouter, PendingReply, Question
from penstock.meta import MetaClient, Topic, check_text
from penstock.platform.clock_guard import ClockStatus, GuardedClock
from penstock.record import Location, Offset, Producer, Record, StoredRecord
from penstock.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa


class RunningNode(Protocol):
    """The components of a node that a store uses."""

    @property
    def path(self) -> str: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def driver_manager(self) -> StorageDriverManager: ...
    @property
    def meta(self) -> MetaClient: ...
    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def clock(self) -> GuardedClock: ...

    def run_upkeep(self) -> None: ...

    def confirm_clock(self) -> ClockStatus: ...

    def close(self) -> None: ...


class EmbeddedBackend:
    """Implements `Backend`; closing it stops the node."""

    def __init__(self, node: RunningNode) -> None:
        self._node: Final = node
        self._drivers: Final = node.driver_manager
        self._admin: Final = node.driver_manager.admin
        self._offsets: Final = node.driver_manager.offsets
        self._router: Final = GroupRouter(node.groups)
        self._groups: Final = LiveGroups(self._router)
        disown_in_children(self)

    @property
    def place(self) -> str:
        return self._node.path

    # Topics

    def create_topic(
        self, namespace: str, topic: str, partitions: int | None, options: Mapping[str, object]
    ) -> TopicInfo:
        if partitions is None:
            partitions = self._node.settings.topics.partitions
        created = self._admin.create_topic_full(topic, partitions, options, namespace=namespace)
        return _topic_info(created)

    def alter_topic(
        self, namespace: str, topic: str, partitions: int | None, options: Mapping[str, object]
    ) -> TopicInfo:
        altered = self._admin.alter_topic(
            topic, partitions=partitions, options=options, namespace=namespace
        )
        return _topic_info(altered)

    def delete_topic(self, namespace: str, topic: str) -> None:
        self._admin.delete_topic(topic, namespace=namespace)

    def describe_topic(self, namespace: str, topic: str) -> TopicInfo:
        found = self._admin.describe_topic(topic, namespace=namespace)
        parts = tuple(
            _partition_info(
                partition.info,
                leader=partition.leader,
                segments=partition.segments,
                problem=partition.problem,
            )
            for partition in found.partitions
        )
        return _topic_info(found.topic, parts)

    def list_topics(self, namespace: str | None) -> list[TopicInfo]:
        return [_topic_info(topic) for topic in self._drivers.broker_cache.list_topics(namespace)]

    def locate_topic(self, namespace: str, topic: str) -> tuple[str, int]:
        route = self._drivers.routes.find(topic, namespace)
        return route.topic.topic_id, route.partitions

    def partition_info(self, namespace: str, topic: str, partition: int) -> PartitionInfo:
        return _partition_info(self._drivers.shard_info(topic, partition, namespace=namespace))

    # Records

    def write(
        self,
        namespace: str,
        topic: str,
        record: Record,
        partition: int | None,
        producer: Producer | None,
    ) -> Location:
        return self._drivers.write(
            topic, record, partition=partition, producer=producer, namespace=namespace
        )

    def write_at_once(
        self, namespace: str, topic: str, record: Record, partition: int | None
    ) -> Location | None:
        return self._drivers.write_at_once(topic, record, partition=partition, namespace=namespace)

    def write_many(
        self,
        namespace: str,
        topic: str,
        records: Sequence[Record],
        partition: int | None,
        producer: Producer | None,
    ) -> Sequence[Location]:
        return self._drivers.batch_write(
            topic, records, partition=partition, producer=producer, namespace=namespace
        )

    def write_topics(
        self, namespace: str, batch: Sequence[tuple[str, Record]]
    ) -> Sequence[Location]:
        return self._drivers.batch_write_topics(batch, namespace=namespace)

    def read(
        self,
        namespace: str,
        topic: str,
        partition: int,
        offset: Offset,
        max_records: int,
        max_size: int,
    ) -> list[StoredRecord]:
        return self._drivers.read_by_offset(
            topic,
            partition,
            offset,
            max_records=max_records,
            max_size=max_size,
            namespace=namespace,
        )

    def read_columns(
        self, namespace: str, topic: str, partition: int, wanted: ColumnQuery
    ) -> list[pa.RecordBatch] | None:
        return self._drivers.read_columns(topic, partition, wanted, namespace=namespace)

    def read_by_tag(
        self,
        namespace: str,
        topic: str,
        tag: str,
        partition: int | None,
        start_offset: Offset | Mapping[int, Offset],
        max_records: int,
        max_size: int,
    ) -> list[Message]:
        return self._drivers.read_by_tag(
            topic,
            tag,
            partition=partition,
            start_offset=start_offset,
            max_records=max_records,
            max_size=max_size,
            namespace=namespace,
        )

    def read_by_key(self, namespace: str, topic: str, key: bytes) -> Message | None:
        return self._drivers.read_by_key(topic, key, namespace=namespace)

    def query_by_key(
        self,
        namespace: str,
        topic: str,
        key: bytes,
        begin_ms: int,
        end_ms: int | None,
        limit: int,
    ) -> list[Message]:
        return self._drivers.query_message_by_key(
            topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit, namespace=namespace
        )

    def offsets_at(
        self, namespace: str, topic: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> dict[int, Offset]:
        return self._drivers.get_offset_by_timestamp(
            topic, timestamp_ms, strategy, namespace=namespace
        )

    def delete_by_key(self, namespace: str, topic: str, key: bytes) -> int:
        return self._drivers.delete_by_key(topic, key, namespace=namespace)

    def delete_by_offset(self, namespace: str, topic: str, partition: int, offset: Offset) -> bool:
        return self._drivers.delete_by_offset(topic, partition, offset, namespace=namespace)

    def delete_before(self, namespace: str, topic: str, partition: int, offset: Offset) -> Offset:
        return self._drivers.delete_records_before(topic, partition, offset, namespace=namespace)

    def compact(self, namespace: str, topic: str) -> Compacted:
        return self._drivers.compact(topic, namespace=namespace)

    def wait_for_records(
        self, namespace: str, positions: Mapping[TopicPartition, Offset], seconds: float
    ) -> bool:
        return self._drivers.wait_for_records(positions, seconds, namespace=namespace)

    def watch_records(
        self,
        namespace: str,
        positions: Mapping[TopicPartition, Offset],
        wake: Callable[[], None],
    ) -> RecordWatch:
        return self._drivers.watch_records(positions, wake, namespace=namespace)

    # Groups

    def commit(
        self,
        namespace: str,
        group: str,
        offsets: Mapping[TopicPartition, Offset],
        topic_ids: Mapping[str, str],
        caller: Caller | None = None,
    ) -> None:
        self._groups.check_commit(namespace, group, offsets, caller)
        self._offsets.commit_offset(group, offsets, namespace=namespace, topic_ids=topic_ids)

    def committed(
        self, namespace: str, group: str, topics: Sequence[str] | None
    ) -> dict[TopicPartition, Offset]:
        return self._offsets.get_offset_by_group(group, topics, namespace=namespace)

    def reset(self, namespace: str, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        self._groups.check_empty(namespace, group, "a reset of its offsets")
        self._offsets.reset_offsets(group, offsets, namespace=namespace)

    def join_group(self, namespace: str, group: str, request: Join, seconds: float) -> Joined:
        check_text("a group", group)
        return self._router.join(namespace, group, request, seconds)

    def sync_group(self, namespace: str, group: str, request: Sync, seconds: float) -> Synced:
        return self._router.sync(namespace, group, request, seconds)

    def begin_join(
        self, namespace: str, group: str, request: Join, seconds: float, wake: Callable[[], None]
    ) -> PendingReply:
        check_text("a group", group)
        question = Question(namespace, group, join=request, seconds=seconds)
        return self._router.begin(question, wake)

    def begin_sync(
        self, namespace: str, group: str, request: Sync, seconds: float, wake: Callable[[], None]
    ) -> PendingReply:
        question = Question(namespace, group, sync=request, seconds=seconds)
        return self._router.begin(question, wake)

    def heartbeat_group(self, namespace: str, group: str, caller: Caller) -> GroupCode:
        return self._router.heartbeat(namespace, group, caller)

    def leave_group(
        self, namespace: str, group: str, member_id: str, instance_id: str | None
    ) -> GroupCode:
        return self._router.leave(namespace, group, Caller(member_id, instance_id=instance_id))

    def list_groups(self, namespace: str | None) -> list[GroupInfo]:
        self._offsets.manager.flush()
        return self._groups.with_live(
            namespace,
            [
                GroupInfo(found.group, found.namespace, found.last_commit_ms)
                for found in self._offsets.manager.list_groups(namespace)
            ],
        )

    def describe_group(self, namespace: str, group: str) -> GroupInfo:
        self._offsets.manager.flush()
        found = self._offsets.manager.get_group(group, namespace=namespace)
        if found is None:
            live = self._groups.describe(GroupInfo(group, namespace, 0))
            if not live.members:
                raise UnknownGroupError(group)
            return live
        offsets = self._offsets.get_offset_by_group(group, namespace=namespace)
        lag, problems = lag_of(self._drivers, offsets, namespace)
        return self._groups.describe(
            GroupInfo(group, namespace, found.last_commit_ms, offsets, lag, problems)
        )

    def delete_group(self, namespace: str, group: str) -> None:
        self._groups.check_empty(namespace, group, "its deletion")
        self._offsets.manager.delete_group(group, namespace=namespace)

    # The store

    def allocate_producer_id(self) -> int:
        return self._node.meta.allocate_producer_ids(1).start

    def run_upkeep(self) -> None:
        self._node.run_upkeep()

    def clock_status(self) -> ClockStatus:
        return self._node.clock.status()

    def confirm_clock(self) -> ClockStatus:
        return self._node.confirm_clock()

    def close(self) -> None:
        self._node.close()


def _topic_info(topic: Topic, partitions: tuple[PartitionInfo, ...] = ()) -> TopicInfo:
    return TopicInfo(
        name=topic.name,
        namespace=topic.namespace,
        topic_id=topic.topic_id,
        partition_count=topic.partitions,
        config=topic.config,
        created_at_ms=topic.created_at_ms,
        revision=topic.revision,
        partitions=partitions,
    )


def _partition_info(
    info: ShardInfo, *, leader: int | None = None, segments: int = 1, problem: str = ""
) -> PartitionInfo:
    return PartitionInfo(
        partition=info.shard.partition,
        earliest=info.earliest,
        commit=info.commit,
        latest=info.latest,
        size=info.size,
        leader=leader,
        segments=segments,
        log_start=info.log_start,
        problem=problem,
    )
