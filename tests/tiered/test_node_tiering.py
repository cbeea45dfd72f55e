"""Topics with tiering, through `penstock.open`: the log is a window, the topic is all of it."""

from __future__ import annotations

from pathlib import Path

from tests.tiered.cold_engines import BatchColdHarness, ColdEngine

import penstock
from penstock.meta.state.model import TieringPolicy
from penstock.node import Node
from penstock.record import Offset, ShardId
from penstock.settings import EMBEDDED, merge_settings
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.providers import open_provider

SMALL = {
    "broker__commit_log_file_size": 1 << 16,
    "tiering__chunk_size": 8192,
    "tiering__segment_size": 40_000,
    "tiering__upload_interval_ms": 50,
}


def engine_of(node: Node) -> TieredSegmentEngine:
    engine = node.engines.opened()["EngineSegment"]
    assert isinstance(engine, TieredSegmentEngine)
    return engine


def shard_of(node: Node) -> ShardId:
    (shard,) = engine_of(node).list_shard()
    return shard


def test_a_topic_outlives_its_log(tmp_path: Path) -> None:
    policy = TieringPolicy(local_retention_bytes=20_000)
    with penstock.open(str(tmp_path / "data"), **SMALL) as store:
        topic = store.create_topic("orders", tiering=policy)
        for n in range(0, 2000, 100):
            topic.write_many(
                [
                    penstock.Record(f"value {n + i}".encode() * 5, key=f"k{(n + i) % 9}".encode())
                    for i in range(100)
                ]
            )
        store.run_upkeep()
        store.run_upkeep()
    with Node(str(tmp_path / "data"), merge_settings(EMBEDDED, SMALL)) as node:
        engine, shard = engine_of(node), shard_of(node)
        local = engine.store.bounds(shard)
        assert local.earliest > 1000, "the log is a window"
        info = engine.shard_info(shard)
        assert (info.earliest, info.commit) == (0, 2000)
        offset, values = 0, []
        while page := engine.read_by_offset(shard, Offset(offset), max_records=333):
            values += [record.value for record in page]
            offset = page[-1].offset + 1
        assert values == [f"value {n}".encode() * 5 for n in range(2000)]
        assert len(engine.query_by_key(shard, b"k3", limit=10_000)) == len(range(3, 2000, 9))


def test_batches_of_the_tier_are_told_from_those_of_the_log(tmp_path: Path) -> None:
    harness = BatchColdHarness(tmp_path)
    engine = harness.make()
    assert isinstance(engine, ColdEngine)
    shard = ShardId("orders", 0)
    engine.create_shard(shard, harness.base_config)
    for n in range(10):
        engine.batch_write(shard, [penstock.Record(b"%d" % n)] * 3)
    assert engine.bounds(shard) == (0, 30)
    assert engine.store.bounds(shard).earliest == 15
    page = engine.read_batches(shard, 0, 30, 1 << 20)
    assert (page.parts, page.next_offset) == ([], 0)
    assert page.foreign is not None
    assert page.foreign.end_offset == 15
    harness.close()


def test_a_deleted_topic_leaves_nothing_in_the_tier(tmp_path: Path) -> None:
    settings = {**SMALL, "tiering__grace_ms": 0}
    with penstock.open(str(tmp_path / "data"), **settings) as store:
        topic = store.create_topic("orders", tiering=TieringPolicy())
        for _ in range(3):
            topic.write_many([penstock.Record(b"x" * 100) for _ in range(100)])
        store.run_upkeep()
        tier = open_provider(f"file://{tmp_path}/data/tier")
        assert list(tier.list())
        topic.delete()
        store.run_upkeep()
        assert list(tier.list()) == []


def test_without_tiering_there_is_no_tier(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path / "data"), **SMALL) as store:
        store.create_topic("orders").write_many([penstock.Record(b"x")] * 10)
        store.run_upkeep()
    assert not (tmp_path / "data" / "tier").exists()
    assert not (tmp_path / "data" / "tier-meta").exists()
