"""Engines that evict: the oldest records go at a limit, and nothing else changes."""

from __future__ import annotations

import pytest

from penstock.engine.contract import StorageEngine
from penstock.record import Record, ShardId
from penstock.testing.conformance.harness import (
    Conformance,
    EngineHarness,
    offsets,
    put,
    read_all,
)

SMALL = ShardId("small", 0)


class Bounded(Conformance):
    @pytest.fixture
    def small(self, harness: EngineHarness, engine: StorageEngine) -> ShardId:
        if not harness.capabilities.evicts:
            pytest.skip("this engine does not claim to evict")
        engine.create_shard(SMALL, harness.config(memory_records_max=100))
        return SMALL

    def test_a_full_shard_drops_its_oldest_records(
        self, engine: StorageEngine, small: ShardId
    ) -> None:
        for number in range(1_000):
            put(engine, Record(value=b"v", key=b"%d" % number, tags=("t",)), shard=small)
            info = engine.shard_info(small)
            kept = offsets(read_all(engine, small))
            assert info.latest == number + 1
            assert kept == list(range(info.earliest, number + 1))
            assert len(kept) <= 100
            assert len(kept) >= min(number + 1, 80)

    def test_dropped_records_are_gone_from_every_read(
        self, engine: StorageEngine, small: ShardId
    ) -> None:
        records = [Record(value=b"v", key=b"%d" % n, tags=("t",)) for n in range(150)]
        put(engine, *records, shard=small)
        earliest = engine.shard_info(small).earliest
        assert earliest > 0
        assert offsets(engine.read_by_tag(small, "t"))[0] == earliest
        assert engine.read_by_key(small, b"%d" % (earliest - 1)) is None
        assert engine.read_by_key(small, b"%d" % earliest) is not None
