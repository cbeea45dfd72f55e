"""Metrics of the access policy, the features and the bridges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from penstock.brokers.mqtt.bridge.registration import Bridges
    from penstock.brokers.mqtt.extras.registration import Extras
    from penstock.brokers.mqtt.policy.registration import AccessPolicy


class FeatureMetrics:
    """Read by the metrics of the front end. The settings bound the number of bridges."""

    def __init__(self, policy: AccessPolicy, extras: Extras, bridges: Bridges) -> None:
        self._policy: Final = policy
        self._extras: Final = extras
        self._bridges: Final = bridges

    def collect(self) -> Iterator[Metric]:
        policy, delayed = self._policy, self._extras.delayed
        yield GaugeMetricFamily(
            "penstock_mqtt_blacklist_entries",
            "entries of the blacklist",
            value=len(policy.blacklist.blacklist),
        )
        yield GaugeMetricFamily(
            "penstock_mqtt_delayed_messages", "messages that wait for their time", len(delayed)
        )
        yield CounterMetricFamily(
            "penstock_mqtt_delayed_published",
            "delayed messages that were published",
            value=delayed.published,
        )
        yield CounterMetricFamily(
            "penstock_mqtt_access_denials",
            "publishes and subscriptions that the access rules denied, each topic of a connection "
            "once",
            value=policy.denials,
        )
        yield from self._of_bridges()

    def _of_bridges(self) -> Iterator[Metric]:
        connected = GaugeMetricFamily(
            "penstock_mqtt_bridge_connected", "1: the bridge is connected", labels=["bridge"]
        )
        messages = CounterMetricFamily(
            "penstock_mqtt_bridge_messages",
            "messages that a bridge sent out, received, or dropped",
            labels=["bridge", "direction"],
        )
        for bridge in self._bridges.bridges:
            connected.add_metric([bridge.name], bridge.state == "connected")
            counters = bridge.counters
            messages.add_metric([bridge.name, "out"], counters.sent_out)
            messages.add_metric([bridge.name, "in"], counters.received_in)
            messages.add_metric([bridge.name, "dropped"], counters.dropped)
        yield connected
        yield messages
