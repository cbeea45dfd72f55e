"""`AsyncTopic`: one topic, its calls as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Unpack

from penstock.adapter.locations import Message
from penstock.adapter.topics.options import AlterOptions
from penstock.aio.thread_pool import CallExecutor
from penstock.aio.write_coalescing import WriteCoalescer, can_coalesce
from penstock.api import Topic
from penstock.api.topic import Headers, as_record
from penstock.api.topic_info import TopicInfo
from penstock.engine.contract import RECORDS_PER_READ, SIZE_PER_READ, Compacted
from penstock.record import Location, Offset, Producer, Record, StoredRecord


class AsyncTopic:
    """A handle on one topic; see `penstock.Topic`."""

    def __init__(self, topic: Topic, calls: CallExecutor, writes: WriteCoalescer) -> None:
        self._topic: Final = topic
        self._calls: Final = calls
        self._writes: Final = writes
        self.name: Final = topic.name

    def __repr__(self) -> str:
        return f"<AsyncTopic {self.name!r}>"

    # Writing

    async def write(
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
    ) -> Location:
        """Append a record; see `penstock.Topic.write`. What has to be waited for is written in a
        thread, together with what other coroutines write at the same time."""
        record = as_record(
            value, key=key, tags=tags, headers=headers, timestamp=timestamp, expires=expires
        )
        if producer is None and can_coalesce(record, partition):
            location = self._writes.write_at_once(self._topic, record, partition)
            if location is None:
                return await self._writes.write(self._topic, record, partition)
            if self._writes.is_long_run():
                await asyncio.sleep(0)
            return location
        return await self._calls.run(
            self._topic.write, record, partition=partition, producer=producer
        )

    async def write_many(
        self,
        values: Iterable[bytes | Record | None],
        *,
        partition: int | None = None,
        producer: Producer | None = None,
    ) -> Sequence[Location]:
        """See `penstock.Topic.write_many`."""
        return await self._calls.run(
            self._topic.write_many, values, partition=partition, producer=producer
        )

    # Reading

    async def read(
        self,
        partition: int = 0,
        offset: int = 0,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        """See `penstock.Topic.read`."""
        return await self._calls.run(
            self._topic.read, partition, offset, max_records=max_records, max_size=max_size
        )

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over what is there now, partition after partition."""
        return self.records()

    async def records(
        self,
        partition: int | None = None,
        *,
        start: int | Mapping[int, int] = 0,
        tag: str | None = None,
    ) -> AsyncIterator[Message]:
        """Iterate over what is there now; see `penstock.Topic.records`."""
        pages = self._topic.pages(partition, start=start, tag=tag)
        while page := await self._calls.run(lambda: next(pages, None)):
            for message in page:
                yield message

    async def read_by_tag(
        self,
        tag: str,
        *,
        partition: int | None = None,
        start_offset: int | Mapping[int, int] = 0,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[Message]:
        """See `penstock.Topic.read_by_tag`."""
        return await self._calls.run(
            self._topic.read_by_tag,
            tag,
            partition=partition,
            start_offset=start_offset,
            max_records=max_records,
            max_size=max_size,
        )

    async def read_by_key(self, key: bytes) -> Message | None:
        """See `penstock.Topic.read_by_key`."""
        return await self._calls.run(self._topic.read_by_key, key)

    async def query(
        self,
        key: bytes,
        *,
        since: int | datetime = 0,
        until: int | datetime | None = None,
        limit: int = 64,
    ) -> list[Message]:
        """See `penstock.Topic.query`."""
        return await self._calls.run(self._topic.query, key, since=since, until=until, limit=limit)

    query_message_by_key = query

    async def offset_at(self, moment: int | datetime, partition: int = 0) -> Offset:
        """See `penstock.Topic.offset_at`."""
        return await self._calls.run(self._topic.offset_at, moment, partition)

    async def offsets_at(self, moment: int | datetime) -> dict[int, Offset]:
        """See `penstock.Topic.offsets_at`."""
        return await self._calls.run(self._topic.offsets_at, moment)

    async def wait(self, positions: Mapping[int, int], *, seconds: float) -> bool:
        """See `penstock.Topic.wait`."""
        return await self._calls.wait(self._topic.wait, positions, seconds=seconds)

    # Deleting

    async def delete_by_key(self, key: bytes) -> int:
        """See `penstock.Topic.delete_by_key`."""
        return await self._calls.run(self._topic.delete_by_key, key)

    async def delete_by_offset(self, partition: int, offset: int) -> bool:
        """See `penstock.Topic.delete_by_offset`."""
        return await self._calls.run(self._topic.delete_by_offset, partition, offset)

    async def delete_before(self, partition: int, offset: int) -> Offset:
        """See `penstock.Topic.delete_before`."""
        return await self._calls.run(self._topic.delete_before, partition, offset)

    async def compact(self) -> Compacted:
        """See `penstock.Topic.compact`."""
        return await self._calls.run(self._topic.compact)

    # The topic itself

    async def describe(self) -> TopicInfo:
        """See `penstock.Topic.describe`."""
        return await self._calls.run(self._topic.describe)

    async def partitions(self) -> int:
        """See `penstock.Topic.partitions`."""
        return await self._calls.run(lambda: self._topic.partitions)

    async def alter(
        self, *, partitions: int | None = None, **options: Unpack[AlterOptions]
    ) -> TopicInfo:
        """See `penstock.Topic.alter`."""
        return await self._calls.run(lambda: self._topic.alter(partitions=partitions, **options))

    async def delete(self) -> None:
        """See `penstock.Topic.delete`."""
        await self._calls.run(self._topic.delete)
