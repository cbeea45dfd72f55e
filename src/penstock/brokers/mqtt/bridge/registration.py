"""Starts the bridges of the settings with the server."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.bridge.bridge import Bridge
from penstock.errors import SettingsError

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker


class Bridges:
    def __init__(self, broker: MqttBroker) -> None:
        """Raise `SettingsError` when the settings are wrong."""
        settings = broker.all_settings.mqtt_bridge
        names = [connection.name for connection in settings.connections]
        for topic in settings.topics:
            if topic.connection not in names:
                raise SettingsError(
                    f"mqtt_bridge.topics: {topic.filter!r} names the connection "
                    f"{topic.connection!r}, which mqtt_bridge.connections does not have"
                )
        if len(set(names)) != len(names):
            raise SettingsError("mqtt_bridge.connections: two connections have the same name")
        self._broker: Final = broker
        instance = f"{socket.gethostname()}/{broker.node_id}"
        self.bridges: Final = [
            Bridge(
                connection,
                [topic for topic in settings.topics if topic.connection == connection.name],
                settings,
                broker.open_internal,
                instance,
                broker.settings.receive_maximum,
            )
            for connection in settings.connections
        ]
        broker.on_start(self._start)

    async def _start(self) -> None:
        if not self._broker.is_first_node:
            return  # the same client ids at two nodes would disconnect each other
        for bridge in self.bridges:
            self._broker.spawn(bridge.run(), f"mqtt-bridge-{bridge.name}")
