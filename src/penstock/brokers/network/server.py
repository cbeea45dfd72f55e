"""Listeners, their connections, and the thread they run on.

`close` stops accepting, runs the front end's `on_stop` while the connections are still open, then
closes them, and returns when the thread has ended.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from itertools import takewhile
from types import TracebackType
from typing import Final, Self, TypeVar

from penstock.brokers.network.connection import Connection
from penstock.brokers.network.context import ConnectionContext, Member
from penstock.brokers.network.counters import NetworkCounters
from penstock.brokers.network.interface import PeerAddress, Protocol
from penstock.brokers.network.limits import ListenerSettings, NetworkLimits, Transport
from penstock.brokers.network.listener import Listener
from penstock.brokers.network.proxy_protocol import ProxyHeader
from penstock.brokers.network.server_thread import ServerThread
from penstock.brokers.network.websocket import WebSocketRequest
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

MakeProtocol = Callable[[Connection], Protocol]
Hook = Callable[[asyncio.AbstractEventLoop], Awaitable[None]]
T = TypeVar("T")


class NetworkServer:
    """Listens from the moment it is made; serves between `start` and `close`.

    `make_protocol` is called when a connection has passed its PROXY header and WebSocket request.
    `on_start` and `on_stop` run on the loop: before the first connection is accepted, and after the
    last, while connections are still open. `admits` refuses clients by address.
    """

    def __init__(
        self,
        name: str,
        listeners: Sequence[ListenerSettings],
        make_protocol: MakeProtocol,
        limits: NetworkLimits,
        *,
        counters: NetworkCounters | None = None,
        on_start: Hook | None = None,
        on_stop: Hook | None = None,
        admits: Callable[[PeerAddress], bool] | None = None,
    ) -> None:
        self.name: Final = name
        self.limits: Final = limits
        self.counters: Final = counters if counters is not None else NetworkCounters()
        self._make_protocol: Final = make_protocol
        self._on_start: Final = on_start
        self._on_stop: Final = on_stop
        self._admits: Final = admits
        self._connections: Final[dict[int, Connection]] = {}
        """By descriptor."""
        self._unestablished: Final[dict[int, float]] = {}
        """Connections without a first message, oldest first: the time of their acceptance."""
        self._per_address: Final[Counter[str]] = Counter()
        self._next_id = 1
        self._is_held = False
        self._context: ConnectionContext | None = None
        self._thread: Final = ServerThread(name, self._serve)
        self.listeners: Final[list[Listener]] = []
        try:
            for settings in listeners:
                self.listeners.append(Listener(name, settings))
        except BaseException:
            self._close_listeners()
            raise

    @property
    def connections(self) -> list[Connection]:
        """The open connections; only for the loop's thread."""
        return list(self._connections.values())

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def is_serving(self) -> bool:
        return self._thread.is_alive

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._thread.loop

    @property
    def unsent_total(self) -> int:
        """Bytes that wait for clients which do not read fast enough."""
        return self._context.unsent_total if self._context is not None else 0

    def start(self) -> None:
        """Return when connections are accepted; raise `SetupError` when `on_start` failed."""
        try:
            self._thread.start()
        except BaseException:
            self._close_listeners()
            raise

    def close(self) -> None:
        """Stop serving. May be called again."""
        self._thread.stop()
        self._close_listeners()

    def run(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Run a coroutine on the loop, for other threads."""
        return asyncio.run_coroutine_threadsafe(work, self._thread.loop)

    def connect_internally(self, name: str) -> socket.socket:
        """Return the client's end of a new connection within this process, for a bridge; call it on
        the loop. It counts as a connection, and is not refused."""
        assert self._context is not None, "only a server that was started has a loop"
        client, served = socket.socketpair()
        for end in (client, served):
            end.setblocking(False)
        number = self._next_id
        self._next_id += 1
        peer = PeerAddress(name, 0)
        connection = Connection(self._context, number, served, peer, "internal")
        self._connections[connection.descriptor] = connection
        connection.use(self._make_protocol(connection))
        connection.start_reading()
        return client

    def close_connections(self, reason: str) -> None:
        """End all connections; call it on the loop."""
        for connection in self.connections:
            connection.close(reason)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _close_listeners(self) -> None:
        for listener in self.listeners:
            listener.close()

    # On the loop

    async def _serve(self, stopping: asyncio.Event, started: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._context = ConnectionContext(
            self.name,
            loop,
            self.limits,
            self.counters,
            self._remove,
            self._establish,
            self._hung_up,
        )
        if self._on_start is not None:
            await self._on_start(loop)
        sweeping = loop.create_task(self._sweep(self._context))
        for listener in self.listeners:
            listener.start(loop, self._accepted, self._accept_failed)
        started()
        try:
            await stopping.wait()
        finally:
            for listener in self.listeners:
                listener.stop()
            sweeping.cancel()
            try:
                if self._on_stop is not None:
                    await self._on_stop(loop)
            finally:
                self.close_connections("the server stops")
                self._context.hangups.close()

    def _accept_failed(self) -> None:
        self.counters.accept_failures += 1

    def _accepted(self, listener: Listener, connected: socket.socket, peer: PeerAddress) -> None:
        assert self._context is not None, "a server that accepts was started"
        refused = ""
        if len(self._connections) >= self.limits.connections_max:
            refused = "connections"
        elif not listener.settings.learns_address:
            refused = self._reason_against(peer)
        if refused:
            self._refuse(peer, refused)
            connected.close()
            return
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = self._next_id
        self._next_id += 1
        connection = Connection(self._context, number, connected, peer, listener.settings.transport)
        self.counters.connections_opened += 1
        self._connections[connection.descriptor] = connection
        self._context.hangups.add(connection.descriptor)
        if not listener.settings.learns_address:
            self._count_address(connection)
        if self.limits.first_message_timeout_s:
            self._unestablished[connection.descriptor] = self._context.loop.time()
            if len(self._unestablished) >= self.limits.unestablished_max:
                self._hold_listeners(is_held=True)
        self._begin(connection, listener.settings)
        connection.start_reading()

    def adopt(
        self,
        connected: socket.socket,
        peer: PeerAddress,
        transport: Transport,
        make_protocol: MakeProtocol,
    ) -> Connection | None:
        """Serve a connection that was accepted elsewhere, on the loop; None: it is refused. Its
        limits of addresses are those of the place where it was accepted."""
        assert self._context is not None, "the server was started"
        if len(self._connections) >= self.limits.connections_max:
            self._refuse(peer, "connections")
            connected.close()
            return None
        connected.setblocking(False)
        number = self._next_id
        self._next_id += 1
        connection = Connection(self._context, number, connected, peer, transport)
        self.counters.connections_opened += 1
        self._connections[connection.descriptor] = connection
        self._context.hangups.add(connection.descriptor)
        if self.limits.first_message_timeout_s:
            self._unestablished[connection.descriptor] = self._context.loop.time()
        connection.use(make_protocol(connection))
        connection.start_reading()
        return connection

    def _begin(self, connection: Connection, settings: ListenerSettings) -> None:
        """Put the first of PROXY header, WebSocket request and protocol on a connection."""
        if settings.expects_proxy_header:
            connection.use(
                ProxyHeader(connection, lambda: self._begin_after_header(connection, settings))
            )
        else:
            self._begin_after_header(connection, settings)

    def _begin_after_header(self, connection: Connection, settings: ListenerSettings) -> None:
        if settings.transport == "websocket":
            request = WebSocketRequest(
                connection, settings, lambda: self._protocol_for(connection, settings)
            )
            connection.use(request)
            return
        protocol = self._protocol_for(connection, settings)
        if protocol is not None:
            connection.use(protocol)

    def _protocol_for(self, connection: Connection, settings: ListenerSettings) -> Protocol | None:
        """Return the protocol of a connection whose address is known; None if it is refused."""
        if settings.learns_address:
            reason = self._reason_against(connection.peer)
            if reason:
                connection.refuse(reason, reason)
                return None
            self._count_address(connection)
        return self._make_protocol(connection)

    def _hung_up(self, descriptor: int) -> None:
        connection = self._connections.get(descriptor)
        if connection is not None:
            connection.hung_up()

    def _reason_against(self, peer: PeerAddress) -> str:
        """Return why a client is refused; empty: it is not."""
        most = self.limits.connections_per_address_max
        if most and self._per_address[peer.host] >= most:
            return "connections of the address"
        if self._admits is not None and not self._admits(peer):
            return "address"
        return ""

    def _refuse(self, peer: PeerAddress, reason: str) -> None:
        self.counters.refused[reason] += 1
        _log.warning(
            f"{self.name}_connection_refused",
            peer=str(peer),
            reason=reason,
            connections=len(self._connections),
        )

    def _count_address(self, connection: Connection) -> None:
        if self.limits.connections_per_address_max:
            connection.counted_address = connection.peer.host
            self._per_address[connection.counted_address] += 1

    def _remove(self, member: Member) -> None:
        connection = self._connections.pop(member.descriptor, None)
        if connection is None:
            return
        self._establish(connection)
        host = connection.counted_address
        if host:
            self._per_address[host] -= 1
            if not self._per_address[host]:
                del self._per_address[host]

    def _establish(self, member: Member) -> None:
        if self._unestablished.pop(member.descriptor, None) is None:
            return
        if self._is_held and len(self._unestablished) < self.limits.unestablished_max:
            self._hold_listeners(is_held=False)

    def _hold_listeners(self, *, is_held: bool) -> None:
        self._is_held = is_held
        for listener in self.listeners:
            listener.hold(is_held=is_held)

    async def _sweep(self, context: ConnectionContext) -> None:
        """End connections that are idle, slow or silent, and bound the memory of all."""
        while True:
            await asyncio.sleep(self.limits.sweep_interval_s)
            now = context.loop.time()
            self._end_unestablished(now)
            held = 0
            for connection in self.connections:
                connection.sweep(now)
                if not connection.buffer_size:
                    continue
                held += connection.buffer_size
                if held > self.limits.buffered_total_max:
                    _log.warning(f"{self.name}_buffers_full", peer=str(connection.peer), bytes=held)
                    held -= connection.buffer_size
                    self.counters.closed_by_server["buffers of all clients"] += 1
                    connection.close("buffers of all clients")

    def _end_unestablished(self, now: float) -> None:
        limit = now - self.limits.first_message_timeout_s
        late = takewhile(lambda item: item[1] < limit, self._unestablished.items())
        for descriptor, _ in list(late):
            self.counters.refused["no first message"] += 1
            self._connections[descriptor].close("no first message in time")
