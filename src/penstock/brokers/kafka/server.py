"""The Kafka server: a network server whose connections have Kafka's protocol.

The loop has a thread of its own, so that any program can run a node; `close` stops accepting
connections, cancels waiting requests and returns when the thread has ended.
"""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry

from penstock.adapter import StorageDriverManager
from penstock.brokers import network
from penstock.brokers.kafka.apis import register_all, serve_data
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.connection import Connection
from penstock.brokers.kafka.dispatch import Dispatcher
from penstock.brokers.kafka.metrics import KafkaMetrics
from penstock.brokers.network import ListenerSettings, NetworkLimits, NetworkServer
from penstock.codec.select import native_only
from penstock.meta import GroupCoordinators, MetaClient
from penstock.platform.addresses import ALL_ADDRESSES, bare_host
from penstock.platform.clock import Clock
from penstock.settings import KafkaSettings, Settings


class KafkaServer:
    """Serves Kafka clients from the moment it is made until `close`."""

    def __init__(self, broker: KafkaBroker, host: str) -> None:
        self._broker: Final = broker
        self._settings: Final = broker.settings
        self._dispatcher: Dispatcher | None = None
        listener = ListenerSettings(
            host=self._settings.host or host,
            port=self._settings.port,
            clients="Kafka",
            settings_names="another address with kafka.host and kafka.port",
        )
        self._network: Final = NetworkServer(
            "kafka",
            [listener],
            self._make_protocol,
            _limits(self._settings),
            counters=broker.metrics.network,
            on_start=self._start,
            on_stop=self._stop,
        )
        self.host, self.port = self._network.listeners[0].host, self._network.listeners[0].port
        broker.advertised = self._advertise()
        broker.listening_port = self.port
        broker.connection_count = lambda: self._network.connection_count
        broker.metrics.connection_count = broker.connection_count
        self._network.start()

    @property
    def connection_count(self) -> int:
        return self._network.connection_count

    @property
    def is_serving(self) -> bool:
        return self._network.is_serving

    @property
    def advertised(self) -> tuple[str, int]:
        """The address that clients connect to, as responses name it."""
        return self._broker.advertised

    def _advertise(self) -> tuple[str, int]:
        settings = self._settings
        host = bare_host(settings.advertised_host)
        if not host:
            host = socket.gethostname() if self.host in ALL_ADDRESSES else self.host
        return host, settings.advertised_port or self.port

    def close(self) -> None:
        """Stop: connections end, requests in progress are cancelled. May be called again."""
        self._network.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # In the loop's own thread

    async def _start(self, _loop: asyncio.AbstractEventLoop) -> None:
        registry = register_all(self._broker)
        dispatcher = Dispatcher(registry, self._broker.metrics)
        serve_data(self._broker, registry, dispatcher)
        self._dispatcher = dispatcher

    async def _stop(self, _loop: asyncio.AbstractEventLoop) -> None:
        self._network.close_connections("the server stops")
        if self._dispatcher is not None:
            await self._dispatcher.close()
        await self._broker.close()

    def _make_protocol(self, connection: network.Connection) -> Connection:
        assert self._dispatcher is not None, "a server that accepts was started"
        return Connection(
            connection, self._settings.request_size_max, self._dispatcher, self._broker.metrics
        )


def _limits(settings: KafkaSettings) -> NetworkLimits:
    return NetworkLimits(
        message_size_max=settings.request_size_max,
        connections_max=settings.connections_max,
        idle_timeout_s=settings.idle_timeout_ms / 1000,
        slow_timeout_s=settings.slow_timeout_ms / 1000,
        sweep_interval_s=settings.sweep_interval_ms / 1000,
        buffered_total_max=settings.buffer_size_max,
    )


def start_server(
    drivers: StorageDriverManager,
    meta: MetaClient,
    clock: Clock,
    settings: Settings,
    registry: CollectorRegistry | None = None,
    coordinators: GroupCoordinators | None = None,
) -> KafkaServer:
    """Serve Kafka clients until `close` is called on the result; `registry` gets the metrics. Raise
    `NotSupportedError` without the native extension."""
    native_only()
    broker = KafkaBroker(drivers, meta, clock, settings, KafkaMetrics(registry), coordinators)
    return KafkaServer(broker, bare_host(settings.server.host))
