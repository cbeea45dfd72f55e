"""The storage contract holds when records are in the tier, in the log, or in both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.engine.quick_directory import quick_directory
from tests.tiered.cold_engines import BatchColdHarness, ColdHarness, HalfColdHarness

from penstock.engine.contract import Cleanup, ShardConfig
from penstock.record import Record, ShardId
from penstock.testing.conformance import EngineConformance, EngineHarness

COLD: Final[dict[str, Callable[[Path], EngineHarness]]] = {
    "cold": ColdHarness,
    "half-cold": HalfColdHarness,
    "batch-cold": BatchColdHarness,
}


class TestColdEngines(EngineConformance):
    @pytest.fixture(
        params=[
            "half-cold",
            pytest.param("cold", marks=pytest.mark.soak),
            pytest.param("batch-cold", marks=pytest.mark.soak),
        ]
    )
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        with quick_directory() as directory:
            yield COLD[request.param](Path(directory))


def test_young_records_are_waited_for_also_when_only_the_tier_holds_them() -> None:
    with quick_directory() as directory:
        harness = ColdHarness(Path(directory))
        engine = harness.make()
        shard = ShardId("compacted", 0)
        engine.create_shard(shard, ShardConfig(cleanup=Cleanup.COMPACT, compaction_lag_ms=100))
        for value in (b"1", b"2"):
            engine.write(shard, Record(value, key=b"k"))
        waits = engine.compact(shard)
        assert (waits.records, waits.again_ms) == (0, harness.clock.now_ms() + 100)
        harness.clock.advance(milliseconds=100)
        done = engine.compact(shard)
        assert (done.records, done.again_ms) == (1, None)
        engine.close()
