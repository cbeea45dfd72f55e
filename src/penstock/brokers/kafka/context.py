"""The origin of a request, for handlers."""

from __future__ import annotations

from msgspec import Struct


class RequestContext(Struct, frozen=True, gc=False):
    connection_id: int
    """Unique among the connections of this server."""
    client_id: str
    api_key: int
    api_version: int
    peer: str
    """The client's address, as `/127.0.0.1`."""
