"""The listening socket, the connections, and the event loop they run on.

The loop has a thread of its own, so that any program can run a node; `close` stops accepting
connections, cancels waiting requests and returns when the thread has ended.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry

from penstock.adapter import StorageDriverManager
from penstock.brokers.kafka.apis import register_all, serve_data
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.dispatch import Dispatcher
from penstock.brokers.kafka.metrics import KafkaMetrics
from penstock.brokers.kafka.network.connection import Connection
from penstock.brokers.kafka.network.receive_buffer import SHARED_SIZE, ReceiveBuffer
from penstock.codec.select import native_only
from penstock.errors import SetupError
from penstock.meta import GroupCoordinators, MetaClient
from penstock.platform.addresses import bare_host, resolve, with_port
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.settings import Settings

BACKLOG: Final = 1024
ACCEPTED_AT_ONCE: Final = 64
ACCEPT_PAUSE_S: Final = 1.0
START_TIMEOUT_S: Final = 30.0
_ALL_ADDRESSES: Final = frozenset({"", "0.0.0.0", "::"})
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log: Final = get_logger(__name__)


class KafkaServer:
    """Serves Kafka clients from the moment it is made until `close`."""

    def __init__(self, broker: KafkaBroker, host: str) -> None:
        self._broker: Final = broker
        self._settings: Final = broker.settings
        self._listener: Final = _listen(self._settings.host or host, self._settings.port)
        self.host, self.port = self._listener.getsockname()[:2]
        broker.advertised = self._advertise()
        broker.listening_port = self.port
        broker.connection_count = lambda: len(self._connections)
        broker.metrics.connection_count = broker.connection_count
        self._connections: Final[dict[int, Connection]] = {}
        self._next_id = 1
        self._shared: Final = bytearray(SHARED_SIZE)
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: Final = threading.Event()
        self._failure: BaseException | None = None
        self._thread: Final = threading.Thread(target=self._run, name="penstock-kafka", daemon=True)
        self._thread.start()
        self._started.wait(START_TIMEOUT_S)
        self._check_started()

    def _check_started(self) -> None:
        if self._failure is not None:
            self._listener.close()
            raise SetupError(f"the Kafka front end did not start: {self._failure}")

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def is_serving(self) -> bool:
        return self._thread.is_alive()

    @property
    def advertised(self) -> tuple[str, int]:
        """The address that clients connect to, as responses name it."""
        return self._broker.advertised

    def _advertise(self) -> tuple[str, int]:
        settings = self._settings
        host = bare_host(settings.advertised_host)
        if not host:
            host = socket.gethostname() if self.host in _ALL_ADDRESSES else self.host
        return host, settings.advertised_port or self.port

    def close(self) -> None:
        """Stop: connections end, requests in progress are cancelled. May be called again."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None and self._thread.is_alive():
            loop.call_soon_threadsafe(stopping.set)
        self._thread.join()
        self._listener.close()

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

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised by the constructor, or logged
            self._failure = error
            if self._started.is_set():
                _log.error("kafka_server_failed", cause=error)
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        registry = register_all(self._broker)
        dispatcher = Dispatcher(registry, self._broker.metrics)
        serve_data(self._broker, registry, dispatcher)
        self._dispatcher = dispatcher
        sweeping = self._loop.create_task(self._sweep())
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._started.set()
        try:
            await self._stopping.wait()
        finally:
            self._loop.remove_reader(self._listener.fileno())
            sweeping.cancel()
            for connection in list(self._connections.values()):
                connection.close()
            await dispatcher.close()
            await self._broker.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._pause_accepting(error)
                return
            if len(self._connections) >= self._settings.connections_max:
                _log.warning("kafka_connection_refused", connections=len(self._connections))
                self._broker.metrics.connections_refused += 1
                connected.close()
                continue
            self._add(connected, str(address[0]))

    def _pause_accepting(self, error: OSError) -> None:
        """Without this the loop would spin: the connection stays in the listener's queue."""
        assert self._loop is not None
        _log.error("kafka_accept_failed", cause=error)
        listener = self._listener.fileno()
        self._loop.remove_reader(listener)
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._loop is not None and self._stopping is not None and not self._stopping.is_set():
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _add(self, connected: socket.socket, peer: str) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = self._next_id
        self._next_id += 1
        buffer = ReceiveBuffer(self._shared, self._settings.request_size_max)
        connection = Connection(
            number,
            connected,
            f"/{peer}",
            buffer,
            self._dispatcher,
            self._remove,
            self._broker.metrics,
        )
        self._broker.metrics.connections_opened += 1
        assert self._loop is not None
        connection.last_active = self._loop.time()
        self._connections[number] = connection

    def _remove(self, connection: Connection) -> None:
        self._connections.pop(connection.id, None)

    async def _sweep(self) -> None:
        """Close connections that are idle or do not read their responses."""
        assert self._loop is not None
        while True:
            await asyncio.sleep(self._settings.sweep_interval_ms / 1000)
            before = self._loop.time() - self._settings.idle_timeout_ms / 1000
            slow = self._loop.time() - self._settings.slow_timeout_ms / 1000
            held = 0
            for connection in list(self._connections.values()):
                if connection.last_active < before and not connection.is_busy:
                    connection.close()
                    continue
                if connection.is_slower_than(slow):
                    _log.warning("kafka_client_too_slow", peer=connection.peer)
                    connection.close()
                    continue
                connection.rest()
                held += connection.buffer_size
                if held > self._settings.buffer_size_max:
                    _log.warning("kafka_buffers_full", peer=connection.peer, bytes=held)
                    held -= connection.buffer_size
                    connection.close()


def _listen(host: str, port: int) -> socket.socket:
    family, address = resolve(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SetupError(
            f"Kafka clients cannot be served on {with_port(host, port)}: {error.strerror}; "
            "choose another address with kafka.host and kafka.port"
        ) from error
    listener.setblocking(False)
    return listener


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed: the extra `kafka` brings it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


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
