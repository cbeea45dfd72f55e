"""From a topic's name to its driver and its shards, resolved once per change of the topic.

    name ──▶ topic (BrokerCacheManager) ──▶ driver by storage type, shard names

A topic takes writes on as many partitions as are ready. While it grows, that is the number before:
the partition of a key changes once, from the old count to the new one, and not in between.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final

from penstock.adapter.engine_adapter import DriverList, EngineStorageAdapter
from penstock.adapter.topics.cache import BrokerCacheManager, TopicKey
from penstock.adapter.topics.shard_name import build_storage_name
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.errors import BadRequestError, BusyError
from penstock.meta import DEFAULT_NAMESPACE, Topic, Update
from penstock.meta.events import TopicDeleted
from penstock.record import ShardId


class TopicRoute:
    """A topic, the driver of its storage type, and the shards that it can use now."""

    __slots__ = ("by_key", "driver", "ids", "may_wait", "partitions", "shards", "topic", "turns")

    def __init__(
        self,
        topic: Topic,
        driver: EngineStorageAdapter,
        shards: tuple[str, ...],
        led: tuple[int, ...] | None = None,
    ) -> None:
        """`led` are the partitions that have a leader; None: all."""
        self.topic: Final = topic
        self.driver: Final = driver
        self.partitions: Final = len(shards)
        self.shards: Final = shards
        self.ids: Final = tuple(ShardId(topic.topic_id, number) for number in range(len(shards)))
        self.turns: Final = led or tuple(range(len(shards)))
        """The partitions among which records without a partition are distributed: those with a
        leader, or all while none has one."""
        self.by_key: Final = topic.config.partitioner == "key"
        self.may_wait: Final = driver.write_may_wait(topic.config.flush, topic.config.replication)
        """Whether a write may wait for a device."""

    def shard(self, partition: object) -> str:
        """Return the name of one shard."""
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise BadRequestError(f"a partition is a number, not {partition!r}")
        if not 0 <= partition < self.partitions:
            raise BadRequestError(
                f"topic {self.topic.name!r} has the partitions 0 to {self.partitions - 1}, "
                f"not {partition}"
            )
        return self.shards[partition]

    def id(self, partition: int) -> ShardId:
        """Return the id of one shard."""
        if type(partition) is int and 0 <= partition < self.partitions:
            return self.ids[partition]
        self.shard(partition)  # raises
        return self.ids[partition]


class TopicRoutes:
    def __init__(
        self,
        topics: BrokerCacheManager,
        storage: StorageCacheManager,
        drivers: DriverList,
    ) -> None:
        self.topics: Final = topics
        self.drivers: Final = drivers
        self._storage: Final = storage
        self._node_id: Final = drivers.handler.node_id
        self.resolved: Final[dict[TopicKey, TopicRoute]] = {}
        """The routes that were resolved since the last change, by (namespace, name)."""
        self._ready: dict[str, int] = {}
        self._lock: Final = threading.Lock()
        self.version = 0
        """Changes with every change of the metadata, after which routes are found again."""

    def find(self, name: str, namespace: str = DEFAULT_NAMESPACE) -> TopicRoute:
        """Return the route of a topic. Raises `UnknownTopicError`, or `BusyError` for one whose
        shards are not there yet."""
        try:
            route = self.resolved.get((namespace, name))
        except TypeError:
            raise BadRequestError(f"a topic's name is text, not {name!r}") from None
        return route if route is not None else self._build(name, namespace)

    def names_of(self, topic_ids: Collection[str], namespace: str) -> list[str]:
        """Return the names of those topics that exist, sorted."""
        topics = self.topics.list_topics(namespace)
        return [topic.name for topic in topics if topic.topic_id in topic_ids]

    def has_topic(self, topic_id: str) -> bool:
        return topic_id in self._storage.topics

    def apply(self, update: Update) -> None:
        """Drop all routes; the caches have applied the update before."""
        self.invalidate()
        with self._lock:
            for change in update.events:
                if isinstance(change, TopicDeleted):
                    self._ready.pop(change.topic.topic_id, None)

    def invalidate(self) -> None:
        """Drop all routes; the next look-up of each topic resolves it again."""
        with self._lock:
            self.version += 1
            self.resolved.clear()

    def _build(self, name: str, namespace: str) -> TopicRoute:
        version = self.version
        topic = self.topics.get_topic(name, namespace)
        ready = self._ready_shards(topic)
        if len(ready) < topic.partitions:
            ready = ready[: self._ready.get(topic.topic_id, len(ready))]
            if not ready:
                raise BusyError(f"topic {name!r} is being created; try again")
            return self._route(topic, ready)
        route = self._route(topic, ready)
        with self._lock:
            if version == self.version:
                self.resolved[namespace, name] = route
                self._ready[topic.topic_id] = topic.partitions
        return route

    def _route(self, topic: Topic, shards: tuple[str, ...]) -> TopicRoute:
        driver = self.drivers[topic.config.storage_type]
        return TopicRoute(topic, driver, shards, self._led(shards))

    def _ready_shards(self, topic: Topic) -> tuple[str, ...]:
        """Return the names of the shards that can be used, up to the first that cannot."""
        names: list[str] = []
        for partition in range(topic.partitions):
            entry = self._storage.shards.get(build_storage_name(topic.topic_id, partition))
            if entry is None or not entry.segments or not self._is_ready(entry):
                break
            names.append(entry.name)
        return tuple(names)

    def _led(self, shards: tuple[str, ...]) -> tuple[int, ...]:
        """Return the partitions that have a leader, as far as this node knows."""
        entries = [self._storage.shards.get(name) for name in shards]
        return tuple(
            partition
            for partition, entry in enumerate(entries)
            if entry is None or entry.meta is None or entry.meta.leader is not None
        )

    def _is_ready(self, entry: ShardEntry) -> bool:
        """Say whether a shard can be used. One of another node counts as ready, and so does one of
        this node that had a leader before: if it is lost, or begins empty since, the request
        reports that. Only under its first epoch can a shard of this node be still uncreated."""
        meta = entry.meta
        return entry.is_open or (
            meta is not None and (self._node_id not in meta.replicas or meta.leader_epoch > 0)
        )
