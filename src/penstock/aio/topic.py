"""`AsyncTopic`: one topic, its calls as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Final

from penstock.adapter import Message
from penstock.aio.pooled import Pooled, in_pool
from penstock.aio.thread_pool import CallExecutor
from penstock.aio.write_coalescing import WriteCoalescer, can_coalesce
from penstock.api import Topic
from penstock.api.topic import Headers, as_record
from penstock.engine.contract import Acks
from penstock.record import Location, Producer, Record


class AsyncTopic(Pooled[Topic]):
    """A handle on one topic; see `penstock.Topic`."""

    def __init__(self, topic: Topic, calls: CallExecutor, writes: WriteCoalescer) -> None:
        super().__init__(topic, calls)
        self._writes: Final = writes
        self.name: Final = topic.name

    def __repr__(self) -> str:
        return f"<AsyncTopic {self.name!r}>"

    # Writing

    async def write(  # noqa: PLR0913 - the fields of a record, and how to write it
        self,
        value: bytes | Record | None,
        *,
        key: bytes | None = None,
        tags: Iterable[str] = (),
        headers: Headers = (),
        timestamp: int | datetime | None = None,
        expires: int | datetime | None = None,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
    ) -> Location:
        """Append a record; see `penstock.Topic.write`. A write that may block runs in a thread,
        together with the writes of other coroutines at the same time."""
        record = as_record(
            value, key=key, tags=tags, headers=headers, timestamp=timestamp, expires=expires
        )
        if producer is None and acks is Acks.ALL and can_coalesce(record, partition):
            location = self._writes.try_write(self._target, record, partition)
            if location is None:
                return await self._writes.write(self._target, record, partition)
            if self._writes.is_long_run():
                await asyncio.sleep(0)
            return location
        return await self._calls.run(
            self._target.write, record, partition=partition, producer=producer, acks=acks
        )

    write_many = in_pool(Topic.write_many)

    # Reading

    read = in_pool(Topic.read)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over the present records, partition by partition."""
        return self.records()

    async def records(
        self,
        partition: int | None = None,
        *,
        start: int | Mapping[int, int] = 0,
        tag: str | None = None,
    ) -> AsyncIterator[Message]:
        """Iterate over the present records; see `penstock.Topic.records`."""
        pages = self._target.pages(partition, start=start, tag=tag)
        while page := await self._calls.run(lambda: next(pages, None)):
            for message in page:
                yield message

    read_by_tag = in_pool(Topic.read_by_tag)
    read_by_key = in_pool(Topic.read_by_key)
    query = query_message_by_key = in_pool(Topic.query)
    offset_at = in_pool(Topic.offset_at)
    offsets_at = in_pool(Topic.offsets_at)

    async def wait(self, positions: Mapping[int, int], *, seconds: float) -> bool:
        """Wait until there is a record at or after one of the positions, by partition; return
        whether there is."""
        return await self._calls.wait(self._target.wait, positions, seconds=seconds)

    # Deleting

    delete_by_key = in_pool(Topic.delete_by_key)
    delete_by_offset = in_pool(Topic.delete_by_offset)
    delete_before = in_pool(Topic.delete_before)
    compact = in_pool(Topic.compact)

    # The topic itself

    describe = in_pool(Topic.describe)
    alter = in_pool(Topic.alter)
    delete = in_pool(Topic.delete)

    async def partitions(self) -> int:
        """Return the number of partitions."""
        return await self._calls.run(lambda: self._target.partitions)
