"""The end of a connection that accepts it: the handshake, then frames of Raft."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from penstock.errors import BadRequestError
from penstock.meta.raft.network.handshake import Acceptor, Gatekeeper, Opener
from penstock.meta.raft.network.messages import (
    FRAME_SIZE_MAX,
    FRAME_VERSION,
    HANDSHAKE_SIZE_MAX,
    RAFT,
    Answer,
    ChannelName,
    ConnectRequest,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    PeerStatus,
    StatusRequest,
    is_of_start,
    pack_frame,
    pack_handshake,
)
from penstock.meta.state.model import Member

if TYPE_CHECKING:
    from penstock.meta.raft.network.transport import Transport

HANDSHAKE_SECONDS: Final = 5.0
_JOIN_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 5
_PROBE_SECONDS: Final = 1
_SILENT_MS: Final = 10_000
"""After this time without an acknowledgement of the peer's kernel a connection is broken."""


def set_timeouts(raw: asyncio.BaseTransport) -> None:
    """Have the kernel end a connection whose peer has vanished. Without this a connection outlives
    a partition by minutes: the kernel sends again ever more rarely."""
    connection = raw.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_USER_TIMEOUT", _SILENT_MS),
    ):
        if hasattr(socket, option):  # Linux has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Host(Gatekeeper, Protocol):
    """The node, as the transport sees it. Called on the transport's thread, except `join`."""

    def draw_nonce(self) -> bytes: ...

    def check_hello(self, hello: ConnectRequest) -> str | None:
        """Return why this connection is rejected, or None."""
        ...

    def peer_status(self) -> PeerStatus: ...

    def join(self, join: JoinRequest) -> tuple[HandshakeAccepted | HandshakeRejected, bytes]:
        """Add a node and return the reply, with the key of the cluster; may take seconds, called on
        a thread of its own."""
        ...

    def receive(self, sender: int, data: bytes) -> None: ...

    def unreachable(self, node: int) -> None: ...

    def lost_connection(self, node: int) -> None:
        """A connection from or to a node has ended. Called on a network thread; a hint only."""
        ...

    def open_to(self, member: Member, channel: ChannelName = RAFT) -> Opener:
        """Return the handshake of a connection to a node. Called on a network thread."""
        ...


class Incoming(asyncio.Protocol):
    """A connection that another node opened."""

    def __init__(self, transport: Transport) -> None:
        self._owner = transport
        self._reader = FrameReader(HANDSHAKE_SIZE_MAX)
        self._acceptor = Acceptor(transport.host, transport.host.draw_nonce())
        self._hello: ConnectRequest | None = None
        self._is_answered = False
        self._timer: asyncio.TimerHandle | None = None
        self._raw: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._owner.connections.add(transport)
        if self._owner.is_closed:
            transport.abort()
            return
        set_timeouts(transport)
        self._owner.track_handshake(transport)
        self._timer = self._owner.loop.call_later(HANDSHAKE_SECONDS, transport.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._raw is not None:
            self._owner.connections.discard(self._raw)
            self._owner.greeted.pop(self._raw, None)
            self._owner.pending.pop(self._raw, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._hello is not None and not self._owner.is_closed:
            self._owner.host.lost_connection(self._hello.node_id)

    def data_received(self, data: bytes) -> None:
        assert self._raw is not None, "data follows the connection"
        if self._hello is not None:
            self._owner.traffic.received += len(data)
        try:
            for frame in self._reader.feed(data):
                if self._raw.is_closing():
                    return
                if self._hello is not None:
                    self._owner.host.receive(self._hello.node_id, frame)
                else:
                    self._receive(frame)
        except BadRequestError as error:
            self._refuse(str(error))

    def _refuse(self, reason: str) -> None:
        assert self._raw is not None, "data follows the connection"
        claimed = self._acceptor.claimed
        if not is_of_start(reason):
            self._owner.warn(
                "connection_refused",
                peer=str(self._raw.get_extra_info("peername")),
                node=claimed.node_id if claimed is not None else 0,
                reason=reason,
            )
        if self._hello is not None or self._is_answered:
            self._raw.abort()
            return
        self._raw.write(pack_handshake(HandshakeRejected(reason)))
        self._raw.close()

    def _receive(self, frame: bytes) -> None:
        assert self._raw is not None, "data follows the connection"
        if self._is_answered:
            raise BadRequestError("unexpected frame after a request on this connection")
        answer = self._acceptor.receive(frame)
        if answer is not None:
            self._raw.write(pack_frame(answer))
            return
        opening = self._acceptor.opening
        assert opening is not None, "a handshake is answered, done or refused"
        self._owner.pending.pop(self._raw, None)
        match opening:
            case ConnectRequest():
                self._greet(opening)
            case StatusRequest():
                self._answer(self._owner.host.peer_status())
                self._raw.close()
            case JoinRequest():
                self._extend()
                self._owner.run_apart(lambda: self._owner.host.join(opening), self._joined)

    def _greet(self, hello: ConnectRequest) -> None:
        assert self._raw is not None, "data follows the connection"
        reason = self._owner.host.check_hello(hello) or self._owner.check_channel(hello)
        if reason is not None:
            if not is_of_start(reason):  # the other side reports one that lasts
                self._owner.warn("peer_refused", peer=hello.node_id, reason=reason)
            self._answer(HandshakeRejected(reason))
            self._raw.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        version = min(hello.frame_version, FRAME_VERSION)
        self._answer(HandshakeAccepted(channel=hello.channel, frame_version=version))
        if hello.channel != RAFT:
            self._hand_over(hello)
            return
        self._hello = hello
        self._reader.size_max = FRAME_SIZE_MAX
        self._reader.version = version
        self._owner.greeted[self._raw] = hello

    def _hand_over(self, hello: ConnectRequest) -> None:
        """Have the thread of the data channels continue with a copy of the socket. The opener sends
        no frame before it has read the answer, so that no byte of one is here."""
        assert self._raw is not None, "data follows the connection"
        if self._raw.get_write_buffer_size() == 0 and self._reader.is_empty:
            self._owner.data.adopt(hello, self._raw.get_extra_info("socket").dup())
        self._raw.abort()

    def _extend(self) -> None:
        """A join may take as long as the node that waits for it does."""
        assert self._raw is not None, "data follows the connection"
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._owner.loop.call_later(_JOIN_SECONDS, self._raw.abort)

    def _joined(self, outcome: tuple[HandshakeAccepted | HandshakeRejected, bytes]) -> None:
        answer, key = outcome
        if isinstance(answer, HandshakeAccepted):
            answer = replace(answer, key=self._acceptor.wrap(key))
        self._answer(answer)
        if self._raw is not None:
            self._raw.close()

    def _answer(self, answer: Answer) -> None:
        self._is_answered = True
        if self._raw is not None and not self._raw.is_closing():
            self._raw.write(pack_frame(self._acceptor.seal(answer)))
