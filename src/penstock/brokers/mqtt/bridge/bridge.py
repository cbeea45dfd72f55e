"""One bridge: connects to both brokers, subscribes, relays, and connects again after a failure.

    remote: CONNECT, SUBSCRIBE what comes in     then     local: CONNECT, SUBSCRIBE what goes out
                         both connections live, or both end: pause, doubled up to the limit

Each side is asked for at most as many messages in flight as the other side accepts.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Literal

from penstock.brokers.mqtt.bridge.relay import BridgeCounters, Relay, Side
from penstock.brokers.mqtt.bridge.topics import TransferTable, tables_of
from penstock.brokers.mqtt.client import (
    ClientOptions,
    ConnectionLostError,
    PacketChannel,
    RefusedError,
    open_channel,
)
from penstock.brokers.mqtt.client.channel import exchange_connect
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1_1,
    MQTT_5,
    PINGREQ,
    Packet,
    Suback,
    Subscribe,
)
from penstock.brokers.mqtt.wire.reason_codes import FAILURE
from penstock.errors import RetryableError, SettingsError
from penstock.platform.addresses import bare_host
from penstock.platform.log import get_logger
from penstock.settings import (
    MqttBridgeConnection,
    MqttBridgeSettings,
    MqttBridgeTopic,
)

SUBSCRIBE_ID: Final = 65_535
"""Packet id of SUBSCRIBE: messages have ids of the other broker, which counts from 1."""
RECEIVE_MAXIMUM: Final = 100
"""Messages that wait for their acknowledgement in each direction."""
State = Literal["connecting", "connected", "waiting"]

_log: Final = get_logger(__name__)

OpenLocal = Callable[[ClientOptions], Awaitable[PacketChannel]]


class Bridge:
    def __init__(
        self,
        connection: MqttBridgeConnection,
        topics: list[MqttBridgeTopic],
        settings: MqttBridgeSettings,
        open_local: OpenLocal,
        instance: str,
        receive_maximum: int = RECEIVE_MAXIMUM,
    ) -> None:
        """`open_local` connects to this node, whose receive maximum is given; `instance` names the
        node. Raise `SettingsError`."""
        self.name: Final = connection.name
        self.counters: Final = BridgeCounters()
        self.state: State = "waiting"
        self.changed: Final = asyncio.Event()
        """Set, and cleared again, at each change of the state."""
        self.failure = ""
        """Why the last connection failed or ended."""
        self._connection: Final = connection
        self._settings: Final = settings
        self._open_local: Final = open_local
        self._instance: Final = instance
        self._receive_maximum: Final = min(receive_maximum, RECEIVE_MAXIMUM)
        self._version: Final = MQTT_5 if connection.version == "5" else MQTT_3_1_1
        self._is_subscribed_here = False
        self._is_session_new = False
        """Whether this node had no session of the bridge before."""
        self._out, self._in = tables_of(topics, self._version, connection.name)
        self._remote_options: Final = self._options_of_remote()

    async def run(self) -> None:
        """Keep the bridge connected until the task is cancelled."""
        pause_s = self._settings.retry_min_ms / 1000
        while True:
            self._change("connecting")
            before = self.counters.connections
            try:
                await self._connect_and_relay()
                self.failure = "a broker closed the connection"
            except (RetryableError, RefusedError, ProtocolError) as error:
                self.failure = str(error)
            self._change("waiting")
            if self.counters.connections > before:
                pause_s = self._settings.retry_min_ms / 1000
            _log.warning("mqtt_bridge_interrupted", bridge=self.name, reason=self.failure)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._settings.retry_max_ms / 1000)

    def _change(self, state: State) -> None:
        self.state = state
        self.changed.set()
        self.changed.clear()

    async def _connect_and_relay(self) -> None:
        channels: list[PacketChannel] = []
        try:
            if not self._is_subscribed_here:
                await self._subscribe_here(channels)
            remote = await self._open_side(channels, open_channel, self._remote_options, self._in)
            local = await self._open_side(
                channels,
                self._open_local,
                self._options_of_local(remote.receive_maximum),
                self._out,
            )
            relay = Relay(local, remote, self._instance, self.counters)
            if self._is_session_new:
                local.is_session_present = self._is_session_new = False
            relay.release_old_ids()
            self.counters.connections += 1
            self.failure = ""
            self._change("connected")
            _log.info("mqtt_bridge_connected", bridge=self.name, remote=self._connection.address)
            await self._relay(relay, remote)
        finally:
            for channel in channels:
                channel.close()

    async def _subscribe_here(self, channels: list[PacketChannel]) -> None:
        """Begin the session at this node before the remote broker is reached: what is published
        from now on waits for it."""
        side = await self._open_side(
            channels, self._open_local, self._options_of_local(1), self._out
        )
        self._is_session_new = not side.is_session_present
        channels.pop().close()
        self._is_subscribed_here = True

    async def _relay(self, relay: Relay, remote: Side) -> None:
        """Run until one side ends."""
        tasks = [
            asyncio.ensure_future(relay.pump(from_local=True)),
            asyncio.ensure_future(relay.pump(from_local=False)),
            asyncio.ensure_future(self._keep_alive(remote.channel)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _open_side(
        self,
        channels: list[PacketChannel],
        open_with: OpenLocal,
        options: ClientOptions,
        table: TransferTable,
    ) -> Side:
        """Connect, subscribe, and return the side."""
        channel = await open_with(options)
        channels.append(channel)
        connect = options.connect_packet(clean_start=False)
        connack = await exchange_connect(channel, connect, options.connect_timeout_s)
        if table.transfers:
            await self._subscribe(channel, table, options.connect_timeout_s)
        return Side(channel, connack, table)

    async def _subscribe(
        self, channel: PacketChannel, table: TransferTable, timeout_s: float
    ) -> None:
        """Subscribe; messages that arrive before SUBACK are read again by the relay."""
        channel.send(Subscribe(SUBSCRIBE_ID, table.requests(channel.version)))
        waiting: list[Packet] = []
        try:
            async with asyncio.timeout(timeout_s):
                suback = await _read_suback(channel, waiting)
        except TimeoutError as error:
            raise ConnectionLostError("a broker sent no SUBACK") from error
        channel.unread(waiting)
        for transfer, code in zip(table.transfers, suback.reason_codes, strict=False):
            if code >= FAILURE:
                raise RefusedError(f"the subscription to {transfer.source_filter}", code)

    async def _keep_alive(self, channel: PacketChannel) -> None:
        while True:
            await asyncio.sleep(self._connection.keep_alive_s / 2)
            channel.send(PINGREQ)

    def _options_of_remote(self) -> ClientOptions:
        connection = self._connection
        host, _, port = connection.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise SettingsError(
                f"mqtt_bridge connection {connection.name!r}: address {connection.address!r} is "
                "not HOST:PORT"
            )
        return ClientOptions(
            host=bare_host(host),
            port=int(port),
            client_id=connection.client_id or f"penstock-bridge-{connection.name}",
            version=self._version,
            clean_start=False,
            session_expiry_s=connection.session_expiry_s,
            keep_alive_s=connection.keep_alive_s,
            username=connection.username or None,
            password=_password(connection),
            tls=_tls(connection),
            receive_maximum=self._receive_maximum,
            connect_timeout_s=self._settings.connect_timeout_ms / 1000,
        )

    def _options_of_local(self, receive_maximum: int) -> ClientOptions:
        return replace(
            self._remote_options,
            client_id=f"$bridge-{self.name}",
            version=MQTT_5,
            keep_alive_s=0,
            username=None,
            password=None,
            tls=None,
            receive_maximum=min(receive_maximum, RECEIVE_MAXIMUM),
        )


async def _read_suback(channel: PacketChannel, waiting: list[Packet]) -> Suback:
    while packets := await channel.receive():
        for index, packet in enumerate(packets):
            if isinstance(packet, Suback) and packet.packet_id == SUBSCRIBE_ID:
                waiting += packets[index + 1 :]
                return packet
            waiting.append(packet)
    raise ConnectionLostError("a broker closed the connection instead of a SUBACK")


def _password(connection: MqttBridgeConnection) -> bytes | None:
    if not connection.password_file:
        return None
    try:
        with open(connection.password_file, "rb") as file:
            return file.readline(4_096).rstrip(b"\r\n")
    except OSError as error:
        raise SettingsError(
            f"mqtt_bridge connection {connection.name!r}: {connection.password_file} cannot be "
            f"read: {error.strerror}"
        ) from error


def _tls(connection: MqttBridgeConnection) -> ssl.SSLContext | None:
    if not connection.tls_ca_file:
        return None
    try:
        return ssl.create_default_context(cafile=connection.tls_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"mqtt_bridge connection {connection.name!r}: tls_ca_file {connection.tls_ca_file}: "
            f"{error}"
        ) from error
