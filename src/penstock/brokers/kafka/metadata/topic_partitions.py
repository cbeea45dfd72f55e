"""DescribeTopicPartitions: the partitions of topics, some at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.brokers.kafka.metadata.topic_names import is_legal
from penstock.brokers.kafka.wire.fields import NO_UUID, Fields, Response
from penstock.meta import Topic

LIMIT_MAX: Final = 2_000
"""Partitions of one response, whatever a client asks for."""


class TopicPartitionsApi:
    def __init__(self, broker: KafkaBroker, describe: Callable[[Topic, int], Response]) -> None:
        """`describe` returns a partition of a topic as Metadata does."""
        self._broker: Final = broker
        self._describe: Final = describe

    async def describe(self, _context: RequestContext, request: Fields) -> Response:
        """Describe topics by name, in their order, until the limit of partitions is reached; the
        cursor says where the next request goes on."""
        limit = request.number("response_partition_limit", LIMIT_MAX)
        left = max(1, min(limit, LIMIT_MAX))
        start_name, start_index = _start(request)
        cache = self._broker.drivers.broker_cache
        known = {topic.name: topic for topic in cache.list_topics(self._broker.namespace)}
        names = {topic.text("name") for topic in request.items_of("topics")} or set(known)
        topics: list[Response] = []
        for name in sorted(known for known in names if known >= start_name):
            topic = known.get(name)
            if topic is None:
                topics.append(_unknown(name))
                continue
            first = start_index if name == start_name else 0
            end = min(topic.partitions, first + left)
            topics.append(self._topic(topic, range(first, end)))
            left -= max(0, end - first)
            if end < topic.partitions:
                return {"topics": topics, "next_cursor": _cursor(name, end)}
            if left == 0:
                rest = sorted(known for known in names if known > name)
                return {"topics": topics, "next_cursor": _cursor(rest[0], 0) if rest else None}
        return {"topics": topics, "next_cursor": None}

    def _topic(self, topic: Topic, partitions: range) -> Response:
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": uuid_of(topic.topic_id),
            "partitions": [self._describe(topic, partition) for partition in partitions],
        }


def _start(request: Fields) -> tuple[str, int]:
    cursor = request.get("cursor")
    if not isinstance(cursor, Fields):
        return "", 0
    return cursor.text("topic_name"), max(0, cursor.number("partition_index"))


def _cursor(name: str, index: int) -> Response:
    return {"topic_name": name, "partition_index": index}


def _unknown(name: str) -> Response:
    code = ErrorCode.unknown_topic_or_partition
    if not is_legal(name):
        code = ErrorCode.invalid_topic_exception
    return {"error_code": code, "name": name, "topic_id": NO_UUID, "partitions": ()}
