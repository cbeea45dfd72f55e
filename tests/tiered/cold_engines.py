"""Engines whose log forgets at once what the tier holds: every read crosses the seam, or lies
behind it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from penstock.engine.contract import RECORD_SIZE_MAX, ShardConfig, StorageEngine, Written
from penstock.engine.segment.engine import RECORD_OVERHEAD_MAX
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Producer, QueueKind, Record, ShardId
from penstock.testing.conformance.engines import SMALL_SIZES, SegmentHarness
from penstock.tiered.build import build_tiered_engine
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.maintenance.upkeep import TierLimits


class ColdEngine(TieredSegmentEngine):
    """After each write the tier gets everything, and the log lets go of it, or of half of it."""

    share = 1.0

    def write(self, shard: ShardId, record: Record, *, producer: Producer | None = None) -> Written:
        written = super().write(shard, record, producer=producer)
        self.chill(shard)
        return written

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        written = super().batch_write(shard, records, producer=producer)
        self.chill(shard)
        return written

    def chill(self, shard: ShardId) -> None:
        self.dispatcher.upload(shard)
        held = self.dispatcher.keep_from(shard)
        assert held is not None
        self.store.delete_before(shard, int(held * self.share))


class HalfColdEngine(ColdEngine):
    share = 0.5


class ColdHarness(SegmentHarness):
    engine_class: type[ColdEngine] = ColdEngine
    base_config = ShardConfig()
    upload_window = 4

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._tier = uuid.uuid4().hex

    def make(self) -> StorageEngine:
        settings = SegmentSettings(
            sizes=SMALL_SIZES,
            record_size_max=RECORD_SIZE_MAX + RECORD_OVERHEAD_MAX,
            background=False,
        )
        store = SegmentStore.open(str(self._directory), settings, clock=self.clock)
        engine = build_tiered_engine(
            store,
            TierConfig(
                url=f"memory://{self._tier}",
                chunk_size=4096,
                segment_size=20_000,
                upload_window=self.upload_window,
            ),
            metadata_path=f"{self._directory}-tier",
            limits=TierLimits(all_shards=True),
            clock=self.clock,
            background=False,
        )
        engine.__class__ = self.engine_class
        self._engine = engine
        return engine


class HalfColdHarness(ColdHarness):
    engine_class = HalfColdEngine
    upload_window = 1
    """Without threads, of which small chunks need thousands; the other harnesses have them."""


class BatchColdHarness(ColdHarness):
    engine_class = HalfColdEngine
    base_config = ShardConfig(kind=QueueKind.BATCH)
