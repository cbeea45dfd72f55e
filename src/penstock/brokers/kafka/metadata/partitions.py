"""The partitions that clients name, resolved once and kept until their topic changes.

A request finds a partition by the bytes of its topic's name (or UUID), without decoding them. The
partition holds its shard's entry and driver, as `StorageDriverManager.open_partition` resolved
them. A delayed fetch registers with each of its partitions once, and stays registered while its
client asks for the same ones again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Protocol

from penstock.adapter import ShardHandle, StorageDriverManager
from penstock.brokers.kafka.admin.topic_settings import settings_of
from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.meta import Topic

SEGMENT: Final = "EngineSegment"


class Waiter(Protocol):
    def on_append(self, partition: Partition) -> None:
        """A partition that it waits for was written to. Called on the event loop."""
        ...


class Partition:
    """One partition with what the event loop caches for it."""

    __slots__ = (
        "_known",
        "ack_form",
        "checks_keys",
        "driver",
        "empty_response",
        "entry",
        "index",
        "is_raw",
        "is_replicated",
        "is_watched",
        "mark",
        "may_wait",
        "settings",
        "shard",
        "stable",
        "tag_header",
        "topic",
        "waiters",
    )

    def __init__(self, topic: TopicPartitions, index: int, handle: ShardHandle) -> None:
        entry = handle.entry
        config = entry.topic.config
        self.topic: Final = topic
        self.index: Final = index
        self.entry: Final = entry
        self.driver: Final = handle.driver
        self.shard: Final = entry.name
        self.is_raw: Final = entry.topic.holds_batches
        """Whether the shard stores Kafka batches unchanged."""
        self.settings: Final = settings_of(topic.topic.config.kafka_settings)
        self.may_wait: Final = (
            self.driver.write_may_wait(config.flush.value)
            or not topic.is_segment
            or self.settings.codec is not None
        )
        """Whether a write may block, so that it must not run on the event loop."""
        self.is_replicated: Final = entry.is_replicated
        """Whether a write is acknowledged after other nodes have it."""
        self.tag_header: Final = config.tag_header
        """The header whose values are tags; None: the node's default."""
        self.checks_keys: Final = config.cleanup.compacts
        self.waiters: Final[set[Waiter]] = set()
        self.is_watched = False
        self.mark = object()
        """A new object after every write, while watched."""
        self._known: tuple[object, tuple[int, int]] | None = None
        self.ack_form: object = None
        """Produce's prepared response for one batch."""
        self.empty_response: object = None
        """Fetch's prepared response without records."""
        self.stable: object = None
        """What the leader said of transactions, on a node that follows it; see `follower_reads`."""

    def cached_bounds(self) -> tuple[int, int] | None:
        """Return the earliest and the commit offset, or None when they may have changed."""
        replica = self.entry.replica
        if replica is not None and not replica.may_serve:
            return None  # to ask for them says why
        known = self._known
        return known[1] if known is not None and known[0] is self.mark else None

    def cache_bounds(self, mark: object, bounds: tuple[int, int]) -> None:
        """Cache bounds that were read while `mark` was the partition's: a write since then, by any
        thread, invalidates them."""
        if self.is_watched:
            self._known = (mark, bounds)


class TopicPartitions:
    __slots__ = ("id_bytes", "is_segment", "partitions", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic: Final = topic
        self.id_bytes: Final = uuid_of(topic.topic_id).bytes
        self.is_segment: Final = topic.config.storage_type == SEGMENT
        self.partitions: list[Partition] = []

    def get(self, index: int) -> Partition | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


class PartitionTable:
    """The partitions of a namespace. Used on the event loop only, except for what writers call."""

    def __init__(self, drivers: StorageDriverManager, namespace: str) -> None:
        self._drivers: Final = drivers
        self._cache: Final = drivers.broker_cache
        self._namespace: Final = namespace
        self._by_name: Final[dict[bytes, TopicPartitions]] = {}
        self._by_id: Final[dict[bytes, TopicPartitions]] = {}
        self._names: dict[bytes, bytes] | None = None
        """The names of all topics by their UUIDs; made when it is needed, for one revision."""
        self._revision = -1
        self._loop: Final = asyncio.get_running_loop()
        self._thread: Final = threading.get_ident()
        self._appended: Final[set[Partition]] = set()
        self._appended_lock: Final = threading.Lock()

    def by_name(self, name: bytes) -> TopicPartitions | None:
        """Return the partitions of a topic, or None when the topic does not exist."""
        if self._revision != self._cache.revision:
            self._renew()
        known = self._by_name.get(name)
        return known if known is not None else self._resolve(name)

    def by_id(self, identifier: bytes) -> TopicPartitions | None:
        if self._revision != self._cache.revision:
            self._renew()
        known = self._by_id.get(identifier)
        if known is not None:
            return known
        if self._names is None:
            # Once per revision, however many unknown ids a request has.
            topics = self._cache.list_topics(self._namespace)
            self._names = {uuid_of(topic.topic_id).bytes: topic.name.encode() for topic in topics}
        name = self._names.get(identifier)
        topic = None if name is None else self._resolve(name)
        # A new topic may have taken the name since; its records are not the requested ones.
        return topic if topic is not None and topic.id_bytes == identifier else None

    def _renew(self) -> None:
        """Drop topics that have changed; the others keep their waiters."""
        self._revision = self._cache.revision
        self._names = None
        for name, known in list(self._by_name.items()):
            now = self._cache.topics.get((self._namespace, known.topic.name))
            if now is not known.topic:
                del self._by_name[name]
                self._by_id.pop(known.id_bytes, None)
                for partition in known.partitions:
                    self._notify(partition)

    def _resolve(self, name: bytes) -> TopicPartitions | None:
        try:
            topic = self._cache.topics.get((self._namespace, str(name, "utf-8")))
        except UnicodeDecodeError:
            return None
        if topic is None:
            return None
        partitions = TopicPartitions(topic)
        for index in range(topic.partitions):
            handle = self._drivers.open_partition(topic, index)
            if handle is None:
                return partitions  # being created: not kept
            partitions.partitions.append(Partition(partitions, index, handle))
        self._by_name[name] = partitions
        self._by_id[partitions.id_bytes] = partitions
        return partitions

    # Waiting for records

    def watch(self, partition: Partition, waiter: Waiter) -> None:
        """Notify `waiter` of every write until `unwatch`."""
        if not partition.is_watched:
            partition.is_watched = True
            with self._drivers.storage_cache.lock:
                partition.entry.appended = (*partition.entry.appended, self._waker(partition))
        partition.waiters.add(waiter)

    def unwatch(self, partition: Partition, waiter: Waiter) -> None:
        partition.waiters.discard(waiter)

    def _waker(self, partition: Partition) -> Callable[[], None]:
        def wake() -> None:
            partition.mark = object()
            if not partition.waiters:
                return
            with self._appended_lock:
                is_first = not self._appended
                self._appended.add(partition)
            if is_first:
                self._schedule()

        return wake

    def _schedule(self) -> None:
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._notify_all)
            return
        try:
            self._loop.call_soon_threadsafe(self._notify_all)
        except RuntimeError:
            return  # the loop has ended; writers of other front ends go on

    def _notify_all(self) -> None:
        with self._appended_lock:
            changed = list(self._appended)
            self._appended.clear()
        for partition in changed:
            self._notify(partition)

    @staticmethod
    def _notify(partition: Partition) -> None:
        partition.mark = object()
        for waiter in tuple(partition.waiters):
            waiter.on_append(partition)
