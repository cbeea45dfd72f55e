"""Which shards of a node have a tier, their uploaders, and how much of them the log keeps."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.engine.contract import ShardConfig, ShardTiering
from penstock.engine.segment import RetentionPolicy
from penstock.tiered.maintenance.upkeep import TierLimits

SPARK_BY_SETTING: Final = "spark by setting"
"""The uploader of a shard whose topic leaves it to the node, which leaves it to Spark."""


class TieringRules:
    def __init__(self, limits: TierLimits) -> None:
        self._limits: Final = limits

    def resolve(self, config: ShardConfig, *, has_tier: bool) -> ShardConfig:
        """Return the configuration with the node's defaults: whether the shard has a tier, and
        its uploader, which jobs read there."""
        if config.tiering is None and (has_tier or self._needs_tier(config)):
            config = replace(config, tiering=ShardTiering())
        tiering = config.tiering
        if tiering is None or tiering.uploader not in ("broker", SPARK_BY_SETTING):
            return config
        uploader = "broker" if self._limits.uploads else SPARK_BY_SETTING
        return replace(config, tiering=replace(tiering, uploader=uploader))

    def _needs_tier(self, config: ShardConfig) -> bool:
        """Say whether a shard whose configuration does not name a tier has one: its records are
        kept for longer than the log keeps them."""
        if self._limits.all_shards:
            return True
        long_ms, kept_ms = self._limits.long_after_ms, config.retention_ms
        if long_ms is None:
            return False
        return not config.cleanup.deletes or (kept_ms is not None and kept_ms > long_ms)


def hot_window(config: ShardConfig, reserved_ms: int) -> RetentionPolicy:
    """Return how long the log keeps a shard that has a tier: as long as its tiering says, otherwise
    for the store's `file_reserved_time`, and never longer than the shard is kept."""
    tiering = config.tiering
    assert tiering is not None, "the shard has a tier"
    local = RetentionPolicy(tiering.local_retention_ms, tiering.local_retention_bytes)
    if not config.cleanup.deletes:
        return local
    kept_ms = config.retention_ms
    if kept_ms is not None and kept_ms > reserved_ms:
        kept_ms = None  # the reserved time is shorter, and whole files go by it
    return RetentionPolicy(
        _least(local.time_ms, kept_ms),
        _least(local.size, config.retention_bytes),
        config.retention_records,
    )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
