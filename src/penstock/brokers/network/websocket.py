"""WebSocket between the connection and its protocol: the request, then frames of bytes.

Messages of the protocol are independent of frames: one may fill several, and a frame may hold
several. Bytes are passed on as they arrive, not when a frame is whole. What the protocol sends in
one turn of the loop leaves as one frame.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

from penstock.brokers.network.connection import Connection
from penstock.brokers.network.interface import PeerAddress, Protocol, TimedProtocol
from penstock.brokers.network.limits import ListenerSettings
from penstock.brokers.network.websocket_frames import (
    CloseCode,
    FrameError,
    FrameHeader,
    Opcode,
    check_close,
    close_frame,
    frame_header,
    read_header,
    unmask,
)
from penstock.brokers.network.websocket_handshake import HandshakeError, parse, refusal

PONGS_UNSENT_MAX: Final = 64 << 10
"""Unsent bytes from which pings are not answered; the client reads nothing."""


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class WebSocketRequest:
    """Answers the HTTP request, then puts `WebSocket` on the connection."""

    __slots__ = ("_connection", "_make_protocol", "_settings", "_size_max")

    def __init__(
        self,
        connection: Connection,
        settings: ListenerSettings,
        make_protocol: Callable[[], Protocol | None],
    ) -> None:
        self._connection: Final = connection
        self._settings: Final = settings
        self._size_max: Final = connection.limits.header_size_max
        self._make_protocol: Final = make_protocol

    def received(self, view: memoryview) -> int:
        connection = self._connection
        try:
            upgrade = parse(bytes(view[: self._size_max]), self._settings, self._size_max)
        except HandshakeError as error:
            connection.send(refusal(error))
            connection.refuse("WebSocket request", str(error))
            return 0
        if upgrade is None:
            return 0
        if is_address(upgrade.forwarded_for):
            connection.peer = PeerAddress(upgrade.forwarded_for, 0)
        protocol = self._make_protocol()
        if protocol is not None:
            # The response leaves before frames are put around what is sent.
            connection.send(upgrade.response())
            connection.flush()
            websocket = WebSocket(connection, protocol)
            connection.use(websocket, websocket)
        return upgrade.size

    def writable(self) -> None:
        """The response is small."""

    def closed(self, reason: str) -> None:
        """Nothing began."""


class WebSocket:
    """Reads frames for a protocol, and frames what it sends."""

    __slots__ = (
        "_connection",
        "_frame",
        "_has_progressed",
        "_has_said_farewell",
        "_held",
        "_is_fragmented",
        "_passed",
        "_protocol",
    )

    def __init__(self, connection: Connection, protocol: Protocol) -> None:
        self._connection: Final = connection
        self._protocol: Final = protocol
        self._held = bytearray()
        """Bytes that the protocol has not consumed."""
        self._frame: FrameHeader | None = None
        """The data frame whose payload arrives, and how many bytes of it were passed on."""
        self._passed = 0
        self._is_fragmented = False
        self._has_progressed = False
        self._has_said_farewell = False

    @property
    def holds(self) -> bool:
        return len(self._held) > 0

    def claim_progress(self) -> bool:
        progress, self._has_progressed = self._has_progressed, False
        return progress

    def header(self, size: int) -> bytes:
        return frame_header(Opcode.BINARY, size)

    def farewell(self) -> bytes:
        if self._has_said_farewell:
            return b""
        self._has_said_farewell = True
        return close_frame(CloseCode.NORMAL)

    # What the connection calls

    def received(self, view: memoryview) -> int:
        connection, position = self._connection, 0
        if self._held:
            self._offer()
        try:
            while connection.accepts_input:
                size = self._read(view[position:])
                if not size:
                    break
                position += size
        except FrameError as error:
            self._end(close_frame(error.code, str(error)), str(error))
        connection.expected = 0
        return position

    def writable(self) -> None:
        self._protocol.writable()

    def closed(self, reason: str) -> None:
        self._protocol.closed(reason)

    def timed_out(self) -> None:
        assert isinstance(self._protocol, TimedProtocol), "a protocol with a limit on silence"
        self._protocol.timed_out()

    # Frames

    def _read(self, view: memoryview) -> int:
        """Read a header, a whole control frame, or what is here of a payload; return its size."""
        frame = self._frame
        if frame is not None:
            size = min(frame.size - self._passed, len(view))
            payload = unmask(view[:size], frame.mask, self._passed)
            self._passed += size
            if self._passed == frame.size:
                self._frame = None
            if payload:
                self._offer(payload)
            return size
        header = read_header(view, self._connection.limits.frame_size_max)
        if header is None:
            return 0
        if header.opcode < Opcode.CLOSE:
            self._begin(header)
            return header.header_size
        end = header.header_size + header.size
        if len(view) < end:
            return 0
        self._control(header.opcode, unmask(view[header.header_size : end], header.mask, 0))
        return end

    def _begin(self, header: FrameHeader) -> None:
        if header.opcode == Opcode.TEXT:
            raise FrameError(CloseCode.UNSUPPORTED_DATA, "a frame of text; frames are binary here")
        if (header.opcode == Opcode.CONTINUATION) != self._is_fragmented:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "a fragment without its message's begin")
        self._is_fragmented = not header.is_final
        if header.size:
            self._frame, self._passed = header, 0

    def _control(self, opcode: Opcode, payload: bytes) -> None:
        if opcode == Opcode.CLOSE:
            self._end(close_frame(check_close(payload)), "the client closed the WebSocket")
        elif opcode == Opcode.PING and self._connection.unsent <= PONGS_UNSENT_MAX:
            self._connection.send_unframed(frame_header(Opcode.PONG, len(payload)) + payload)

    def _end(self, frame: bytes, reason: str) -> None:
        self._connection.send_unframed(frame)
        self._has_said_farewell = True
        self._connection.close_after_sending(reason)

    # The protocol's bytes

    def _offer(self, payload: bytes = b"") -> None:
        """Pass bytes to the protocol, after those it has not consumed; keep the rest."""
        held = self._held
        if not held:
            consumed = self._protocol.received(memoryview(payload))
            held += memoryview(payload)[consumed:]
        else:
            held += payload
            with memoryview(held) as view:
                consumed = self._protocol.received(view)
            del held[:consumed]
        if consumed:
            self._has_progressed = True
        if not held:
            # An empty bytearray that was large keeps its memory.
            self._held = bytearray()
        connection, most = self._connection, self._connection.limits.message_size_max
        if connection.accepts_input and not connection.expected and len(held) > most:
            raise FrameError(CloseCode.TOO_LARGE, f"a message above {most} bytes")
