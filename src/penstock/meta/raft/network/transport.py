"""Carries frames of Raft between nodes: one thread with an event loop, one connection to each peer.

Messages of Raft may be lost, so nothing here waits: what cannot be sent now is dropped and the peer
reported as unreachable. Memory is bounded by what may be in a connection's buffer.

A connection must finish its handshake within `HANDSHAKE_SECONDS`. At most `PENDING_MAX` may be in
one: the oldest makes room for the next, so that idle strangers do not keep members out.

`data` has the other channels of the port. Their connections are accepted here, and handed over
after the handshake.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from penstock.errors import BadRequestError, DeadlineError, SetupError, StoreError
from penstock.meta.raft.network.connections import Host, Incoming
from penstock.meta.raft.network.data_network import DataNetwork
from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    HANDSHAKE_SIZE_MAX,
    RAFT,
    Answer,
    ConnectRequest,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    pack_frame,
)
from penstock.meta.raft.network.outgoing import (
    CONNECT_SECONDS,
    Outgoing,
    keep_connected,
)
from penstock.meta.raft.network.peer_problems import PeerProblems
from penstock.meta.raft.network.traffic import ChannelTraffic
from penstock.meta.state.model import Member
from penstock.platform.addresses import bare_host
from penstock.platform.clock import SystemClock
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

PROBE_SECONDS: Final = 0.3
_TURNS_MIN: Final = 3
_TURNS_MAX: Final = 1_000
_JOINS_MAX: Final = 4
_WARNINGS_MAX: Final = 20
_WARNINGS_SECONDS: Final = 60.0
PENDING_MAX: Final = 64
"""Concurrent connections in the handshake."""


Probe = Literal["up", "refused", "silent"]
"""What a connection attempt to the internal port of a node shows: `up`: its kernel accepts it;
`refused`: the machine answers that no process listens there; `silent`: none of both within
`PROBE_SECONDS`."""


class _Peer:
    def __init__(self, member: Member) -> None:
        self.member = member
        self.task: asyncio.Task[None] | None = None
        self.connection: Outgoing | None = None
        self.address: tuple[str, int] | None = None
        """Where the node was reached last, as numbers: a probe must not wait for a name server."""


class Transport:
    """`start`, then `set_members` and `send`; `close` at the end."""

    def __init__(self, host: Host, address: tuple[str, int]) -> None:
        self.host = host
        """Whom to ask; a node that has found its cluster takes the place of one that waits."""
        self._address = address
        self.loop: Final = asyncio.new_event_loop()
        self.connections: Final[set[asyncio.Transport]] = set()
        self.pending: Final[dict[asyncio.Transport, None]] = {}
        """Unauthenticated connections, the oldest first."""
        self.greeted: Final[dict[asyncio.Transport, ConnectRequest]] = {}
        """Connections that carry Raft frames, and the requests that opened them."""
        self.problems: Final = PeerProblems()
        self.traffic: Final = ChannelTraffic()
        self.data: Final = DataNetwork(lambda: self.host)
        self._joins: Final = threading.BoundedSemaphore(_JOINS_MAX)
        self._warned_at = 0.0
        self._warnings = 0
        self._peers: dict[int, _Peer] = {}
        self._outbox: deque[tuple[int, bytes]] = deque()
        self._is_flush_due = False
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="penstock-meta-net", daemon=True
        )
        self.is_closed = False
        self.port = address[1]

    def start(self) -> None:
        """Listen; raises `SetupError` when the port is taken."""
        self._thread.start()
        future = asyncio.run_coroutine_threadsafe(self._listen(), self.loop)
        try:
            future.result(10)
        except OSError as error:
            self.close()
            host, port = self._address
            raise SetupError(f"{host}:{port} cannot be listened on: {error}") from error

    async def _listen(self) -> None:
        host, port = self._address
        self._server = await self.loop.create_server(lambda: Incoming(self), host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def set_members(
        self, members: list[Member], data_members: Sequence[Member] | None = None
    ) -> None:
        """Set the other members; connect again to those whose address or incarnation changed.
        `data_members` are those of the data channels, if they are others than those of Raft."""
        if not self.is_closed:
            self.data.set_members(members if data_members is None else data_members)
            self.loop.call_soon_threadsafe(self._set_members, members)

    def _set_members(self, members: list[Member]) -> None:
        by_node = {member.node_id: member for member in members}
        for node, peer in list(self._peers.items()):
            if by_node.get(node) != peer.member:
                self._disconnect(peer)
                del self._peers[node]
        for raw, hello in list(self.greeted.items()):
            known = by_node.get(hello.node_id)
            if known is not None and hello.incarnation < known.incarnation:
                # Another directory took its place: its frames must not count as the other's.
                raw.abort()
        for node, member in by_node.items():
            if node not in self._peers:
                peer = self._peers[node] = _Peer(member)
                connect = partial(self._connect, peer)
                peer.task = self.loop.create_task(
                    keep_connected(
                        member, connect, on_refused=partial(self._refused_by, member.node_id)
                    )
                )

    def _connect(self, peer: _Peer) -> Outgoing:
        node = peer.member.node_id

        def welcome() -> None:
            peer.address = connection.address

        def lose() -> None:
            if not self.is_closed:
                self.host.lost_connection(node)

        connection = Outgoing(
            self.host.open_to(peer.member), self.loop, on_welcome=welcome, on_lost=lose
        )
        peer.connection = connection
        return connection

    @staticmethod
    def _disconnect(peer: _Peer) -> None:
        if peer.task is not None:
            peer.task.cancel()
        if peer.connection is not None:
            peer.connection.abort()

    def send(self, to: int, data: bytes) -> None:
        """Send a frame, or drop it; any thread may call."""
        self._outbox.append((to, data))
        # The flag is read after the append and lowered before the outbox is emptied: when it is
        # raised here, a flush that has not begun will find the frame.
        if not self._is_flush_due and not self.is_closed:
            self._is_flush_due = True
            self.loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        frames: dict[int, list[bytes]] = {}
        while self._outbox:
            to, data = self._outbox.popleft()
            frames.setdefault(to, []).append(data)
        for to, some in frames.items():
            # One write to the socket for all that a turn says to one node.
            peer = self._peers.get(to)
            connection = None if peer is None else peer.connection
            version = 1 if connection is None else connection.frame_version
            packed = b"".join(pack_frame(data, version) for data in some)
            if connection is not None and connection.send(packed):
                self.traffic.sent += len(packed)
            else:
                self.traffic.drop(len(packed))
                self.host.unreachable(to)

    def check_channel(self, hello: ConnectRequest) -> str | None:
        """Return why a connection for its channel is refused, or None."""
        return self.data.refusal(hello)

    def channel_traffic(self) -> dict[str, ChannelTraffic]:
        """Return the counts of each channel that is in use."""
        return {RAFT: self.traffic, **self.data.traffic()}

    def probe(self, node: int) -> Probe:
        """Return whether the internal port of a member can be reached; blocks for `PROBE_SECONDS`
        at most when the node was connected before. Any thread but the network's may call."""
        peer = self._peers.get(node)
        member = self.data.members.get(node) if peer is None else peer.member
        if member is None:
            return "silent"
        host, _, port = member.address.rpartition(":")
        reached = self.data.reached_at(node) if peer is None else peer.address
        address = reached or (bare_host(host), int(port))
        try:
            socket.create_connection(address, timeout=PROBE_SECONDS).close()
        except ConnectionRefusedError:
            return "refused"
        except OSError:
            return "silent"
        return "up"

    def absent(self, members: Sequence[Member]) -> list[Member]:
        """Return the members without a connection from this node."""
        peers = dict(self._peers)  # this is not the loop's thread
        missing: list[Member] = []
        for member in members:
            peer = peers.get(member.node_id)
            if peer is not None and (peer.connection is None or not peer.connection.is_welcome):
                missing.append(member)
        return missing

    def run_apart(
        self,
        work: Callable[[], tuple[HandshakeAccepted | HandshakeRejected, bytes]],
        done: Callable[[tuple[HandshakeAccepted | HandshakeRejected, bytes]], object],
    ) -> None:
        """Do slow work on a thread of its own, of which there are few, then answer on the loop."""

        def run() -> None:
            try:
                answer = work()
            except StoreError as error:
                answer = HandshakeRejected(str(error)), b""
            finally:
                self._joins.release()
            if not self.is_closed:
                self.loop.call_soon_threadsafe(done, answer)

        if self._joins.acquire(blocking=False):
            threading.Thread(target=run, name="penstock-meta-join", daemon=True).start()
        else:
            done((HandshakeRejected(f"{_JOINS_MAX} nodes join at the moment; try again"), b""))

    def track_handshake(self, connection: asyncio.Transport) -> None:
        """Track an unauthenticated connection; beyond the limit the oldest is closed."""
        self.pending[connection] = None
        if len(self.pending) > PENDING_MAX:
            oldest = next(iter(self.pending))
            del self.pending[oldest]
            oldest.abort()
            self.warn("handshakes_crowded", limit=PENDING_MAX)

    def _refused_by(self, node: int, reason: str) -> None:
        self.problems.record("refused by", node, f"node {node} refuses this node: {reason}")

    def warn(self, event: str, **fields: str | int) -> None:
        """Log events of unauthenticated peers, a few times a minute at most, and keep the last
        one of each node."""
        node = fields.get("node", fields.get("peer", 0))
        known = node if isinstance(node, int) else 0
        who = f"node {known}" if known else f"a connection from {fields.get('peer')}"
        self.problems.record(event, known, f"this node refuses {who}: {fields.get('reason')}")
        now = self.loop.time()
        if now - self._warned_at > _WARNINGS_SECONDS:
            self._warned_at, self._warnings = now, 0
        self._warnings += 1
        if self._warnings <= _WARNINGS_MAX:
            _log.warning(event, **fields)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._shut(), self.loop).result(10)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        self.data.close()
        self.loop.close()

    async def _shut(self) -> None:
        for peer in self._peers.values():
            self._disconnect(peer)
        # The server is closed after all handshakes: asyncio loses the sockets of unfinished ones.
        for _ in range(_TURNS_MAX):
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if not tasks or not (await asyncio.wait(tasks, timeout=CONNECT_SECONDS))[0]:
                break
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        for turn in range(_TURNS_MAX):
            # What is aborted is closed in one of the next turns of the loop.
            if turn >= _TURNS_MIN and not self.connections:
                break
            await asyncio.sleep(0)


def call_node(address: str, opener: Opener, *, seconds: float = 5.0) -> Answer:
    """Send one request to a node and return its reply; blocks. Raises `DeadlineError`."""
    host, _, port = address.rpartition(":")
    clock = SystemClock()
    end = clock.monotonic() + seconds
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(pack_frame(opener.first))
            reader = FrameReader(HANDSHAKE_SIZE_MAX)
            while opener.answer is None:
                connection.settimeout(max(0.001, end - clock.monotonic()))
                data = connection.recv(65_536)
                if not data:
                    raise DeadlineError(f"{address} closed the connection")
                for frame in reader.feed(data):
                    following = opener.receive(frame)
                    if following is not None:
                        connection.sendall(pack_frame(following))
    except BadRequestError as error:
        raise DeadlineError(f"{address} is not a member of this cluster: {error}") from error
    except (OSError, ValueError) as error:
        raise DeadlineError(f"{address} does not answer: {error}") from error
    return opener.answer


def unreached(address: str, *, seconds: float = 1.0) -> str:
    """Return why no connection to an address can be made; empty: one can. Blocks."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except (OSError, ValueError, OverflowError) as error:
        return str(error)
    return ""
