"""The two ends of a connection between nodes: the handshake, then frames."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from penstock.errors import BadRequestError
from penstock.meta.raft.network.handshake import Acceptor, Gatekeeper, Opener
from penstock.meta.raft.network.messages import (
    FRAME_SIZE_MAX,
    HANDSHAKE_SIZE_MAX,
    Answer,
    ConnectRequest,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    PeerStatus,
    StatusRequest,
    pack_frame,
    pack_handshake,
)
from penstock.meta.state.model import Member

if TYPE_CHECKING:
    from penstock.meta.raft.network.transport import Transport

BUFFERED_MAX: Final = 16 << 20
HANDSHAKE_SECONDS: Final = 5.0
_JOIN_SECONDS: Final = 30.0


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

    def open_to(self, member: Member) -> Opener: ...


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
        self._owner.track_handshake(transport)
        self._timer = self._owner.loop.call_later(HANDSHAKE_SECONDS, transport.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._raw is not None:
            self._owner.connections.discard(self._raw)
            self._owner.greeted.pop(self._raw, None)
            self._owner.pending.pop(self._raw, None)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._raw is not None, "data follows the connection"
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
        reason = self._owner.host.check_hello(hello)
        if reason is not None:
            self._answer(HandshakeRejected(reason))
            self._owner.warn("peer_refused", peer=hello.node_id, reason=reason)
            self._raw.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._answer(HandshakeAccepted())
        self._hello = hello
        self._reader.size_max = FRAME_SIZE_MAX
        self._owner.greeted[self._raw] = hello

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


class Outgoing(asyncio.Protocol):
    """A connection to a peer: a handshake, then frames."""

    def __init__(
        self, opener: Opener, lost: asyncio.Event, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._opener = opener
        self._lost = lost
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._reader = FrameReader(HANDSHAKE_SIZE_MAX)
        self._raw: asyncio.Transport | None = None
        self.is_welcome = False
        self.refusal = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS, transport.abort)
        transport.write(pack_frame(self._opener.first))

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_welcome = False
        self._end_timer()
        self._lost.set()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._raw is not None, "data follows the connection"
        try:
            for frame in self._reader.feed(data):
                self._receive(frame)
        except BadRequestError as error:
            self.refusal = self.refusal or str(error)
            self.is_welcome = False
            self._raw.abort()

    def _receive(self, frame: bytes) -> None:
        assert self._raw is not None, "data follows the connection"
        if self.is_welcome:
            raise BadRequestError("unexpected frame from the accepting side of this connection")
        answer = self._opener.receive(frame)
        if answer is not None:
            self._raw.write(pack_frame(answer))
            return
        match self._opener.answer:
            case HandshakeAccepted():
                self.is_welcome = True
                self._end_timer()
            case HandshakeRejected(reason):
                raise BadRequestError(reason)
            case _:
                raise BadRequestError("unexpected answer in a handshake")

    def send(self, data: bytes) -> bool:
        if self._raw is None or not self.is_welcome:
            return False
        if self._raw.get_write_buffer_size() > BUFFERED_MAX:
            return False
        self._raw.write(data)
        return True

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()
