"""A client that sends and receives packets one by one, over a blocking socket."""

from __future__ import annotations

import select
import socket
from collections import deque
from types import TracebackType
from typing import Self, TypeVar

from tests.brokers.mqtt.serving import PATIENCE_S

from penstock.brokers.mqtt.wire.codec import Decoder, encode
from penstock.brokers.mqtt.wire.packets import MQTT_5, Connack, Connect, Disconnect, Packet

P = TypeVar("P")


class RawClient:
    def __init__(self, port: int, version: int = MQTT_5) -> None:
        self.version = version
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._decoder = Decoder(from_client=False)
        self._buffer = b""
        self._packets: deque[Packet] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the TCP connection without DISCONNECT."""
        self._socket.close()

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def connect(self, connect: Connect | None = None, client_id: str = "raw") -> Connack:
        self.send(connect or Connect(self.version, client_id))
        return self.receive(Connack)

    def receive(self, kind: type[P]) -> P:
        """Return the next packet, which must be of this kind."""
        packet = self.next()
        assert isinstance(packet, kind), f"{packet} instead of a {kind.__name__}"
        return packet

    def next(self) -> Packet | None:
        """Return the next packet; None: the server closed the connection."""
        while not self._packets:
            data = self._receive()
            if not data:
                return None
            self._buffer += data
            packets, consumed = self._decoder.decode(self._buffer, self.version)
            self._packets.extend(packets)
            self._buffer = self._buffer[consumed:]
        return self._packets.popleft()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65_536)
        except ConnectionResetError:
            return b""

    def is_silent(self, seconds: float = 0.2) -> bool:
        """Say whether nothing arrives for a moment; only a hint that nothing was sent."""
        return not self._packets and not select.select([self._socket], [], [], seconds)[0]

    def expect_end(self, reason_code: int | None = None) -> None:
        """The server disconnects: with a DISCONNECT of this reason, or without one (None)."""
        packet = self.next()
        if reason_code is not None:
            assert isinstance(packet, Disconnect), f"{packet} instead of DISCONNECT"
            assert packet.reason_code == reason_code
            packet = self.next()
        assert packet is None, f"{packet} instead of the end"
