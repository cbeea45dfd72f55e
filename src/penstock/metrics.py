"""Every metric of the store, in one table.

A component takes the object, not the registry: its constructor then says what it measures, two
stores in one process do not collide, and a test reads the numbers without a global. Names carry
their unit; labels are bounded sets, never a shard, a key or a client id.

Hot paths do not count one record at a time: appended records and bytes are taken from the store's
own counters when somebody looks (`watch_appends`), because an `inc` costs more than an append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_FLUSH_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class SegmentMetrics:
    """What one segment store measures."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Without a registry the numbers go to one of the object's own, that nobody exports."""
        self.registry: Final = registry if registry is not None else CollectorRegistry()
        self._appends = _Appends()
        self.registry.register(self._appends)
        self.flush_seconds = self._histogram(
            "flush_seconds", "time of one sync of the commit log", _FLUSH_SECONDS
        )
        self.flushed_bytes = self._counter("flushed_bytes", "bytes of the log put on the device")
        self.writers_waiting = self._gauge("writers_waiting", "appends queued behind the writer")
        self.damaged_reads = self._counter(
            "damaged_reads", "reads that met a record which fails its checks"
        )
        self.recovery_seconds = self._gauge("recovery_seconds", "time the last start took")
        self.recovery_records = self._gauge("recovery_records", "records the last start looked at")
        self.recovery_cut_bytes = self._counter(
            "recovery_cut_bytes", "bytes of torn tail that starts have cut"
        )
        self.rebuilt_files = self._counter(
            "rebuilt_files", "queue and index files built again from the log"
        )
        self.deleted_files = self._counter("deleted_files", "log files removed by retention")
        self.deleted_bytes = self._counter("deleted_bytes", "bytes removed by retention")
        self.mapped_bytes = self._gauge("mapped_bytes", "bytes of files mapped into memory")
        self.log_bytes = self._gauge("log_bytes", "bytes between the first and the last record")
        self.disk_used_ratio = self._gauge(
            "disk_used_ratio", "how full the log's file system is, 0 to 1"
        )
        self.writes_refused = Counter(
            "penstock_segment_writes_refused",
            "appends refused because the store cannot take them",
            ["cause"],  # disk_full, disk_failed, busy, too_large
            registry=self.registry,
        )
        self.dispatch_lag_records = Gauge(
            "penstock_segment_dispatch_lag_records",
            "records that a dispatcher has not seen, over all shards",
            ["dispatcher"],
            registry=self.registry,
        )
        self.dispatch_failures = Counter(
            "penstock_segment_dispatch_failures",
            "batches that a dispatcher raised on, to be tried again",
            ["dispatcher"],
            registry=self.registry,
        )

    def watch_appends(self, totals: Callable[[], tuple[int, int]]) -> None:
        """Read (records, bytes) appended since the start from `totals` at every scrape."""
        self._appends.totals = totals

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"penstock_segment_{name}", meaning, registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"penstock_segment_{name}", meaning, registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"penstock_segment_{name}", meaning, buckets=buckets, registry=self.registry
        )


class _Appends(Collector):
    def __init__(self) -> None:
        self.totals: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def collect(self) -> Iterator[Metric]:
        records, size = self.totals()
        yield CounterMetricFamily(
            "penstock_segment_appended_records", "records appended", value=records
        )
        yield CounterMetricFamily("penstock_segment_appended_bytes", "bytes appended", value=size)
