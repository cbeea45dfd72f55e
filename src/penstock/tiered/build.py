"""Puts the parts of a node's tiers together."""

from __future__ import annotations

from penstock.engine.segment import SegmentStore
from penstock.errors import TierSetupError
from penstock.platform.clock import Clock
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.maintenance.damage import DamageReports
from penstock.tiered.maintenance.upkeep import TierLimits, TierUpkeep
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.providers import check_address
from penstock.tiered.rocketmq.rocks_metadata import RocksDbMetadataStore
from penstock.tiered.shard_tiers import ShardTiers
from penstock.tiered.upload.dispatcher import TieredDispatcher, UploadLease


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
