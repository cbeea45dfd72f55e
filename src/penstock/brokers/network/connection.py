"""One client connection: bytes in, bytes out, and the bounds on both.

What a protocol sends during one turn of the loop leaves in one write at the end of the turn.
Bounds: nothing is passed to the protocol while `unsent_high` bytes wait for the client, and nothing
more is received while the protocol pauses or an incomplete message fills the buffer.

    open ──▶ closing (sends the rest) ──▶ draining (waits for the client's end) ──▶ closed
      └──────────────────────────────────────────────────────────────────────────────▲
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Sequence
from typing import Final

from penstock.brokers.network.context import ConnectionContext
from penstock.brokers.network.interface import PeerAddress, Protocol, Stage, TimedProtocol
from penstock.brokers.network.limits import NetworkLimits, Transport
from penstock.brokers.network.receive_buffer import ReceiveBuffer
from penstock.brokers.network.send_queue import Channel, Part, SendQueue
from penstock.errors import StoreError
from penstock.platform.log import get_logger

READS_PER_TURN: Final = 8
"""Reads of one connection before the next is served."""
ENDED_BY_CLIENT: Final = "the client ended the connection"

_OPEN: Final = 0
_CLOSING: Final = 1
_DRAINING: Final = 2
_CLOSED: Final = 3

UNFORESEEN: Final = (
    StoreError,
    AssertionError,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    TypeError,
    ValueError,
)
"""Errors that a protocol did not handle: they end one connection, never the loop."""

_log: Final = get_logger(__name__)


class Connection:
    __slots__ = (
        "_channel",
        "_context",
        "_framed",
        "_has_hung_up",
        "_in",
        "_is_congested",
        "_is_paused",
        "_is_processing",
        "_is_reading",
        "_is_writing",
        "_out",
        "_owed",
        "_owed_since",
        "_partial_since",
        "_pending",
        "_reason",
        "_stage",
        "_state",
        "_state_since",
        "counted_address",
        "descriptor",
        "expected",
        "id",
        "is_busy",
        "is_prompt",
        "last_active",
        "last_received",
        "peer",
        "protocol",
        "silence_max_s",
        "transport",
        "unsent",
    )

    def __init__(
        self,
        context: ConnectionContext,
        number: int,
        channel: Channel,
        peer: PeerAddress,
        transport: Transport,
    ) -> None:
        self.id: Final = number
        self.descriptor: Final = channel.fileno()
        self.counted_address = ""
        """The address whose connections this one is counted with."""
        self.peer = peer
        self.transport: Final[Transport] = transport
        self.protocol: Protocol | None = None
        """What receives the bytes; the listener sets it before the first."""
        self.expected = 0
        """Set by the protocol in `received`: the size of the message whose beginning it did not
        consume; 0: unknown."""
        self.is_busy = False
        """Set by the protocol: the client waits for this node, and is therefore not idle."""
        self.is_prompt = False
        """Set by the protocol: what it sends in `received` leaves when that returns, and not at the
        end of the turn."""
        self.silence_max_s = 0.0
        """After how much silence `TimedProtocol.timed_out` is called; 0: never."""
        self.unsent = 0
        """Bytes that wait for the client, those of this turn included."""
        self.last_received = self.last_active = context.loop.time()
        """When the client last sent something; when it last sent or received something."""
        self._context: Final = context
        self._channel: Final = channel
        self._in: Final = ReceiveBuffer(context.shared)
        self._out: SendQueue | None = None
        self._pending: list[Part] | None = None
        self._framed = 0
        """How many of the pending parts have their header."""
        self._stage: Stage | None = None
        self._state = _OPEN
        self._state_since = 0.0
        self._reason = ""
        self._is_paused = self._is_processing = self._is_congested = False
        self._is_reading = self._is_writing = False
        self._has_hung_up = False
        """Whether the socket has an error, which the loop will not report again."""
        self._partial_since: float | None = None
        """Since when a message is only partly here."""
        self._owed = 0
        self._owed_since: float | None = None
        """Since when the client has not received so many bytes."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._context.loop

    @property
    def limits(self) -> NetworkLimits:
        return self._context.limits

    @property
    def is_open(self) -> bool:
        """Whether the protocol can still send."""
        return self._state == _OPEN

    @property
    def is_congested(self) -> bool:
        """Whether so much output waits for the client that its input is not processed."""
        return self._is_congested

    @property
    def accepts_input(self) -> bool:
        return self._state == _OPEN and not self._is_paused and not self._is_congested

    @property
    def buffer_size(self) -> int:
        """Bytes of input that this connection alone holds."""
        return self._in.size

    def established(self) -> None:
        """Call when the client has introduced itself: the limit on first messages ends."""
        self._context.establish(self)

    def use(self, protocol: Protocol, stage: Stage | None = None) -> None:
        """Pass further bytes to `protocol`, and frame output by `stage`."""
        self.protocol = protocol
        if stage is not None:
            self._stage = stage

    # Receiving

    def start_reading(self) -> None:
        if not self._is_reading and self._state in (_OPEN, _DRAINING):
            self._is_reading = True
            self._context.loop.add_reader(self.descriptor, self._readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._context.loop.remove_reader(self.descriptor)

    def pause_reading(self) -> None:
        """Receive nothing more and pass nothing on, until `resume_reading`."""
        self._is_paused = True
        self._stop_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._continue_reading()

    def _continue_reading(self) -> None:
        """Process what waits, not inside the caller, and receive more."""
        if self.accepts_input:
            self._context.loop.call_soon(self.process)
            self.start_reading()
            if self._has_hung_up:
                self._context.loop.call_soon(self._readable)

    def _readable(self) -> None:
        if self._state != _OPEN:
            self._discard()
            return
        buffer, context = self._in, self._context
        for _ in range(READS_PER_TURN):
            room = buffer.room()
            if not room or self._is_paused or self._is_congested:
                self._stop_reading()
                return
            try:
                size = self._channel.recv_into(room)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"receiving failed: {error.strerror}")
                return
            if size == 0:
                self.close(ENDED_BY_CLIENT)
                return
            context.counters.received_bytes += size
            buffer.end += size
            self.last_received = self.last_active = context.loop.time()
            self.process()
            if not self._is_reading or (size < len(room) and not self._has_hung_up):
                return
        if self._has_hung_up:
            context.loop.call_soon(self._readable)

    def _discard(self) -> None:
        """Read what a client sends to a connection that has ended its side."""
        if self._state != _DRAINING:
            return
        try:
            size = self._channel.recv_into(self._context.shared)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        self._context.counters.received_bytes += size
        if size == 0:
            self.close(ENDED_BY_CLIENT)

    def process(self) -> None:
        """Pass the bytes that wait to the protocol, as far as the bounds allow."""
        if self._is_processing or self._state or self._is_paused or self._is_congested:
            return
        stage = self._stage
        if not self._in.waiting and (stage is None or not stage.holds):
            return
        self._is_processing = True
        try:
            protocol = self.protocol
            assert protocol is not None, "a connection that reads has a protocol"
            self.expected = 0
            consumed = protocol.received(self._in.view())
            self._in.start += consumed
            if protocol is not self.protocol and self._state == _OPEN:
                consumed += self._pass_to_next()
        except UNFORESEEN as error:
            _log.error(f"{self._context.name}_connection_failed", cause=error, peer=str(self.peer))
            self.close("an internal error")
            return
        finally:
            self._is_processing = False
        if self._state == _OPEN:
            self._finish_turn(consumed)
        if self._pending is not None:
            if self.is_prompt:
                self.flush()
            else:
                self._context.flush_later(self)

    def _pass_to_next(self) -> int:
        """Pass what is left to the protocol that has replaced another one; return how many bytes
        were consumed."""
        total, protocol = 0, None
        while protocol is not self.protocol and self.accepts_input and self._in.waiting:
            protocol = self.protocol
            assert protocol is not None, "an open connection has a protocol"
            self.expected = 0
            consumed = protocol.received(self._in.view())
            self._in.start += consumed
            total += consumed
        return total

    def _finish_turn(self, consumed: int) -> None:
        """Make room for more, and record whether a message is incomplete."""
        buffer = self._in
        if buffer.start == buffer.end and self._stage is None:
            self._partial_since = None
            buffer.compact()
        elif not self._keep_rest(consumed):
            return
        if not self._is_reading and not self._is_paused and buffer.room():
            self.start_reading()

    def _keep_rest(self, consumed: int) -> bool:
        """Keep what was not consumed; return False if the message is too large."""
        stage, buffer = self._stage, self._in
        waits = buffer.waiting > 0 or (stage is not None and stage.holds)
        if stage.claim_progress() if stage is not None else consumed:
            self._partial_since = None
        if not waits or self._is_paused or self.is_busy:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = self.last_received
        idle = self.accepts_input and not self.is_busy
        most = self._context.limits.message_size_max
        if idle and not self.expected and buffer.waiting > most:
            self._context.counters.closed_by_server["message too large"] += 1
            self.close(f"a message above {most} bytes")
            return False
        buffer.compact(self.expected if idle or self.expected else buffer.waiting)
        return True

    # Sending

    def send(self, *parts: Part) -> None:
        """Queue bytes; they leave at the end of this turn of the loop."""
        self.send_parts(parts)

    def send_parts(self, parts: Sequence[Part]) -> None:
        if self._state != _OPEN:
            return
        self.unsent += len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if self._pending is None:
            self._pending = list(parts)
            if not self._is_processing:
                self._context.flush_later(self)
        else:
            self._pending.extend(parts)

    def respond(self, parts: Sequence[Part]) -> None:
        """Send now, and process what waited for it."""
        if self._state != _OPEN:
            return
        was_processing, self._is_processing = self._is_processing, True
        self.send_parts(parts)
        self._is_processing = was_processing
        if was_processing:
            return
        self.process()
        self.flush()

    def send_unframed(self, part: Part) -> None:
        """Queue bytes of a stage itself, after what the protocol has sent."""
        self._add_header()
        self.send_parts((part,))
        if self._pending is not None:
            self._framed = len(self._pending)

    def _add_header(self) -> None:
        pending, stage = self._pending, self._stage
        if stage is not None and pending is not None and len(pending) > self._framed:
            header = stage.header(sum(map(len, pending[self._framed :])))
            pending.insert(self._framed, header)
            self.unsent += len(header)
            self._framed = len(pending)

    def flush(self) -> None:
        """Send what is queued; the context calls it at the end of a turn."""
        pending, out = self._pending, self._out
        if pending is not None and self._state != _CLOSED:
            if self._stage is not None:
                self._add_header()
            self._pending, self._framed = None, 0
            if out is None:
                out = self._out = SendQueue(self._channel)
            before = out.size
            out.push(pending)
            added = out.size - before
            self._context.counters.sent_bytes += added
            if self._is_writing:
                self._context.unsent_total += added
            elif added:
                try:
                    is_done = out.flush()
                except OSError as error:
                    self.close(f"sending failed: {error.strerror}")
                    return
                self.unsent = out.size
                if not is_done:
                    self._wait_to_write(out)
        if self._state or (out is not None and out.size):
            self._check_bounds()

    def _wait_to_write(self, out: SendQueue) -> None:
        """Send the rest when the socket accepts it."""
        self._is_writing = True
        self._context.unsent_total += out.size
        self._owed, self._owed_since = out.size, self._context.loop.time()
        self._context.loop.add_writer(self.descriptor, self._writable)

    def _check_bounds(self) -> None:
        limits, size = self._context.limits, self._out.size if self._out is not None else 0
        if self._state == _CLOSING and not size:
            self._drain()
        elif size >= limits.unsent_high:
            self._is_congested = True
            if limits.unsent_max and size > limits.unsent_max:
                self._end("unsent output", f"{size} unsent bytes; the limit is {limits.unsent_max}")
        if self._is_writing and self._context.is_over_unsent_total:
            self._end(
                "unsent output of all clients",
                f"{self._context.unsent_total} unsent bytes of all clients; the limit is "
                f"{limits.unsent_total_max}",
            )

    def _writable(self) -> None:
        out, context = self._out, self._context
        assert out is not None, "a connection that writes has a queue"
        before = out.size
        try:
            is_done = out.flush()
        except OSError as error:
            self.close(f"sending failed: {error.strerror}")
            return
        sent = before - out.size
        context.unsent_total -= sent
        self.unsent -= sent
        if sent:
            self.last_active = context.loop.time()
            self._owed -= sent
            if self._owed <= 0:
                self._owed, self._owed_since = out.size, self.last_active
        if is_done:
            self._stop_writing()
            self._out = None
            if self._state == _CLOSING and self._pending is None:
                self._drain()
                return
        if self._is_congested and out.size < context.limits.unsent_high:
            self._is_congested = False
            if self.protocol is not None and self._state == _OPEN:
                self._call(self.protocol.writable)
            self._continue_reading()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._owed_since = None
            self._context.loop.remove_writer(self.descriptor)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except UNFORESEEN as error:
            _log.error(f"{self._context.name}_connection_failed", cause=error, peer=str(self.peer))
            self.close("an internal error")

    # Ending

    def refuse(self, kind: str, reason: str) -> None:
        """End a connection whose protocol has not begun, after what was sent to say so."""
        self._context.counters.refused[kind] += 1
        _log.warning(f"{self._context.name}_connection_refused", peer=str(self.peer), reason=reason)
        self.close_after_sending(reason)

    def hung_up(self) -> None:
        """The socket has an error: read what arrived before it, if that is possible now."""
        if self._state != _OPEN or self._is_writing or self._is_congested:
            self.close(ENDED_BY_CLIENT)
            return
        self._has_hung_up = True
        if not self._is_paused:
            self._readable()

    def close_after_sending(self, reason: str) -> None:
        """Send what is queued, then end the connection so that the client receives it."""
        if self._state != _OPEN:
            return
        if self._stage is not None:
            farewell = self._stage.farewell()
            if farewell:
                self.send_unframed(farewell)
        self._state, self._state_since = _CLOSING, self._context.loop.time()
        self._reason = reason
        self._stop_reading()
        self._context.flush_later(self)

    def _drain(self) -> None:
        """End our side, and wait for the client's: to close a socket with unread input would
        destroy the last bytes sent."""
        self._state, self._state_since = _DRAINING, self._context.loop.time()
        try:
            self._channel.shutdown(socket.SHUT_WR)
        except OSError:
            self.close(self._reason)
            return
        self._in.drop()
        self.start_reading()
        self._report_end(self._reason)

    def close(self, reason: str) -> None:
        """End the connection immediately; what is unsent is dropped. May be called again."""
        if self._state == _CLOSED:
            return
        self._state = _CLOSED
        self._stop_reading()
        if self._is_writing and self._out is not None:
            self._context.unsent_total -= self._out.size
        self._stop_writing()
        self._out = self._pending = None
        self._context.hangups.remove(self.descriptor)
        self._context.remove(self)
        self._channel.close()
        self._report_end(self._reason or reason)

    def _report_end(self, reason: str) -> None:
        protocol, self.protocol = self.protocol, None
        self._stage = None
        if protocol is not None:
            try:
                protocol.closed(reason)
            except UNFORESEEN as error:
                _log.error(
                    f"{self._context.name}_connection_failed", cause=error, peer=str(self.peer)
                )

    def _end(self, kind: str, reason: str) -> None:
        self._context.counters.closed_by_server[kind] += 1
        _log.warning(f"{self._context.name}_connection_ended", peer=str(self.peer), reason=reason)
        self.close(reason)

    # Sweeping

    def sweep(self, now: float) -> None:
        """End a connection that waited too long for its client; give back memory."""
        limits = self._context.limits
        slow_s = limits.slow_timeout_s or math.inf
        slow = now - slow_s
        if self._state >= _CLOSING:
            most_s = slow_s if self._state == _CLOSING else min(slow_s, self._context.linger_s)
            if self._state_since < now - most_s:
                self.close(self._reason)
        elif 0 < limits.idle_timeout_s < now - self.last_active and not self.is_busy:
            self._context.counters.closed_by_server["idle"] += 1
            self.close("idle")
        elif (self._partial_since is not None and self._partial_since < slow) or (
            self._owed_since is not None and self._owed_since < slow
        ):
            self._end("too slow", f"the client is slower than {limits.slow_timeout_s} s")
        elif 0 < self.silence_max_s < now - self.last_received:
            assert isinstance(self.protocol, TimedProtocol), "who sets a limit handles it"
            self._call(self.protocol.timed_out)
        self._in.release()
        if self._out is not None and not self._out.size:
            self._out = None
