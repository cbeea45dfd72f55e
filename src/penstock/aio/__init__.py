"""The same store for asyncio programs: every call is a coroutine.

    async with await penstock.aio.connect("127.0.0.1:9190") as store:
        orders = await store.create_topic("orders")
        await orders.write(b"3 apples", key=b"o-17")
        async for message in store.consumer("billing", ["orders"]).follow():
            ...

Methods, arguments and errors are those of `penstock.open` and `penstock.connect`; `calls` says how
calls run beside the event loop.
"""

from __future__ import annotations

import asyncio
import os

from penstock import connecting, opening
from penstock.aio.consumer import AsyncConsumer
from penstock.aio.store import AsyncStore
from penstock.aio.topic import AsyncTopic

__all__ = ["AsyncConsumer", "AsyncStore", "AsyncTopic", "connect", "open"]


async def open(path: str | os.PathLike[str], **settings: object) -> AsyncStore:  # noqa: A001 - as penstock.open
    """Open the store in a directory; see `penstock.open`."""
    return AsyncStore(await asyncio.to_thread(opening.open, path, **settings))


async def connect(address: str) -> AsyncStore:
    """Connect to a server; see `penstock.connect`."""
    return AsyncStore(await asyncio.to_thread(connecting.connect, address))
