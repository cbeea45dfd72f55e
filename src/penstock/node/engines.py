"""Opens the storage engines of a node, each with its limits, metrics and identity."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Final

from prometheus_client import CollectorRegistry

from penstock.codec.select import core
from penstock.engine.contract import StorageEngine
from penstock.engine.engine_identity import LOG_ELSEWHERE, PLACES, EngineIdentities
from penstock.engine.engine_set import EngineSet
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.rocksdb import (
    DB_COLUMN_FAMILY_BROKER,
    Database,
    DatabaseSettings,
    RocksDBStorageEngine,
)
from penstock.engine.segment import SegmentEngine, SegmentStore, holds_store, opening_errors
from penstock.engine.transactions import StableOffsets
from penstock.meta import STORAGE_ALIASES, MetaClient
from penstock.node.component_settings import segment_settings, tier_config, tier_limits
from penstock.node.directory import NodeDirectory, draw_id
from penstock.platform.clock import Clock
from penstock.platform.metrics import SegmentMetrics
from penstock.settings import Settings
from penstock.tiered import NodeDirectory as TierDirectory
from penstock.tiered import TierMetrics, build_node_engine

MEMORY: Final = STORAGE_ALIASES["memory"]
ROCKSDB: Final = STORAGE_ALIASES["rocksdb"]
SEGMENT: Final = STORAGE_ALIASES["segment"]
DURABLE_ENGINES: Final = {"rocksdb": ROCKSDB, "segment": SEGMENT}
"""The engines that keep records over a restart, by their directories."""


class EngineOpener:
    def __init__(
        self,
        directory: NodeDirectory,
        settings: Settings,
        *,
        meta: MetaClient,
        clock: Clock,
        limits: StableOffsets,
        registry: CollectorRegistry,
        flush_offsets: Callable[[], object],
    ) -> None:
        self._directory: Final = directory
        self._settings: Final = settings
        self._meta: Final = meta
        self._clock: Final = clock
        self._limits: Final = limits
        self._registry: Final = registry
        self._flush_offsets: Final = flush_offsets
        with opening_errors(directory.path):
            places = LOG_ELSEWHERE if settings.engine.commit_log_path else PLACES
            self.identities: Final = EngineIdentities(
                directory.disk, directory.path, partial(draw_id, clock), places
            )

    def engine_set(self) -> EngineSet:
        return EngineSet(
            {MEMORY: self._open_memory, ROCKSDB: self._open_rocksdb, SEGMENT: self._open_segment},
            lambda name: self.identities.open_plugin(name, self._clock, self._limits),
        )

    def present(self) -> list[str]:
        """Return the storage types whose directories hold something."""
        directory = self._directory
        durable = [
            storage_type
            for name, storage_type in DURABLE_ENGINES.items()
            if directory.disk.list(directory.join(name))
        ]
        return durable + self.identities.plugins()

    def is_left_open(self) -> bool:
        """Return whether the segment engine was not closed as it should be: its sync has failed."""
        return self._directory.disk.exists(self._directory.join("segment/abort"))

    def _open_memory(self) -> StorageEngine:
        settings = self._settings.engine
        engine = MemoryStorageEngine(
            self._clock,
            records_max=settings.memory_records_max,
            bytes_max=settings.memory_bytes_max,
            evict=settings.memory_evict,
        )
        engine.limits = self._limits
        return engine

    def _open_rocksdb(self) -> StorageEngine:
        settings = self._settings.engine
        database = Database(
            self._directory.join("rocksdb"),
            (DB_COLUMN_FAMILY_BROKER,),
            settings=DatabaseSettings(
                block_cache_size=settings.rocksdb_block_cache_size,
                write_buffer_size=settings.rocksdb_write_buffer_size,
                flush_interval_ms=settings.flush_interval_ms,
            ),
            disk=self._directory.disk,
            clock=self._clock,
        )
        try:
            self.identities.record_opened("rocksdb")
            engine = RocksDBStorageEngine(database, self._clock, owns_database=True)
        except BaseException:
            database.close()
            raise
        engine.limits = self._limits
        return engine

    def _open_segment(self) -> StorageEngine:
        core.set_tag_header(self._settings.kafka.tag_header)
        disk, path = self._directory.disk, self._directory.join("segment")
        store = SegmentStore.open(
            path,
            segment_settings(self._settings, is_new=not holds_store(disk, path)),
            disk=disk,
            clock=self._clock,
            metrics=self._segment_metrics,
        )
        try:
            self.identities.record_opened("segment")
            engine = self._add_tiers(store)
        except BaseException:
            store.close()
            raise
        engine.limits = self._limits
        return engine

    def _add_tiers(self, store: SegmentStore) -> SegmentEngine:
        directory, settings = self._directory, self._settings
        return build_node_engine(
            store,
            tier_config(settings, directory.path, self._meta.cluster_id),
            self._meta,
            TierDirectory(directory.path, self.identities.id_of("segment"), settings.tiering.url),
            flush_offsets=self._flush_offsets,
            limits=tier_limits(settings.tiering, store.retention.reserved_ms),
            metrics=self._tier_metrics,
            disk=directory.disk,
        )

    # Once each: an engine that could not be opened is opened again later, with the same metrics.

    @cached_property
    def _segment_metrics(self) -> SegmentMetrics:
        return SegmentMetrics(self._registry)

    @cached_property
    def _tier_metrics(self) -> TierMetrics:
        return TierMetrics(self._registry)
