"""The first line of an HTTP request; nothing else of it matters here."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

SIZE_MAX: Final = 8192
_PARTS: Final = 3


class Request(Struct, frozen=True):
    method: str
    path: str
    """Without what follows a `?`; empty for a request that makes no sense."""
    is_too_long: bool = False


def parse_request(data: bytes) -> Request | None:
    """Return what a client asks for, or None while its request is not complete."""
    head, separator, _ = data.partition(b"\r\n\r\n")
    if not separator:
        head, separator, _ = data.partition(b"\n\n")
    if not separator:
        return Request("", "", is_too_long=True) if len(data) > SIZE_MAX else None
    words = head.split(b"\n", 1)[0].decode("latin-1").split()
    if len(words) != _PARTS or not words[2].startswith("HTTP/1."):
        return Request("", "")
    return Request(words[0], words[1].partition("?")[0])
