"""A node: everything that one process needs to store messages, built in one place.

    DATA/penstock.lock   held while the node runs
    DATA/meta            the metadata log (RocksDB)
    DATA/segment         the segment engine: commit log, queues, indexes
    DATA/rocksdb         the RocksDB engine
    DATA/plugins         a directory for each engine of another package
    DATA/tier            flat files of topics with tiering, unless they are elsewhere
    DATA/tier-url        the address of the node's own tier, for readers of the directory
    DATA/tier-meta       the metadata store of the tiers (RocksDB)
    DATA/tier-cache      cached parts of tiers, if the settings say so
    DATA/offsets         cached commits (RocksDB)
    DATA/store-id        the id of the directory, for the other nodes of a cluster
    DATA/engines         ids of the engine directories: see `engine.engine_identity`
    DATA/clock           the last trusted time: see `clock_guard`
    DATA/reconciled      the revision of the metadata that the engines agreed with at the last start

Engines are opened when a topic first needs them, or at start when they hold records.

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
from typing import TYPE_CHECKING, Final, Self, TypeVar

from prometheus_client import CollectorRegistry

from penstock.adapter.driver_manager import StorageDriverManager
from penstock.adapter.engine_adapter import DriverList
from penstock.adapter.lag_metrics import GroupLagMetrics
from penstock.adapter.node_links import NodeLinks
from penstock.adapter.topics.admin import TopicAdmin
from penstock.adapter.topics.cache import BrokerCacheManager
from penstock.adapter.topics.offsets import TopicOffsets
from penstock.adapter.topics.routes import TopicRoutes
from penstock.codec.select import core
from penstock.engine.contract import StorageEngine
from penstock.engine.engine_identity import (
    KNOWN_ENGINES,
    LOG_ELSEWHERE,
    PLACES,
    EngineIdentities,
    reconcile_engines,
)
from penstock.engine.engine_set import EngineSet
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.rocksdb import (
    DB_COLUMN_FAMILY_BROKER,
    Database,
    DatabaseSettings,
    RocksDBStorageEngine,
)
from penstock.engine.routing.reconcile import Reconciled, reconcile
from penstock.engine.routing.shard_metrics import ShardMetrics
from penstock.engine.routing.shard_upkeep import ShardUpkeep, UpkeepLimits
from penstock.engine.routing.storage_cache import StorageCacheManager, share_topics
from penstock.engine.segment import SegmentEngine, SegmentStore, holds_store, opening_errors
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.errors import RetryableError, SetupError
from penstock.groups.build import build_groups
from penstock.groups.coordinator import GroupCoordinator
from penstock.meta.client import GroupName, TopicConfig, Update
from penstock.meta.group_coordinators import GroupCoordinators
from penstock.meta.identifiers import ULID_RANDOM_SIZE, make_ulid
from penstock.meta.raft.bootstrap import parse_peers
from penstock.meta.raft.load import require_core
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.state.constants import QUEUE_ALIASES, STORAGE_ALIASES
from penstock.node.component_settings import segment_settings, tier_config, tier_limits
from penstock.offsets.cluster_manager import OffsetPeers, open_offsets
from penstock.offsets.manager import OffsetManager
from penstock.platform.blocking_pool import BlockingPool
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.clock_guard import CLOCK_FILE, ClockStatus, GuardedClock
from penstock.platform.clock_metrics import ClockMetrics
from penstock.platform.data_directory import LOCK, check_path, lock_directory
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.platform.log import get_logger
from penstock.platform.metrics import SegmentMetrics
from penstock.settings import EMBEDDED, Settings
from penstock.settings.secret_file import read_secrets
from penstock.tiered.build import build_tiered_engine
from penstock.tiered.catalog.directory_tiers import TIER_URL, note_tier_url
from penstock.tiered.catalog.restore import ATTACHING
from penstock.tiered.catalog.writer import CatalogueWriter
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.lease import MetaLease
from penstock.tiered.metrics import TierMetrics

if TYPE_CHECKING:
    from penstock.meta.raft.client import RaftMetaClient
    from penstock.meta.remote_client import RemoteMetaClient

MEMORY: Final = STORAGE_ALIASES["memory"]
ROCKSDB: Final = STORAGE_ALIASES["rocksdb"]
SEGMENT: Final = STORAGE_ALIASES["segment"]

_RECONCILED: Final = "reconciled"
_STORE_ID: Final = "store-id"
_NEW_STORE_ID: Final = "store-id.new"
"""Chosen, and perhaps not registered yet."""
_OURS: Final = frozenset(
    {
        LOCK,
        CLOCK_FILE,
        _RECONCILED,
        _STORE_ID,
        _NEW_STORE_ID,
        KNOWN_ENGINES,
        "meta",
        "segment",
        "rocksdb",
        "plugins",
        "offsets",
        "tier",
        "tier-meta",
        "tier-cache",
        TIER_URL,
    }
)
_KEPT: Final = {"rocksdb": ROCKSDB, "segment": SEGMENT}
"""The engines that keep records, by their directories."""
_HOUR_MS: Final = 3_600_000
_INSIST_S: Final = 1.0
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
        self.path: Final = check_path(path)
        self.settings: Final = settings
        self.registry: Final = registry if registry is not None else CollectorRegistry()
        self._disk: Final = disk if disk is not None else LocalDisk()
        self._closing: Final = threading.Lock()
        self._stack: Final = ExitStack()
        with ExitStack() as undo:
            undo.callback(self._stack.close)
            self._lock_directory()
            self.clock: Final = self._guard_clock(clock if clock is not None else SystemClock())
            self.meta: Final = self._open_meta(stopping)
            self._stack.callback(self.meta.close)
            self.offset_manager: Final = self._open_offsets(forwarder)
            self._stack.callback(self.offset_manager.stop)
            self.groups: Final = self._build_groups()
            self.storage_cache: Final = StorageCacheManager(self.clock)
            self.broker_cache: Final = BrokerCacheManager(self.clock)
            self._limits: Final = StableOffsets()
            self._load_limits()
            self.engines: Final = self._declare_engines()
            self._stack.callback(self.engines.close)
            self._settle_engines(stopping)
            self.handler: Final = StorageEngineHandler(
                self.storage_cache,
                self.engines,
                node_id=self.meta.node_id,
                forwarder=forwarder,
                clock=self.clock,
                limits=self._limits,
            )
            ShardMetrics(self.storage_cache, self.registry)
            GroupLagMetrics(self.offset_manager, self.handler, self.registry)
            self._routes: Final = TopicRoutes(
                self.broker_cache, self.storage_cache, DriverList(self.handler)
            )
            self.offsets: Final = TopicOffsets(self.offset_manager, self._routes)
            self.admin: Final = self._build_admin()
            self._stack.callback(self.meta.watch(0, self._take_over).close)
            self.reconciled: Final = self._reconcile()
            self._load_limits_of_cluster(stopping if stopping is not None else threading.Event())
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

    def _lock_directory(self) -> None:
        lock = lock_directory(self._disk, self.path, _OURS)
        self._stack.callback(lock.release)
        if self._disk.exists(self._at(ATTACHING)):
            raise SetupError(
                f"{self.path} holds half of a tier: `penstock tier attach` was cut short; repeat it"
            )

    def _guard_clock(self, clock: Clock) -> GuardedClock:
        settings = self.settings.clock
        with opening_errors(self.path):
            guarded = GuardedClock(
                clock,
                self._disk,
                self._at(CLOCK_FILE),
                step_max_ms=settings.step_max_ms,
                gap_max_ms=round(settings.gap_max_h * _HOUR_MS),
            )
        guarded.tick()
        self._stack.callback(guarded.save)
        ClockMetrics(guarded, self.registry)
        return guarded

    def _open_meta(
        self, stopping: threading.Event | None
    ) -> StandaloneMetaClient | RaftMetaClient | RemoteMetaClient:
        node = self.settings.node
        path = self._at("meta")
        if not node.peers:
            return StandaloneMetaClient.open(path, node_id=node.id, clock=self.clock)
        if "meta" not in node.roles:
            from penstock.meta.remote_client import RemoteMetaClient

            addresses = [peer.address for peer in parse_peers(node.peers)]
            store_id = self._choose_store_id()
            remote = RemoteMetaClient(
                addresses, node_id=node.id, clock=self.clock, store_id=store_id
            )
            remote.start_heartbeats()
            self._write_store_id(store_id)
            return remote
        require_core()
        from penstock.meta.raft.client import Place, RaftMetaClient

        place = Place(
            node_id=node.id,
            peers=node.peers,
            listen=node.meta_listen,
            offset_groups=node.offset_groups,
            store_id=self._choose_store_id(),
            secrets=read_secrets(node),
            join_token=node.join_token,
        )
        meta = RaftMetaClient.open(path, place, clock=self.clock, stopping=stopping)
        with ExitStack() as undo:
            undo.callback(meta.close)
            meta.await_leaders(stopping)
            if not self._read(_STORE_ID):
                # Before anything is served: if this node had shards, they are lost, and an empty
                # one must never be taken for what was there.
                meta.register_store(stopping if stopping is not None else threading.Event())
                self._write_store_id(place.store_id)
            undo.pop_all()
        return meta

    def _choose_store_id(self) -> str:
        """Return the id of this directory. A new one is stored before it is announced: after a
        crash the same directory must not appear as another one, which has lost its records."""
        with opening_errors(self.path):
            chosen = self._read(_STORE_ID) or self._read(_NEW_STORE_ID)
            if not chosen:
                chosen = self._draw_id()
                self._disk.replace(self._at(_NEW_STORE_ID), f"{chosen}\n".encode())
            return chosen

    def _draw_id(self) -> str:
        return make_ulid(self.clock.now_ms(), os.urandom(ULID_RANDOM_SIZE))

    @cached_property
    def _known_engines(self) -> EngineIdentities:
        with opening_errors(self.path):
            places = LOG_ELSEWHERE if self.settings.engine.commit_log_path else PLACES
            return EngineIdentities(self._disk, self.path, self._draw_id, places)

    def _settle_engines(self, stopping: threading.Event | None) -> None:
        """Say what is lost, before anything empty is served in its place."""
        ended = stopping if stopping is not None else threading.Event()

        def insist(step: Callable[[], T], /) -> T:
            while True:
                try:
                    return step()
                except RetryableError:
                    if self.clock.wait(ended, _INSIST_S):
                        raise

        reconcile_engines(self._known_engines, self.meta, self.engines, _KEPT, insist)

    def _write_store_id(self, store_id: str) -> None:
        """It is registered: from now on this node need not wait for that before it serves."""
        if self._read(_STORE_ID) != store_id:
            self._disk.replace(self._at(_STORE_ID), f"{store_id}\n".encode())
            self._disk.remove(self._at(_NEW_STORE_ID))

    @cached_property
    def coordinators(self) -> GroupCoordinators:
        """Which nodes coordinate consumer groups; follows the metadata."""
        return GroupCoordinators(self.meta.node_id, is_alone=not self.settings.node.peers)

    def _build_groups(self) -> GroupCoordinator:
        kafka = self.settings.kafka
        return build_groups(kafka, self.clock, self.meta, self.coordinators, self._stack)

    def _open_offsets(self, peers: OffsetPeers | None) -> OffsetManager:
        peers = peers if self.settings.node.peers else None
        path, settings = self._at("offsets"), self.settings.offsets
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
                for one in state.partitions:
                    if is_here(one.shard):
                        self._limits.hold_written(one.shard, state.producer_id, one.first_offset)
        self._limits.load_aborted(one for one in self.meta.list_aborted() if is_here(one.shard))

    def _take_over(self, update: Update) -> None:
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
        present = [kind for name, kind in _KEPT.items() if self._disk.list(self._at(name))]
        done = reconcile(
            self.handler,
            present=present + self._known_engines.plugins(),
            altered_since=self._last_reconciled(),
            where=self.path,
        )
        self._forget_lost_offsets()
        self.admin.finish_creations()
        self.admin.finish_deletions()
        if not done.failed:
            self._write_reconciled()
        self._routes.invalidate()
        return done

    def _last_reconciled(self) -> int:
        """Return the revision of the last start, or 0, which reconciles more than is needed."""
        text = self._read(_RECONCILED)
        return int(text) if text.isdigit() else 0

    def _read(self, name: str) -> str:
        """Return what a small file of this directory says; empty when there is none."""
        path = self._at(name)
        if not self._disk.exists(path):
            return ""
        file = self._disk.open(path, writable=False)
        try:
            return file.read_at(0, 32).decode("ascii", "replace").strip()
        finally:
            file.close()

    def _write_reconciled(self) -> None:
        try:
            self._disk.replace(self._at(_RECONCILED), b"%d\n" % self.storage_cache.revision)
        except OSError as error:
            # A full disk, perhaps: the next start does again what this one did.
            _log.warning("start_not_noted", path=self.path, reason=str(error))

    def _forget_lost_offsets(self) -> None:
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
            self.offset_manager.forget_topic(topic_id, partitions)

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

    # Engines

    def _declare_engines(self) -> EngineSet:
        return EngineSet(
            {MEMORY: self._open_memory, ROCKSDB: self._open_rocksdb, SEGMENT: self._open_segment},
            lambda name: self._known_engines.open_plugin(name, self.clock, self._limits),
        )

    def _open_memory(self) -> StorageEngine:
        engine = self.settings.engine
        opened = MemoryStorageEngine(
            self.clock,
            records_max=engine.memory_records_max,
            bytes_max=engine.memory_bytes_max,
            evict=engine.memory_evict,
        )
        opened.limits = self._limits
        return opened

    def _open_rocksdb(self) -> StorageEngine:
        engine = self.settings.engine
        database = Database(
            self._at("rocksdb"),
            (DB_COLUMN_FAMILY_BROKER,),
            settings=DatabaseSettings(
                block_cache_size=engine.rocksdb_block_cache_size,
                write_buffer_size=engine.rocksdb_write_buffer_size,
                flush_interval_ms=engine.flush_interval_ms,
            ),
            disk=self._disk,
            clock=self.clock,
        )
        try:
            self._known_engines.note_opened("rocksdb")
            opened = RocksDBStorageEngine(database, self.clock, owns_database=True)
        except BaseException:
            database.close()
            raise
        opened.limits = self._limits
        return opened

    def _open_segment(self) -> StorageEngine:
        core.set_tag_header(self.settings.kafka.tag_header)
        path = self._at("segment")
        settings = segment_settings(self.settings, is_new=not holds_store(self._disk, path))
        store = SegmentStore.open(
            path,
            settings,
            disk=self._disk,
            clock=self.clock,
            metrics=self._segment_metrics,
        )
        try:
            self._known_engines.note_opened("segment")
            opened = self._with_tiers(store)
        except BaseException:
            store.close()
            raise
        opened.limits = self._limits
        return opened

    def _with_tiers(self, store: SegmentStore) -> SegmentEngine:
        engine = build_tiered_engine(
            store,
            tier_config(self.settings, self.path, self.meta.cluster_id),
            metadata_path=self._at("tier-meta"),
            limits=tier_limits(self.settings.tiering, store.retention.reserved_ms),
            lease=MetaLease(self.meta, holder=self._known_engines.id_of("segment")),
            metrics=self._tier_metrics,
            clock=self.clock,
        )
        engine.when_tiered(partial(note_tier_url, self._disk, self.path, self.settings.tiering.url))
        catalogue = CatalogueWriter(self.meta, self.clock, self.offset_manager.flush)
        engine.tier_upkeep.save_catalogue = partial(catalogue.save, engine.tiers)
        return engine

    # Once each: an engine that could not be opened is opened again later, with the same metrics.

    @cached_property
    def _segment_metrics(self) -> SegmentMetrics:
        return SegmentMetrics(self.registry)

    @cached_property
    def _tier_metrics(self) -> TierMetrics:
        return TierMetrics(self.registry)

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"
