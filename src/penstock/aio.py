"""The same store for asyncio programs: every call is a coroutine.

    async with await penstock.aio.connect("127.0.0.1:9190") as store:
        orders = await store.create_topic("orders")
        await orders.write(b"3 apples", key=b"o-17")
        async for message in store.consumer("billing", ["orders"]).follow():
            ...

Calls run in a pool of threads that belongs to the store, so that a slow device or network never
holds up the event loop; at most `threads` run at once, the others wait their turn. Cancelling a
coroutine stops the waiting, not the call: a write is then done or not, never half.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar, Unpack

from penstock import connecting, opening
from penstock.adapter.locations import Message
from penstock.adapter.topic_options import AlterOptions, TopicOptions
from penstock.api import Consumer, Store, Topic
from penstock.api.consumer import Start
from penstock.api.topic import Headers
from penstock.api.topic_info import GroupInfo, TopicInfo
from penstock.engine.contract import RECORDS_PER_READ, SIZE_PER_READ, Compacted
from penstock.record import Location, Offset, Producer, Record, StoredRecord

THREADS: Final = 16
_POLL_S: Final = 1.0

P = ParamSpec("P")
R = TypeVar("R")


class _Pool:
    """Runs calls in threads; one for a store and all that comes from it."""

    def __init__(self, threads: int) -> None:
        self._executor: Final = ThreadPoolExecutor(threads, thread_name_prefix="penstock-aio")

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: call(*arguments, **named))

    def close(self) -> None:
        self._executor.shutdown(wait=False)


class AsyncTopic:
    """A handle on one topic; see `penstock.Topic`."""

    def __init__(self, topic: Topic, pool: _Pool) -> None:
        self._topic: Final = topic
        self._pool: Final = pool
        self.name: Final = topic.name

    async def write(
        self,
        value: bytes | Record | None,
        *,
        key: bytes | None = None,
        tags: Iterable[str] = (),
        headers: Headers = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        producer: Producer | None = None,
    ) -> Location:
        return await self._pool.run(
            self._topic.write,
            value,
            key=key,
            tags=tags,
            headers=headers,
            timestamp=timestamp,
            partition=partition,
            producer=producer,
        )

    async def write_many(
        self,
        values: Iterable[bytes | Record | None],
        *,
        partition: int | None = None,
        producer: Producer | None = None,
    ) -> Sequence[Location]:
        return await self._pool.run(
            self._topic.write_many, list(values), partition=partition, producer=producer
        )

    async def read(
        self,
        partition: int = 0,
        offset: int = 0,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        return await self._pool.run(
            self._topic.read, partition, offset, max_records=max_records, max_size=max_size
        )

    async def read_by_key(self, key: bytes) -> Message | None:
        return await self._pool.run(self._topic.read_by_key, key)

    async def read_by_tag(self, tag: str, *, max_records: int = RECORDS_PER_READ) -> list[Message]:
        return await self._pool.run(self._topic.read_by_tag, tag, max_records=max_records)

    async def query(self, key: bytes, *, limit: int = 64) -> list[Message]:
        return await self._pool.run(self._topic.query, key, limit=limit)

    async def offsets_at(self, moment: int | datetime) -> dict[int, Offset]:
        return await self._pool.run(self._topic.offsets_at, moment)

    async def delete_by_key(self, key: bytes) -> int:
        return await self._pool.run(self._topic.delete_by_key, key)

    async def delete_by_offset(self, partition: int, offset: int) -> bool:
        return await self._pool.run(self._topic.delete_by_offset, partition, offset)

    async def delete_before(self, partition: int, offset: int) -> Offset:
        return await self._pool.run(self._topic.delete_before, partition, offset)

    async def compact(self) -> Compacted:
        return await self._pool.run(self._topic.compact)

    async def describe(self) -> TopicInfo:
        return await self._pool.run(self._topic.describe)

    async def alter(
        self, *, partitions: int | None = None, **options: Unpack[AlterOptions]
    ) -> TopicInfo:
        return await self._pool.run(lambda: self._topic.alter(partitions=partitions, **options))

    async def delete(self) -> None:
        await self._pool.run(self._topic.delete)


class AsyncConsumer:
    """A consumer of a group; see `penstock.Consumer`. One coroutine uses it at a time."""

    def __init__(self, make: Callable[[], Consumer], pool: _Pool) -> None:
        self._make: Final = make
        self._pool: Final = pool
        self._consumer: Consumer | None = None

    async def _opened(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await self._pool.run(self._make)
        return self._consumer

    async def poll(self, wait_s: float = 0.0) -> list[Message]:
        """Return the next messages, waiting for some up to `wait_s` seconds."""
        consumer = await self._opened()
        return await self._pool.run(consumer.poll, wait_s)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over what is there now."""
        while page := await self.poll():
            for message in page:
                yield message

    async def follow(self) -> AsyncIterator[Message]:
        """Iterate for ever, waiting for what is written."""
        while True:
            for message in await self.poll(_POLL_S):
                yield message

    async def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        consumer = await self._opened()
        await self._pool.run(consumer.commit, offsets)

    async def close(self) -> None:
        if self._consumer is not None:
            await self._pool.run(self._consumer.close)


class AsyncStore:
    """A store of an asyncio program. Use `penstock.aio.open` or `penstock.aio.connect`."""

    def __init__(self, store: Store, threads: int = THREADS) -> None:
        self._store: Final = store
        self._pool: Final = _Pool(threads)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        exist_ok: bool = False,
        **options: Unpack[TopicOptions],
    ) -> AsyncTopic:
        await self._pool.run(
            lambda: self._store.create_topic(
                name, partitions=partitions, exist_ok=exist_ok, **options
            )
        )
        return self.topic(name)

    def topic(self, name: str) -> AsyncTopic:
        return AsyncTopic(self._store.topic(name), self._pool)

    async def topics(self) -> list[str]:
        return await self._pool.run(self._store.topics)

    def consumer(
        self, group: str, topics: str | Iterable[str], *, start: Start = "earliest"
    ) -> AsyncConsumer:
        names = [topics] if isinstance(topics, str) else list(topics)
        return AsyncConsumer(lambda: self._store.consumer(group, names, start=start), self._pool)

    async def describe_group(self, group: str) -> GroupInfo:
        return await self._pool.run(self._store.describe_group, group)

    async def close(self) -> None:
        try:
            await self._pool.run(self._store.close)
        finally:
            self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def open(path: str, **settings: object) -> AsyncStore:  # noqa: A001 - as penstock.open
    """Open the store in a directory; see `penstock.open`."""
    return AsyncStore(await asyncio.to_thread(opening.open, path, **settings))


async def connect(address: str) -> AsyncStore:
    """Connect to a server; see `penstock.connect`."""
    return AsyncStore(await asyncio.to_thread(connecting.connect, address))
