"""A tier that is gone for minutes: writes go on, it is asked ever less often, one warning and the
metrics say so, nothing that it lacks is removed, and what it missed is uploaded by itself."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.tiered.providers.faulty_provider import FaultyProvider
from tests.tiered.rig import SHARD, open_store, read_all, record

from penstock.engine.contract import ShardConfig, ShardTiering
from penstock.errors import TierUnavailableError
from penstock.record import Offset
from penstock.testing.manual_clock import ManualClock
from penstock.tiered.build import build_tiered_engine
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.maintenance.upkeep import TierLimits
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.upload.dispatcher import RETRY_MAX_S

OUTAGE_S = 600
STEP_S = 5
DEADLINE_S = 180.0


class Outage:
    """An engine on a tier that can be taken away."""

    def __init__(self, path: Path, clock: ManualClock | None) -> None:
        name = uuid.uuid4().hex
        self.registry = CollectorRegistry()
        self.engine: TieredSegmentEngine = build_tiered_engine(
            open_store(path / "store", background=clock is None),
            TierConfig(url=f"memory://{name}", chunk_size=2000),
            metadata_path=f"{path}/tier-meta",
            limits=TierLimits(upload_interval_ms=1000, scrub_size=0),
            metrics=TierMetrics(self.registry),
            clock=clock,
            background=clock is None,
        )
        tiering = ShardTiering(local_retention_bytes=1)
        self.engine.create_shard(SHARD, ShardConfig(tiering=tiering))
        self.provider = FaultyProvider(MemoryProvider(name))
        self.flat = self.engine.tiers.flat(SHARD)
        assert self.flat is not None
        self.flat.manifest.provider = self.flat.provider = self.provider  # type: ignore[misc]  # a fault is put in
        self.flat.fetcher.provider = self.provider  # type: ignore[misc]  # a fault is put in
        self.written = 0

    def write(self) -> None:
        self.engine.store.append(SHARD, record(self.written, 300))
        self.written += 1

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(f"penstock_tier_{name}") or 0.0

    def earliest(self) -> int:
        self.engine.store.retention.run()
        return int(self.engine.store.bounds(SHARD).earliest)

    def check_all_is_there_once(self) -> None:
        found = self.engine.read_by_offset(SHARD, Offset(0), max_records=10_000)
        assert [one.offset for one in found] == [*range(self.written)]
        assert self.flat is not None
        assert [one.offset for one in read_all(self.flat)] == [*range(self.written)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def outage(tmp_path: Path, clock: ManualClock) -> Iterator[Outage]:
    made = Outage(tmp_path, clock)
    yield made
    made.engine.close()


def test_ten_minutes_without_a_tier_lose_nothing_and_are_caught_up_with(
    outage: Outage, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.tiered")
    dispatcher = outage.engine.dispatcher
    for _ in range(400):
        outage.write()
    dispatcher.run_once(force=True)
    assert outage.earliest() > 0, "the log lets go of what the tier holds"
    outage.provider.is_gone = True
    tried_at: list[float] = []
    gone_at = clock.monotonic()
    while clock.monotonic() < gone_at + OUTAGE_S:
        outage.write()
        dispatcher.advance(SHARD, outage.written - 1, outage.written)
        if dispatcher.run_once():
            tried_at.append(clock.monotonic() - gone_at)
        clock.advance(STEP_S)
    pauses = [after - before for before, after in pairwise(tried_at)]
    assert pauses == sorted(pauses), "ever less often"
    assert pauses[0] == STEP_S
    assert pauses[-1] == RETRY_MAX_S
    assert len(tried_at) < 20
    assert caplog.messages.count("tier_upload_failed") == 1, "one warning says so"
    assert outage.metric("failing_shards") == 1
    assert outage.metric("upload_failures_total") == len(tried_at)
    assert outage.earliest() <= 400, "the tier lacks what lies behind"
    assert outage.engine.store.read(SHARD, outage.written - 1), "the log still serves it"
    with pytest.raises(TierUnavailableError):
        outage.engine.read_by_offset(SHARD, Offset(0), max_records=1)
    outage.provider.is_gone = False
    clock.advance(RETRY_MAX_S)
    dispatcher.run_once()
    assert dispatcher.failures() == {}
    assert outage.metric("failing_shards") == 0
    assert "tier_reached_again" in caplog.messages
    assert outage.earliest() > 400
    outage.check_all_is_there_once()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_three_real_minutes_without_a_tier_are_caught_up_with(tmp_path: Path) -> None:
    outage = Outage(tmp_path, None)
    dispatcher = outage.engine.dispatcher
    try:
        for _ in range(400):
            outage.write()
        wait_for(lambda: outage.engine.tiers.bounds(SHARD)[1] == 400)
        assert outage.earliest() > 0
        outage.provider.is_gone = True
        ends_at = time.monotonic() + 180
        while time.monotonic() < ends_at:
            outage.write()
            time.sleep(0.2)
            assert outage.earliest() <= 400
        assert SHARD in dispatcher.failures()
        assert 5 <= outage.metric("upload_failures_total") < 20
        outage.provider.is_gone = False
        wait_for(lambda: outage.engine.tiers.bounds(SHARD)[1] == outage.written)
        wait_for(lambda: not dispatcher.failures())
        assert outage.earliest() > 400
        outage.check_all_is_there_once()
    finally:
        outage.engine.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
