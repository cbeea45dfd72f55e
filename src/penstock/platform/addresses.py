"""Listen addresses: hosts as names, as IPv4 or as IPv6 addresses, with or without brackets.

Before a port an IPv6 address has brackets, which separate it from the port.
"""

from __future__ import annotations

import errno
import socket
from typing import Final, NamedTuple

from penstock.errors import SetupError


class Endpoint(NamedTuple):
    """What a socket is made with and bound to."""

    family: socket.AddressFamily
    address: tuple[str, int] | tuple[str, int, int, int]


ALL_ADDRESSES: Final = frozenset({"", "0.0.0.0", "::"})
"""Hosts to listen on that other machines cannot connect to."""


def bare_host(host: str) -> str:
    """Return a host as sockets take it, without brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def bracketed(host: str) -> str:
    """Return a host as it stands in front of a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def with_port(host: str, port: int) -> str:
    return f"{bracketed(host)}:{port}"


def resolve(host: str, port: int) -> Endpoint:
    """Return where to listen; for a name that has several addresses, an IPv4 one. Raises
    `SetupError` for a name that cannot be resolved."""
    try:
        candidates = socket.getaddrinfo(
            bare_host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SetupError(
            f"{host!r} is neither an address nor a name that this machine can resolve ({reason}); "
            "choose another host"
        ) from error
    candidates.sort(key=lambda candidate: candidate[0] != socket.AF_INET)
    family, _, _, _, address = candidates[0]
    return Endpoint(family, address)  # type: ignore[arg-type] # addresses of other families: none


def explain(host: str, port: int, error: OSError, *, choose: str) -> SetupError:
    """Return what to say when an address cannot be listened on."""
    place = with_port(host, port)
    if error.errno == errno.EADDRNOTAVAIL:
        return SetupError(f"{place}: this machine has no such address; choose another host")
    if error.errno == errno.EADDRINUSE:
        return SetupError(f"{place} is in use; choose {choose}")
    return SetupError(f"{place} cannot be listened on: {error.strerror}; choose {choose}")


def find_problem(host: str, port: int, *, choose: str) -> SetupError:
    """Return why an address cannot be listened on, for libraries that report only the failure."""
    family, address = resolve(host, port)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen()
    except OSError as error:
        return explain(host, port, error, choose=choose)
    return SetupError(f"{with_port(host, port)} cannot be listened on; choose {choose}")
