"""DescribeLogDirs: the size of each partition. A node has one log for all of them."""

from __future__ import annotations

from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.registry import ApiRegistry
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.errors import StoreError
from penstock.meta import Topic

DIRECTORY: Final = "penstock"
"""Clients do not learn the path of the data directory."""


class LogDirs:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker

    async def describe(self, _context: RequestContext, request: Fields) -> Response:
        requested = request.optional_items("topics")
        cache = self._broker.drivers.broker_cache
        asked: dict[str, list[int]] = {}
        if requested is None:
            for topic in cache.list_topics(self._broker.namespace):
                asked[topic.name] = list(range(topic.partitions))
        for fields in requested or ():
            asked.setdefault(fields.text("topic"), []).extend(fields.numbers("partitions"))
        topics = await self._broker.run_blocking(partial(self._sizes, asked))
        return {
            "error_code": ErrorCode.none,
            "results": [
                {
                    "error_code": ErrorCode.none,
                    "log_dir": DIRECTORY,
                    "topics": topics,
                    "total_bytes": -1,
                    "usable_bytes": -1,
                }
            ],
        }

    def _sizes(self, asked: dict[str, list[int]]) -> list[Response]:
        topics: list[Response] = []
        for name, indexes in asked.items():
            topic = self._broker.drivers.broker_cache.topics.get((self._broker.namespace, name))
            partitions = [] if topic is None else self._partitions(topic, indexes)
            if partitions:
                topics.append({"name": name, "partitions": partitions})
        return topics

    def _partitions(self, topic: Topic, indexes: list[int]) -> list[Response]:
        sizes: list[Response] = []
        for index in indexes:
            handle = self._broker.drivers.open_partition(topic, index)
            if handle is None:
                continue
            try:
                handle.check_led()
                info = handle.driver.shard_info(handle.name)
            except StoreError:
                continue
            sizes.append({"partition_index": index, "partition_size": info.size, "offset_lag": 0})
        return sizes


def register(registry: ApiRegistry, broker: KafkaBroker) -> None:
    registry.add(35, 1, 4, LogDirs(broker).describe)
