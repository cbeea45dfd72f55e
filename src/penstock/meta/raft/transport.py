"""Carries frames between nodes: one thread with an event loop, one connection to each peer.

Messages of Raft may be lost, so nothing here waits: what cannot be sent now is dropped and the peer
reported as unreachable. Memory is bounded by what may lie in a connection's buffer.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from penstock.errors import BadRequestError, DeadlineError, SetupError, StoreError
from penstock.log import get_logger
from penstock.meta.raft.wire import (
    Ask,
    FrameReader,
    Greeting,
    Hello,
    Join,
    Refusal,
    Welcome,
    decode_greeting,
    pack_frame,
    pack_greeting,
)
from penstock.meta.state.model import Member

_log: Final = get_logger(__name__)

_BUFFERED_MAX: Final = 16 << 20
_CONNECT_SECONDS: Final = 2.0
_RECONNECT_SECONDS: Final = 0.2
_TURNS_MIN: Final = 3
_TURNS_MAX: Final = 1_000
_GREETING_SECONDS: Final = 5.0
_PENDING_MAX: Final = 1_000


class Host(Protocol):
    """The node, as the transport sees it. Called on the transport's thread, except `join`."""

    def check_hello(self, hello: Hello) -> str | None:
        """Return why this connection is refused, or None."""
        ...

    def standing(self) -> Greeting: ...

    def join(self, join: Join) -> Greeting:
        """Take a node in; may take seconds, called on a thread of its own."""
        ...

    def receive(self, sender: int, data: bytes) -> None: ...

    def unreachable(self, node: int) -> None: ...

    def hello_to(self, member: Member) -> Hello: ...


class _Incoming(asyncio.Protocol):
    """A connection that another node opened."""

    def __init__(self, transport: Transport) -> None:
        self._owner = transport
        self._reader = FrameReader()
        self._sender: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._raw: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._owner.connections.add(transport)
        if self._owner.is_closed:
            transport.abort()
            return
        self._timer = self._owner.loop.call_later(_GREETING_SECONDS, transport.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._raw is not None:
            self._owner.connections.discard(self._raw)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._raw is not None, "data follows the connection"
        try:
            for frame in self._reader.feed(data):
                if self._sender is not None:
                    self._owner.host.receive(self._sender, frame)
                else:
                    self._greet(decode_greeting(frame))
        except BadRequestError as error:
            peer = self._raw.get_extra_info("peername")
            _log.warning("connection_refused", peer=str(peer), reason=str(error))
            self._raw.abort()

    def _greet(self, greeting: Greeting) -> None:
        assert self._raw is not None, "data follows the connection"
        if self._timer is not None:
            self._timer.cancel()
        match greeting:
            case Hello():
                reason = self._owner.host.check_hello(greeting)
                if reason is not None:
                    self._answer(Refusal(reason))
                    self._raw.close()
                    _log.warning("peer_refused", peer=greeting.node_id, reason=reason)
                    return
                self._answer(Welcome(greeting.cluster_id))
                self._sender = greeting.node_id
            case Ask():
                self._answer(self._owner.host.standing())
            case Join():
                self._owner.run_apart(lambda: self._owner.host.join(greeting), self._answer)
            case _:
                raise BadRequestError("a greeting that nobody asked for")

    def _answer(self, greeting: Greeting) -> None:
        if self._raw is not None and not self._raw.is_closing():
            self._raw.write(pack_greeting(greeting))


class _Outgoing(asyncio.Protocol):
    """A connection to a peer: a hello, then frames."""

    def __init__(self, hello: Hello, lost: asyncio.Event) -> None:
        self._hello = hello
        self._lost = lost
        self._reader = FrameReader()
        self._raw: asyncio.Transport | None = None
        self.is_welcome = False
        self.refusal = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        transport.write(pack_greeting(self._hello))

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_welcome = False
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        assert self._raw is not None, "data follows the connection"
        try:
            for frame in self._reader.feed(data):
                greeting = decode_greeting(frame)
                if isinstance(greeting, Refusal):
                    self.refusal = greeting.reason
                self.is_welcome = isinstance(greeting, Welcome)
        except BadRequestError:
            self.is_welcome = False
        if not self.is_welcome:
            self._raw.abort()

    def send(self, data: bytes) -> bool:
        if self._raw is None or not self.is_welcome:
            return False
        if self._raw.get_write_buffer_size() > _BUFFERED_MAX:
            return False
        self._raw.write(data)
        return True

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()


class _Peer:
    def __init__(self, member: Member, task: asyncio.Task[None]) -> None:
        self.member = member
        self.task = task
        self.connection: _Outgoing | None = None


class Transport:
    """`start`, then `set_members` and `send`; `close` at the end."""

    def __init__(self, host: Host, address: tuple[str, int]) -> None:
        self.host = host
        """Whom to ask; a node that has found its cluster takes the place of one that waits."""
        self._address = address
        self.loop: Final = asyncio.new_event_loop()
        self.connections: Final[set[asyncio.Transport]] = set()
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
        self._server = await self.loop.create_server(lambda: _Incoming(self), host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def set_members(self, members: list[Member]) -> None:
        """Say who the others are; connections to those that changed are made anew."""
        if not self.is_closed:
            self.loop.call_soon_threadsafe(self._set_members, members)

    def _set_members(self, members: list[Member]) -> None:
        wanted = {member.node_id: member for member in members}
        for node, peer in list(self._peers.items()):
            if wanted.get(node) != peer.member:
                peer.task.cancel()
                if peer.connection is not None:
                    peer.connection.abort()
                del self._peers[node]
        for node, member in wanted.items():
            if node not in self._peers:
                task = self.loop.create_task(self._keep_connected(member))
                self._peers[node] = _Peer(member, task)

    async def _keep_connected(self, member: Member) -> None:
        told = ""
        while True:
            lost = asyncio.Event()
            hello = self.host.hello_to(member)
            host, _, port = member.address.rpartition(":")
            try:
                # Not `wait_for`: it can swallow a cancellation that comes with the connection.
                async with asyncio.timeout(_CONNECT_SECONDS):
                    _, connection = await self.loop.create_connection(
                        partial(_Outgoing, hello, lost), host, int(port)
                    )
            except (OSError, TimeoutError, ValueError):
                await asyncio.sleep(_RECONNECT_SECONDS)
                continue
            self._peers[member.node_id].connection = connection
            await lost.wait()
            if connection.refusal and connection.refusal != told:
                told = connection.refusal
                _log.warning("peer_refused_us", peer=member.node_id, reason=told)
            await asyncio.sleep(_RECONNECT_SECONDS)

    def send(self, to: int, data: bytes) -> None:
        """Send a frame, or drop it; any thread may call."""
        self._outbox.append((to, pack_frame(data)))
        # The flag is read behind the append and lowered before the outbox is emptied: whoever finds
        # it raised has put a frame where the flush to come will find it.
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
            if peer is None or peer.connection is None or not peer.connection.send(b"".join(some)):
                self.host.unreachable(to)

    def run_apart(self, work: Callable[[], Greeting], done: Callable[[Greeting], object]) -> None:
        """Do slow work on a thread of its own, then answer on the loop."""

        def run() -> None:
            try:
                answer = work()
            except StoreError as error:
                answer = Refusal(str(error))
            if not self.is_closed:
                self.loop.call_soon_threadsafe(done, answer)

        threading.Thread(target=run, name="penstock-meta-join", daemon=True).start()

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._shut(), self.loop).result(10)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        self.loop.close()

    async def _shut(self) -> None:
        for peer in self._peers.values():
            peer.task.cancel()
            if peer.connection is not None:
                peer.connection.abort()
        # The server is closed when nobody is half-way in: asyncio forgets the sockets of those.
        for _ in range(_TURNS_MAX):
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if not tasks or not (await asyncio.wait(tasks, timeout=_CONNECT_SECONDS))[0]:
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


def ask_node(address: str, greeting: Greeting, *, seconds: float = 5.0) -> Greeting:
    """Ask a node one question and return its answer; blocks. Raises `DeadlineError`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(pack_greeting(greeting))
            reader = FrameReader()
            while True:
                data = connection.recv(65_536)
                if not data:
                    raise DeadlineError(f"{address} hung up")
                frames = reader.feed(data)
                if frames:
                    return decode_greeting(frames[0])
    except (OSError, ValueError) as error:
        raise DeadlineError(f"{address} does not answer: {error}") from error
