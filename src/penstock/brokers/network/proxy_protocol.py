"""The PROXY header, versions 1 and 2, with which a load balancer names the client's address.

    1: PROXY TCP4 192.0.2.7 192.0.2.1 51234 1883\\r\\n
    2: signature 12 · version and command 1 · family 1 · size 2 · addresses · more (ignored)

Only listeners whose settings ask for it read the header; on others a client could claim any
address. A connection that does not begin with a whole, valid header is closed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from struct import Struct
from typing import Final

from penstock.brokers.network.connection import Connection
from penstock.brokers.network.interface import PeerAddress

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
FIRST_VERSION: Final = b"PROXY "
LINE_SIZE_MAX: Final = 107
"""Bytes of a header of version 1, as its specification says."""
HEADER_SIZE_MAX: Final = 4 << 10
"""Bytes of a header of version 2."""

_HEAD: Final = Struct("!12sBBH")
_ADDRESSES_4: Final = Struct("!4s4sHH")
_ADDRESSES_6: Final = Struct("!16s16sHH")
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_UNSPECIFIED: Final = 0x00
_TCP_4: Final = 0x11
_TCP_6: Final = 0x21
_UNIX: Final = 0x31


class ProxyHeaderError(Exception):
    """A connection does not begin with a valid header."""


def parse(data: bytes) -> tuple[int, PeerAddress | None] | None:
    """Return the size of the header and the address in it, if any; None while it is incomplete."""
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return _parse_second(data)
    if data[: len(FIRST_VERSION)] == FIRST_VERSION[: len(data)]:
        return _parse_first(data)
    raise ProxyHeaderError("the connection does not begin with a PROXY header")


def _parse_first(data: bytes) -> tuple[int, PeerAddress | None] | None:
    end = data.find(b"\r\n", 0, LINE_SIZE_MAX)
    if end < 0:
        if len(data) >= LINE_SIZE_MAX:
            raise ProxyHeaderError(f"the PROXY header is longer than {LINE_SIZE_MAX} bytes")
        return None
    words = data[:end].decode("latin-1").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return end + 2, None
    if len(words) != 6 or words[1] not in {"TCP4", "TCP6"}:
        raise ProxyHeaderError("the PROXY header does not have a family, two addresses, two ports")
    _, family, source, destination, *ports = words
    try:
        versions = {ipaddress.ip_address(text).version for text in (source, destination)}
    except ValueError as error:
        raise ProxyHeaderError(f"the PROXY header has an invalid address: {error}") from error
    if versions != {int(family[3])}:
        raise ProxyHeaderError(f"the PROXY header has addresses that are not {family}")
    if not all(text.isascii() and text.isdigit() and int(text) <= 0xFFFF for text in ports):
        raise ProxyHeaderError("the PROXY header has an invalid port")
    return end + 2, PeerAddress(source, int(ports[0]))


def _parse_second(data: bytes) -> tuple[int, PeerAddress | None] | None:
    if len(data) < _HEAD.size:
        return None
    _, command, family, rest_size = _HEAD.unpack_from(data)
    size = _HEAD.size + rest_size
    if size > HEADER_SIZE_MAX:
        raise ProxyHeaderError(f"a PROXY header of {size} bytes; the limit is {HEADER_SIZE_MAX}")
    if command not in {_LOCAL, _PROXY}:
        raise ProxyHeaderError(f"the PROXY header has the unknown version and command {command:#x}")
    if len(data) < size:
        return None
    if command == _LOCAL or family in {_UNSPECIFIED, _UNIX}:
        return size, None
    layout = {_TCP_4: _ADDRESSES_4, _TCP_6: _ADDRESSES_6}.get(family)
    if layout is None:
        raise ProxyHeaderError(f"the PROXY header has the unknown family {family:#x}")
    if rest_size < layout.size:
        raise ProxyHeaderError(f"the PROXY header has {rest_size} bytes of addresses")
    source, _, port, _ = layout.unpack_from(data, _HEAD.size)
    kind = socket.AF_INET if family == _TCP_4 else socket.AF_INET6
    return size, PeerAddress(socket.inet_ntop(kind, source), port)


class ProxyHeader:
    """Reads the header, then lets `proceed` put the next protocol on the connection."""

    __slots__ = ("_connection", "_proceed")

    def __init__(self, connection: Connection, proceed: Callable[[], None]) -> None:
        self._connection: Final = connection
        self._proceed: Final = proceed

    def received(self, view: memoryview) -> int:
        try:
            parsed = parse(bytes(view[:HEADER_SIZE_MAX]))
        except ProxyHeaderError as error:
            self._connection.refuse("PROXY header", str(error))
            return 0
        if parsed is None:
            return 0
        size, address = parsed
        if address is not None:
            self._connection.peer = address
        self._proceed()
        return size

    def writable(self) -> None:
        """Nothing is sent before the header."""

    def closed(self, reason: str) -> None:
        """Nothing began."""
