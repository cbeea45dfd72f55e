"""The lag of consumer groups, as metrics with bounded labels.

Computed by each scrape: a commit or a write costs nothing. The lag of a group in a topic
is the sum over its partitions. Groups beyond the first `GROUPS_MAX`, by namespace and name, are
left out; `penstock_groups` counts all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.engine.handler import StorageEngineHandler
from penstock.errors import StoreError
from penstock.offsets import OffsetManager
from penstock.record import ShardId

GROUPS_MAX: Final = 200


class GroupLagMetrics(Collector):
    def __init__(
        self,
        offsets: OffsetManager,
        handler: StorageEngineHandler,
        registry: CollectorRegistry,
    ) -> None:
        self._offsets: Final = offsets
        self._handler: Final = handler
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Return the names, so that registering does not read anything."""
        return [_count_family(), _lag_family()]

    def collect(self) -> Iterator[Metric]:
        try:
            groups = self._offsets.list_groups()
        except StoreError:
            return  # the node is stopping
        count = _count_family()
        count.add_metric([], len(groups))
        yield count
        family = _lag_family()
        for group in groups[:GROUPS_MAX]:
            lags: Counter[str] = Counter()
            try:
                committed = self._offsets.read_offsets(group.group, namespace=group.namespace)
            except StoreError:
                continue
            for shard, position in committed.items():
                end = self._end_of(shard)
                if end is not None:
                    lags[shard.topic] += max(0, end - position.offset)
            for topic_id, lag in sorted(lags.items()):
                name = self._handler.cache.topics[topic_id].topic.name
                family.add_metric([group.namespace, group.group, name], lag)
        yield family

    def _end_of(self, shard: ShardId) -> int | None:
        """Return the end of a shard; None when it was deleted."""
        if shard.topic not in self._handler.cache.topics:
            return None
        try:
            return self._handler.bounds(self._handler.find(shard.name))[1]
        except StoreError:
            return None


def _count_family() -> GaugeMetricFamily:
    return GaugeMetricFamily("penstock_groups", "groups of consumers with offsets")


def _lag_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "penstock_group_lag_records",
        "records that a group has not read yet",
        labels=["namespace", "group", "topic"],
    )
