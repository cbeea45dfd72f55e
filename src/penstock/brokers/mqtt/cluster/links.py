"""`Links`: the channel `mqtt` of the internal port, used from the event loop.

Frames for a node that are posted in one turn of the loop leave in one message. A message that is
not sent, and the end of a connection in either direction, end everything between the two nodes:
relayed connections of both sides, and what was to be followed is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from penstock.brokers.mqtt.cluster import frames
from penstock.errors import BadRequestError
from penstock.platform.log import get_logger

MESSAGE_SIZE: Final = 1 << 20
"""Bytes after which a message is sent before the end of the turn."""

_log: Final = get_logger(__name__)


class Channel(Protocol):
    """A data channel of the internal port; see `penstock.meta.PeerNetwork`."""

    on_receive: Callable[[int, bytes], None]
    on_connected: Callable[[int], None]
    on_connection_lost: Callable[[int], None]

    def send(self, node: int, data: bytes) -> bool: ...

    def is_connected(self, node: int) -> bool: ...


class Receiver(Protocol):
    """What the frames are for."""

    def received(self, node: int, kind: int, number: int, content: bytes) -> None: ...

    def connected(self, node: int) -> None:
        """Messages can be sent to a node from now on."""
        ...

    def lost(self, node: int) -> None:
        """What was sent to a node or by it may be lost."""
        ...


class Links:
    def __init__(self, channel: Channel, receiver: Receiver) -> None:
        self._channel: Final = channel
        self._receiver: Final = receiver
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: Final[dict[int, list[bytes]]] = {}
        self._sizes: Final[dict[int, int]] = {}
        self._inbox: Final[deque[Callable[[], None]]] = deque()
        self._is_woken = False
        self._is_closed = False

    def start(self) -> None:
        """Accept connections of other nodes; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        channel = self._channel
        channel.on_connected = lambda node: self._pass_on(partial(self._receiver.connected, node))
        channel.on_connection_lost = lambda node: self._pass_on(partial(self._lose, node))
        channel.on_receive = lambda node, data: self._pass_on(partial(self._receive, node, data))

    def close(self) -> None:
        """Send what waits, and pass nothing on any more."""
        for node in list(self._waiting):
            self._send(node)
        self._is_closed = True

    def is_connected(self, node: int) -> bool:
        return self._channel.is_connected(node)

    def open(self, node: int) -> None:
        """Connect with a node, if that has not happened yet."""
        if not self._channel.is_connected(node):
            self._channel.send(node, b"")

    def post(self, node: int, kind: int, number: int = 0, content: bytes = b"") -> None:
        """Send a frame at the end of this turn of the loop."""
        if self._is_closed:
            return
        waiting = self._waiting.get(node)
        if waiting is None:
            assert self._loop is not None, "the links were started"
            waiting = self._waiting[node] = []
            self._sizes[node] = 0
            self._loop.call_soon(self._send, node)
        waiting.append(frames.frame(kind, number, content))
        self._sizes[node] += len(content)
        if self._sizes[node] >= MESSAGE_SIZE:
            self._send(node)

    def _send(self, node: int) -> None:
        waiting = self._waiting.pop(node, None)
        if waiting is None or self._is_closed:
            return
        del self._sizes[node]
        if not self._channel.send(node, b"".join(waiting)):
            assert self._loop is not None, "the links were started"
            self._loop.call_soon(self._receiver.lost, node)

    # From the network's thread

    def _pass_on(self, work: Callable[[], None]) -> None:
        """Have the event loop run `work`, in order. What arrives is bounded by the credit of the
        connections, and by the number of shards."""
        loop = self._loop
        if loop is None or self._is_closed:
            return
        self._inbox.append(work)
        if not self._is_woken:
            self._is_woken = True
            try:
                loop.call_soon_threadsafe(self._empty_inbox)
            except RuntimeError:
                self._is_closed = True  # the loop has ended

    def _empty_inbox(self) -> None:
        self._is_woken = False
        while self._inbox and not self._is_closed:
            self._inbox.popleft()()

    def _lose(self, node: int) -> None:
        self._waiting.pop(node, None)
        self._sizes.pop(node, None)
        self._receiver.lost(node)

    def _receive(self, node: int, data: bytes) -> None:
        try:
            for kind, number, content in frames.split(data):
                self._receiver.received(node, kind, number, content)
        except BadRequestError as error:
            _log.warning("mqtt_frame_refused", peer=node, reason=str(error))
            self._receiver.lost(node)
