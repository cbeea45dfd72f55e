"""`penstock.connect`: the store of a running server."""

from __future__ import annotations

from penstock.api import Store
from penstock.errors import BadRequestError
from penstock.remote.client import DEADLINE_S, RemoteBackend

__all__ = ["connect"]


def connect(address: str, *, deadline_s: float = DEADLINE_S) -> Store:
    """Connect to `penstock serve` at `host:port`; the store has the methods of `penstock.open`'s.

    Raises `DeadlineError` when nobody answers there. Every later call ends after `deadline_s`.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise BadRequestError(f"{address!r} is no address; expected host:port, like 127.0.0.1:9190")
    backend = RemoteBackend(address, deadline_s=deadline_s)
    backend.check_connection()
    return Store(backend)
