"""From the topics and partitions of a request, by name or by id, to shards."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.brokers.kafka.wire.fields import NO_UUID, Fields
from penstock.meta import Topic
from penstock.record import ShardId


class TopicFinder:
    """Finds the topics of one request; ids are worked out once per request."""

    def __init__(self, broker: KafkaBroker, *, by_id: bool = False) -> None:
        self._cache: Final = broker.drivers.broker_cache
        self._namespace: Final = broker.namespace
        self._topics_by_id: dict[UUID, Topic] | None = None
        self.unknown: Final = (
            ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        )

    def find(self, request: Fields) -> Topic | None:
        """Return the topic that `name` or `topic_id` means."""
        identifier = request.uuid("topic_id")
        if identifier != NO_UUID:
            return self.find_id(identifier)
        return self.find_name(request.text("name"))

    def find_name(self, name: str) -> Topic | None:
        return self._cache.topics.get((self._namespace, name))

    def find_id(self, identifier: UUID) -> Topic | None:
        if self._topics_by_id is None:
            topics = self._cache.list_topics(self._namespace)
            self._topics_by_id = {uuid_of(topic.topic_id): topic for topic in topics}
        return self._topics_by_id.get(identifier)

    def by_topic_id(self) -> dict[str, Topic]:
        return {topic.topic_id: topic for topic in self._cache.list_topics(self._namespace)}


def shard_of(topic: Topic | None, partition: int) -> ShardId | None:
    """Return the shard of a partition that exists."""
    if topic is None or not 0 <= partition < topic.partitions:
        return None
    return ShardId(topic.topic_id, partition)


def named(request: Fields) -> dict[str, object]:
    """Return how a request names its topic, for the response."""
    return {"name": request.text("name"), "topic_id": request.uuid("topic_id")}
