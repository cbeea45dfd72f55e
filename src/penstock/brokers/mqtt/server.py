"""The MQTT server: listeners for TCP and WebSocket over the network layer of all front ends."""

from __future__ import annotations

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.broker import MqttBroker
from penstock.brokers.mqtt.cluster.cluster import Peers
from penstock.brokers.mqtt.protocol.client_connection import ClientConnection
from penstock.brokers.mqtt.registration import register_all
from penstock.brokers.network import (
    Connection,
    ListenerSettings,
    NetworkLimits,
    NetworkServer,
    Protocol,
)
from penstock.errors import SetupError
from penstock.platform.addresses import bare_host
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.settings import SERVE, MqttSettings, Settings

_log: Final = get_logger(__name__)


class MqttServer:
    """Serves MQTT clients from the moment it is made until `close`."""

    def __init__(self, broker: MqttBroker, host: str) -> None:
        self.broker: Final = broker
        settings = broker.settings
        host = bare_host(settings.host) or host
        self._network: Final = self._listen(_listeners(settings, host), settings)
        listeners = self._network.listeners
        self.host, self.port = listeners[0].host, listeners[0].port
        self.websocket_port: Final = listeners[1].port if len(listeners) > 1 else None
        broker.connect_internally = self._network.connect_internally
        if broker.cluster is not None:
            broker.cluster.serve_with(self._network)
        self._network.start()

    def _listen(self, listeners: list[ListenerSettings], settings: MqttSettings) -> NetworkServer:
        try:
            return self._build(listeners, settings)
        except SetupError as error:
            # The default port of WebSocket is a popular one.
            is_default = settings.websocket_port == SERVE.mqtt.websocket_port
            if not settings.websocket or not is_default:
                raise
            network = self._build(listeners[:1], settings)
            _log.warning("mqtt_websocket_not_served", reason=str(error))
            return network

    def _build(self, listeners: list[ListenerSettings], settings: MqttSettings) -> NetworkServer:
        return NetworkServer(
            "mqtt",
            listeners,
            self._make_protocol,
            _limits(settings),
            counters=self.broker.metrics.network,
            on_start=self._start,
            on_stop=self._stop,
        )

    def _make_protocol(self, connection: Connection) -> Protocol:
        cluster = self.broker.cluster
        if cluster is not None:
            return cluster.protocol_for(connection)
        return ClientConnection(connection, self.broker)

    async def _start(self, _loop: asyncio.AbstractEventLoop) -> None:
        await self.broker.start()

    async def _stop(self, _loop: asyncio.AbstractEventLoop) -> None:
        await self.broker.close()

    @property
    def network(self) -> NetworkServer:
        return self._network

    @property
    def connection_count(self) -> int:
        return self._network.connection_count

    @property
    def is_serving(self) -> bool:
        return self._network.is_serving

    @property
    def has_access_files(self) -> bool:
        """Whether there is a password file or a file of access rules."""
        return self.broker.reload_files is not None

    def reload_access_files(self) -> None:
        """Read the password file and the access rules again; returns before that is done."""
        if self.broker.reload_files is not None and self.is_serving:
            self._network.run(self.broker.reload_files())

    def close(self) -> None:
        """Stop: clients are disconnected, what they were promised is stored. May be called
        again."""
        self._network.close()


def _listeners(settings: MqttSettings, host: str) -> list[ListenerSettings]:
    listeners = [
        ListenerSettings(
            host=host,
            port=settings.port,
            clients="MQTT",
            expects_proxy_header=settings.proxy_protocol,
            settings_names="another address with mqtt.host and mqtt.port",
        )
    ]
    if settings.websocket:
        listeners.append(
            ListenerSettings(
                host=host,
                port=settings.websocket_port,
                clients="MQTT",
                transport="websocket",
                path=settings.websocket_path,
                origins=settings.websocket_origins,
                trusts_forwarded_for=settings.websocket_forwarded_for,
                expects_proxy_header=settings.proxy_protocol,
                settings_names="another address with mqtt.host and mqtt.websocket_port",
            )
        )
    return listeners


def _limits(settings: MqttSettings) -> NetworkLimits:
    return NetworkLimits(
        message_size_max=settings.packet_size_max,
        connections_max=settings.connections_max,
        connections_per_address_max=settings.connections_per_address_max,
        first_message_timeout_s=settings.connect_timeout_ms / 1000,
        slow_timeout_s=settings.slow_timeout_ms / 1000,
        sweep_interval_s=settings.sweep_interval_ms / 1000,
        unsent_high=settings.unacknowledged_size_max,
        buffered_total_max=settings.buffer_size_max,
        unsent_total_max=settings.output_size_max,
    )


def start_server(
    drivers: StorageDriverManager,
    clock: Clock,
    settings: Settings,
    registry: CollectorRegistry | None = None,
    peers: Peers | None = None,
) -> MqttServer:
    """Serve MQTT clients until `close` is called on the result; `registry` gets the metrics, and
    `peers` are the other nodes of a cluster. Raises `SetupError` when an address cannot be listened
    on."""
    broker = MqttBroker(drivers, clock, settings, registry, peers)
    register_all(broker)
    return MqttServer(broker, bare_host(settings.server.host))
