"""Packets over one connection, without any state of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from penstock.brokers.mqtt.client.errors import ConnectionLostError, RefusedError
from penstock.brokers.mqtt.client.options import ClientOptions
from penstock.brokers.mqtt.wire.codec import DecodeLimits, Decoder, encode
from penstock.brokers.mqtt.wire.packets import Connack, Connect, Packet
from penstock.errors import DeadlineError
from penstock.platform.addresses import with_port

READ_SIZE: Final = 256 * 1024
TOPIC_SIZE_MAX: Final = 65_535
WRITE_TIMEOUT_S: Final = 60.0


class ByteReader(Protocol):
    async def read(self, n: int = -1) -> bytes: ...


class ByteWriter(Protocol):
    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


class PacketChannel:
    """Reads and writes packets. `close` may be called again."""

    def __init__(
        self, reader: ByteReader, writer: ByteWriter, version: int, packet_size_max: int
    ) -> None:
        limits = DecodeLimits(
            packet_size_max=packet_size_max,
            topic_bytes_max=TOPIC_SIZE_MAX,
            topic_levels_max=TOPIC_SIZE_MAX,
        )
        self.version: Final = version
        self._reader: Final = reader
        self._writer: Final = writer
        self._decoder: Final = Decoder(limits, from_client=False)
        self._buffer = bytearray()
        self._waiting: Sequence[Packet] = ()

    async def receive(self) -> Sequence[Packet]:
        """Return the next packets, at least one; none when the connection has ended."""
        if self._waiting:
            waiting, self._waiting = self._waiting, ()
            return waiting
        while True:
            packets, consumed = self._decoder.decode(bytes(self._buffer), self.version)
            if packets:
                del self._buffer[:consumed]
                return packets
            try:
                data = await self._reader.read(READ_SIZE)
            except OSError:
                return ()
            if not data:
                return ()
            self._buffer += data

    def unread(self, packets: Sequence[Packet]) -> None:
        """Let the next `receive` return these packets."""
        self._waiting = packets

    def send(self, *packets: Packet) -> None:
        """Queue packets; `drain` waits until the queue is short."""
        self._writer.write(b"".join([encode(packet, self.version) for packet in packets]))

    async def drain(self) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise ConnectionLostError(f"the connection was lost: {error}") from error

    def close(self) -> None:
        with suppress(OSError, RuntimeError):  # RuntimeError: the event loop has ended
            self._writer.close()


async def open_channel(options: ClientOptions) -> PacketChannel:
    """Connect a socket; raise `DeadlineError` after the timeout, `ConnectionLostError` if the
    address does not answer."""
    where = with_port(options.host, options.port)
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            reader, writer = await asyncio.open_connection(
                options.host,
                options.port,
                ssl=options.tls,
                server_hostname=options.host if options.tls is not None else None,
            )
    except TimeoutError as error:
        raise DeadlineError(
            f"{where} did not accept a connection within {options.connect_timeout_s:g} s"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectionLostError(f"cannot connect to the MQTT broker {where}: {reason}") from error
    return PacketChannel(reader, writer, options.version, options.packet_size_max)


async def exchange_connect(channel: PacketChannel, connect: Connect, timeout_s: float) -> Connack:
    """Send CONNECT and return the CONNACK; raise `RefusedError` if the server refuses."""
    channel.send(connect)
    try:
        async with asyncio.timeout(timeout_s):
            packets = await channel.receive()
    except TimeoutError as error:
        raise DeadlineError(f"the MQTT broker sent no CONNACK within {timeout_s:g} s") from error
    if not packets:
        raise ConnectionLostError("the MQTT broker closed the connection instead of a CONNACK")
    connack = packets[0]
    if not isinstance(connack, Connack):
        raise ConnectionLostError(
            f"the MQTT broker answered CONNECT with {type(connack).__name__.upper()}"
        )
    if connack.reason_code:
        raise RefusedError("the connection", connack.reason_code, connack.properties)
    channel.unread(packets[1:])
    return connack
