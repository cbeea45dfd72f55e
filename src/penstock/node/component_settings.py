"""A node's settings in the form in which its components take them."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import quote

from penstock.engine.segment import RECORD_OVERHEAD_MAX, FileSizes, SegmentSettings
from penstock.settings import Settings, TieringSettings, keeps_default_sizes
from penstock.tiered import TIER_DIRECTORY, FetchSettings, TierConfig, TierLimits

_HOUR_MS: Final = 3_600_000


def segment_settings(settings: Settings, *, is_new: bool) -> SegmentSettings:
    """Return the settings of the segment store, with the sizes of its files when it `is_new`:
    those of an existing store are in it, and every position depends on them."""
    engine, broker = settings.engine, settings.broker
    sizes = FileSizes(
        commit_log_file_size=broker.commit_log_file_size,
        consume_queue_file_size=broker.consume_queue_file_size,
        batch_queue_file_size=broker.consume_queue_file_size // 20 * 46,
        index_slots=engine.index_slots,
        index_entries_max=engine.index_entries_max,
    )
    default_log, default_index = keeps_default_sizes(settings)
    if default_index:
        sizes = sizes.with_small_index()
    return SegmentSettings(
        sizes=sizes if is_new else None,
        fit_sizes=default_log,
        commit_log_path=engine.commit_log_path or None,
        record_size_max=engine.record_size_max + RECORD_OVERHEAD_MAX,
        flush_interval_ms=engine.flush_interval_ms,
        mapped_bytes_max=engine.mapped_bytes_max,
        file_reserved_time_h=broker.file_reserved_time,
        delete_when=broker.delete_when,
        disk_max_used_space_ratio=broker.disk_max_used_space_ratio,
        disk_space_warning_level_ratio=broker.disk_space_warning_level_ratio,
    )


def tier_config(settings: Settings, path: str, owner: str) -> TierConfig:
    """Return where the tier of the node with the data directory `path` is, and its sizes; `owner`
    is its cluster."""
    tiering = settings.tiering
    directory = f"{os.path.abspath(path)}/{TIER_DIRECTORY}"
    return TierConfig(
        url=tiering.url or f"file://{quote(directory)}",
        chunk_size=tiering.chunk_size,
        segment_size=tiering.segment_size,
        segment_age_ms=round(tiering.segment_age_h * _HOUR_MS),
        grace_ms=tiering.grace_ms,
        fetch=FetchSettings(
            part_size=tiering.read_size,
            window=tiering.read_window,
            cache_size=tiering.cache_size,
            disk_cache_path=f"{path}/tier-cache",
            disk_cache_size=tiering.disk_cache_size,
        ),
        owner=owner,
    )


def tier_limits(tiering: TieringSettings, reserved_ms: int) -> TierLimits:
    return TierLimits(
        all_shards=tiering.topics == "all",
        uploads=tiering.uploader == "broker",
        long_after_ms=reserved_ms if tiering.topics == "long" else None,
        upload_interval_ms=tiering.upload_interval_ms,
        interval_ms=tiering.upkeep_interval_ms,
        garbage_interval_ms=tiering.garbage_interval_ms,
        scrub_size=tiering.scrub_size,
    )
