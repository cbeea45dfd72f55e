"""A server that answers as a test says: one coroutine for each connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from penstock.brokers.mqtt.wire.codec import Decoder, encode
from penstock.brokers.mqtt.wire.packets import Connack, Connect, Packet


class Peer:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._packets: list[Packet] = []
        self._buffer = b""
        self.version: int | None = None

    async def receive(self) -> Packet:
        while not self._packets:
            data = await self._reader.read(65_536)
            if not data:
                raise EOFError
            packets, consumed = self._decoder.decode(self._buffer + data, self.version)
            self._buffer = (self._buffer + data)[consumed:]
            self._packets += packets
        return self._packets.pop(0)

    async def accept(self, connack: Connack | None = None) -> Connect:
        connect = await self.receive()
        assert isinstance(connect, Connect)
        self.version = connect.version
        self.send(connack or Connack())
        return connect

    def send(self, *packets: Packet) -> None:
        assert self.version is not None
        self._writer.write(b"".join(encode(packet, self.version) for packet in packets))

    def close(self) -> None:
        self._writer.close()


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def scripted_server(*scripts: Script) -> AsyncIterator[int]:
    """Serve one connection after the other; yield the port."""
    remaining = list(scripts)
    failures: list[BaseException] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        try:
            await remaining.pop(0)(peer)
        except EOFError:
            pass
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            peer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()
    assert failures == []
