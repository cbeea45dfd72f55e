"""A running node as a source: bounds and time lookups are gRPC calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.adapter.requests import OffsetsAt
from penstock.api import PartitionInfo
from penstock.api.requests.topics import DescribeTopic, ListTopics
from penstock.errors import UnknownTopicError
from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import SourceOptions
from penstock.pipeline.read.endpoint import connect
from penstock.pipeline.read.planning import TaskPartition
from penstock.pipeline.read.ranges import ShardRange
from penstock.pipeline.read.sources import OffsetRange
from penstock.pipeline.read.task_planning import pack, rows_of, task_count
from penstock.record import ShardId


class NodeSource:
    """Implements `RecordSource`. Bounds are cached until `refresh`."""

    def __init__(self, address: str, namespace: str) -> None:
        self._namespace: Final = namespace
        self._backend: Final = connect(address)
        self._counts: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._parts: dict[str, dict[int, PartitionInfo]] = {}
        self._list()

    def _list(self) -> None:
        topics = self._backend.execute(ListTopics(self._namespace))
        self._counts = {topic.name: topic.partition_count for topic in topics}
        self._ids = {topic.name: topic.topic_id for topic in topics}

    def shards(self) -> list[ShardId]:
        return [
            ShardId(topic, partition)
            for topic, count in sorted(self._counts.items())
            for partition in range(count)
        ]

    def ids(self) -> dict[str, str]:
        return dict(self._ids)

    def bounds(self, shard: ShardId) -> OffsetRange:
        info = self._part(shard)
        return OffsetRange(info.earliest, info.commit)

    def _part(self, shard: ShardId) -> PartitionInfo:
        parts = self._parts.get(shard.topic)
        if parts is None:
            described = self._backend.execute(DescribeTopic(shard.topic, namespace=self._namespace))
            parts = {part.partition: part for part in described.bounded}
            self._parts[shard.topic] = parts
        if shard.partition not in parts:
            raise UnknownTopicError(shard.name)
        return parts[shard.partition]

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        offsets = self._backend.execute(
            OffsetsAt(shard.topic, timestamp_ms, namespace=self._namespace)
        )
        offset = offsets[shard.partition]
        return None if offset >= self.bounds(shard).commit else offset

    def stored(self, shard: ShardId) -> ShardId:
        return ShardId(self._ids[shard.topic], shard.partition)

    def log_start(self, shard: ShardId) -> int:
        info = self._part(shard)
        return info.earliest if info.log_start is None else info.log_start

    def refresh(self) -> None:
        self._list()
        self._parts.clear()

    def tasks(
        self, ranges: Sequence[ShardRange], options: SourceOptions, filters: Filters
    ) -> list[TaskPartition]:
        if filters.first_ms is not None:
            ranges = self._without_old(ranges, filters.first_ms)
        if filters.keys is not None:
            return [self._task(ranges, by_key=True)] if ranges else []
        sizes = [self._size(shard_range) for shard_range in ranges]
        count = task_count(
            sum(sizes), rows_of(ranges), options.partition_bytes, options.partitions_min
        )
        task_size = max(1, -(-sum(sizes) // count))
        return [self._task(packed) for packed in pack(ranges, sizes, task_size)]

    def _task(self, ranges: Sequence[ShardRange], *, by_key: bool = False) -> TaskPartition:
        topics = {shard_range.shard.topic for shard_range in ranges}
        ids = {topic: self._ids[topic] for topic in topics}
        return TaskPartition(ranges, by_key=by_key, ids=ids)

    def _size(self, shard_range: ShardRange) -> int:
        """Return about how many bytes a range takes: its share of the partition's."""
        part = self._part(shard_range.shard)
        share = (
            part.size * (shard_range.end - shard_range.start) // max(1, part.commit - part.earliest)
        )
        return max(1, share)

    def _without_old(self, ranges: Sequence[ShardRange], first_ms: int) -> list[ShardRange]:
        newer = []
        for shard_range in ranges:
            first = self.offset_by_timestamp(shard_range.shard, max(0, first_ms))
            if first is not None and first < shard_range.end:
                newer.append(shard_range._replace(start=max(shard_range.start, first)))
        return newer

    def close(self) -> None:
        self._backend.close()
