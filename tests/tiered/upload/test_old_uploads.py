"""Tiers that were uploaded before uploads knew of transactions: they may hold aborted records, and
compaction must not take these for the newest of their keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.kafka.wire.batch_oracle import batch_of
from tests.tiered.rig import SHARD, memory_config, open_store

from penstock.codec.select import IS_NATIVE
from penstock.engine.contract import Cleanup, ShardConfig, ShardTiering
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.meta.state.transactions.commands import AbortedRange
from penstock.record import Offset, QueueKind, StoredRecord
from penstock.tiered.build import build_tiered_engine
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.maintenance.upkeep import TierLimits

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason="batches of Kafka's need the extension")

COMMITTED, ABORTED = 7, 8
"""Ids of two producers."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TieredSegmentEngine]:
    engine = build_tiered_engine(
        open_store(tmp_path / "store"),
        memory_config(chunk_size=400, segment_size=800),
        metadata_path=f"{tmp_path}/tier-meta",
        limits=TierLimits(scrub_size=0),
        background=False,
    )
    config = ShardConfig(
        kind=QueueKind.BATCH, cleanup=Cleanup.COMPACT, tiering=ShardTiering(), compaction_lag_ms=0
    )
    engine.create_shard(SHARD, config)
    yield engine
    engine.close()


def write(engine: TieredSegmentEngine, key: bytes, value: bytes | None, producer: int) -> None:
    stored = StoredRecord(Offset(0), value, key, (), (), 1000, None, 1000, 0)
    body = batch_of([stored], "", (producer, 0, 0))
    engine.write_batch(SHARD, body, 1, timestamp_ms=1000)


def upload_as_before(engine: TieredSegmentEngine) -> None:
    """Upload whatever is in the log, and let the log forget it."""
    engine.dispatcher.log = engine.store
    engine.dispatcher.upload(SHARD)
    held = engine.dispatcher.keep_from(SHARD)
    assert held is not None
    engine.store.delete_before(SHARD, held)


def values(engine: TieredSegmentEngine) -> list[bytes | None]:
    return [one.value for one in engine.read_by_offset(SHARD, Offset(0), max_records=100)]


def abort(engine: TieredSegmentEngine, first: int, last: int) -> None:
    engine.limits = StableOffsets()
    engine.limits.load_aborted([AbortedRange(SHARD.name, first, ABORTED, last)])


@pytest.mark.parametrize("value", [b"aborted", None])
@pytest.mark.parametrize("in_log", [True, False])
def test_an_aborted_record_never_wins_over_a_committed_one(
    engine: TieredSegmentEngine, value: bytes | None, in_log: bool
) -> None:
    write(engine, b"k", b"old", COMMITTED)
    write(engine, b"k", b"committed", COMMITTED)
    write(engine, b"k", value, ABORTED)
    if not in_log:
        write(engine, b"end", b"of it", COMMITTED)
    upload_as_before(engine)
    if in_log:
        write(engine, b"end", b"of it", COMMITTED)
    assert values(engine) == [b"old", b"committed", value, b"of it"]
    abort(engine, 2, 3)
    engine.compact(SHARD)
    assert values(engine) == [b"committed", b"of it"], "and the aborted one goes"
    engine.compact(SHARD)
    engine.tier_upkeep.run_once()
    assert values(engine) == [b"committed", b"of it"]


def test_a_later_pass_does_not_prefer_an_aborted_record_either(
    engine: TieredSegmentEngine,
) -> None:
    write(engine, b"k", b"committed", COMMITTED)
    upload_as_before(engine)
    engine.compact(SHARD)
    write(engine, b"k", b"aborted", ABORTED)
    write(engine, b"end", b"of it", COMMITTED)
    upload_as_before(engine)
    abort(engine, 1, 2)
    engine.compact(SHARD)
    assert values(engine) == [b"committed", b"of it"]
