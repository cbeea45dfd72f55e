"""Administration of topics."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.adapter import StorageDriverManager
from penstock.adapter.requests import StoreRequest, TopicRequest
from penstock.api.topic_info import PartitionInfo, TopicInfo
from penstock.engine.contract import ShardInfo
from penstock.meta import Topic


class CreateTopic(TopicRequest[TopicInfo], frozen=True):
    """Create a topic; `partitions=None` takes the store's default."""

    partitions: int | None = None
    options: Mapping[str, object] = {}

    def run(self, drivers: StorageDriverManager) -> TopicInfo:
        admin, partitions = drivers.admin, self.partitions
        if partitions is None:
            partitions = admin.default_partitions
        return _topic_info(
            admin.create_topic_full(self.topic, partitions, self.options, namespace=self.namespace)
        )


class AlterTopic(TopicRequest[TopicInfo], frozen=True):
    """Change options of a topic, or add partitions."""

    partitions: int | None = None
    options: Mapping[str, object] = {}

    def run(self, drivers: StorageDriverManager) -> TopicInfo:
        altered = drivers.admin.alter_topic(
            self.topic,
            partitions=self.partitions,
            options=self.options,
            namespace=self.namespace,
        )
        return _topic_info(altered)


class DeleteTopic(TopicRequest[None], frozen=True):
    """Delete a topic with its records and the offsets of its consumer groups."""

    def run(self, drivers: StorageDriverManager) -> None:
        drivers.admin.delete_topic(self.topic, namespace=self.namespace)


class DescribeTopic(TopicRequest[TopicInfo], frozen=True):
    """Return a topic's configuration and the bounds of its partitions."""

    def run(self, drivers: StorageDriverManager) -> TopicInfo:
        description = drivers.admin.describe_topic(self.topic, namespace=self.namespace)
        partitions = tuple(
            _partition_info(
                partition.info,
                leader=partition.leader,
                segments=partition.segments,
                problem=partition.problem,
            )
            for partition in description.partitions
        )
        return _topic_info(description.topic, partitions)


class ListTopics(StoreRequest[list[TopicInfo]], frozen=True):
    """Return the topics of a namespace, or of all."""

    namespace: str | None = None

    def run(self, drivers: StorageDriverManager) -> list[TopicInfo]:
        return [_topic_info(topic) for topic in drivers.broker_cache.list_topics(self.namespace)]


class LocateTopic(TopicRequest[tuple[str, int]], frozen=True):
    """Return a topic's id and how many partitions it has; raise `UnknownTopicError`."""

    def run(self, drivers: StorageDriverManager) -> tuple[str, int]:
        route = self.route(drivers)
        return route.topic.topic_id, route.partitions


class DescribePartition(TopicRequest[PartitionInfo], frozen=True):
    """Return the bounds of a partition, as readers of committed records see them."""

    partition: int

    def run(self, drivers: StorageDriverManager) -> PartitionInfo:
        info = drivers.shard_info(self.topic, self.partition, namespace=self.namespace)
        return _partition_info(info)


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
