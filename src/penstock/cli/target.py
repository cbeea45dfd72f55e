"""Options that select the store of a command: a server, or a local data directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from penstock.api import Store
from penstock.errors import DeadlineError, NotAStoreError
from penstock.node.connect_store import connect
from penstock.node.open_store import open as open_store

DEFAULT_ADDRESS: Final = "127.0.0.1:9190"
_VARIABLE: Final = "PENSTOCK_SERVER"

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        envvar=_VARIABLE,
        metavar="HOST:PORT[,…]",
        help=f"Address of the server, or comma-separated addresses of cluster nodes. "
        f"Default: {DEFAULT_ADDRESS}.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="DIR", help="Open this data directory instead of using a server."
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", help="Namespace of topics and groups.")]


@contextmanager
def open_target(
    server: str | None, data: str | None, namespace: str, *, create: bool = False
) -> Iterator[Store]:
    """Open the store that the options select; close it at the end of the block. A missing directory
    is created only with `create`."""
    if data is not None and server not in (None, os.environ.get(_VARIABLE)):
        raise typer.BadParameter("give --server or --data, not both")
    if data is not None:
        if os.path.exists(data) and not os.path.isdir(data):
            raise NotAStoreError(f"{data} is not a directory; --data takes a data directory")
        if not create and not os.path.exists(data):
            raise NotAStoreError(
                f"{data} does not exist; create it with `penstock topic create --data {data} NAME`"
            )
        with open_store(data) as store:
            yield store.namespace(namespace)
        return
    try:
        remote = connect(server or DEFAULT_ADDRESS)
    except DeadlineError as error:
        if server is None:
            raise DeadlineError(f"{error} (or open a data directory with --data)") from error
        raise
    with remote as store:
        yield store.namespace(namespace)
