"""`StorageCacheManager`: what the metadata says about shards, at hand for every request.

Fed with the meta service's updates, in order. An update is applied whole under one lock, so that
no reader sees half of it: when a segment rolls, its shard has a writable segment at every moment.

Ten thousand idle topics must cost little: what is equal in them is held once.

An entry lives as long as its shard. The handler keeps what it derived in it (`writer`, `reader`);
every change of the metadata that could matter clears both, and they are derived again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.engine.contract import FOREVER_MS, Cleanup, ShardConfig, ShardTiering, StorageEngine
from penstock.engine.routing.metadata_waiters import CacheWaiters
from penstock.engine.routing.segment_status import Answer, allowed
from penstock.meta import (
    STORAGE_ALIASES,
    UNLIMITED,
    Segment,
    Shard,
    Topic,
    TopicConfig,
    Update,
    is_replicated,
)
from penstock.meta import events as event
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger
from penstock.record import Flush, QueueKind, ShardId

if TYPE_CHECKING:
    from penstock.engine.replication.runtime.shard_replica import ShardReplica

_SEGMENT: Final = STORAGE_ALIASES["segment"]
_log: Final = get_logger(__name__)
_CONFIGS_REMEMBERED: Final = 256

_Offline = tuple[tuple[int, int | None, Answer], ...]


@lru_cache(_CONFIGS_REMEMBERED)
def shard_config(config: TopicConfig) -> ShardConfig:
    """Return how an engine keeps each shard of a topic; the same object for equal topics."""
    return ShardConfig(
        kind=QueueKind(config.queue_kind),
        cleanup=Cleanup(config.cleanup),
        flush=Flush(config.flush),
        record_size_max=config.record_size_max,
        retention_ms=_time(config.retention_ms),
        retention_bytes=_number(config.retention_bytes),
        retention_records=_number(config.retention_records),
        memory_records_max=config.memory_records_max,
        memory_bytes_max=config.memory_bytes_max,
        tiering=_shard_tiering(config),
        tombstone_retention_ms=config.tombstone_retention_ms,
        compaction_lag_ms=config.compaction_lag_ms,
        tag_header=config.tag_header,
        compaction_lag_max_ms=_compaction_lag_max(config),
    )


def _compaction_lag_max(config: TopicConfig) -> int | None:
    """Return what a client of Kafka has set; that the value is a number was checked then."""
    text = dict(config.kafka_settings).get("max.compaction.lag.ms", "")
    return int(text) if text.isdecimal() else None


def _shard_tiering(config: TopicConfig) -> ShardTiering | None:
    policy = config.tiering
    if policy is None:
        return None
    if policy.storage_level == "DISABLE":
        return ShardTiering(enabled=False)
    return ShardTiering(
        url=policy.provider,
        uploader=policy.uploader,
        local_retention_ms=_time(policy.local_retention_ms),
        local_retention_bytes=_number(policy.local_retention_bytes),
        retention_ms=_time(policy.tier_retention_ms),
        upload_interval_ms=policy.upload_interval_ms,
        upload_bytes=policy.upload_bytes,
    )


def _time(limit_ms: int | None) -> int | None:
    """Return a retention time as engines compare it. None stays None: the engine's default."""
    return FOREVER_MS if limit_ms == UNLIMITED else limit_ms


def _number(limit: int | None) -> int | None:
    """Return a limit of bytes or records in the form of engines: None means no limit."""
    return None if limit == UNLIMITED else limit


class TopicEntry:
    """What the shards of a topic have in common."""

    __slots__ = ("config", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.config = shard_config(topic.config)

    @property
    def storage_type(self) -> str:
        return self.topic.config.storage_type

    @property
    def holds_batches(self) -> bool:
        """Whether Kafka's batches are kept as they come, and its markers with them."""
        return self.config.kind is QueueKind.BATCH and self.storage_type == _SEGMENT


class ShardEntry:
    """One shard: its metadata, what the handler derived from it, and its counters.

    Counters are added to without a lock: an addition to an attribute is one step for CPython's
    threads, and nothing but metrics depends on them.
    """

    __slots__ = (
        "aborts",
        "appended",
        "check_requested",
        "compacted",
        "end_offset",
        "errors",
        "id",
        "is_open",
        "is_replicated",
        "meta",
        "name",
        "offline",
        "quota_left",
        "reader",
        "reads",
        "records_read",
        "records_written",
        "released",
        "removals",
        "replica",
        "segments",
        "topic",
        "writer",
        "writes",
    )

    def __init__(self, topic: TopicEntry, partition: int) -> None:
        self.id: Final = ShardId(topic.topic.topic_id, partition)
        self.name: Final = self.id.name
        self.topic: Final = topic
        self.meta: Shard | None = None
        """None: deleted."""
        self.segments: tuple[Segment, ...] = ()
        """By number, ascending."""
        self.offline: _Offline = ()
        """Ranges that cannot be read, and why; nearly always none."""
        self.writer: StorageEngine | None = None
        self.reader: StorageEngine | None = None
        self.is_open = False
        """Whether this node's engine has the shard."""
        self.is_replicated = False
        """Whether the metadata name several copies, or ask for them."""
        self.replica: ShardReplica | None = None
        """This node's copy of a replicated shard, once the replication has it."""
        self.appended: tuple[Callable[[], None], ...] = ()
        """Called after every write; see `append_notifications`."""
        self.end_offset = 0
        """After the last record that was written through this entry; 0: none was."""
        self.quota_left = 0
        """Records that may come before the segment's size is looked at."""
        self.check_requested = False
        self.writes = self.records_written = 0
        self.reads = self.records_read = self.errors = 0
        self.removals = 0
        """Grows after everything that may have taken records out of the middle of the shard."""
        self.aborts = 0
        """Aborted transactions whose records were deleted; grows before readers are let on. Who
        read meanwhile, and then finds nothing held back, may have read those."""
        self.released = 0
        """Transactions that held the shard up and are over."""
        self.compacted: tuple[int, ShardConfig, int | None] | None = None
        """At the last compaction: `records_written` and `released`, the configuration, when it
        wants another."""

    @property
    def active(self) -> Segment | None:
        """The segment that takes writes, or last did."""
        return self.segments[-1] if self.segments else None

    def clear_derived(self) -> None:
        meta = self.meta
        self.is_replicated = meta is not None and is_replicated(meta, self.topic.topic.config)
        self.writer = self.reader = None


class StorageCacheManager:
    """Reading needs no lock; see the module's head for what holds."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.lock: Final = threading.RLock()
        self.shards: Final[dict[str, ShardEntry]] = {}
        """By shard name."""
        self.topics: Final[dict[str, TopicEntry]] = {}
        """By topic id."""
        self.revision = 0
        self.on_altered: Callable[[str], None] = lambda _topic_id: None
        """Called with a topic whose shards are to be kept in another way; must not wait."""
        self._waiters: Final = CacheWaiters(clock if clock is not None else SystemClock())

    def apply(self, update: Update) -> None:
        """Take over what changed."""
        with self.lock:
            if update.is_reset:
                self._drop_all_but(update.events)
            for item in update.events:
                self._apply(item)
            self.revision = update.revision
        self._waiters.wake()

    def wait_for_shards(self, topic_id: str, names: Iterable[str], seconds: float) -> list[str]:
        """Wait until all of `names` are known with a segment, or their topic is not known any
        more; return those that are not."""
        missing = set(names)

        def is_over() -> bool:
            missing.difference_update([name for name in missing if self._is_known(name)])
            return not missing or topic_id not in self.topics

        self._waiters.wait(is_over, seconds)
        return sorted(missing)

    def wait_for_revision(self, revision: int, seconds: float) -> bool:
        """Wait until everything up to `revision` is known; return whether it is."""
        return self._waiters.wait(lambda: self.revision >= revision, seconds)

    def wait_until_led(self, names: Iterable[str], node_id: int, seconds: float) -> bool:
        """Wait until those of `names` that are replicated and led by this node can be served;
        return whether they can."""
        missing = set(names)

        def is_over() -> bool:
            missing.difference_update([name for name in missing if self._is_served(name, node_id)])
            return not missing

        return self._waiters.wait(is_over, seconds)

    def set_replica(self, name: str, replica: ShardReplica | None) -> None:
        """Set this node's copy of a replicated shard, or that its state changed."""
        entry = self.shards.get(name)
        if entry is None:
            return
        with self.lock:
            entry.replica = replica
            entry.clear_derived()
        for notify in entry.appended:
            notify()  # who waits for records here looks again
        self._waiters.wake()

    def first_possible(self, name: str, offset: int) -> int:
        """Return where the records of a transaction may begin that had to begin at `offset`, which
        was committed: earlier when an unclean election has chosen a leader with a shorter log."""
        entry = self.shards.get(name)
        replica = None if entry is None else entry.replica
        return offset if replica is None else min(offset, replica.end)

    def _is_served(self, name: str, node_id: int) -> bool:
        entry = self.shards.get(name)
        if entry is None or entry.meta is None or entry.meta.leader != node_id:
            return True
        return not entry.is_replicated or (entry.replica is not None and entry.replica.is_ready)

    def entries(self) -> Iterator[ShardEntry]:
        with self.lock:
            return iter(list(self.shards.values()))

    def _is_known(self, name: str) -> bool:
        entry = self.shards.get(name)
        return entry is not None and bool(entry.segments)

    def _apply(self, change: event.Event) -> None:
        match change:
            case event.TopicPut(topic):
                self._put_topic(topic)
            case event.TopicDeleted(topic):
                self._drop_topic(topic.topic_id)
            case event.ShardPut(shard):
                self._put_shard(shard)
            case event.ShardDeleted(topic_id, partition):
                self._drop_shard(topic_id, partition)
            case event.SegmentPut(segment):
                self._put_segment(segment)
            case event.SegmentDeleted(topic_id, partition, number):
                self._drop_segment(topic_id, partition, number)
            case event.NodePut() | event.NodeRemoved():
                pass

    def _put_topic(self, topic: Topic) -> None:
        topic = _share_topic(topic)
        try:
            shard_config(topic.config)
        except ValueError as error:
            # Words of a newer version: this node leaves the topic to others, and goes on.
            _log.error("topic_not_understood", topic=topic.topic_id, reason=str(error))
            self._drop_topic(topic.topic_id)
            return
        known = self.topics.get(topic.topic_id)
        if known is None:
            self.topics[topic.topic_id] = TopicEntry(topic)
            return
        is_altered = known.topic.config.replication != topic.config.replication
        config = shard_config(topic.config)
        is_kept_otherwise = known.config != config
        known.topic, known.config = topic, config
        if is_kept_otherwise:
            self.on_altered(topic.topic_id)
        for partition in range(topic.partitions) if is_altered else ():
            entry = self._entry(topic.topic_id, partition)
            if entry is not None:
                entry.clear_derived()

    def _drop_topic(self, topic_id: str) -> None:
        known = self.topics.pop(topic_id, None)
        if known is not None:
            for partition in range(known.topic.partitions):
                self._drop_shard(topic_id, partition)

    def _put_shard(self, shard: Shard) -> None:
        topic = self.topics.get(shard.topic_id)
        if topic is None:
            return  # of a topic that is being deleted
        entry = self.shards.get(shard.name)
        if entry is None:
            entry = ShardEntry(topic, shard.partition)
            self.shards[entry.name] = entry
        nodes = _same_nodes(shard.replicas)
        in_sync = nodes if nodes == shard.in_sync else shard.in_sync
        has_moved = entry.meta is not None and entry.meta.leader != shard.leader
        entry.meta = replace(
            shard,
            topic_id=entry.id.topic,
            replicas=nodes,
            in_sync=in_sync,
            status=intern(shard.status),
        )
        entry.clear_derived()
        if has_moved:
            # Writes to another node do not wake a waiter here: it must look again by itself.
            for wake in entry.appended:
                wake()

    def _drop_shard(self, topic_id: str, partition: int) -> None:
        entry = self.shards.pop(ShardId(topic_id, partition).name, None)
        if entry is None:
            return
        entry.meta = None
        entry.segments = ()
        entry.clear_derived()
        # Who waits for records learns by looking that there will be none.
        for wake in entry.appended:
            wake()

    def _put_segment(self, segment: Segment) -> None:
        entry = self._entry(segment.topic_id, segment.partition)
        if entry is not None:
            others = [item for item in entry.segments if item.number != segment.number]
            status = intern(segment.status)
            own = replace(segment, topic_id=entry.id.topic, status=status)
            _set_segments(entry, [*others, own])

    def _drop_segment(self, topic_id: str, partition: int, number: int) -> None:
        entry = self._entry(topic_id, partition)
        if entry is not None:
            _set_segments(entry, [item for item in entry.segments if item.number != number])

    def _entry(self, topic_id: str, partition: int) -> ShardEntry | None:
        return self.shards.get(ShardId(topic_id, partition).name)

    def _drop_all_but(self, events: tuple[event.Event, ...]) -> None:
        """A reset names everything that exists: drop the rest, keep the counters of what stays."""
        topics = {item.topic.topic_id for item in events if isinstance(item, event.TopicPut)}
        shards = {item.shard.name for item in events if isinstance(item, event.ShardPut)}
        for topic_id in [known for known in self.topics if known not in topics]:
            self._drop_topic(topic_id)
        for entry in list(self.shards.values()):
            if entry.name not in shards:
                self._drop_shard(*entry.id)
            else:
                entry.segments = ()


@lru_cache(_CONFIGS_REMEMBERED)
def _same_config(config: TopicConfig) -> TopicConfig:
    return config


@lru_cache(_CONFIGS_REMEMBERED)
def _same_nodes(nodes: tuple[int, ...]) -> tuple[int, ...]:
    return nodes


def share_topics(update: Update) -> Update:
    """Return an update whose topics hold what is equal in them once, and which several caches can
    hold without a copy of their own."""
    events = tuple(
        event.TopicPut(_share_topic(item.topic)) if isinstance(item, event.TopicPut) else item
        for item in update.events
    )
    return replace(update, events=events)


def _share_topic(topic: Topic) -> Topic:
    config = _same_config(topic.config)
    if config is topic.config:
        return topic  # shared already, or the first one of its kind
    return replace(
        topic, config=config, namespace=intern(topic.namespace), status=intern(topic.status)
    )


def _set_segments(entry: ShardEntry, segments: list[Segment]) -> None:
    entry.segments = tuple(sorted(segments, key=lambda item: item.number))
    entry.offline = tuple(
        (item.start_offset, item.end_offset, allowed(item.status).read)
        for item in entry.segments
        if allowed(item.status).read is not Answer.YES
    )
    entry.clear_derived()
