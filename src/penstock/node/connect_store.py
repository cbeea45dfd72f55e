"""`penstock.connect`: the store of a running server."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv6Address
from typing import Final

from penstock.api import Store
from penstock.api.validation import as_seconds, check_name
from penstock.errors import BadRequestError
from penstock.remote.client import DEADLINE_S, RemoteBackend

__all__ = ["connect"]

_PORT_MAX: Final = 65535
_ADDRESSES_MAX: Final = 64
_DEADLINE_S_MAX: Final = 366 * 24 * 3600.0
"""gRPC has no room for every number of seconds."""


def connect(address: str | Sequence[str], *, deadline_s: float = DEADLINE_S) -> Store:
    """Connect to `penstock serve` at `host:port`; the store has the methods of `penstock.open`'s.

    `address` may be several nodes of a cluster, as a list or with commas between: when one is away,
    calls go to the next. Reads, and writes with a producer, are sent again; any other write only if
    nothing of it was sent.

    Raises `DeadlineError` when no server answers. Every later call ends after `deadline_s`.
    """
    wait_s = as_seconds(deadline_s, "deadline_s")
    if wait_s <= 0:
        raise BadRequestError(f"deadline_s is a number of seconds above 0, not {deadline_s!r}")
    backend = RemoteBackend(check_addresses(address), deadline_s=min(wait_s, _DEADLINE_S_MAX))
    backend.check_connection()
    return Store(backend)


def check_addresses(address: str | Sequence[str]) -> list[str]:
    """Return addresses that are given as text, with commas between several, or as a list."""
    if isinstance(address, str):
        parts = [part.strip() for part in address.split(",")]
        texts = [part for part in parts if part] if len(parts) > 1 else [address]
    elif isinstance(address, list | tuple):
        texts = list(address)
    else:
        raise BadRequestError(f"{address!r} is not an address, nor a list of addresses")
    if not texts or len(texts) > _ADDRESSES_MAX:
        raise BadRequestError(
            f"{len(texts)} addresses; expected one to {_ADDRESSES_MAX}, each host:port"
        )
    return list(dict.fromkeys(_checked(text) for text in texts))


def _checked(address: str) -> str:
    check_name(address, "an address")
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and int(port[:6]) <= _PORT_MAX
    if not host or not is_port or not address.isprintable() or _is_ipv6(host):
        raise BadRequestError(
            f"{address!r} is not an address; expected host:port, like 127.0.0.1:9190 or [::1]:9190"
        )
    return address


def _is_ipv6(host: str) -> bool:
    """Return whether a host needs brackets to separate it from its port."""
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True
