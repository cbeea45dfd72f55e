"""Puts the parts of a node's tiers together."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import quote

from penstock.clock import Clock
from penstock.engine.segment.store import SegmentStore
from penstock.errors import TierSetupError
from penstock.settings.tree import TieringSettings
from penstock.tiered.damage import DamageReports
from penstock.tiered.directory_tiers import TIER_DIRECTORY
from penstock.tiered.dispatcher import TieredDispatcher, UploadLease
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.fetcher import FetchSettings
from penstock.tiered.providers import check_address
from penstock.tiered.rocks_metadata import RocksDbMetadataStore
from penstock.tiered.tier_config import TierConfig
from penstock.tiered.tier_metrics import TierMetrics
from penstock.tiered.tier_set import TierSet
from penstock.tiered.tier_upkeep import TierLimits, TierUpkeep

_HOUR_MS: Final = 3_600_000


def tier_config(settings: TieringSettings, path: str, owner: str = "") -> TierConfig:
    """Return the tier that the settings of the node with the data directory `path` describe;
    `owner` is its cluster."""
    directory = f"{os.path.abspath(path)}/{TIER_DIRECTORY}"
    return TierConfig(
        url=settings.url or f"file://{quote(directory)}",
        chunk_size=settings.chunk_size,
        segment_size=settings.segment_size,
        segment_age_ms=round(settings.segment_age_h * _HOUR_MS),
        grace_ms=settings.grace_ms,
        fetch=FetchSettings(
            part_size=settings.read_size,
            window=settings.read_window,
            cache_size=settings.cache_size,
            disk_cache_path=f"{path}/tier-cache",
            disk_cache_size=settings.disk_cache_size,
        ),
        owner=owner,
    )


def tier_limits(settings: TieringSettings, reserved_ms: int) -> TierLimits:
    """Return the limits of a node whose log keeps records for `reserved_ms`."""
    return TierLimits(
        all_shards=settings.topics == "all",
        uploads=settings.uploader == "broker",
        long_after_ms=reserved_ms if settings.topics == "long" else None,
        upload_interval_ms=settings.upload_interval_ms,
        interval_ms=settings.upkeep_interval_ms,
        garbage_interval_ms=settings.garbage_interval_ms,
        scrub_size=settings.scrub_size,
    )


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
    tiers = TierSet(
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
