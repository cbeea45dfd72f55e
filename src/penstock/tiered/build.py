"""Puts the parts of a node's tiers together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from penstock.engine.segment import SegmentStore
from penstock.errors import TierSetupError
from penstock.meta import MetadataClient
from penstock.platform.clock import Clock
from penstock.platform.disk import Disk
from penstock.tiered.catalog.directory_tiers import save_tier_url
from penstock.tiered.catalog.writer import CataloguedMeta, CatalogueWriter
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.lease import MetaLease
from penstock.tiered.maintenance.damage import DamageReports
from penstock.tiered.maintenance.upkeep import TierLimits, TierUpkeep
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.providers import check_address
from penstock.tiered.rocketmq.rocks_metadata import RocksDbMetadataStore
from penstock.tiered.shard_tiers import ShardTiers
from penstock.tiered.upload.dispatcher import TieredDispatcher, UploadLease

METADATA: Final = "tier-meta"
"""The directory of a node's metadata store, in its data directory."""


class NodeMeta(MetadataClient, CataloguedMeta, Protocol):
    """The meta service, as a node's tiers use it."""


class NodeDirectory(NamedTuple):
    """The data directory of a node."""

    path: str
    id: str
    """Of its segment store; the node holds upload leases under it."""
    tier_url: str
    """The setting `tiering.url`; empty: the directory `tier` in it."""


def build_node_engine(
    store: SegmentStore,
    config: TierConfig,
    meta: NodeMeta,
    directory: NodeDirectory,
    *,
    flush_offsets: Callable[[], object],
    limits: TierLimits,
    metrics: TierMetrics,
    disk: Disk,
) -> TieredSegmentEngine:
    """Return the engine of a node. It holds upload leases, keeps the catalogs of its tiers, and
    writes the address of its own one into its directory with the first shard that has a tier.
    `flush_offsets` saves commits that wait in a cache."""
    engine = build_tiered_engine(
        store,
        config,
        metadata_path=f"{directory.path}/{METADATA}",
        limits=limits,
        lease=MetaLease(meta, store.clock, holder=directory.id),
        metrics=metrics,
        clock=store.clock,
    )
    engine.tiers.cache_disk = disk
    engine.when_tiered(partial(save_tier_url, disk, directory.path, directory.tier_url))
    catalogue = CatalogueWriter(meta, store.clock, flush_offsets)
    engine.tier_upkeep.save_catalogue = partial(catalogue.save, engine.tiers)
    return engine


def build_tiered_engine(
    store: SegmentStore,
    config: TierConfig,
    *,
    metadata_path: str,
    limits: TierLimits = TierLimits(),  # noqa: B008 - it is frozen
    lease: UploadLease | None = None,
    metrics: TierMetrics | None = None,
    clock: Clock | None = None,
    background: bool = True,
) -> TieredSegmentEngine:
    """Return the engine over a store and its tiers. Until the first shard has a tier, it is the
    segment engine: no thread, no file, no connection. Raises `TierSetupError` for an address that
    no tier can have: most of its shards would be without one."""
    try:
        check_address(config.url)
    except TierSetupError as error:
        raise TierSetupError(f"tiering.url: {error}") from error
    metrics = metrics or TierMetrics()
    tiers = ShardTiers(
        config,
        metadata_store=RocksDbMetadataStore(metadata_path, clock=clock),
        clock=clock,
        damage=DamageReports(metrics, clock),
    )
    upkeep = TierUpkeep(tiers, limits, metrics)
    dispatcher = TieredDispatcher(
        store,
        tiers,
        interval_ms=limits.upload_interval_ms,
        lease=lease,
        metrics=metrics,
        clock=clock,
    )
    if background:
        dispatcher.when_idle = upkeep.run_if_due
    return TieredSegmentEngine(
        store,
        tiers,
        dispatcher,
        upkeep,
        metrics=metrics,
        background=background,
        limits=limits,
    )
