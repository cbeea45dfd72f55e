"""The replication of a node, as metrics with bounded labels.

Computed by each scrape. The lag of a follower in a topic is the largest over the shards that this
node leads; topics beyond the `TOPICS_MAX` with the largest lag are `other`. The counts of shards
are of those that this node leads, or has a replica of when none leads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.engine.replication.counts import ReplicationCounts
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.meta import min_insync_of

TOPICS_MAX: Final = 50
OTHER: Final = "other"

_COUNTERS: Final = (
    ("copied_bytes", "penstock_replica_copied_bytes", "bytes of records copied from leaders"),
    ("copied_records", "penstock_replica_copied_records", "records copied from leaders"),
    (
        "catch_up_bytes",
        "penstock_replica_catch_up_bytes",
        "bytes copied of shards of which this node was not in sync: what limits apply to",
    ),
    (
        "throttled_s",
        "penstock_replica_throttled_seconds",
        "time for which the limit of copying held at least one shard back",
    ),
    ("elections", "penstock_replica_elections", "times this node began to lead a shard"),
    ("shrinks", "penstock_in_sync_shrinks", "replicas that left in-sync sets led here"),
    ("expands", "penstock_in_sync_expands", "replicas that joined in-sync sets led here"),
)
_THROTTLE: Final = (
    (
        "throttled_shards",
        "penstock_replica_throttled_shards",
        "shards that the limit of copying holds back now",
    ),
    (
        "catch_up_limit",
        "penstock_replica_catch_up_limit_bytes",
        "smallest limit of copying that counts now, in bytes per second; 0: none",
    ),
)
_GAUGES: Final = (
    ("under_replicated", "shards led here with fewer replicas in sync than they have"),
    ("at_risk", "shards led here that accept no writes, or none after the loss of one replica"),
    ("offline", "shards with a replica here that no node leads"),
)


class Replication(Protocol):
    """The `Replicator`, as its metrics see it."""

    @property
    def counts(self) -> ReplicationCounts: ...

    def follower_lags(self) -> dict[str, dict[int, int]]:
        """Return how many records each follower lacks, by shard and node, where this node leads."""
        ...


class ReplicationMetrics(Collector):
    """A node without a cluster shows zeros."""

    def __init__(
        self,
        replication: Replication | None,
        cache: StorageCacheManager,
        node_id: int,
        registry: CollectorRegistry,
    ) -> None:
        self._replication: Final = replication
        self._cache: Final = cache
        self._node_id: Final = node_id
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        replication = self._replication
        counts = ReplicationCounts() if replication is None else replication.counts
        for field, name, meaning in _COUNTERS:
            counter = CounterMetricFamily(name, meaning)
            counter.add_metric([], getattr(counts, field))
            yield counter
        for field, name, meaning in _THROTTLE:
            limit = GaugeMetricFamily(name, meaning)
            limit.add_metric([], getattr(counts, field))
            yield limit
        states = [self._state(entry) for entry in self._cache.entries() if entry.is_replicated]
        for name, meaning in _GAUGES:
            gauge = GaugeMetricFamily(f"penstock_shards_{name}", meaning)
            gauge.add_metric([], sum(name in state for state in states))
            yield gauge
        yield self._lags({} if replication is None else replication.follower_lags())

    def _state(self, entry: ShardEntry) -> tuple[str, ...]:
        shard = entry.meta
        if shard is None:
            return ()
        if shard.leader is None:
            return ("offline",) if self._node_id in shard.replicas else ()
        if shard.leader != self._node_id:
            return ()
        state: tuple[str, ...] = ()
        in_sync, replicas = len(shard.in_sync), len(shard.replicas)
        if in_sync < replicas:
            state = ("under_replicated",)
            if in_sync <= min_insync_of(entry.topic.topic.config):
                state = ("under_replicated", "at_risk")
        return state

    def _lags(self, by_shard: dict[str, dict[int, int]]) -> GaugeMetricFamily:
        lags: dict[tuple[str, str], dict[int, int]] = {}
        for name, by_node in by_shard.items():
            entry = self._cache.shards.get(name)
            if entry is not None:
                topic = entry.topic.topic
                known = lags.setdefault((topic.namespace, topic.name), {})
                _raise_to(known, by_node)
        largest = sorted(lags, key=lambda topic: (-max(lags[topic].values(), default=0), topic))
        shown: dict[tuple[str, str], dict[int, int]] = {}
        for number, name_of in enumerate(largest):
            key = name_of if number < TOPICS_MAX else ("", OTHER)
            _raise_to(shown.setdefault(key, {}), lags[name_of])
        family = GaugeMetricFamily(
            "penstock_replica_lag_records",
            "records that a follower lacks in the shards led here, the most of one shard",
            labels=["namespace", "topic", "node"],
        )
        for (namespace, name), by_node in sorted(shown.items()):
            for node, lag in sorted(by_node.items()):
                family.add_metric([namespace, name, str(node)], lag)
        return family


def _raise_to(known: dict[int, int], lags: dict[int, int]) -> None:
    for node, lag in lags.items():
        known[node] = max(known.get(node, 0), lag)
