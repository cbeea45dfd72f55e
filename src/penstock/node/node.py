"""A node: everything that one process needs to store messages, built in one place.

`directory` lists what a node keeps in its directory. Engines are opened when a topic first needs
them, or at start when they hold records.

The start order is lock, metadata, offsets, engines, caches, maintenance. A stop reverses it:
maintenance and pending calls end, engines sync everything, commits are saved, and the metadata,
which all others write to, closes last. A failed start closes what it opened.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from types import TracebackType
from typing import Final, Self, TypeVar

from prometheus_client import CollectorRegistry

from penstock.adapter import GroupLagMetrics, NodeLinks, PeerMetrics, StorageDriverManager
from penstock.adapter.engine_adapter import DriverList
from penstock.adapter.topics import BrokerCacheManager, TopicAdmin, TopicOffsets, TopicRoutes
from penstock.engine.engine_identity import (
    reconcile_engines,
)
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.replication import CoreOptions
from penstock.engine.replication.runtime.metrics import ReplicationMetrics
from penstock.engine.replication.runtime.proposals import ReplicaMetadata
from penstock.engine.replication.runtime.replicator import Replicator
from penstock.engine.routing.quarantine import Quarantine
from penstock.engine.routing.reconcile import Reconciled, UnknownShards, reconcile
from penstock.engine.routing.scrub import Scrubber, ScrubLimits
from penstock.engine.routing.shard_alterations import ShardAlterations
from penstock.engine.routing.shard_metrics import ShardMetrics
from penstock.engine.routing.shard_upkeep import ShardUpkeep, UpkeepLimits
from penstock.engine.routing.storage_cache import StorageCacheManager, share_topics
from penstock.engine.segment import SegmentEngine, opening_errors
from penstock.engine.transactions import StableOffsets
from penstock.errors import DeadlineError, RetryableError, StaleWriteError
from penstock.groups.coordinator import GroupCoordinator, build_groups
from penstock.meta import (
    QUEUE_ALIASES,
    STORAGE_ALIASES,
    ClusterNode,
    GroupCoordinators,
    GroupName,
    LeadingNode,
    StandaloneMetaClient,
    TopicConfig,
    Update,
)
from penstock.node.directory import NodeDirectory
from penstock.node.engines import DURABLE_ENGINES, MEMORY, SEGMENT, EngineOpener
from penstock.node.handover import Handover
from penstock.node.open_meta import open_meta
from penstock.node.start_proof import StartFiles, lacks_records
from penstock.offsets import OffsetManager, OffsetPeers, open_offsets
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
_DAY_S: Final = 86_400.0
_RETRY_S: Final = 1.0
_LIMITS_WAIT_S: Final = 60.0
_LIMITS_PAUSE_S: Final = 0.5
T = TypeVar("T")

_log: Final = get_logger(__name__)


class Node:
    """A running node; `close` stops it. Use as a context manager, or call `close`."""

    _is_start_complete = _is_disk_failed = _is_handed_over = False

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
            self.meta: Final = open_meta(self._directory, settings, self.clock, stopping)
            self._stack.callback(self.meta.close)
            self._stack.push(self._record_clean_stop)
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
            self._add_metrics()
            self._routes: Final = TopicRoutes(
                self.broker_cache, self.storage_cache, DriverList(self.handler)
            )
            self.offsets: Final = TopicOffsets(self.offset_manager, self._routes)
            self.admin: Final = self._build_admin()
            self.replicator: Final = self._build_replicator()
            self._alterations: Final = ShardAlterations(self.storage_cache, self.handler)
            self._stack.callback(self.meta.watch(0, self._apply_update).close)
            self.reconciled: Final = self._reconcile()
            self._load_limits_of_cluster(stopping)
            self._record_start(stopping)
            self._start_replication()
            pool = BlockingPool(settings.engine.threads)
            self._stack.callback(pool.close)
            self.driver_manager: Final = StorageDriverManager(
                self._routes, self.admin, self.offsets, pool, self.groups
            )
            self.upkeep: Final = self._open_upkeep(is_started=background)
            self.scrubber: Final = self._open_scrubber(is_started=background)
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

    def hand_over(self) -> None:
        """Let other nodes lead what they can, before this one stops. It still serves."""
        if isinstance(self.meta, LeadingNode) and not self._is_handed_over:
            self._is_handed_over = True
            handover = Handover(self.meta, self.replicator, self.offset_manager.flush, self.clock)
            handover.run(self.settings.node.handover_s)

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
        identities = self._opener.identities
        retry = partial(self._retry, stopping)
        reconcile_engines(identities, self.meta, self.engines, DURABLE_ENGINES, retry)

    def _retry(self, stopping: threading.Event, step: Callable[[], T], /) -> T:
        while True:
            try:
                return step()
            except RetryableError:
                if self.clock.wait(stopping, _RETRY_S):
                    raise

    @cached_property
    def _start_files(self) -> StartFiles:
        return StartFiles(self._directory, self.clock)

    def _record_start(self, stopping: threading.Event) -> None:
        """Report what recovery could not save, before this node serves; then write down which run
        its logs are from."""
        if isinstance(self.meta, StandaloneMetaClient):
            return
        segment = self.engines.opened().get(SEGMENT)
        lost = lacks_records(segment.store.report) if isinstance(segment, SegmentEngine) else ""
        if lost:
            _log.warning("replicas_not_trusted", path=self.path, reason=lost)
            self._retry(stopping, self._report_unproven)
        self._is_start_complete = True
        self.meta.on_registered(self._write_session)

    def _report_unproven(self) -> None:
        if self.meta.broker_epoch is None:
            raise DeadlineError("this node has not registered yet")
        try:
            self.meta.report_unproven()
        except StaleWriteError as error:
            raise DeadlineError(f"this node is registering again: {error}") from error

    def _write_session(self, broker_epoch: int) -> None:
        if self._is_disk_failed:
            return
        try:
            self._start_files.write_session(
                self.meta.cluster_id, self._directory.store_id, broker_epoch
            )
        except OSError as error:
            # The next start proves less, and copies more.
            _log.warning("session_not_noted", path=self.path, reason=str(error))

    def _record_clean_stop(
        self,
        error_type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """After the engines were closed: write down that they were, if all went well."""
        epoch = self.meta.broker_epoch
        if isinstance(self.meta, StandaloneMetaClient) or not self._is_start_complete:
            return
        try:
            is_left_open = self._is_disk_failed or self._opener.is_left_open()
            if error_type is None and epoch is not None and not is_left_open:
                self._start_files.write_clean_stop(
                    self.meta.cluster_id, self._directory.store_id, epoch
                )
            else:
                self._start_files.void()
        except OSError as error:
            _log.warning("stop_not_noted", path=self.path, reason=str(error))

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
                        shard, first = partition.shard, partition.first_offset
                        first = self.storage_cache.first_possible(shard, first)
                        self._limits.hold_written(shard, state.producer_id, first, state.started_ms)
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
        if self.replicator is not None:
            self.replicator.apply(update)

    def _build_replicator(self) -> Replicator | None:
        """Return what copies shards between nodes; None without a cluster."""
        meta = self.meta
        if not isinstance(meta, ReplicaMetadata):
            return None
        return Replicator(
            meta.node_id,
            self.storage_cache,
            self.handler,
            meta,
            meta.channel("replicate"),
            self.clock,
            self._prepare_leading,
            CoreOptions(
                catch_up_rate=self.settings.node.catch_up_rate,
                sends_commits=bool(self.settings.node.rack),  # consumers read from their rack
            ),
        )

    def _add_metrics(self) -> None:
        PeerMetrics(self.meta, self.registry)
        ShardMetrics(self.storage_cache, self.registry)
        GroupLagMetrics(self.offset_manager, self.handler, self.registry)

    def _start_replication(self) -> None:
        cache, node_id = self.storage_cache, self.meta.node_id
        ReplicationMetrics(self.replicator, cache, node_id, self.registry)
        self._alterations.start()
        self._stack.callback(self._alterations.close)
        if self.replicator is not None:
            self.replicator.start()
            self._stack.callback(self.replicator.close)

    def _prepare_leading(self, shards: Collection[str]) -> None:
        """Load the transactions of shards that this node leads newly. Their coordinators are
        refused until this is done, so that nothing changes meanwhile."""
        for shard in shards:
            self._limits.drop_shard(shard)
        self._hold_back(shards.__contains__)
        resume = self.handler.resume_transactions
        if resume is not None:
            resume(shards)

    def _build_admin(self) -> TopicAdmin:
        settings = self.settings
        defaults = TopicConfig(
            storage_type=STORAGE_ALIASES[settings.topics.storage],
            replication=settings.topics.replication,
            min_insync=settings.topics.min_insync or None,
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
        quarantine = Quarantine(self._directory.disk, self.path)
        unknown: UnknownShards | None = None
        if self.settings.node.peers:
            unknown = UnknownShards(
                deleting={topic.topic_id for topic in self.meta.list_deleting_topics()},
                doomed={
                    (entry.storage_type, entry.id) for entry in quarantine.read() if entry.is_doomed
                },
            )
        done = reconcile(
            self.handler,
            present=self._opener.present(),
            altered_since=self._directory.reconciled_revision,
            where=self.path,
            unknown=unknown,
        )
        if unknown is not None:
            with opening_errors(self.path):
                quarantine.write(done.unknown)
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

    def _open_upkeep(self, *, is_started: bool) -> ShardUpkeep:
        engine = self.settings.engine
        limits = UpkeepLimits(
            roll_size=engine.segment_size,
            roll_age_ms=round(engine.segment_age_h * _HOUR_MS),
            interval_ms=engine.upkeep_interval_ms,
            compact_interval_ms=engine.compact_interval_ms,
        )
        idle_ms = round(self.settings.offsets.idle_group_h * _HOUR_MS)
        upkeep = ShardUpkeep(
            self.handler,
            self.meta,
            limits,
            rounds=self._run_round,
            chores=[
                partial(self._expire_idle_groups, idle_ms),
                self._finish_deletions,
                self._report_free_disk,
                self._report_failed_disk,
            ],
        )
        if is_started:
            upkeep.start()
        self._stack.callback(upkeep.stop)
        return upkeep

    def _open_scrubber(self, *, is_started: bool) -> Scrubber:
        engine = self.settings.engine
        limits = ScrubLimits(interval_s=engine.scrub_interval_days * _DAY_S, rate=engine.scrub_rate)
        scrubber = Scrubber(self.handler, limits, self.registry)
        if is_started:
            scrubber.start()
        self._stack.callback(scrubber.stop)
        return scrubber

    def _expire_idle_groups(self, idle_ms: int) -> None:
        if self.meta.leads_metadata():
            keep = [GroupName(*key) for key, _ in self.groups.with_members()]
            self.offset_manager.expire_idle_groups(idle_ms, keep=keep)

    def _report_failed_disk(self) -> None:
        """Let other replicas lead when a sync has failed here: the kernel may have dropped what it
        should have written, and this node's logs prove nothing at its next start."""
        segment = self.engines.opened().get(SEGMENT)
        has_failed = isinstance(segment, SegmentEngine) and segment.store.has_failed
        if not has_failed or isinstance(self.meta, StandaloneMetaClient):
            return
        if not self._is_disk_failed:
            self._is_disk_failed = True
            with opening_errors(self.path):
                self._start_files.void()
            self.meta.report_unproven(is_synced_lost=True)

    def _run_round(self) -> None:
        self.clock.tick()
        self._delete_removed_replicas()

    def _delete_removed_replicas(self) -> None:
        """Delete the copies of shards that the metadata have moved to other nodes. Shards that the
        metadata do not name stay: see `Quarantine`."""
        if self.replicator is None:
            return
        for entry in self.storage_cache.entries():
            meta = entry.meta
            is_elsewhere = meta is not None and self.meta.node_id not in meta.replicas
            if entry.is_open and is_elsewhere and self.handler.delete_removed(entry):
                _log.info("replica_deleted", shard=entry.name)

    def _report_free_disk(self) -> None:
        if isinstance(self.meta, ClusterNode):
            with suppress(OSError):
                self.meta.report_disk(shutil.disk_usage(self.path).free)

    def _finish_deletions(self) -> None:
        """Delete what is here of topics that were deleted at another node."""
        if self.settings.node.peers:
            self.admin.finish_deletions()
