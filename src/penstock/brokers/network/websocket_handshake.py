"""The HTTP request that begins a WebSocket connection (RFC 6455), and its response."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from penstock.brokers.network.limits import ListenerSettings

HEADERS_MAX: Final = 100
_KEY_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_SIZE: Final = 16
_VERSION: Final = "13"
_END: Final = b"\r\n\r\n"
# Characters of header names, RFC 9110.
_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class HandshakeError(Exception):
    """A request that is refused, with the status that says why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status: Final = status


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What a valid request asks for."""

    size: int
    """Bytes of the request."""
    key: str
    subprotocol: str
    forwarded_for: str
    """The last address in `X-Forwarded-For`; empty: none."""

    def response(self) -> bytes:
        digest = hashlib.sha1(self.key.encode() + _KEY_SUFFIX, usedforsecurity=False).digest()
        return (
            "HTTP/1.1 101 Switching Protocols\r\n"
            "Upgrade: websocket\r\n"
            "Connection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}\r\n"
            f"Sec-WebSocket-Protocol: {self.subprotocol}\r\n\r\n"
        ).encode()


def refusal(error: HandshakeError) -> bytes:
    """Return the response to a request that is refused."""
    body = f"{error}\n".encode()
    more = f"Sec-WebSocket-Version: {_VERSION}\r\n" * (error.status is HTTPStatus.UPGRADE_REQUIRED)
    head = (
        f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\n{more}"
        f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def parse(data: bytes, settings: ListenerSettings, size_max: int) -> Upgrade | None:
    """Return what a request asks for; None while it is incomplete. Raise `HandshakeError` for one
    that is refused."""
    end = data.find(_END, 0, size_max)
    if end < 0:
        if len(data) >= size_max:
            raise HandshakeError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request has more than {size_max} bytes",
            )
        _check_begin(data)
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    _check_request_line(first, settings)
    headers = _read_headers(lines)
    _check_upgrade(headers)
    key = _read_key(headers)
    if settings.origins and headers.get("origin", settings.origins[0]) not in settings.origins:
        raise HandshakeError(HTTPStatus.FORBIDDEN, "this origin is not accepted here")
    forwarded = _items(headers.get("x-forwarded-for", "")) if settings.trusts_forwarded_for else []
    return Upgrade(
        end + len(_END), key, _choose(headers, settings), forwarded[-1] if forwarded else ""
    )


def _check_begin(data: bytes) -> None:
    """Refuse what cannot become a request before its limit is reached."""
    if data[:4] != b"GET "[: len(data)]:
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "the request is not a GET request")


def _check_request_line(line: str, settings: ListenerSettings) -> None:
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/"):
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "the request is malformed")
    if words[0] != "GET":
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "the request is not a GET request")
    if words[2] != "HTTP/1.1":
        raise HandshakeError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is accepted")
    try:
        path = urlsplit(words[1]).path
    except ValueError as error:
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "the path is malformed") from error
    if path != settings.path:
        raise HandshakeError(HTTPStatus.NOT_FOUND, f"the path is {settings.path}")


def _read_headers(lines: list[str]) -> dict[str, str]:
    """Return headers by name in small letters; a repeated one is joined by commas."""
    if len(lines) > HEADERS_MAX:
        raise HandshakeError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request has more than {HEADERS_MAX} headers",
        )
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or not _TOKEN.issuperset(name) or "\0" in value or "\n" in value:
            raise HandshakeError(HTTPStatus.BAD_REQUEST, "a header is malformed")
        value = value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _check_upgrade(headers: dict[str, str]) -> None:
    if "host" not in headers:
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "the request has no Host")
    upgrades = {item.lower() for item in _items(headers.get("upgrade", ""))}
    connection = {item.lower() for item in _items(headers.get("connection", ""))}
    if "websocket" not in upgrades or "upgrade" not in connection:
        raise HandshakeError(HTTPStatus.UPGRADE_REQUIRED, "this port serves MQTT over WebSocket")
    if headers.get("sec-websocket-version") != _VERSION:
        raise HandshakeError(HTTPStatus.UPGRADE_REQUIRED, f"the version is {_VERSION}")


def _read_key(headers: dict[str, str]) -> str:
    key = headers.get("sec-websocket-key", "")
    try:
        decoded = base64.b64decode(key.encode("latin-1"), validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if len(decoded) != _KEY_SIZE:
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key is not 16 bytes in base64")
    return key


def _choose(headers: dict[str, str], settings: ListenerSettings) -> str:
    offered = set(_items(headers.get("sec-websocket-protocol", "")))
    for name in settings.subprotocols:
        if name in offered:
            return name
    raise HandshakeError(
        HTTPStatus.BAD_REQUEST,
        f"the client offers no subprotocol of: {', '.join(settings.subprotocols)}",
    )


def _items(value: str) -> list[str]:
    return [item for item in (part.strip(" \t") for part in value.split(",")) if item]
