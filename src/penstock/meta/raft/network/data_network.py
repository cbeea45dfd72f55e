"""The data channels of the internal port: `replicate` and `forward`, on a thread of their own.

A node sends on the connections that it opened, and receives on those that others opened: one TCP
connection for each channel and direction of a pair of nodes. Order holds within one connection;
when a node connects again, its earlier connection is closed before a frame of the new one is
delivered. Replies travel on the connection of the node that replies.

The transport of Raft accepts connections and does their handshake; `adopt` takes a socket over.
Raft has another thread and other connections, so that its frames never wait for data.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from penstock.errors import BadRequestError
from penstock.meta.raft.network.connections import Host, set_timeouts
from penstock.meta.raft.network.frame_assembler import FrameAssembler
from penstock.meta.raft.network.messages import (
    CHANNELS,
    DATA_FRAME_SIZE_MAX,
    FRAME_VERSION,
    RAFT,
    ConnectRequest,
    DataChannelName,
)
from penstock.meta.raft.network.peer_link import PeerLink, frame_size
from penstock.meta.raft.network.traffic import ChannelTraffic
from penstock.meta.state.model import Member
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

_CLOSE_SECONDS: Final = 10.0
_TURNS_MAX: Final = 1_000


def _ignore(_node: int) -> None:
    """The channel's user does not want to know."""


def _refuse(_node: int, _data: bytes) -> None:
    """The channel has no user yet: no connection for it is accepted."""


class DataChannel:
    """A channel of this node; `penstock.engine.replication.PeerChannel` says how it is used."""

    def __init__(self, network: DataNetwork, name: DataChannelName) -> None:
        self.name: Final = name
        self.on_receive: Callable[[int, bytes], None] = _refuse
        self.on_connected: Callable[[int], None] = _ignore
        self.on_connection_lost: Callable[[int], None] = _ignore
        self.traffic: Final = ChannelTraffic()
        self._network: Final = network
        self._links: dict[int, PeerLink] = {}
        self._incoming: dict[int, _DataIncoming] = {}
        self._paused: set[int] = set()

    @property
    def is_served(self) -> bool:
        return self.on_receive is not _refuse

    def send(self, node: int, data: bytes) -> bool:
        if len(data) > DATA_FRAME_SIZE_MAX:
            raise BadRequestError(
                f"a message of {len(data)} bytes for node {node}; the limit of the channel "
                f"{self.name!r} is {DATA_FRAME_SIZE_MAX}: send less in one message"
            )
        link = self._links.get(node)
        if link is not None and link.offer(data):
            return True
        if link is None and node in self._network.members:
            self._network.post(partial(self._open_link, node))
        self.traffic.drop(frame_size(data))
        return False

    def is_connected(self, node: int) -> bool:
        """Say whether messages can be sent to a node, and it can reply. Any thread may ask."""
        link = self._links.get(node)
        return link is not None and link.is_connected and node in self._incoming

    def reached_at(self, node: int) -> tuple[str, int] | None:
        """Return where a node was reached last, as numbers. Any thread may ask."""
        link = self._links.get(node)
        return None if link is None else link.address

    def pause(self, node: int) -> None:
        self._network.run_on_loop(partial(self._pause, node))

    def resume(self, node: int) -> None:
        self._network.run_on_loop(partial(self._resume, node))

    # -- on the network's thread ------------------------------------------------------------------

    def set_members(self, members: Mapping[int, Member]) -> None:
        for node, link in list(self._links.items()):
            if members.get(node) != link.member:
                link.close()
                del self._links[node]
                if node in members:
                    self._open_link(node)
        for incoming in list(self._incoming.values()):
            if not _is_member(incoming.hello, members):
                incoming.abort()

    def attach(self, incoming: _DataIncoming) -> bool:
        """Receive on a connection from now on, in place of the one before."""
        hello = incoming.hello
        if self._network.is_closed or not _is_member(hello, self._network.members):
            return False
        replaced = self._incoming.get(hello.node_id)
        self._incoming[hello.node_id] = incoming
        if replaced is not None:
            replaced.abort()
        if hello.node_id in self._paused:
            incoming.pause()
        self._open_link(hello.node_id)  # for replies
        return True

    def detach(self, incoming: _DataIncoming) -> None:
        node = incoming.hello.node_id
        if self._incoming.get(node) is incoming:
            del self._incoming[node]
        self._lose(node)

    def receive(self, node: int, data: bytes) -> None:
        self.traffic.received += frame_size(data)
        self.on_receive(node, data)

    def close(self) -> list[asyncio.Task[None]]:
        for incoming in list(self._incoming.values()):
            incoming.abort()
        return [link.close() for link in self._links.values()]

    @property
    def is_idle(self) -> bool:
        return not self._incoming

    def _open_link(self, node: int) -> None:
        member = self._network.members.get(node)
        if member is None or node in self._links or self._network.is_closed:
            return
        self._links[node] = PeerLink(
            self.name,
            member,
            loop=self._network.loop,
            traffic=self.traffic,
            open_to=lambda: self._network.host.open_to(member, self.name),
            on_connected=lambda: self.on_connected(node),
            on_lost=lambda: self._lose(node),
        )

    def _lose(self, node: int) -> None:
        if not self._network.is_closed:
            self.on_connection_lost(node)
            self._network.host.lost_connection(node)

    def _pause(self, node: int) -> None:
        self._paused.add(node)
        if node in self._incoming:
            self._incoming[node].pause()

    def _resume(self, node: int) -> None:
        self._paused.discard(node)
        if node in self._incoming:
            self._incoming[node].resume()


def _is_member(hello: ConnectRequest, members: Mapping[int, Member]) -> bool:
    member = members.get(hello.node_id)
    return member is not None and member.incarnation == hello.incarnation


class _DataIncoming(asyncio.BufferedProtocol):
    """A connection that another node opened, after its handshake."""

    def __init__(self, channel: DataChannel, hello: ConnectRequest) -> None:
        self.hello: Final = hello
        self._channel: Final = channel
        self._frames: Final = FrameAssembler(DATA_FRAME_SIZE_MAX)
        self._raw: asyncio.Transport | None = None
        self._is_paused = False
        self._is_attached = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        set_timeouts(transport)
        self._is_attached = self._channel.attach(self)
        if not self._is_attached:
            transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        if self._is_attached:
            self._channel.detach(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, size: int) -> None:
        self._frames.advance(size)
        self._deliver()

    def pause(self) -> None:
        self._is_paused = True
        if self._raw is not None:
            self._raw.pause_reading()

    def resume(self) -> None:
        self._is_paused = False
        self._deliver()
        if self._raw is not None and not self._is_paused:
            self._raw.resume_reading()

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def _deliver(self) -> None:
        assert self._raw is not None, "data follows the connection"
        node = self.hello.node_id
        try:
            while not self._is_paused and not self._raw.is_closing():
                frame = self._frames.next_frame()
                if frame is None:
                    return
                self._channel.receive(node, frame)
        except BadRequestError as error:
            _log.warning("frame_refused", peer=node, channel=self._channel.name, reason=str(error))
            self._raw.abort()


class DataNetwork:
    """The thread and the channels; the thread starts with the first channel."""

    def __init__(self, host: Callable[[], Host]) -> None:
        self._host: Final = host
        self.loop: Final = asyncio.new_event_loop()
        self.members: Mapping[int, Member] = {}
        self.is_closed = False
        self._channels: dict[str, DataChannel] = {}
        self._lock: Final = threading.Lock()
        self._attaching: set[asyncio.Task[None]] = set()
        self._thread: Final = threading.Thread(
            target=self.loop.run_forever, name="penstock-data-net", daemon=True
        )

    @property
    def host(self) -> Host:
        return self._host()

    def channel(self, name: DataChannelName) -> DataChannel:
        with self._lock:
            known = self._channels.get(name)
            if known is None:
                known = self._channels[name] = DataChannel(self, name)
            if not self._thread.is_alive() and not self.is_closed:
                self._thread.start()
            return known

    def traffic(self) -> dict[str, ChannelTraffic]:
        return {name: channel.traffic for name, channel in list(self._channels.items())}

    def reached_at(self, node: int) -> tuple[str, int] | None:
        """Return where a node was reached last on any channel, as numbers. Any thread may ask."""
        for channel in list(self._channels.values()):
            address = channel.reached_at(node)
            if address is not None:
                return address
        return None

    def refusal(self, hello: ConnectRequest) -> str | None:
        """Return why a connection for this channel is not accepted, or None. Any thread."""
        if hello.channel == RAFT:
            return None
        if hello.channel not in CHANNELS:
            return (
                f"node {hello.to_node} does not know the channel {hello.channel!r} of the internal "
                f"port, only {', '.join(CHANNELS)}: run the same release on all nodes"
            )
        if hello.frame_version < FRAME_VERSION:
            return (
                f"the channel {hello.channel!r} has frames of version {FRAME_VERSION}; node "
                f"{hello.node_id} writes version {hello.frame_version}"
            )
        channel = self._channels.get(hello.channel)
        if channel is None or not channel.is_served:
            return f"node {hello.to_node} does not serve the channel {hello.channel!r} yet"
        return None

    def set_members(self, members: Sequence[Member]) -> None:
        """Set the other members; connections to and from other directories are closed."""
        self.members = {member.node_id: member for member in members}
        self.post(self._set_members)

    def adopt(self, hello: ConnectRequest, connection: socket.socket) -> None:
        """Receive the frames of an accepted connection; closes it when that is not possible."""
        if not self.post(partial(self._adopt, hello, connection)):
            connection.close()

    def post(self, work: Callable[[], None]) -> bool:
        """Have the network's thread run `work`; False: the network is not running."""
        if self.is_closed or not self._thread.is_alive():
            return False
        try:
            self.loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop was closed meanwhile
            return False
        return True

    def run_on_loop(self, work: Callable[[], None]) -> None:
        """Run `work` on the network's thread: before this returns when it is called there."""
        if threading.get_ident() == self._thread.ident:
            work()
        else:
            self.post(work)

    def close(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._shut(), self.loop).result(_CLOSE_SECONDS)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        self.loop.close()

    def _set_members(self) -> None:
        for channel in self._channels.values():
            channel.set_members(self.members)

    def _adopt(self, hello: ConnectRequest, connection: socket.socket) -> None:
        task = self.loop.create_task(self._attach(hello, connection))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, hello: ConnectRequest, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self.loop.connect_accepted_socket(
                partial(_DataIncoming, self._channels[hello.channel], hello), connection
            )
        except OSError:
            connection.close()

    async def _shut(self) -> None:
        tasks = [task for channel in self._channels.values() for task in channel.close()]
        tasks += self._attaching
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS / 2)
        for turn in range(_TURNS_MAX):
            # What is aborted is closed in one of the next turns of the loop.
            if turn > 2 and all(channel.is_idle for channel in self._channels.values()):
                break
            await asyncio.sleep(0)
