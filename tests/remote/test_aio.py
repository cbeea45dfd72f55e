"""The store for asyncio programs, in this process and behind a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock import aio
from penstock.errors import UnknownTopicError
from penstock.remote.server import Server
from penstock.settings import EMBEDDED, merge_settings

Use = Callable[[aio.AsyncStore], Awaitable[None]]


async def tour(store: aio.AsyncStore) -> None:
    orders = await store.create_topic("orders", partitions=2)
    await asyncio.gather(*(orders.write(b"%d" % n, key=b"k%d" % (n % 3)) for n in range(30)))
    newest = await orders.read_by_key(b"k1")
    assert newest is not None
    assert (await orders.describe()).records == 30
    consumer = store.consumer("g", "orders")
    seen = [message.value async for message in consumer]
    assert len(seen) == 30
    await consumer.commit()
    await consumer.close()
    assert (await store.describe_group("g")).total_lag == 0
    with pytest.raises(UnknownTopicError):
        await store.topic("none").write(b"v")


async def follow(store: aio.AsyncStore) -> None:
    topic = await store.create_topic("later")
    consumer = store.consumer("g2", ["later"])

    async def first() -> bytes | None:
        async for message in consumer.follow():
            return message.value
        return None

    waiting = asyncio.create_task(first())
    await asyncio.sleep(0.2)
    await topic.write(b"late")
    assert await asyncio.wait_for(waiting, 20) == b"late"


async def loop_stays_free(store: aio.AsyncStore) -> None:
    """A poll that waits a second must not stop other coroutines."""
    await store.create_topic("idle")
    polling = asyncio.create_task(store.consumer("g3", ["idle"]).poll(1.0))
    turns = 0
    while not polling.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert await polling == []
    assert turns > 5


@pytest.mark.parametrize("use", [tour, follow, loop_stays_free])
def test_an_embedded_store_serves_coroutines(tmp_path: Path, use: Use) -> None:
    async def main() -> None:
        async with await aio.open(str(tmp_path / "data")) as store:
            await use(store)

    asyncio.run(main())


@pytest.mark.parametrize("use", [tour, follow, loop_stays_free])
def test_a_remote_store_serves_coroutines(tmp_path: Path, use: Use) -> None:
    settings = merge_settings(
        EMBEDDED, {"kafka": {"port": 0}, "server": {"port": 0, "http_port": 0}}
    )

    async def main(port: int) -> None:
        async with await aio.connect(f"127.0.0.1:{port}") as store:
            await use(store)

    with Server(str(tmp_path / "data"), settings) as server:
        asyncio.run(main(server.port))
