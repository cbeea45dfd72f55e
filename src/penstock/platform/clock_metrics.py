"""What a scrape learns of a node's clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.platform.clock_guard import GuardedClock


class ClockMetrics(Collector):
    def __init__(self, clock: GuardedClock, registry: CollectorRegistry) -> None:
        self._clock: Final = clock
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        status = self._clock.status()
        yield GaugeMetricFamily(
            "penstock_clock_held",
            "1 while the clock is not believed and nothing is deleted by age",
            value=int(status.held),
        )
        yield GaugeMetricFamily(
            "penstock_clock_offset_seconds",
            "how far the clock is from where it was expected",
            value=status.offset_ms / 1000,
        )
