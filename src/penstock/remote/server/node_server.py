"""A server: one node with the storage API and the HTTP port.

Starting goes node, API, HTTP, Kafka, MQTT; stopping goes the other way: other nodes of a cluster
lead its shards first (`penstock.node.handover`), no new call is taken, those that wait for records
are answered, the others get `GRACE_S` to end, then the node puts everything on the device.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Final, Self, cast

from msgspec.structs import replace
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)

from penstock.api import EmbeddedBackend
from penstock.codec.select import native_only
from penstock.errors import NotSupportedError, RetryableError, SetupError, StoreError
from penstock.meta import STORAGE_LISTENER, ClusterNode, PeerNetwork, meta_handlers
from penstock.node.node import Node
from penstock.offsets import ClusterOffsetManager
from penstock.platform.addresses import ALL_ADDRESSES, bare_host, bracketed, with_port
from penstock.platform.calls.parked_calls import WaitingCalls
from penstock.platform.local_disk import LocalDisk
from penstock.platform.log import get_logger
from penstock.record import QueueKind
from penstock.remote.monitoring.health import Level, NodeHealth
from penstock.remote.monitoring.http_server import MonitoringServer
from penstock.remote.peers.clocks import PeerClocks
from penstock.remote.peers.connections import ClientConnectionManager
from penstock.remote.peers.forward_calls import ForwardCalls
from penstock.remote.peers.shard_service import ShardService, forwarded_methods, shard_handlers
from penstock.remote.server.call_threads import CallThreads
from penstock.remote.server.grpc_server import THREADS_MAX, start_server, waiting_pools
from penstock.remote.server.mqtt_front_end import serve_mqtt
from penstock.remote.server.node_start import start_node
from penstock.remote.server.read_budget import ReadLimits
from penstock.settings import SERVE, ServerSettings, Settings

if TYPE_CHECKING:
    from penstock.brokers.kafka import KafkaServer
    from penstock.brokers.mqtt import MqttServer

GRACE_S: Final = 10.0
LEAVE_S: Final = 2.0
FORWARD_THREADS_MAX: Final = 256
"""Threads that serve other nodes over the internal port."""

_log: Final = get_logger(__name__)


@contextmanager
def without_hypothesis() -> Iterator[None]:
    """kio registers its types with hypothesis wherever that is installed, which takes a quarter of
    a second. A server does not need it; a test that uses hypothesis has loaded it before."""
    if "hypothesis" in sys.modules:
        yield
        return
    hidden = cast("dict[str, ModuleType | None]", sys.modules)
    hidden["hypothesis"] = None  # importing it fails, as if it were not installed
    try:
        yield
    finally:
        del hidden["hypothesis"]


def _serve_kafka(node: Node, settings: Settings) -> KafkaServer | None:
    """Start the Kafka front end, if it is wanted and what it needs is installed."""
    if not settings.kafka.enabled:
        return None
    try:
        with without_hypothesis():
            from penstock.brokers import kafka

        native_only()
    except (ImportError, NotSupportedError) as error:
        hint = "pip install 'penstock[kafka]', with a Rust tool chain"
        # `cli.descriptors` lowers the number of connections on its own.
        given = replace(settings.kafka, connections_max=SERVE.kafka.connections_max)
        if given != SERVE.kafka:
            # Settings of the front end ask for it; without any, a server goes on without it.
            raise SetupError(
                f"Kafka clients cannot be served: {error}; {hint}, or set kafka.enabled = false"
            ) from error
        _log.warning("kafka_not_served", reason=str(error), hint=hint)
        return None
    return kafka.start_server(
        node.driver_manager, node.meta, node.clock, settings, node.registry, node.coordinators
    )


def _registry() -> CollectorRegistry:
    """Return a registry with the metrics of the process."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


class Server:
    """A running server; `close` stops it."""

    def __init__(
        self, path: str, settings: Settings, *, stopping: threading.Event | None = None
    ) -> None:
        """`stopping` ends the wait for a cluster."""
        listen = settings.server
        self._stopping: Final = threading.Event()
        self._threads: Final = CallThreads(THREADS_MAX)
        self._pools: Final = waiting_pools()
        self._is_starting = True
        self._forwarder: Final = ClientConnectionManager() if settings.node.peers else None
        self.node: Final = start_node(
            path, settings, forwarder=self._forwarder, registry=_registry, stopping=stopping
        )
        self.reading: Final = ReadLimits(listen.read_memory_max, self._holds_batches)
        try:
            backend = EmbeddedBackend(self.node)
            self._meta: Final = self.node.meta.service()
            offsets, groups = self.node.offset_manager, self.node.groups
            self._meta.commit_groups = offsets.commit_new_offsets
            steps = offsets.handle_request if isinstance(offsets, ClusterOffsetManager) else None
            shards = shard_handlers(
                self.node.driver_manager, self.node.clock, groups, steps, self._pools
            )
            also = [meta_handlers(self._meta, self._pools), shards]
            self._rpc, self.port = start_server(
                backend,
                listen.host,
                listen.port,
                stopping=self._stopping,
                reading=self.reading,
                also=also,
                threads=self._threads,
                pools=self._pools,
            )
            try:
                self._enter_cluster(listen)
                self._peer_clocks: Final = self._watch_peers()
                health = NodeHealth(self.node, LocalDisk(), self._all_threads(), self._front_ends)
                self._http: Final = MonitoringServer(
                    listen.host,
                    listen.http_port,
                    self.node.registry,
                    health.ready,
                    live=health.live,
                )
                self.kafka: Final = _serve_kafka(self.node, settings)
                self.mqtt: Final = self._serve_mqtt(settings)
                self._is_starting = False
            except BaseException:
                self._rpc.stop(None).wait()
                self._pools.shutdown()
                raise
        except BaseException:
            self.node.close()
            raise
        self.host: Final = bracketed(listen.host)
        """As it stands in front of a port."""
        self.http_port: Final = self._http.port

    def _all_threads(self) -> dict[CallThreads, Level]:
        """Return the pools of the storage API. Clients that do not read can use up that of the
        streams; all other calls are served then, so that the node stays ready."""
        levels: dict[CallThreads, Level] = {self._threads: "error"}
        pools: list[tuple[WaitingCalls, Level]] = [
            (self._pools.waits, "error"),
            (self._pools.streams, "warning"),
        ]
        for calls, level in pools:
            if isinstance(calls.threads, CallThreads):
                levels[calls.threads] = level
        return levels

    def _holds_batches(self, namespace: str, name: str) -> bool:
        topic = self.node.broker_cache.topics.get((namespace, name))
        return topic is not None and topic.config.queue_kind == QueueKind.BATCH.value

    def _enter_cluster(self, listen: ServerSettings) -> None:
        """Learn where the other nodes are, and tell them where this one is."""
        meta = self.node.meta
        if self._forwarder is None or not isinstance(meta, ClusterNode):
            return
        self._forwarder.follow(meta)
        if isinstance(meta, PeerNetwork):
            service = ShardService(self.node.driver_manager, self.node.clock)
            self._forwarder.forward_calls = ForwardCalls(
                meta.channel("forward"),
                forwarded_methods(service),
                CallThreads(FORWARD_THREADS_MAX, "penstock-forward"),
                self.node.clock,
            )
        self.node.groups.send_to_coordinator = self._forwarder.ask_group
        self.node.groups.ask_other_later = self._forwarder.ask_group_later
        host = bare_host(listen.advertised_host or listen.host)
        if host in ALL_ADDRESSES:
            host = socket.gethostname()
        address = with_port(host, listen.advertised_port or self.port)
        try:
            meta.announce(STORAGE_LISTENER, address)
        except RetryableError as error:
            # The metadata has no leader at the moment; the controller announces it later.
            _log.warning("node_not_announced", address=address, reason=str(error))

    def _watch_peers(self) -> PeerClocks | None:
        if self._forwarder is None:
            return None
        meta = self.node.meta
        if not isinstance(meta, PeerNetwork):
            return PeerClocks(self.node.clock, self._forwarder, meta.node_id)
        return PeerClocks(
            self.node.clock, self._forwarder, meta.node_id, report_problem=meta.report_problem
        )

    def _save_offsets(self) -> None:
        """Save cached commits before other nodes take the groups over: they do not ask a node that
        has left, and must see what it has acknowledged."""
        try:
            self.node.offset_manager.flush()
        except StoreError as error:
            _log.warning("offsets_not_saved_before_leaving", reason=str(error))

    def _leave_cluster(self) -> None:
        """Announce that this node stops, if the metadata service accepts that soon."""
        meta = self.node.meta
        if self._forwarder is None or not isinstance(meta, ClusterNode):
            return

        def leave() -> None:
            try:
                meta.leave()
            except StoreError as error:
                _log.debug("leaving_not_told", reason=str(error))

        telling = threading.Thread(target=leave, name="penstock-leaving", daemon=True)
        telling.start()
        telling.join(LEAVE_S)

    def _front_ends(self) -> dict[str, str]:
        """Return what is wrong with the front ends that the settings ask for."""
        if self._is_starting:
            return {}
        problems: dict[str, str] = {}
        if self.kafka is None and self.node.settings.kafka.enabled:
            problems["kafka"] = (
                "kafka.enabled is set, and Kafka clients are not served: see the log; "
                "install penstock[kafka], or set kafka.enabled = false"
            )
        if self.kafka is not None and not self.kafka.is_serving:
            problems["kafka"] = "the Kafka front end has ended"
        if self.mqtt is not None and not self.mqtt.is_serving:
            problems["mqtt"] = "the MQTT front end has ended"
        return problems

    def _serve_mqtt(self, settings: Settings) -> MqttServer | None:
        try:
            return serve_mqtt(self.node, settings)
        except BaseException:
            if self.kafka is not None:
                self.kafka.close()
            raise

    def close(self) -> None:
        """Stop; everything acknowledged is on the device when this returns."""
        self.node.hand_over()
        if self.mqtt is not None:
            self.mqtt.close()
        if self.kafka is not None:
            self.kafka.close()
        self._http.close()
        if self._peer_clocks is not None:
            self._peer_clocks.close()
        # Calls that wait end first: the server stops when all calls have ended.
        self._stopping.set()
        self._meta.end_watches()
        self.node.driver_manager.end_waits()
        self._pools.wake_all()
        self._rpc.stop(GRACE_S).wait()
        self._pools.shutdown()
        if self._forwarder is not None and self._forwarder.forward_calls is not None:
            self._forwarder.forward_calls.close(GRACE_S)
        self._save_offsets()
        self._leave_cluster()
        self.node.close()
        if self._forwarder is not None:
            self._forwarder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
