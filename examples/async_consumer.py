"""A producer and a consumer in one event loop, with `penstock.aio`.

python examples/async_consumer.py
"""

from __future__ import annotations

import asyncio
import tempfile

import penstock.aio
from penstock.aio import AsyncStore

COUNT = 5


async def produce(store: AsyncStore) -> None:
    readings = store.topic("readings")
    for number in range(COUNT):
        # Coroutines that write at the same time share one append to the log.
        await readings.write(b"%d degrees" % (20 + number), key=b"sensor")
        await asyncio.sleep(0.01)


async def consume(store: AsyncStore) -> list[str]:
    seen: list[str] = []
    async with store.consumer("display", ["readings"]) as consumer:
        # `follow` waits for more records; here the loop ends after the last one that we expect.
        async for message in consumer.follow(timeout=30):
            seen.append((message.value or b"").decode())
            if len(seen) == COUNT:
                break
        await consumer.commit()
    return seen


async def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        # `penstock.aio.connect("host:9190")` gives the same object for a server.
        async with penstock.aio.open(data) as store:
            await store.create_topic("readings")
            seen, _ = await asyncio.gather(consume(store), produce(store))
            print("seen:", ", ".join(seen))


if __name__ == "__main__":
    asyncio.run(main())
