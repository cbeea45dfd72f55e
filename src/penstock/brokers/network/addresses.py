"""The address of a client."""

from __future__ import annotations

from typing import NamedTuple

from penstock.platform.addresses import with_port


class PeerAddress(NamedTuple):
    """The client's side of a connection; with a PROXY header, the address that the header names."""

    host: str
    port: int

    def __str__(self) -> str:
        return with_port(self.host, self.port)
