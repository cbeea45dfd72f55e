"""The store API for asyncio programs: every blocking call is a coroutine.

    async with penstock.aio.connect("127.0.0.1:9190") as store:
        orders = await store.create_topic("orders")
        await orders.write(b"3 apples", key=b"o-17")
        async for message in store.consumer("billing", ["orders"]).follow():
            ...

Methods, arguments and errors are those of `penstock.open` and `penstock.connect`. Blocking calls
run in threads, not in the event loop (`thread_pool`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.aio.consumer import AsyncConsumer
from penstock.aio.open_store import Opening
from penstock.aio.store import AsyncStore
from penstock.aio.topic import AsyncTopic
from penstock.node.connect_store import connect as connect_store
from penstock.node.open_store import open as open_store

__all__ = ["AsyncConsumer", "AsyncStore", "AsyncTopic", "Opening", "connect", "open"]


def open(path: str | os.PathLike[str], **settings: object) -> Opening:  # noqa: A001 - as penstock.open
    """Open the store in a directory; see `penstock.open`. Await it, or enter it by `async with`."""
    return Opening(lambda: open_store(path, **settings))


def connect(address: str | Sequence[str]) -> Opening:
    """Connect to a server; see `penstock.connect`. Await it, or enter it by `async with`."""
    return Opening(lambda: connect_store(address))
