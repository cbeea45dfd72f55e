"""The end of a connection that opens it: the handshake, then frames; and its repetition."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from penstock.errors import BadRequestError
from penstock.meta.raft.network.connections import HANDSHAKE_SECONDS, set_timeouts
from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    FRAME_VERSION,
    HANDSHAKE_SIZE_MAX,
    RAFT,
    ChannelName,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    is_of_start,
    pack_frame,
)
from penstock.meta.state.model import Member
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

BUFFERED_MAX: Final = 16 << 20
CONNECT_SECONDS: Final = 2.0
RECONNECT_SECONDS: Final = 0.2
START_SECONDS: Final = 10.0
"""How long a node may refuse connections because it starts, before that is worth a warning."""


class Outgoing(asyncio.Protocol):
    """A connection to a peer: a handshake, then frames."""

    def __init__(
        self,
        opener: Opener,
        loop: asyncio.AbstractEventLoop,
        channel: ChannelName = RAFT,
        *,
        on_welcome: Callable[[], None] = lambda: None,
        on_writable: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost` is called when a connection ends whose handshake was complete."""
        self._opener = opener
        self._loop = loop
        self._channel = channel
        self._on_welcome = on_welcome
        self._on_writable = on_writable
        self._on_lost = on_lost
        self._timer: asyncio.TimerHandle | None = None
        self._reader = FrameReader(HANDSHAKE_SIZE_MAX)
        self._raw: asyncio.Transport | None = None
        self.lost: Final = asyncio.Event()
        self.is_welcome = self._was_welcome = False
        self.is_writable = True
        """Whether the buffer of the transport takes more."""
        self.frame_version = 1
        self.refusal = ""
        self.address: tuple[str, int] | None = None
        """Where the peer was reached, as numbers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        set_timeouts(transport)
        name = transport.get_extra_info("peername")
        if name is not None:
            self.address = (str(name[0]), int(name[1]))
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS, transport.abort)
        transport.write(pack_frame(self._opener.first))

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_welcome = False
        self._end_timer()
        self.lost.set()
        if self._was_welcome:
            self._on_lost()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._on_writable()

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
            case HandshakeAccepted() as accepted:
                self._welcome(accepted)
            case HandshakeRejected(reason):
                raise BadRequestError(reason)
            case _:
                raise BadRequestError("unexpected answer in a handshake")

    def _welcome(self, accepted: HandshakeAccepted) -> None:
        if accepted.channel != self._channel:
            raise BadRequestError(
                f"the node does not know the channel {self._channel!r} of its internal port: it "
                "runs an earlier release; update it"
            )
        self.frame_version = min(accepted.frame_version, FRAME_VERSION)
        self.is_welcome = self._was_welcome = True
        self._end_timer()
        self._on_welcome()

    def send(self, data: bytes) -> bool:
        """Write frames, unless too much is in the buffer."""
        if self._raw is None or not self.is_welcome:
            return False
        if self._raw.get_write_buffer_size() > BUFFERED_MAX:
            return False
        self._raw.write(data)
        return True

    def write(self, data: bytes | memoryview) -> None:
        """Write a part of a frame; the caller respects `is_writable`."""
        assert self._raw is not None, "data follows the connection"
        self._raw.write(data)

    def copy_socket(self) -> socket.socket:
        """Return the socket under another descriptor, which the caller closes when the connection
        ends; from now on `is_writable` says whether the transport's buffer is empty."""
        assert self._raw is not None, "data follows the connection"
        self._raw.set_write_buffer_limits(high=0)
        copy: socket.socket = self._raw.get_extra_info("socket").dup()
        return copy

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()


async def keep_connected(
    member: Member,
    connect: Callable[[], Outgoing],
    *,
    pause_max: float = RECONNECT_SECONDS,
    on_refused: Callable[[str], None] | None = None,
) -> None:
    """Connect to a member, and again after each loss, until the task is cancelled. With each
    refusal the pause doubles, up to `pause_max`; `on_refused` gets the reason of each that is
    worth a report."""
    loop = asyncio.get_running_loop()
    host, _, port = member.address.rpartition(":")
    logged, pause = "", RECONNECT_SECONDS
    refused_since: float | None = None
    while True:
        try:
            # Not `wait_for`: it can swallow a cancellation that comes with the connection.
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(connect, host, int(port))
        except (OSError, TimeoutError, ValueError):
            await asyncio.sleep(RECONNECT_SECONDS)
            continue
        await connection.lost.wait()
        if not connection.refusal:
            refused_since = None
        elif refused_since is None:
            refused_since = loop.time()
        is_patient = is_of_start(connection.refusal) and (
            refused_since is not None and loop.time() - refused_since < START_SECONDS
        )
        if connection.refusal and not is_patient:
            if connection.refusal != logged:
                _log.warning("peer_refused_us", peer=member.node_id, reason=connection.refusal)
            logged = connection.refusal
            if on_refused is not None:
                on_refused(logged)
        pause = min(pause * 2, pause_max) if connection.refusal else RECONNECT_SECONDS
        await asyncio.sleep(pause)
