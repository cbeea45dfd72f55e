"""The connection of the data source to a running node."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.errors import BadRequestError, SetupError

if TYPE_CHECKING:
    from penstock.remote.client import RemoteBackend

DEADLINE_S: Final = 60.0
"""Longer than a program's: what a task loses by a short one is the whole task."""


def check_address(address: str) -> str:
    """Return `host:port`; raise when it is something else."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise BadRequestError(
            f"option 'endpoint' is {address!r}, expected host:port, like 127.0.0.1:9190"
        )
    return address


def connect(address: str) -> RemoteBackend:
    """Connect to `penstock serve`; raise `DeadlineError` without an answer."""
    if find_spec("grpc") is None:
        raise SetupError("reading from a running node needs grpcio: pip install 'penstock[spark]'")
    from penstock.remote.client import RemoteBackend

    backend = RemoteBackend(check_address(address), deadline_s=DEADLINE_S)
    backend.check_connection()
    return backend
