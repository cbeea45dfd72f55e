"""`Entrance`: the first protocol of each connection in a cluster: it reads CONNECT, and finds out
where the session runs.

    CONNECT ─▶ this node leads the client's partition, and has loaded it ─▶ ClientConnection
            ─▶ another node leads it ─▶ RelayedClient
            ─▶ not known: waits for a leader for some seconds, then the client is refused
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.brokers.mqtt.protocol.connecting import refusal
from penstock.brokers.mqtt.wire.codec import Decoder
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import Connect
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.brokers.network import Connection, Protocol
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

HERE: Final = 0
"""The session runs on this node."""


class Entrance:
    """Implements `Protocol` of `brokers.network`."""

    __slots__ = ("_connection", "_decoder", "_find", "_find_now", "_make", "_relay", "_task")

    def __init__(
        self,
        connection: Connection,
        decoder: Decoder,
        find_now: Callable[[str], int | None],
        find: Callable[[str], Awaitable[int | None]],
        make: Callable[[Connection], Protocol],
        relay: Callable[[Connection, int], Protocol] | None,
    ) -> None:
        """`find` returns the node of a client's session, or `HERE`; None: there is none in time.
        `relay` None: another node has relayed the connection to this one."""
        self._connection: Final = connection
        self._decoder: Final = decoder
        self._find_now: Final = find_now
        self._find: Final = find
        self._make: Final = make
        self._relay: Final = relay
        self._task: asyncio.Task[None] | None = None

    def received(self, view: memoryview) -> int:
        if self._task is not None:
            return 0
        try:
            packets, _ = self._decoder.decode(view, None)
        except ProtocolError:
            self._go_on(HERE)  # which answers as always
            return 0
        if not packets:
            self._connection.expected = _size_of(view)
            return 0
        connect = packets[0]
        if not isinstance(connect, Connect):
            self._go_on(HERE)
            return 0
        node = self._find_now(connect.client_id)
        if node is not None and (node == HERE or self._relay is not None):
            self._go_on(node)
            return 0
        self._connection.is_busy = True
        self._connection.pause_reading()
        self._task = asyncio.get_running_loop().create_task(
            self._wait(connect), name="mqtt-find-session"
        )
        return 0

    async def _wait(self, connect: Connect) -> None:
        node = await self._find(connect.client_id)
        connection = self._connection
        if not connection.is_open:
            return
        connection.is_busy = False
        if node is None or (node != HERE and self._relay is None):
            _log.info(
                "mqtt_connection_refused",
                client=connect.client_id,
                peer=connection.peer.host,
                reason_code=int(ReasonCode.SERVER_UNAVAILABLE),
                reason="no node runs the session now",
            )
            connection.send(refusal(ReasonCode.SERVER_UNAVAILABLE, connect.version))
            connection.close_after_sending("no node runs the session now")
            return
        self._go_on(node)
        connection.resume_reading()

    def _go_on(self, node: int) -> None:
        connection = self._connection
        if node == HERE or self._relay is None:
            connection.use(self._make(connection))
        else:
            connection.established()
            connection.use(self._relay(connection, node))

    def writable(self) -> None:
        """Nothing was sent."""

    def closed(self, reason: str) -> None:  # noqa: ARG002 - of the interface
        if self._task is not None:
            self._task.cancel()


def _size_of(view: memoryview) -> int:
    """Return the size of the packet that begins here; 0: unknown."""
    size = shift = 0
    for index in range(1, min(5, len(view))):
        byte = view[index]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return 1 + index + size
        shift += 7
    return 0
