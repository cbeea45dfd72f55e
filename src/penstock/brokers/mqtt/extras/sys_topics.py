"""`$SYS` topics: figures of this node, generated at an interval, read-only, not stored.

The names are Mosquitto's where Mosquitto has the figure, so that its dashboards work. Each value is
delivered to the subscribers that are connected, and kept in memory for later subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.wire.packets import Publish

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker

PREFIX: Final = "$SYS/broker/"


class SysTopics:
    def __init__(self, broker: MqttBroker) -> None:
        self._broker: Final = broker
        self._started: Final = broker.clock.monotonic()

    async def run(self) -> None:
        """Publish the figures until the task is cancelled."""
        interval_s = self._broker.all_settings.mqtt_features.sys_interval_ms / 1000
        while True:
            self.publish()
            await asyncio.sleep(interval_s)

    def publish(self) -> None:
        """Publish all figures."""
        live = []
        for name, value in self.figures():
            topic, payload = PREFIX + name, value.encode()
            live.append(Publish(topic, payload))
            self._broker.retained.index.put(Message(topic, payload, 0, retain=True))
        self._broker.publisher.publish_live(live)

    def figures(self) -> Iterator[tuple[str, str]]:
        """Yield names below `$SYS/broker/` and their values."""
        broker = self._broker
        metrics, counts = broker.metrics, broker.delivery.counts
        sent = counts.sent_qos0 + counts.sent_qos1 + counts.sent_qos2
        connected, sessions = len(broker.clients), len(broker.sessions)
        yield "version", f"penstock {_version()}"
        yield "uptime", f"{broker.clock.monotonic() - self._started:.0f} seconds"
        yield "clients/connected", str(connected)
        yield "clients/disconnected", str(max(0, sessions - connected))
        yield "clients/total", str(sessions)
        yield "clients/expired", str(broker.sessions.expired)
        yield "publish/messages/received", str(metrics.publishes_received)
        yield "publish/bytes/received", str(metrics.publish_bytes_received)
        yield "publish/messages/sent", str(sent)
        yield "publish/messages/dropped", str(counts.dropped_slow + counts.dropped_large)
        yield "retained messages/count", str(len(broker.retained.index))
        yield "subscriptions/count", str(sum(len(one.subscriptions) for one in broker.sessions))


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "unknown"
