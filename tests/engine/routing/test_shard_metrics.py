"""Shards are counted without a series for each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from tests.adapter.bench import Bench

from penstock.engine.routing.shard_metrics import TOPICS_MAX, ShardMetrics
from penstock.record import Offset, Record


def test_what_shards_were_asked_for_is_summed_up_by_topic() -> None:
    with Bench() as bench:
        registry = CollectorRegistry()
        ShardMetrics(bench.storage_cache, registry)
        bench.create("orders", 3)
        bench.manager.batch_write("orders", [Record(b"v")] * 10)
        bench.manager.read_by_offset("orders", 0, Offset(0))
        labels = {"storage_type": "EngineMemory", "namespace": "default", "topic": "orders"}
        assert registry.get_sample_value("penstock_shard_records_written_total", labels) == 10
        assert registry.get_sample_value("penstock_shard_writes_total", labels) == 3
        assert registry.get_sample_value("penstock_shard_records_read_total", labels) == 4
        assert registry.get_sample_value("penstock_shards", {"storage_type": "EngineMemory"}) == 3


def test_many_topics_do_not_make_many_series() -> None:
    with Bench() as bench:
        registry = CollectorRegistry()
        ShardMetrics(bench.storage_cache, registry)
        for number in range(2 * TOPICS_MAX):
            bench.create(f"topic-{number}")
            bench.manager.write(f"topic-{number}", Record(b"v"))
        bench.manager.write("topic-77", Record(b"v"))
        text = generate_latest(registry).decode()
        series = [x for x in text.splitlines() if x.startswith("penstock_shard_writes_total{")]
        assert len(series) == TOPICS_MAX + 1
        assert any('topic="topic-77"' in line for line in series)
        others = {"storage_type": "EngineMemory", "namespace": "", "topic": "other"}
        written = registry.get_sample_value("penstock_shard_records_written_total", others)
        assert written == TOPICS_MAX
