"""`MqttClient`: an MQTT 3.1.1 and 5 client for asyncio programs.

    async with MqttClient(ClientOptions(port=1883)) as client:
        await client.subscribe("plant/#", qos=1)
        await client.publish("plant/1/state", b"on", qos=2)
        message = await client.next_message(timeout_s=5)

A received message is acknowledged when it enters the queue of received messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TypeVar

from penstock.brokers.mqtt.client.channel import PacketChannel, exchange_connect, open_channel
from penstock.brokers.mqtt.client.errors import ConnectionLostError, RefusedError
from penstock.brokers.mqtt.client.options import RETRY_MAX_S, RETRY_MIN_S, ClientOptions
from penstock.brokers.mqtt.client.outgoing import OutgoingWindow
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import (
    PINGREQ,
    Ack,
    Connack,
    Disconnect,
    Packet,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from penstock.brokers.mqtt.wire.reason_codes import FAILURE
from penstock.errors import BadRequestError, ClosedError, DeadlineError, RetryableError

T = TypeVar("T")
RECEIVE_MAXIMUM: Final = 65_535

OpenChannel = Callable[[ClientOptions], Coroutine[None, None, PacketChannel]]


class MqttClient:
    def __init__(self, options: ClientOptions, open_with: OpenChannel = open_channel) -> None:
        self._options: Final = options
        self._open_with: Final = open_with
        self._messages: Final[asyncio.Queue[Publish]] = asyncio.Queue(options.messages_max)
        self._outgoing: Final = OutgoingWindow()
        self._responses: Final[dict[int, asyncio.Future[list[int]]]] = {}
        self._received: Final[set[int]] = set()
        self._filters: Final[dict[str, tuple[SubscriptionRequest, Properties | None]]] = {}
        self._window = asyncio.Semaphore(RECEIVE_MAXIMUM)
        self._channel: PacketChannel | None = None
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._ended: Final = asyncio.Event()
        self._failure: Exception | None = None
        self._is_closing = False
        self.connack = Connack()
        """The CONNACK of the current connection."""

    @property
    def is_connected(self) -> bool:
        return self._channel is not None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def connect(self) -> Connack:
        """Connect; raise `RefusedError`, `DeadlineError` or `ConnectionLostError`."""
        await self._open(clean_start=self._options.clean_start)
        self._start(self._serve())
        return self.connack

    async def close(self, *, reason_code: int = 0, expiry_s: int | None = None) -> None:
        """Send DISCONNECT and close the connection. May be called again."""
        self._is_closing = True
        channel = self._channel
        if channel is not None:
            properties = None if expiry_s is None else Properties(session_expiry_interval=expiry_s)
            channel.send(Disconnect(reason_code, properties))
            with suppress(ConnectionLostError):
                await channel.drain()
        await self.abort()

    async def abort(self) -> None:
        """Close the connection without DISCONNECT: the server publishes the will."""
        self._is_closing = True
        if self._channel is not None:
            self._channel.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end(ClosedError("the MQTT client is closed"))

    # Calls

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish; with QoS 1 and 2 return the reason code when the server has acknowledged. Raise
        `RefusedError` for a failure."""
        publish = Publish(topic, payload, qos, retain, properties=properties)
        if not qos:
            await self._send(publish)
            return 0
        async with self._window:
            self._check_open()
            done = self._outgoing.add(publish)
            with suppress(ConnectionLostError):  # sent again with the next connection
                await self._send(publish)
            reason_code = await self._within(done, f"the publish to {topic}")
        if reason_code >= FAILURE:
            raise RefusedError(f"the publish to {topic}", reason_code)
        return reason_code

    async def subscribe(
        self,
        topic_filter: str | SubscriptionRequest,
        *,
        qos: int = 0,
        identifier: int | None = None,
        properties: Properties | None = None,
    ) -> int:
        """Subscribe; return the granted QoS. Raise `RefusedError` for a failure."""
        request = topic_filter
        if isinstance(request, str):
            request = SubscriptionRequest(request, qos)
        if identifier is not None:
            properties = properties or Properties()
            properties.subscription_identifiers = [identifier]
        code = (await self._request_subscription(request, properties))[0]
        if code >= FAILURE:
            raise RefusedError(f"the subscription to {request.filter}", code)
        self._filters[request.filter] = (request, properties)
        return code

    async def unsubscribe(self, topic_filter: str) -> int:
        """Unsubscribe; return the reason code (0 before MQTT 5)."""
        self._filters.pop(topic_filter, None)
        packet_id = self._outgoing.reserve_id()
        packet = Unsubscribe(packet_id, [topic_filter])
        codes = await self._respond(packet_id, packet, f"UNSUBSCRIBE {topic_filter}")
        return codes[0] if codes else 0

    async def next_message(self, timeout_s: float | None = None) -> Publish:
        """Return the next received message; raise `DeadlineError` after the timeout, and the
        reason when the connection has ended."""
        if self._messages.empty() and self._failure is not None:
            raise self._failure
        getting = asyncio.ensure_future(self._messages.get())
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait(
                {getting, ending}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if getting.done():
                return getting.result()
        finally:
            ending.cancel()
            getting.cancel()
        if self._failure is not None:
            raise self._failure
        raise DeadlineError(f"no message was received within {timeout_s:g} s")

    # Connections

    async def _open(self, *, clean_start: bool) -> None:
        options = self._options
        channel = await self._open_with(options)
        try:
            connect = options.connect_packet(clean_start=clean_start)
            connack = await exchange_connect(channel, connect, options.connect_timeout_s)
        except BaseException:
            channel.close()
            raise
        properties = connack.properties
        maximum = properties.receive_maximum if properties is not None else None
        if self._channel is None and not self._tasks:
            self._window = asyncio.Semaphore(maximum or RECEIVE_MAXIMUM)
        self.connack = connack
        self._channel = channel

    async def _serve(self) -> None:
        """Read until the connection ends; connect again if the options say so."""
        while True:
            channel = self._channel
            assert channel is not None
            pinging = asyncio.ensure_future(self._keep_alive(channel))
            try:
                reason = await self._read(channel)
            finally:
                pinging.cancel()
                channel.close()
                self._channel = None
            if self._is_closing or not self._options.reconnects:
                self._end(reason)
                return
            self._fail_responses(reason)
            await self._reconnect()

    async def _read(self, channel: PacketChannel) -> Exception:
        """Handle packets until the connection ends; return the reason."""
        while True:
            try:
                packets = await channel.receive()
            except ProtocolError as error:
                return ConnectionLostError(f"the MQTT broker sent a wrong packet: {error}")
            if not packets:
                return ConnectionLostError("the MQTT broker closed the connection")
            for packet in packets:
                if isinstance(packet, Disconnect):
                    return RefusedError("the session", packet.reason_code, packet.properties)
                await self._handle(channel, packet)

    async def _reconnect(self) -> None:
        pause_s = RETRY_MIN_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_MAX_S, 2 * pause_s)
            try:
                await self._open(clean_start=False)
            except (RetryableError, RefusedError):
                continue
            break
        if not self.connack.session_present:
            self._received.clear()
            for request, properties in list(self._filters.values()):
                self._start(self._subscribe_again(request, properties))
        for packet in list(self._outgoing.repeats()):
            self._send_now(packet)

    async def _subscribe_again(
        self, request: SubscriptionRequest, properties: Properties | None
    ) -> None:
        with suppress(RetryableError, RefusedError, ClosedError):
            await self._request_subscription(request, properties)

    async def _keep_alive(self, channel: PacketChannel) -> None:
        interval = self._options.keep_alive_s
        properties = self.connack.properties
        if properties is not None and properties.server_keep_alive is not None:
            interval = properties.server_keep_alive
        while interval:
            await asyncio.sleep(interval / 2)
            channel.send(PINGREQ)

    # Packets

    async def _handle(self, channel: PacketChannel, packet: Packet) -> None:
        match packet:
            case Publish():
                await self._deliver(channel, packet)
            case Ack(kind=PacketType.PUBREL):
                self._received.discard(packet.packet_id)
                channel.send(Ack(PacketType.PUBCOMP, packet.packet_id))
            case Ack():
                answer = self._outgoing.acknowledged(packet)
                if answer is not None:
                    channel.send(answer)
            case Suback() | Unsuback():
                response = self._responses.get(packet.packet_id)
                if response is not None and not response.done():
                    response.set_result(packet.reason_codes)
            case _:
                pass

    async def _deliver(self, channel: PacketChannel, publish: Publish) -> None:
        if publish.qos < 2 or publish.packet_id not in self._received:
            await self._messages.put(publish)
        if publish.qos == 1:
            channel.send(Ack(PacketType.PUBACK, publish.packet_id))
        elif publish.qos == 2:
            self._received.add(publish.packet_id)
            channel.send(Ack(PacketType.PUBREC, publish.packet_id))

    async def _request_subscription(
        self, request: SubscriptionRequest, properties: Properties | None
    ) -> list[int]:
        packet_id = self._outgoing.reserve_id()
        packet = Subscribe(packet_id, [request], properties)
        return await self._respond(packet_id, packet, f"SUBSCRIBE {request.filter}")

    async def _respond(self, packet_id: int, packet: Packet, what: str) -> list[int]:
        response: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._responses[packet_id] = response
        try:
            await self._send(packet)
            return await self._within(response, what)
        finally:
            del self._responses[packet_id]
            self._outgoing.release_id(packet_id)

    async def _send(self, packet: Packet) -> None:
        self._check_open()
        channel = self._channel
        if channel is None:
            raise ConnectionLostError("the MQTT client is not connected")
        channel.send(packet)
        await channel.drain()

    def _send_now(self, packet: Packet) -> None:
        if self._channel is not None:
            self._channel.send(packet)

    async def _within(self, response: asyncio.Future[T], what: str) -> T:
        seconds = self._options.response_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(response)
        except TimeoutError as error:
            raise DeadlineError(f"the broker did not answer {what} within {seconds:g} s") from error

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._channel is None and not self._tasks:
            raise BadRequestError("the MQTT client is not connected: call connect first")

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail_responses(self, error: Exception) -> None:
        for response in self._responses.values():
            if not response.done():
                response.set_exception(error)

    def _end(self, reason: Exception) -> None:
        if self._failure is None:
            self._failure = reason
        self._channel = None
        self._fail_responses(reason)
        self._outgoing.fail(reason)
        self._ended.set()
