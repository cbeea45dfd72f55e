"""A node: everything that one process needs to store messages, built in one place.

`directory` lists what a node keeps in its directory. Engines are opened when a topic first needs
them, or at start when they hold records.

The start order is lock, metadata, offsets, engines, caches, maintenance. A stop reverses it:
maintenance and pending calls end, engines sync everything, commits are saved, and the metadata,
which all others write to, closes last. A failed start closes what it opened.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from types import TracebackType
from typing import Final, Self, TypeVar

from prometheus_client import CollectorRegistry

from penstock.adapter.driver_manager import StorageDriverManager
from penstock.adapter.engine_adapter import DriverList
from penstock.adapter.lag_metrics import GroupLagMetrics
from penstock.adapter.node_links import NodeLinks
from penstock.adapter.topics.admin import TopicAdmin
from penstock.adapter.topics.cache import BrokerCacheManager
from penstock.adapter.topics.offsets import TopicOffsets
from penstock.adapter.topics.routes import TopicRoutes
from penstock.engine.engine_identity import (
    reconcile_engines,
)
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.reconcile import Reconciled, reconcile
from penstock.engine.routing.shard_metrics import ShardMetrics
from penstock.engine.routing.shard_upkeep import ShardUpkeep, UpkeepLimits
from penstock.engine.routing.storage_cache import StorageCacheManager, share_topics
from penstock.engine.segment import SegmentEngine, opening_errors
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.errors import RetryableError
from penstock.groups.coordinator import GroupCoordinator, build_groups
from penstock.meta import (
    QUEUE_ALIASES,
    STORAGE_ALIASES,
    GroupCoordinators,
    GroupName,
    StandaloneMetaClient,
    TopicConfig,
    Update,
)
from penstock.node.directory import NodeDirectory
from penstock.node.engines import DURABLE_ENGINES, MEMORY, SEGMENT, EngineOpener
from penstock.node.open_meta import open_meta
from penstock.offsets.cluster_manager import OffsetPeers
from penstock.offsets.manager import OffsetManager
from penstock.offsets.open import open_offsets
from penstock.platform.calls.blocking_pool import BlockingPool
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.clock_guard import CLOCK_FILE, ClockStatus, GuardedClock
from penstock.platform.clock_metrics import ClockMetrics
from penstock.platform.data_directory import check_path
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.platform.log import get_logger
from penstock.settings import EMBEDDED, Settings
from penstock.tiered import TieredSegmentEngine

_HOUR_MS: Final = 3_600_000
_RETRY_S: Final = 1.0
_LIMITS_WAIT_S: Final = 60.0
_LIMITS_PAUSE_S: Final = 0.5
T = TypeVar("T")

_log: Final = get_logger(__name__)


class Node:
    """A running node; `close` stops it. Use as a context manager, or call `close`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Settings = EMBEDDED,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        forwarder: NodeLinks | None = None,
        registry: CollectorRegistry | None = None,
        background: bool = True,
        stopping: threading.Event | None = None,
    ) -> None:
        """Start on the data in `path`, created when there is none.

        Raises `BadRequestError` for a value that is not a path, and the errors of `lock_directory`.
        `background=False` starts no upkeep of shards: for tests. `stopping` ends the wait for a
        cluster.
        """
        self._directory: Final = NodeDirectory(
            check_path(path), disk if disk is not None else LocalDisk()
        )
        self.path: Final = self._directory.path
        self.settings: Final = settings
        self.registry: Final = registry if registry is not None else CollectorRegistry()
        self._closing: Final = threading.Lock()
        self._stack: Final = ExitStack()
        stopping = stopping if stopping is not None else threading.Event()
        with ExitStack() as undo:
            undo.callback(self._stack.close)
            self._stack.callback(self._directory.lock().release)
            self.clock: Final = self._guard_clock(clock if clock is not None else SystemClock())
            self.meta: Final = open_meta(self._directory, settings.node, self.clock, stopping)
            self._stack.callback(self.meta.close)
            self.offset_manager: Final = self._open_offsets(forwarder)
            self._stack.callback(self.offset_manager.stop)
            self.groups: Final = self._build_groups()
            self.storage_cache: Final = StorageCacheManager(self.clock)
            self.broker_cache: Final = BrokerCacheManager(self.clock)
            self._limits: Final = StableOffsets()
            self._load_limits()
            self._opener: Final = self._build_opener()
            self.engines: Final = self._opener.engine_set()
            self._stack.callback(self.engines.close)
            self._report_lost_engines(stopping)
            self.handler: Final = self._build_handler(forwarder)
            ShardMetrics(self.storage_cache, self.registry)
            GroupLagMetrics(self.offset_manager, self.handler, self.registry)
            self._routes: Final = TopicRoutes(
                self.broker_cache, self.storage_cache, DriverList(self.handler)
            )
            self.offsets: Final = TopicOffsets(self.offset_manager, self._routes)
            self.admin: Final = self._build_admin()
            self._stack.callback(self.meta.watch(0, self._apply_update).close)
            self.reconciled: Final = self._reconcile()
            self._load_limits_of_cluster(stopping)
            pool = BlockingPool(settings.engine.threads)
            self._stack.callback(pool.close)
            self.driver_manager: Final = StorageDriverManager(
                self._routes, self.admin, self.offsets, pool, self.groups
            )
            self.upkeep: Final = self._build_upkeep()
            if background:
                self.upkeep.start()
            self._stack.callback(self.upkeep.stop)
            undo.pop_all()
        _log.info("node_started", path=self.path, node=self.meta.node_id)

    def run_upkeep(self) -> None:
        """Run background maintenance now: sealing, retention, compaction."""
        self.upkeep.run_once(thorough=True)
        segment = self.engines.opened().get(SEGMENT)
        if isinstance(segment, SegmentEngine):
            segment.store.run_upkeep()
        if isinstance(segment, TieredSegmentEngine):
            segment.upload_now()
            segment.store.run_upkeep()

    def confirm_clock(self) -> ClockStatus:
        """Take what the clock shows for the right time, also at the next start."""
        with opening_errors(self.path):
            return self.clock.confirm()

    def close(self) -> None:
        """Stop; everything acknowledged is on the device when this returns. Again: nothing."""
        with self._closing:
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Starting

    def _guard_clock(self, clock: Clock) -> GuardedClock:
        settings = self.settings.clock
        with opening_errors(self.path):
            guarded = GuardedClock(
                clock,
                self._directory.disk,
                self._directory.join(CLOCK_FILE),
                step_max_ms=settings.step_max_ms,
                gap_max_ms=round(settings.gap_max_h * _HOUR_MS),
            )
        guarded.tick()
        self._stack.callback(guarded.save)
        ClockMetrics(guarded, self.registry)
        return guarded

    def _build_opener(self) -> EngineOpener:
        return EngineOpener(
            self._directory,
            self.settings,
            meta=self.meta,
            clock=self.clock,
            limits=self._limits,
            registry=self.registry,
            flush_offsets=self.offset_manager.flush,
        )

    def _build_handler(self, forwarder: NodeLinks | None) -> StorageEngineHandler:
        return StorageEngineHandler(
            self.storage_cache,
            self.engines,
            node_id=self.meta.node_id,
            forwarder=forwarder,
            clock=self.clock,
            limits=self._limits,
        )

    def _report_lost_engines(self, stopping: threading.Event) -> None:
        """Report what is lost, before anything empty is served in its place."""

        def retry(step: Callable[[], T], /) -> T:
            while True:
                try:
                    return step()
                except RetryableError:
                    if self.clock.wait(stopping, _RETRY_S):
                        raise

        identities = self._opener.identities
        reconcile_engines(identities, self.meta, self.engines, DURABLE_ENGINES, retry)

    @cached_property
    def coordinators(self) -> GroupCoordinators:
        """Which nodes coordinate consumer groups; follows the metadata."""
        return GroupCoordinators(self.meta.node_id, is_alone=not self.settings.node.peers)

    def _build_groups(self) -> GroupCoordinator:
        kafka = self.settings.kafka
        return build_groups(kafka, self.clock, self.meta, self.coordinators, self._stack)

    def _open_offsets(self, peers: OffsetPeers | None) -> OffsetManager:
        peers = peers if self.settings.node.peers else None
        path, settings = self._directory.join("offsets"), self.settings.offsets
        return open_offsets(path, self.meta, self.coordinators, peers, settings, self.clock)

    def _load_limits(self) -> None:
        """Know of transactions whether or not Kafka clients are served."""
        if isinstance(self.meta, StandaloneMetaClient):
            self._hold_back(lambda _shard: True)

    def _load_limits_of_cluster(self, stopping: threading.Event) -> None:
        """Load the transactions of the shards of this node before any other node reads there; from
        then on the coordinators report them. Until they are loaded the node serves nothing: it
        waits for a node that has them, and raises after a time."""
        here = {
            entry.name
            for entry in self.storage_cache.entries()
            if entry.meta is not None and self.meta.node_id in entry.meta.replicas
        }
        if isinstance(self.meta, StandaloneMetaClient) or not here:
            return
        give_up = self.clock.monotonic() + _LIMITS_WAIT_S
        while True:
            try:
                self._hold_back(here.__contains__)
            except RetryableError as error:
                _log.warning("transactions_not_known", reason=str(error))
                if self.clock.monotonic() >= give_up or self.clock.wait(stopping, _LIMITS_PAUSE_S):
                    raise
            else:
                return

    def _hold_back(self, is_here: Callable[[str], bool]) -> None:
        # In this order: what is aborted meanwhile is known as open, as aborted, or both.
        for state in self.meta.list_transactions():
            if state.status != "empty" and not state.status.startswith("complete"):
                for partition in state.partitions:
                    if is_here(partition.shard):
                        self._limits.hold_written(
                            partition.shard, state.producer_id, partition.first_offset
                        )
        self._limits.load_aborted(
            aborted for aborted in self.meta.list_aborted() if is_here(aborted.shard)
        )

    def _apply_update(self, update: Update) -> None:
        update = share_topics(update)
        self.coordinators.apply(update)
        # Shards before topics, routes last: what a topic's name leads to is there when it is shown.
        self.storage_cache.apply(update)
        self.broker_cache.apply(update)
        self._routes.apply(update)

    def _build_admin(self) -> TopicAdmin:
        settings = self.settings
        defaults = TopicConfig(
            storage_type=STORAGE_ALIASES[settings.topics.storage],
            replication=settings.topics.replication,
            flush=settings.broker.flush_disk_type,
            partitioner=settings.topics.partitioner,
            queue_kind=QUEUE_ALIASES[settings.topics.queue],
            record_size_max=settings.engine.record_size_max,
        )
        return TopicAdmin(
            self.meta,
            self.handler,
            self.broker_cache,
            self._routes,
            self.offset_manager,
            defaults=defaults,
            default_partitions=settings.topics.partitions,
            is_controller=self.meta.leads_metadata,
        )

    def _reconcile(self) -> Reconciled:
        done = reconcile(
            self.handler,
            present=self._opener.present(),
            altered_since=self._directory.reconciled_revision,
            where=self.path,
        )
        self._remove_lost_offsets()
        self.admin.finish_creations()
        self.admin.finish_deletions()
        if not done.failed:
            self._directory.write_reconciled(self.storage_cache.revision)
        self._routes.invalidate()
        return done

    def _remove_lost_offsets(self) -> None:
        """Topics in memory begin anew: what was committed for their shards that were here counts
        records that are gone."""
        if not self.offset_manager.list_groups():
            return
        lost: dict[str, set[int]] = {}
        for entry in self.storage_cache.entries():
            shard = entry.meta
            is_here = shard is not None and shard.replicas == (self.meta.node_id,)
            if is_here and entry.topic.storage_type == MEMORY:
                lost.setdefault(entry.id.topic, set()).add(entry.id.partition)
        for topic_id, partitions in lost.items():
            self.offset_manager.remove_topic(topic_id, partitions)

    def _build_upkeep(self) -> ShardUpkeep:
        engine = self.settings.engine
        limits = UpkeepLimits(
            roll_size=engine.segment_size,
            roll_age_ms=round(engine.segment_age_h * _HOUR_MS),
            interval_ms=engine.upkeep_interval_ms,
            compact_interval_ms=engine.compact_interval_ms,
        )
        idle_ms = round(self.settings.offsets.idle_group_h * _HOUR_MS)
        return ShardUpkeep(
            self.handler,
            self.meta,
            limits,
            rounds=self.clock.tick,
            chores=[partial(self._expire_idle_groups, idle_ms), self._finish_deletions],
        )

    def _expire_idle_groups(self, idle_ms: int) -> None:
        if self.meta.leads_metadata():
            keep = [GroupName(*key) for key, _ in self.groups.with_members()]
            self.offset_manager.expire_idle_groups(idle_ms, keep=keep)

    def _finish_deletions(self) -> None:
        """Delete what is here of topics that were deleted at another node."""
        if self.settings.node.peers:
            self.admin.finish_deletions()
