"""Every metric of the store, in one table.

A component takes the object, not the registry: its constructor then says what it measures, two
stores in one process do not collide, and a test reads the numbers without a global. Names carry
their unit; labels are bounded sets, never a shard, a key or a client id.

Hot paths do not count one record at a time: sizes of the log are taken from the store itself when
they are read (`watch_log`), because an `inc` costs more than an append. Records are counted by
shard (`penstock_shard_records_written`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_FLUSH_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

REFUSAL_CAUSES: Final = ("busy", "disk_failed", "disk_full")


class LogPositions(NamedTuple):
    """Where a log begins, until where it is on the device, where it ends, and what is mapped."""

    start: int = 0
    durable: int = 0
    end: int = 0
    mapped: int = 0
    """Bytes of its files that are mapped into memory."""


class SegmentMetrics:
    """What one segment store measures."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Without a registry the metrics go to a private one, which is not exported."""
        self.registry: Final = registry if registry is not None else CollectorRegistry()
        self._log = _LogSizes()
        self.registry.register(self._log)
        self.flush_seconds = self._histogram(
            "flush_seconds", "time of one sync of the commit log", _FLUSH_SECONDS
        )
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
        self.disk_used_ratio = self._gauge(
            "disk_used_ratio", "how full the log's file system is, 0 to 1"
        )
        self.writes_refused = Counter(
            "penstock_segment_writes_refused",
            "appends refused because the store cannot take them",
            ["cause"],
            registry=self.registry,
        )
        for cause in REFUSAL_CAUSES:
            self.writes_refused.labels(cause)  # a rate needs the 0 before the first refusal
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

    def watch_log(self, positions: Callable[[], LogPositions]) -> None:
        """Read where the log begins and ends from `positions` at every scrape, from now on."""
        self._log.watch(positions)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"penstock_segment_{name}", meaning, registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"penstock_segment_{name}", meaning, registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"penstock_segment_{name}", meaning, buckets=buckets, registry=self.registry
        )


class _LogSizes(Collector):
    def __init__(self) -> None:
        self._positions: Callable[[], LogPositions] = LogPositions
        self._first = LogPositions()
        self._appended = self._flushed = 0

    def watch(self, positions: Callable[[], LogPositions]) -> None:
        """A store that is opened again adds to what the one before has counted."""
        self._update()
        self._first = positions()
        self._first = LogPositions(
            0, self._first.durable - self._flushed, self._first.end - self._appended
        )
        self._positions = positions

    def _update(self) -> LogPositions:
        # A log that was cut does not take back what was counted.
        now = self._positions()
        self._appended = max(self._appended, now.end - self._first.end)
        self._flushed = max(self._flushed, now.durable - self._first.durable)
        return now

    def collect(self) -> Iterator[Metric]:
        now = self._update()
        yield CounterMetricFamily(
            "penstock_segment_appended_bytes", "bytes appended to the log", value=self._appended
        )
        yield CounterMetricFamily(
            "penstock_segment_flushed_bytes",
            "bytes of the log put on the device",
            value=self._flushed,
        )
        yield GaugeMetricFamily(
            "penstock_segment_log_bytes",
            "bytes between the first and the last record",
            value=now.end - now.start,
        )
        yield GaugeMetricFamily(
            "penstock_segment_mapped_bytes", "bytes of the log mapped into memory", value=now.mapped
        )
