"""Metrics of the MQTT front end, with bounded labels.

The event loop counts in plain numbers, and a scrape reads them. Labels are names of packets and of
reason codes, of which there is a fixed number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

Source = Callable[[], Iterator[Metric]]


class MqttMetrics(Collector):
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.publishes_received = 0
        self.publish_bytes_received = 0
        self.repeated_qos2 = 0
        self.connects = 0
        self.connections: Callable[[], int] = lambda: 0
        self.retained: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Topics and bytes."""
        self.sources: Final[list[Source]] = []
        """Further metrics, of other parts of the front end."""
        self._refused: Final[Counter[int]] = Counter()
        self._refused_connects: Final[Counter[int]] = Counter()
        self._disconnects: Final[Counter[int]] = Counter()
        if registry is not None:
            registry.register(self)

    # Counting

    def count_refused(self, reason_code: int) -> None:
        """Count a publish that was not stored."""
        self._refused[reason_code] += 1

    def count_refused_connect(self, reason_code: int) -> None:
        self._refused_connects[reason_code] += 1

    def count_disconnect(self, reason_code: int) -> None:
        """Count a connection that the server ended."""
        self._disconnects[reason_code] += 1

    # Showing

    def collect(self) -> Iterator[Metric]:
        topics, size = self.retained()
        for name, meaning, value in (
            ("connections", "clients that are connected", self.connections()),
            ("retained_topics", "topics with a retained message", topics),
            ("retained_bytes", "bytes of retained messages in memory", size),
        ):
            yield GaugeMetricFamily(f"penstock_mqtt_{name}", meaning, value=value)
        for name, meaning, value in (
            ("connects", "clients that were accepted", self.connects),
            ("publishes_received", "publishes that were accepted", self.publishes_received),
            (
                "publish_received_bytes",
                "bytes of topics and payloads of accepted publishes",
                self.publish_bytes_received,
            ),
            (
                "repeated_publishes",
                "QoS 2 publishes that were received again and not stored again",
                self.repeated_qos2,
            ),
        ):
            yield CounterMetricFamily(f"penstock_mqtt_{name}", meaning, value=value)
        for name, meaning, counts in (
            ("publishes_refused", "publishes that were not stored", self._refused),
            ("connects_refused", "clients that were refused", self._refused_connects),
            ("disconnects", "connections that the server ended", self._disconnects),
        ):
            family = CounterMetricFamily(f"penstock_mqtt_{name}", meaning, labels=["reason"])
            for code, count in sorted(dict(counts).items()):
                family.add_metric([_name_of(code)], count)
            yield family
        for source in self.sources:
            yield from source()


def _name_of(code: int) -> str:
    try:
        return ReasonCode(code).name.lower()
    except ValueError:
        return "unknown"
