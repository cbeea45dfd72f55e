"""A WebSocket client that can also send what is not allowed."""

from __future__ import annotations

import os
import socket
import struct

from tests.brokers.network.serving import Serving, read_exactly

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # as in RFC 6455, section 1.3

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def request(path: str = "/mqtt", remove: str = "", **changed: str) -> bytes:
    headers = {
        "Host": "example.com",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    } | {name.replace("_", "-"): value for name, value in changed.items()}
    headers.pop(remove, None)
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def frame(
    payload: bytes,
    opcode: int = BINARY,
    *,
    is_final: bool = True,
    is_masked: bool = True,
    reserved: int = 0,
    size_kind: int = 0,
) -> bytes:
    first = (0x80 if is_final else 0) | reserved << 4 | opcode
    size = len(payload)
    kind = size_kind or (size if size < 126 else 126 if size < 65536 else 127)
    head = bytes([first, (0x80 if is_masked else 0) | kind])
    if kind == 126:
        head += struct.pack("!H", size)
    elif kind == 127:
        head += struct.pack("!Q", size)
    if not is_masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[n & 3] for n, byte in enumerate(payload))


def close_payload(code: int, reason: bytes = b"") -> bytes:
    return struct.pack("!H", code) + reason


class WebSocketClient:
    def __init__(self, one: Serving, hello: bytes = b"") -> None:
        self.socket = one.connect()
        self.socket.sendall(hello or request())
        self.head = self._read_head()

    def _read_head(self) -> str:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            part = self.socket.recv(1)
            if not part:
                break
            head += part
        return head.decode()

    @property
    def status(self) -> int:
        return int(self.head.split(" ")[1])

    def send(self, payload: bytes, opcode: int = BINARY) -> None:
        self.socket.sendall(frame(payload, opcode))

    def receive(self) -> tuple[int, bytes]:
        """Return the opcode and the payload of the next frame."""
        first, second = read_exactly(self.socket, 2)
        assert first & 0x70 == 0
        assert first & 0x80
        assert second & 0x80 == 0, "a server does not mask"
        size = second
        if size == 126:
            (size,) = struct.unpack("!H", read_exactly(self.socket, 2))
        elif size == 127:
            (size,) = struct.unpack("!Q", read_exactly(self.socket, 8))
        return first & 0x0F, read_exactly(self.socket, size)

    def receive_data(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            opcode, payload = self.receive()
            assert opcode == BINARY
            data += payload
        return data

    def close_code(self) -> int:
        opcode, payload = self.receive()
        while opcode != CLOSE:
            opcode, payload = self.receive()
        return int(struct.unpack_from("!H", payload)[0])

    def is_at_end(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def __enter__(self) -> WebSocketClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def raw(one: Serving, data: bytes) -> socket.socket:
    client = one.connect()
    client.sendall(data)
    return client
