"""What a handler is told about where a request came from."""

from __future__ import annotations

from msgspec import Struct


class RequestContext(Struct, frozen=True, gc=False):
    connection_id: int
    """Given to no other connection of this server."""
    client_id: str
    api_key: int
    api_version: int
    principal: str
    """Who asks; `User:ANONYMOUS` as long as nobody has to say."""
    peer: str
    """The client's address, as `/127.0.0.1`."""
