"""`MqttBroker`: the services of the front end, and how they are connected.

hooks ◀── protocol ──▶ sessions ◀──▶ delivery ◀── publish path ──▶ shard writer ──▶ drivers
                                         ▲              │
                                         └── retained ◀─┘
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.client import ClientOptions, PacketChannel
from penstock.brokers.mqtt.cluster.cluster import MqttCluster, Peers
from penstock.brokers.mqtt.cluster.writer import ClusterShardWriter
from penstock.brokers.mqtt.metrics import MqttMetrics
from penstock.brokers.mqtt.protocol.connect import make_client_id
from penstock.brokers.mqtt.protocol.hooks import Hooks
from penstock.brokers.mqtt.publish.fast_path import make_fast_path
from penstock.brokers.mqtt.publish.path import PublishPath
from penstock.brokers.mqtt.publish.records import RecordCodec
from penstock.brokers.mqtt.publish.service import PublishService
from penstock.brokers.mqtt.publish.shard_writer import ShardWriter
from penstock.brokers.mqtt.publish.wills import WillService
from penstock.brokers.mqtt.retained.store import RetainedStore
from penstock.brokers.mqtt.sessions.interface import SharedSubscriptions
from penstock.brokers.mqtt.sessions.service import SessionService
from penstock.brokers.mqtt.topics.creation import TopicCreator
from penstock.brokers.mqtt.topics.mapping import TopicMapping
from penstock.brokers.mqtt.wire.codec import DecodeLimits, Decoder
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.settings import MqttSettings, Settings

if TYPE_CHECKING:
    from penstock.brokers.mqtt.protocol.client_connection import ClientConnection

STOP_TIMEOUT_S: Final = 10.0
UPKEEP_INTERVAL_S: Final = 60.0

_log: Final = get_logger(__name__)


class MqttBroker:
    """Made on any thread; used on the event loop between `start` and `close`."""

    def __init__(
        self,
        drivers: StorageDriverManager,
        clock: Clock,
        settings: Settings,
        registry: CollectorRegistry | None = None,
        peers: Peers | None = None,
    ) -> None:
        """`peers`: the node belongs to a cluster of several nodes."""
        self.drivers: Final = drivers
        self.run_blocking = drivers.run_blocking
        """Runs a call that may block in a thread of the node's pool."""
        self.admin: Final = drivers.admin
        self.clock: Final = clock
        self.all_settings: Final = settings
        self.settings: Final[MqttSettings] = settings.mqtt
        self.namespace: Final = DEFAULT_NAMESPACE
        self.node_id: Final = drivers.node_id
        self.make_client_id: Callable[[], str] = make_client_id
        """Makes the ids of clients that have none."""
        self.hooks: Final = Hooks()
        self.metrics: Final = MqttMetrics(registry)
        self.limits: Final = _decode_limits(self.settings)
        self.decoder: Final = Decoder(self.limits)
        self.clients: Final[dict[ClientConnection, None]] = {}
        """The connections of clients that were accepted, oldest first."""
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._starters: Final[list[Callable[[], Coroutine[None, None, None]]]] = []
        self._closers: Final[list[Callable[[], Coroutine[None, None, None]]]] = []
        mqtt = self.settings
        self.codec: Final = RecordCodec()
        self.mapping: Final = TopicMapping(drivers, mqtt.map, self.namespace)
        self.creator: Final = TopicCreator(
            drivers, self.mapping, clock, mqtt.topics_created_per_minute, self.namespace
        )
        self.retained: Final = RetainedStore(drivers, self.codec, clock, mqtt, self.namespace)
        self.session_service: Final = SessionService(drivers, self.mapping, self.codec, clock, mqtt)
        self.sessions: Final = self.session_service.registry
        self.delivery: Final = self.session_service.delivery
        self.writer: Final[ShardWriter] = (
            ShardWriter(drivers, self.spawn, self.delivery)
            if peers is None
            else ClusterShardWriter(drivers, self.spawn, self.delivery, peers.meta)
        )
        self.publish_path: Final = PublishPath(
            mapping=self.mapping,
            creator=self.creator,
            writer=self.writer,
            codec=self.codec,
            retained=self.retained,
            delivery=self.delivery,
            hooks=self.hooks,
            metrics=self.metrics,
            clock=clock,
            settings=mqtt,
        )
        self.publish_path.fast = make_fast_path(self.publish_path, drivers, self.limits)
        self.publisher: Final = PublishService(self.publish_path)
        self.reload_files: Callable[[], Coroutine[object, object, None]] | None = None
        """Reads the files of the access policy again; None: there are none."""
        self.connect_internally: Callable[[str], socket.socket] | None = None
        """Returns the client's end of a connection within this process; set by the server."""
        self.shared: SharedSubscriptions | None = None
        """The groups of shared subscriptions; set before the start."""
        self.mapping.on_created.append(self.session_service.topic_created)
        self.cluster: Final = None if peers is None else MqttCluster(self, peers)
        self._connect_metrics()

    def _connect_metrics(self) -> None:
        self.metrics.delivery = self.delivery.counts
        self.metrics.connections = lambda: len(self.clients)
        self.metrics.sessions = lambda: (len(self.sessions), len(self.delivery.tree))
        self.metrics.retained = lambda: (len(self.retained.index), self.retained.index.size)

    @property
    def is_first_node(self) -> bool:
        """Whether this node does what one node of a cluster does for all: that with the smallest id
        of those that replicate the metadata. It is also true without a cluster."""
        peers = self.all_settings.node.peers
        numbers = [peer.partition("@")[0] for peer in peers if "@" in peer]
        is_least = bool(numbers) and self.node_id == min(map(int, numbers))
        return not peers or is_least

    # Start and end

    def on_start(self, start: Callable[[], Coroutine[None, None, None]]) -> None:
        """Await `start` before the first connection is accepted."""
        self._starters.append(start)

    def on_close(self, close: Callable[[], Coroutine[None, None, None]]) -> None:
        """Await `close` when the server stops, after the connections; the last added first."""
        self._closers.append(close)

    async def start(self) -> None:
        """Start the services, on their event loop."""
        await self.session_service.start(
            publisher=WillService(self.publisher),
            retained=self.retained,
            shared=None if self.cluster is not None else self.shared,
            recovers=self.cluster is None,
        )
        if self.cluster is not None:
            await self.cluster.start()
        else:
            self.spawn(self.retained.load(), "mqtt-load-retained")
        self.spawn(self._maintain(), "mqtt-maintenance")
        for start in self._starters:
            await start()

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL_S)
            self.retained.drop_expired()

    async def close(self) -> None:
        """Disconnect the clients, store what they were promised, and end the services."""
        for connection in list(self.clients):
            connection.disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        for close in reversed(self._closers):
            await close()
        await self._finish_sessions()
        if self.cluster is not None:
            await self.cluster.close()
        await self.session_service.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)

    async def _finish_sessions(self) -> None:
        """Wait until the connections that have ended have given their sessions back, and what they
        published is stored."""
        names = {"mqtt-session-close", "mqtt-append"}
        waiting = [task for task in self._tasks if task.get_name() in names]
        if waiting:
            await asyncio.wait(waiting, timeout=STOP_TIMEOUT_S)

    # Work in the background

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Run `work` in the background; failures are logged, the server's stop cancels it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("mqtt_task_failed", cause=error, task=task.get_name())

    async def open_internal(self, options: ClientOptions) -> PacketChannel:
        """Connect a part of this process to the front end; it is not authenticated."""
        assert self.connect_internally is not None, "the server sets it before the start"
        end = self.connect_internally(options.client_id)
        reader, writer = await asyncio.open_connection(sock=end)
        return PacketChannel(reader, writer, options.version, options.packet_size_max)

    # Clients

    def add_client(self, connection: ClientConnection) -> None:
        """A client was accepted."""
        self.clients[connection] = None
        connection.is_observed = True
        for observer in self.hooks.observers:
            observer.connected(connection.client)

    def remove_client(self, connection: ClientConnection, reason: str, *, is_clean: bool) -> None:
        """A connection has ended."""
        self.clients.pop(connection, None)
        if not connection.is_observed:
            return
        connection.is_observed = False
        for handler in self.hooks.filter_handlers.values():
            handler.ended(connection.client)
        for observer in self.hooks.observers:
            observer.disconnected(connection.client, reason, is_clean=is_clean)


def _decode_limits(settings: MqttSettings) -> DecodeLimits:
    return DecodeLimits(
        packet_size_max=settings.packet_size_max,
        topic_bytes_max=settings.topic_size_max,
        topic_levels_max=settings.topic_levels_max,
    )
