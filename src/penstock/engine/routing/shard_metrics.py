"""What the shards were asked for, as metrics with bounded labels.

Counters live in the shards' entries and are added up when metrics are collected; a write or read
costs no metric. Labels are the storage type and, for the busiest `TOPICS_MAX` topics, the topic's
namespace and name; all others are summed up as `other`, without a namespace, so that ten thousand
topics do not make ten thousand series. One shard's own numbers are in its entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager

TOPICS_MAX: Final = 50
OTHER: Final = "other"

_COUNTERS: Final = (
    ("writes", "calls that wrote to a shard"),
    ("records_written", "records written"),
    ("reads", "calls that read from a shard"),
    ("records_read", "records read"),
    ("errors", "writes that an engine refused"),
)


class ShardMetrics(Collector):
    def __init__(self, cache: StorageCacheManager, registry: CollectorRegistry) -> None:
        self._cache: Final = cache
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        entries = list(self._cache.entries())
        named = _busiest(entries)
        for name, meaning in _COUNTERS:
            sums: Counter[tuple[str, str, str]] = Counter()
            for entry in entries:
                sums[_labels(entry, named)] += getattr(entry, name)
            family = CounterMetricFamily(
                f"penstock_shard_{name}", meaning, labels=["storage_type", "namespace", "topic"]
            )
            for labels, total in sorted(sums.items()):
                family.add_metric(labels, total)
            yield family
        shards = GaugeMetricFamily("penstock_shards", "shards known here", labels=["storage_type"])
        for storage_type, count in sorted(
            Counter(entry.topic.storage_type for entry in entries).items()
        ):
            shards.add_metric([storage_type], count)
        yield shards


def _busiest(entries: list[ShardEntry]) -> set[str]:
    by_topic: Counter[str] = Counter()
    for entry in entries:
        by_topic[entry.id.topic] += entry.records_written + entry.records_read
    return {topic for topic, _ in by_topic.most_common(TOPICS_MAX)}


def _labels(entry: ShardEntry, named: set[str]) -> tuple[str, str, str]:
    if entry.id.topic not in named:
        return entry.topic.storage_type, "", OTHER
    topic = entry.topic.topic
    return entry.topic.storage_type, topic.namespace, topic.name
