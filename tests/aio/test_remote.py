"""The store for asyncio programs, in this process and behind a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock import aio
from penstock.aio.thread_pool import CALLS
from penstock.errors import UnknownTopicError
from penstock.remote.server.node_server import Server
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
    assert await asyncio.wait_for(waiting, 120) == b"late"


async def commits_in_its_midst(store: aio.AsyncStore) -> None:
    topic = await store.create_topic("steps")
    await topic.write_many([b"%d" % n for n in range(10)])
    async with store.consumer("g4", "steps") as consumer:
        async for message in consumer:
            if message.offset == 3:
                await consumer.commit()
                break
        assert await consumer.committed() == {("steps", 0): 4}
        await consumer.seek("steps", 0, 8)
        assert [message.value async for message in consumer] == [b"8", b"9"]
        await consumer.seek_to("earliest")
        assert sum((await consumer.lag()).values()) == 10
    async with store.consumer("g4", "steps") as again:
        assert [message.offset for message in await again.poll(max_records=2)] == [4, 5]
    assert [message.value async for message in topic] == [b"%d" % n for n in range(10)]


async def waiting_consumers_hold_nobody_up(store: aio.AsyncStore) -> None:
    """More of them than there are threads for calls."""
    topic = await store.create_topic("watched")
    consumers = [store.consumer(f"w{n}", "watched") for n in range(2 * CALLS)]
    polls = [asyncio.create_task(consumer.poll(60.0)) for consumer in consumers]
    await asyncio.gather(*(consumer.positions() for consumer in consumers))
    assert await topic.write(b"for all") == (0, 0)
    pages = await asyncio.wait_for(asyncio.gather(*polls), 120)
    assert {tuple(message.value for message in page) for page in pages} == {(b"for all",)}


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


USES = [
    tour,
    follow,
    commits_in_its_midst,
    waiting_consumers_hold_nobody_up,
    loop_stays_free,
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("use", USES)
def test_an_embedded_store_serves_coroutines(tmp_path: Path, use: Use) -> None:
    async def main() -> None:
        async with await aio.open(str(tmp_path / "data")) as store:
            await use(store)

    asyncio.run(main())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("use", USES)
def test_a_remote_store_serves_coroutines(tmp_path: Path, use: Use) -> None:
    settings = merge_settings(
        EMBEDDED, {"kafka": {"port": 0}, "server": {"port": 0, "http_port": 0}}
    )

    async def main(port: int) -> None:
        async with await aio.connect(f"127.0.0.1:{port}") as store:
            await use(store)

    with Server(str(tmp_path / "data"), settings) as server:
        asyncio.run(main(server.port))
