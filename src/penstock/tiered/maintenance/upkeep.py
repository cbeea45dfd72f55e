"""Background maintenance of a node's tiers: expiry, sealing, compaction, garbage, scrubbing.

Each round takes the shards one after the other; one that fails is logged once and tried again in
the next round. Nothing here is needed for correctness: a node that never gets to it keeps more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.engine.contract import FOREVER_MS, ShardConfig
from penstock.errors import CorruptionError, NotSupportedError, StoreError
from penstock.platform.log import get_logger
from penstock.record import ShardId
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.compaction import rewrite_segments
from penstock.tiered.maintenance.scrubber import Scrubber
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.object_names import parse_manifest_key
from penstock.tiered.providers.contract import TierProvider, remove_leftovers
from penstock.tiered.shard_tiers import ShardTiers

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile

_log: Final = get_logger(__name__)


class TierLimits(Struct, frozen=True, kw_only=True):
    all_shards: bool = False
    """Every shard has a tier, also one whose configuration does not say so."""
    uploads: bool = True
    """Whether the node uploads; without it, a job of Spark's does."""
    long_after_ms: int | None = None
    """Compacted shards, and those that keep records longer than this, have a tier."""
    upload_interval_ms: int = 60_000
    interval_ms: int = 60_000
    garbage_interval_ms: int = 3_600_000
    scrub_size: int = 16 << 20
    """Bytes verified in each round; 0: none."""


class TierReport(Struct):
    """What one round could not do."""

    failed: dict[str, str] = {}
    """Why, by the name of the shard or the address of the tier."""


class TierUpkeep:
    def __init__(
        self,
        tiers: ShardTiers,
        limits: TierLimits | None = None,
        metrics: TierMetrics | None = None,
    ) -> None:
        self._tiers: Final = tiers
        self._limits: Final = limits or TierLimits()
        self._metrics: Final = metrics or TierMetrics()
        self._scrubber: Final = Scrubber(tiers, self._metrics, self._limits.scrub_size)
        self._working: Final = threading.Lock()
        self._next = tiers.clock.monotonic() + self._limits.interval_ms / 1000
        self._next_garbage = tiers.clock.monotonic() + self._limits.garbage_interval_ms / 1000
        self.save_catalogue: Callable[[], object] = lambda: None
        """Called at the end of each round; a node writes its catalogues."""
        self._failing: set[str] = set()
        """What failed the last time: it is logged once."""

    def run_if_due(self) -> None:
        """Do a round when it is time; while another thread does one, nothing."""
        if self._tiers.clock.monotonic() < self._next or not self._working.acquire(blocking=False):
            return
        try:
            self._next = self._tiers.clock.monotonic() + self._limits.interval_ms / 1000
            garbage = self._tiers.clock.monotonic() >= self._next_garbage
            self._run(garbage=garbage)
        finally:
            self._working.release()

    def run_once(self) -> TierReport:
        """Do everything now."""
        with self._working:
            return self._run(garbage=True)

    def _run(self, *, garbage: bool) -> TierReport:
        report = TierReport()
        for shard in self._tiers.shards():
            self._try(report, shard.name, partial(self._keep, shard, garbage))
        if garbage:
            pause_s = self._limits.garbage_interval_ms / 1000
            self._next_garbage = self._tiers.clock.monotonic() + pause_s
            for provider in self._tiers.providers():
                self._try(report, provider.url, partial(self._remove_dead, report, provider))
        self._try(report, "catalogue", self.save_catalogue)
        self._try(report, "scrubber", self._scrubber.step)
        return report

    def _keep(self, shard: ShardId, garbage: bool) -> None:
        flat, config = self._tiers.flat(shard), self._tiers.config_of(shard)
        if flat is None or config is None:
            return
        if flat.epoch is None:
            flat.refresh()  # another process uploads: reads of this one must see what it added
        if flat.current() is None:
            return
        if config.cleanup.deletes:
            expire(flat, config)
        flat.upkeep.seal()
        tiering = config.tiering
        if flat.epoch is not None or (tiering is not None and tiering.uploader == "broker"):
            rewrite_segments(flat)
        if garbage:
            with flat.upload_lock:  # what this process has put and not listed yet is not garbage
                report = flat.upkeep.collect_garbage()
            self._metrics.deleted_objects.inc(report.deleted)

    def _remove_dead(self, report: TierReport, provider: TierProvider) -> None:
        """Remove what deleted topics and interrupted uploads left, after their grace period."""
        # Here, so that a store without a tier does not load it.
        from penstock.tiered.composite_flat_file import CompositeFlatFile

        with closing(self._tiers.config.fetcher(provider)) as fetcher:
            for shard in shards_in(provider):
                flat = CompositeFlatFile(
                    self._tiers.config,
                    shard,
                    provider=provider,
                    fetcher=fetcher,
                    clock=self._tiers.clock,
                )
                name = f"{provider.url}/{shard.name}"
                self._try(report, name, partial(_finish_destroyed, flat))
        remove_leftovers(provider, self._tiers.clock.expiry_ms() - self._tiers.config.grace_ms)

    def _try(self, report: TierReport, name: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - an error in one shard must not stop the others
            report.failed[name] = str(error)
            if name not in self._failing:
                _log.warning("tier_upkeep_failed", what=name, reason=str(error))
            self._failing.add(name)
        else:
            self._failing.discard(name)


def _finish_destroyed(flat: CompositeFlatFile) -> None:
    manifest = flat.manifest.load()
    if manifest is None or manifest.destroyed_ms is None or flat.manifest.is_foreign(manifest):
        return
    flat.destroy()


def expire(flat: CompositeFlatFile, config: ShardConfig) -> None:
    """Drop what a shard's retention does not keep."""
    kept_ms = kept_in_tier_ms(config, flat)
    if kept_ms is not None:
        flat.clean_expired_file(flat.clock.expiry_ms() - kept_ms)
    if config.retention_bytes is not None:
        flat.upkeep.expire_size(config.retention_bytes)
    if config.retention_records is not None:
        flat.upkeep.truncate_before(flat.commit_offset - config.retention_records)


def kept_in_tier_ms(config: ShardConfig, flat: CompositeFlatFile) -> int | None:
    """Return how long a tier keeps the records of a shard; None: without a limit. The reserve time
    in the metadata store comes first, then the tiering policy, then the topic's retention."""
    reserve_ms = flat.metadata.reserve_ms()
    if reserve_ms is not None:
        return reserve_ms
    tiering, kept_ms = config.tiering, config.retention_ms
    if tiering is not None and tiering.retention_ms is not None:
        kept_ms = tiering.retention_ms
    return None if kept_ms == FOREVER_MS else kept_ms


def shards_in(provider: TierProvider) -> list[ShardId]:
    """Return every shard that a tier has a manifest of."""
    parsed = (parse_manifest_key(info.key) for info in provider.list())
    return sorted(shard for shard in parsed if shard is not None)


def flat_files_of(
    config: TierConfig,
    provider: TierProvider,
    only: ShardId | None = None,
    unreadable: list[StoreError] | None = None,
) -> Iterator[CompositeFlatFile]:
    """Yield a flat file, for reading and upkeep, of every shard in a tier, or of one. With a list
    for what is `unreadable`, shards whose manifest is damaged are passed over and noted there."""
    from penstock.tiered.composite_flat_file import CompositeFlatFile

    fetcher = config.fetcher(provider)
    try:
        for shard in shards_in(provider):
            if only is not None and shard != only:
                continue
            flat = CompositeFlatFile(config, shard, provider=provider, fetcher=fetcher)
            try:
                manifest = flat.manifest.load()
            except (CorruptionError, NotSupportedError) as error:
                if unreadable is None:
                    raise
                unreadable.append(error)
                continue
            kind = flat.kind if manifest is None else manifest.kind
            yield CompositeFlatFile(config, shard, kind, provider=provider, fetcher=fetcher)
    finally:
        fetcher.close()
