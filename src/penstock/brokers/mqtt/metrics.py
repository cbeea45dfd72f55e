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

from penstock.brokers.mqtt.deliver.context import DeliveryCounts
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.brokers.network import NetworkCounters


class MqttMetrics(Collector):
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.publishes_received = 0
        self.publish_bytes_received = 0
        self.repeated_qos2 = 0
        self.connects = 0
        self.connections: Callable[[], int] = lambda: 0
        self.retained: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Topics and bytes."""
        self.sessions: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Sessions and subscriptions."""
        self.features: Callable[[], Iterator[Metric]] | None = None
        """Metrics of the parts beyond the standard."""
        self.network = NetworkCounters()
        self.delivery = DeliveryCounts()
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
        if self.features is not None:
            yield from self.features()
        yield from self._gauges()
        yield from self._counters()
        for name, meaning, label, counts in (
            ("publishes_refused", "publishes that were not stored", "reason", self._refused),
            ("connects_refused", "clients that were refused", "reason", self._refused_connects),
            ("disconnects", "connections that the server ended", "reason", self._disconnects),
        ):
            family = CounterMetricFamily(f"penstock_mqtt_{name}", meaning, labels=[label])
            for code, count in sorted(dict(counts).items()):
                family.add_metric([_name_of(code)], count)
            yield family
        yield from self._deliveries(self.delivery)

    def _gauges(self) -> Iterator[Metric]:
        topics, size = self.retained()
        sessions, subscriptions = self.sessions()
        for name, meaning, value in (
            ("connections", "clients that are connected", self.connections()),
            ("sessions", "sessions of connected and other clients", sessions),
            ("subscriptions", "subscriptions of all sessions", subscriptions),
            ("retained_topics", "topics with a retained message", topics),
            ("retained_bytes", "bytes of retained messages in memory", size),
        ):
            yield GaugeMetricFamily(f"penstock_mqtt_{name}", meaning, value=value)

    def _counters(self) -> Iterator[Metric]:
        network = self.network
        for name, meaning, value in (
            ("connections_opened", "connections taken", network.connections_opened),
            (
                "connections_refused",
                "connections beyond a limit, or from refused addresses",
                network.connections_refused,
            ),
            ("received_bytes", "bytes from MQTT clients", network.received_bytes),
            ("sent_bytes", "bytes to MQTT clients", network.sent_bytes),
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

    def _deliveries(self, counts: DeliveryCounts) -> Iterator[Metric]:
        sent = CounterMetricFamily(
            "penstock_mqtt_messages_sent", "messages sent to subscribers", labels=["qos"]
        )
        for qos, count in enumerate((counts.sent_qos0, counts.sent_qos1, counts.sent_qos2)):
            sent.add_metric([str(qos)], count)
        yield sent
        dropped = CounterMetricFamily(
            "penstock_mqtt_messages_dropped",
            "messages that a subscriber did not get: too slow for QoS 0, larger than its limit, "
            "expired, or deleted",
            labels=["reason"],
        )
        for reason, count in (
            ("slow", counts.dropped_slow),
            ("large", counts.dropped_large),
            ("expired", counts.dropped_expired),
            ("deleted", counts.dropped_gone + counts.offsets_skipped),
        ):
            dropped.add_metric([reason], count)
        yield dropped
        for name, meaning, value in (
            ("messages_resent", "messages sent again after a reconnect", counts.resent),
            (
                "slow_subscribers",
                "how often a subscriber began to read from the log, because it could not keep up",
                counts.fell_behind,
            ),
            ("pages_read", "reads from the log for subscribers", counts.pages_read),
        ):
            yield CounterMetricFamily(f"penstock_mqtt_{name}", meaning, value=value)


def _name_of(code: int) -> str:
    try:
        return ReasonCode(code).name.lower()
    except ValueError:
        return "unknown"
