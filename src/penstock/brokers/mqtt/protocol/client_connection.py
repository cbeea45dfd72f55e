"""`ClientConnection`: the protocol of one connection.

    waiting ──CONNECT──▶ connecting ──CONNACK──▶ ready ──▶ ended
                             │                    │ ▲
                             └─ AUTH              ▼ │ SUBSCRIBE, UNSUBSCRIBE, first publishes to a
                                                  busy    topic: what waits for the storage

While a connection is connecting or busy, nothing is read from the client; packets that were
received already wait in `_backlog`. Publishes need no task: see `Inbound`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.protocol.connect import ConnectOptions
from penstock.brokers.mqtt.protocol.connecting import (
    RefusedError,
    open_session,
    refusal,
)
from penstock.brokers.mqtt.protocol.eager import begin
from penstock.brokers.mqtt.protocol.hooks import Client
from penstock.brokers.mqtt.protocol.outgoing_aliases import OutgoingAliases
from penstock.brokers.mqtt.protocol.requests import (
    auto_subscribe,
    reauthenticate,
    subscribe,
    unsubscribe,
)
from penstock.brokers.mqtt.publish.inbound import Inbound
from penstock.brokers.mqtt.publish.path import reason_of
from penstock.brokers.mqtt.sessions.errors import SessionTakenOverError
from penstock.brokers.mqtt.topics.mapping import MappedTopic
from penstock.brokers.mqtt.wire.codec import Decoder, encode
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packet_types import PacketType
from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    PINGRESP,
    Ack,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Subscribe,
    Unsubscribe,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.brokers.network import Connection
from penstock.errors import StoreError
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker
    from penstock.brokers.mqtt.sessions.session import Session

_PINGRESP: Final = encode(PINGRESP, MQTT_5)
_NORMAL: Final = 0x00
_BACKLOG_MAX: Final = 10_000
"""Packets that may wait while a client is authenticated again."""
_CLOSED_BY_CLIENT: Final = "the client disconnected"

# Why reading pauses, as bits.
_BUSY: Final = 1
_STORAGE: Final = 2
_RATE: Final = 4

_log: Final = get_logger(__name__)


class ClientConnection:
    """Implements the `Protocol` of the network, `ClientSink` of sessions and `Publisher`."""

    __slots__ = (
        "_aliases",
        "_awaited_auth",
        "_backlog",
        "_broker",
        "_connection",
        "_decoder",
        "_ends_cleanly",
        "_expiry_s",
        "_failure",
        "_inbound",
        "_is_ended",
        "_is_ready",
        "_keeps_session",
        "_pauses",
        "_resumed_s",
        "_sends_will",
        "authentication_method",
        "client",
        "is_observed",
        "maximum_packet_size",
        "receive_maximum",
        "session",
        "topic_alias_maximum",
        "version",
    )

    def __init__(self, connection: Connection, broker: MqttBroker) -> None:
        self._connection: Final = connection
        self._broker: Final = broker
        self._decoder: Final[Decoder] = broker.decoder
        self._backlog: list[Packet] = []
        self._failure: ProtocolError | None = None
        """What was wrong after the packets of the backlog."""
        self._awaited_auth: asyncio.Future[Auth] | None = None
        """An authentication waits for the next AUTH packet."""
        self._aliases: OutgoingAliases | None = None
        self._inbound: Inbound | None = None
        self._keeps_session = False
        """Whether CONNECT asked for a session that outlives the connection."""
        self._resumed_s = 0.0
        """When reading went on, by the clock of the loop."""
        self._pauses = 0
        self._expiry_s: int | None = None
        self._sends_will = True
        self._ends_cleanly = False
        self._is_ended = False
        self._is_ready = False
        self.is_observed = False
        """Whether the observers know of the client."""
        self.authentication_method: str | None = None
        """The method of CONNECT, which holds for the whole connection."""
        self.version = 0
        """0: no CONNECT has been received."""
        self.receive_maximum = 0
        self.maximum_packet_size = 0
        self.topic_alias_maximum = 0
        self.session: Session | None = None
        peer = connection.peer
        self.client = Client("", None, 0, peer.host, peer.port, connection.transport)

    # Receiving

    def received(self, view: memoryview) -> int:
        """See `Protocol` of `brokers.network`."""
        if self._is_ended or (self._pauses & _BUSY and self._awaited_auth is None):
            return 0
        inbound = self._inbound
        if inbound is None or self._pauses & _BUSY:
            return self._decode(view)
        try:
            consumed, is_left = inbound.feed(view)
        except ProtocolError as error:
            self._fail(error)
            return len(view)
        if consumed:
            self._apply_rates(inbound)
            view = view[consumed:]
        if is_left and not self._is_ended:
            consumed += self._decode(view)
        elif len(view):
            self._connection.expected = _expected_size(view)
        return consumed

    def _decode(self, view: memoryview) -> int:
        """Decode and handle packets; return how many bytes they have."""
        try:
            packets, consumed = self._decoder.decode(view, self.version or None)
        except ProtocolError as error:
            self._process(error.packets, error)
            return len(view)
        if packets:
            self._process(packets, None)
        if consumed < len(view):
            self._connection.expected = _expected_size(view[consumed:])
        return consumed

    def _process(self, packets: list[Packet], failure: ProtocolError | None) -> None:
        """Handle packets in their order, as far as none makes the connection busy."""
        if self._pauses & _BUSY:
            self._pass_auth(packets, failure)
            return
        work: Coroutine[object, None, None] | None = None
        number = 0
        try:
            for number, packet in enumerate(packets):  # noqa: B007 - where it stopped is used
                work = self._handle(packet)
                if work is not None or self._is_ended:
                    break
        except ProtocolError as error:
            failure = error
        inbound = self._inbound
        if inbound is not None:
            inbound.flush()
            self._apply_rates(inbound)
        if self._is_ended:
            if work is not None:
                work.close()
            return
        if work is not None:
            self._backlog.extend(packets[number + 1 :])
            self._failure = failure
            self._run_busy(work)
        elif failure is not None:
            self._fail(failure)

    def _handle(self, packet: Packet) -> Coroutine[object, None, None] | None:
        """Handle a packet; return work that makes the connection busy."""
        if type(packet) is Publish and self._inbound is not None:
            missing = self._inbound.accept(packet)
            return None if missing is None else self._create_topic(packet, missing)
        if isinstance(packet, Ack):
            self._acknowledge(packet)
            return None
        match packet:
            case Pingreq():
                self._connection.send(_PINGRESP)
            case Connect():
                return self._connect(packet)
            case Subscribe():
                return self._begin(subscribe(self, self._broker, packet))
            case Unsubscribe():
                return self._begin(unsubscribe(self, self._broker, packet))
            case Disconnect():
                self._client_disconnects(packet)
            case Auth():
                return reauthenticate(self, self._broker, packet)
            case _:
                raise ProtocolError(
                    ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__} is not expected here"
                )
        return None

    def _begin(self, work: Coroutine[object, None, None]) -> Coroutine[object, None, None] | None:
        """Begin a request after everything that was published before it, of all clients."""
        if self._inbound is not None:
            self._inbound.flush()
        self._broker.delivery.flush()
        return begin(work)

    def _pass_auth(self, packets: list[Packet], failure: ProtocolError | None) -> None:
        """Pass AUTH to the authentication that waits for it. What else a client sends while it is
        authenticated again waits."""
        for packet in packets:
            awaited = self._awaited_auth
            if isinstance(packet, Auth) and awaited is not None:
                self._awaited_auth = None
                self._connection.pause_reading()
                if not awaited.done():
                    awaited.set_result(packet)
            elif isinstance(packet, Disconnect) and not self._is_ready:
                self.end(_CLOSED_BY_CLIENT)
                return
            elif self._is_ready and len(self._backlog) < _BACKLOG_MAX:
                self._backlog.append(packet)
            else:
                name = type(packet).__name__
                failure = ProtocolError(
                    ReasonCode.PROTOCOL_ERROR, f"{name} during an authentication"
                )
                break
        if failure is not None:
            self._fail(failure)

    async def next_auth(self) -> Auth:
        """Return the next AUTH packet of the client, for which it has as long as for CONNECT."""
        awaited = self._awaited_auth = self._connection.loop.create_future()
        self._connection.resume_reading()
        timeout_s = self._broker.settings.connect_timeout_ms / 1000
        try:
            return await asyncio.wait_for(awaited, timeout_s)
        except TimeoutError:
            raise RefusedError(ReasonCode.NOT_AUTHORIZED, "AUTH did not arrive in time") from None
        finally:
            self._awaited_auth = None

    # Connecting

    def _connect(self, connect: Connect) -> Coroutine[None, None, None]:
        if self.version:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a second CONNECT")
        options = ConnectOptions(connect, self._broker.settings, self._broker.make_client_id)
        self._keeps_session = options.requested_expiry_s > 0
        self.version = options.version
        self.receive_maximum = options.inflight_max
        self.maximum_packet_size = options.packet_size_max
        self.topic_alias_maximum = options.topic_alias_maximum
        if options.topic_alias_maximum:
            self._aliases = OutgoingAliases(options.topic_alias_maximum, options.packet_size_max)
        if connect.properties is not None:
            self.authentication_method = connect.properties.authentication_method
        client = self.client
        client.client_id = options.client_id
        client.username = connect.username
        client.version = options.version
        self._connection.established()
        return self._open(connect, options)

    async def _open(self, connect: Connect, options: ConnectOptions) -> None:
        broker = self._broker
        try:
            opened = await open_session(self, broker, connect, options)
        except RefusedError as error:
            self._refuse_connect(error.reason_code, str(error))
            return
        except SessionTakenOverError:
            self.end("the session was taken over")
            return
        session = self.session = opened.session
        if self._is_ended:
            await self._close_session(session)
            return
        if len(opened.connack) > options.packet_size_max:
            self.end("the client accepts no CONNACK: its maximum packet size is too small")
            return
        self._connection.send(opened.connack)
        self._connection.silence_max_s = options.silence_max_s
        self._inbound = Inbound(broker.publish_path, self, self.client, session)
        self.refresh_subscriptions()
        self._is_ready = True
        broker.metrics.connects += 1
        broker.add_client(self)
        await auto_subscribe(self, broker)

    def _refuse_connect(self, reason_code: int, reason: str) -> None:
        self._broker.metrics.count_refused_connect(reason_code)
        _log.info(
            "mqtt_connection_refused",
            client=self.client.client_id,
            peer=self.client.host,
            reason_code=reason_code,
            reason=reason,
        )
        if not self._is_ended:
            self._connection.send(refusal(reason_code, self.version))
            self.end(reason)

    # Acknowledgements of the client

    def _acknowledge(self, ack: Ack) -> None:
        session = self.session
        assert session is not None, "only a client with a session is ready"
        if ack.kind is PacketType.PUBREL:
            if self._inbound is not None:
                self._inbound.flush()
            self._release(session, ack.packet_id)
            return
        answer = session.acknowledged(ack.packet_id, ack.kind, ack.reason_code)
        if answer:
            self._connection.send(answer)

    def _release(self, session: Session, packet_id: int) -> None:
        """The client releases a QoS 2 publish: PUBCOMP leaves when that is stored."""

        def complete() -> None:
            if self._inbound is not None:
                self._inbound.released(packet_id)
            self.send(encode(Ack(PacketType.PUBCOMP, packet_id), self.version))

        self._broker.sessions.release_then(session, packet_id, complete)

    # Work that waits

    def _run_busy(self, work: Coroutine[object, None, None]) -> None:
        """Run `work`; nothing else of this client is handled meanwhile."""
        self._pauses |= _BUSY
        self._connection.is_busy = True
        self._connection.pause_reading()
        self.spawn(self._finish_busy(work), "mqtt-request")

    async def _finish_busy(self, work: Coroutine[object, None, None]) -> None:
        try:
            await work
        except ProtocolError as error:
            self._fail(error)
        self._continue()

    def _continue(self) -> None:
        """Handle what was received meanwhile, then read again."""
        if self._is_ended:
            return
        self._pauses &= ~_BUSY
        self._connection.is_busy = False
        backlog, self._backlog = self._backlog, []
        failure, self._failure = self._failure, None
        if backlog or failure is not None:
            self._process(backlog, failure)
        if not self._pauses and not self._is_ended:
            self._resume_reading()

    async def _create_topic(self, publish: Publish, missing: MappedTopic) -> None:
        inbound = self._inbound
        assert inbound is not None, "only a client with a session publishes"
        try:
            await self._broker.publish_path.creator.create(missing)
        except StoreError as error:
            _log.warning("mqtt_topic_not_created", topic=missing.stored_topic, reason=str(error))
            inbound.refuse(publish, reason_of(error))
            inbound.flush()
        else:
            self._backlog.insert(0, publish)

    def spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run work of this connection; it is cancelled when the server stops, not before: what a
        client was promised is done although it has gone."""
        self._broker.spawn(work, name).add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.disconnect(ReasonCode.UNSPECIFIED_ERROR)

    # Bounds

    def hold_back(self, size: int) -> None:
        """See `Publisher`."""
        if size >= self._broker.settings.unacknowledged_size_max:
            self._pause(_STORAGE)
        elif self._pauses & _STORAGE and size <= self._broker.settings.unacknowledged_size_max // 2:
            self._resume(_STORAGE)

    def _apply_rates(self, inbound: Inbound) -> None:
        messages, size = inbound.messages, inbound.size
        if not messages:
            return
        inbound.messages = inbound.size = 0
        metrics = self._broker.metrics
        metrics.publishes_received += messages
        metrics.publish_bytes_received += size
        pause_s = self._broker.hooks.rates.pause_s(self.client, messages, size)
        if pause_s > 0:
            self._pause(_RATE)
            self._connection.loop.call_later(pause_s, self._resume, _RATE)

    def _pause(self, why: int) -> None:
        if not self._pauses:
            self._connection.pause_reading()
        self._pauses |= why

    def _resume(self, why: int) -> None:
        if self._pauses & why:
            self._pauses &= ~why
            if not self._pauses and not self._is_ended:
                self._resume_reading()

    def _resume_reading(self) -> None:
        self._resumed_s = self._connection.loop.time()
        self._connection.resume_reading()

    def refresh_subscriptions(self) -> None:
        """The subscriptions of the session have changed."""
        session, inbound = self.session, self._inbound
        if session is not None and inbound is not None:
            inbound.is_stamped = any(item.no_local for item in session.subscriptions.values())

    # Sending

    @property
    def unsent(self) -> int:
        return self._connection.unsent

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def send(self, data: bytes) -> None:
        if self._aliases is not None:
            data = self._aliases.apply(data)
        self._connection.send(data)

    def writable(self) -> None:
        """See `Protocol` of `brokers.network`."""
        if self.session is not None and not self._is_ended:
            self.session.writable()

    # Ending

    def _client_disconnects(self, packet: Disconnect) -> None:
        properties = packet.properties
        expiry_s = None if properties is None else properties.session_expiry_interval
        if expiry_s and not self._keeps_session:
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR,
                "DISCONNECT sets a session expiry, and CONNECT had none",
            )
        if self._inbound is not None:
            self._inbound.flush()
        self._expiry_s = expiry_s
        self._sends_will = packet.reason_code != _NORMAL
        self._ends_cleanly = packet.reason_code in {_NORMAL, ReasonCode.DISCONNECT_WITH_WILL}
        self.end(_CLOSED_BY_CLIENT)

    def _fail(self, error: ProtocolError) -> None:
        """The client has broken the rules of the protocol."""
        _log.info(
            "mqtt_protocol_error",
            client=self.client.client_id,
            peer=self.client.host,
            reason_code=int(error.reason_code),
            reason=error.text,
        )
        if self._is_ended:
            return
        if not self._is_ready:
            version = error.version or self.version
            is_answered = version == MQTT_5 or (
                error.reason_code
                in {
                    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
                    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                }
            )
            if version and is_answered and error.answered:
                self._connection.send(refusal(error.reason_code, version))
            self._broker.metrics.count_refused_connect(error.reason_code)
            self.end(error.text)
        elif error.answered:
            self.disconnect(error.reason_code, error.text)
        else:
            self._broker.metrics.count_disconnect(error.reason_code)
            self.end(error.text)

    def refuse(self, reason_code: int, reason: str) -> None:
        """See `Publisher`."""
        self.disconnect(reason_code, reason)

    def disconnect(self, reason_code: int, reason: str = "") -> None:
        """See `ClientSink`."""
        if self._is_ended:
            return
        self._broker.metrics.count_disconnect(reason_code)
        if self.version == MQTT_5:
            packet = Disconnect(reason_code) if self._is_ready else None
            data = encode(packet, MQTT_5) if packet else refusal(reason_code, MQTT_5)
            self._connection.send(data)
        self.end(reason or f"disconnected with reason code {reason_code:#04x}")

    def timed_out(self) -> None:
        """See `TimedProtocol` of `brokers.network`. While nothing is read from a client, it cannot
        show that it lives."""
        connection = self._connection
        if self._pauses or connection.is_congested:
            return
        if connection.loop.time() - self._resumed_s > connection.silence_max_s / 2:
            self.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, "the keep-alive has passed")

    def end(self, reason: str) -> None:
        """Close the connection when everything that was sent has left."""
        if not self._is_ended:
            self._is_ended = True
            self._connection.close_after_sending(reason)
            self._ended(reason)

    def closed(self, reason: str) -> None:
        """See `Protocol` of `brokers.network`."""
        if not self._is_ended:
            self._is_ended = True
            self._ended(reason)

    def _ended(self, reason: str) -> None:
        """Give the session back, and tell the hooks; once per connection."""
        self._backlog.clear()
        if self._inbound is not None:
            self._inbound.close()
        self._broker.remove_client(self, reason, is_clean=self._ends_cleanly)
        session = self.session
        if session is not None:
            self._broker.spawn(self._close_session(session), "mqtt-session-close")

    async def _close_session(self, session: Session) -> None:
        try:
            await self._broker.sessions.close(
                session, sink=self, expiry_s=self._expiry_s, sends_will=self._sends_will
            )
        except StoreError as error:
            _log.warning("mqtt_session_not_closed", client=self.client.client_id, reason=str(error))


def _expected_size(view: memoryview) -> int:
    """Return the size of the packet that begins here; 0: unknown."""
    size = shift = 0
    for index in range(1, min(5, len(view))):
        byte = view[index]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return 1 + index + size
        shift += 7
    return 0
