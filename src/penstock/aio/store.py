"""`AsyncStore`: a store of an asyncio program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Self, Unpack

from penstock.adapter.topics.options import TopicOptions
from penstock.aio.consumer import AsyncConsumer
from penstock.aio.thread_pool import CallExecutor
from penstock.aio.topic import AsyncTopic
from penstock.aio.write_coalescing import WriteCoalescer
from penstock.api import Store
from penstock.api.consumer_options import ConsumerArguments, as_options
from penstock.api.topic_info import GroupInfo, TopicInfo
from penstock.platform.clock_guard import ClockStatus
from penstock.record import Location, Record


class AsyncStore:
    """Use `penstock.aio.open` or `penstock.aio.connect`; see `penstock.Store`."""

    def __init__(self, store: Store, calls: CallExecutor | None = None) -> None:
        self._store: Final = store
        self._calls: Final = calls if calls is not None else CallExecutor()
        self._writes: Final = WriteCoalescer(self._calls)

    def __repr__(self) -> str:
        return repr(self._store).replace("<Store", "<AsyncStore", 1)

    # Topics

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        exist_ok: bool = False,
        **options: Unpack[TopicOptions],
    ) -> AsyncTopic:
        """See `penstock.Store.create_topic`."""
        await self._calls.run(
            lambda: self._store.create_topic(
                name, partitions=partitions, exist_ok=exist_ok, **options
            )
        )
        return self.topic(name)

    def topic(self, name: str) -> AsyncTopic:
        """Return a handle on a topic; whether it exists shows when it is used."""
        return AsyncTopic(self._store.topic(name), self._calls, self._writes)

    __getitem__ = topic

    async def topics(self) -> list[str]:
        """See `penstock.Store.topics`."""
        return await self._calls.run(self._store.topics)

    async def list_topics(self) -> list[TopicInfo]:
        """See `penstock.Store.list_topics`."""
        return await self._calls.run(self._store.list_topics)

    async def write_many(
        self, batch: Iterable[tuple[str, bytes | Record | None]]
    ) -> Sequence[Location]:
        """See `penstock.Store.write_many`."""
        return await self._calls.run(self._store.write_many, batch)

    # Groups of consumers

    def consumer(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerArguments]
    ) -> AsyncConsumer:
        """Return a consumer; whether its topics exist shows when it is used. It joins its group
        with its first use. Callbacks are called in a thread of the store."""
        as_options(**options)  # what is wrong with them is said here
        return AsyncConsumer(lambda: self._store.consumer(group, topics, **options), self._calls)

    async def groups(self) -> list[str]:
        """See `penstock.Store.groups`."""
        return await self._calls.run(self._store.groups)

    async def describe_group(self, group: str) -> GroupInfo:
        """See `penstock.Store.describe_group`."""
        return await self._calls.run(self._store.describe_group, group)

    async def reset_group(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        """See `penstock.Store.reset_group`."""
        await self._calls.run(self._store.reset_group, group, offsets)

    async def delete_group(self, group: str) -> None:
        """See `penstock.Store.delete_group`."""
        await self._calls.run(self._store.delete_group, group)

    # The store

    def namespace(self, name: str) -> AsyncStore:
        """See `penstock.Store.namespace`."""
        return AsyncStore(self._store.namespace(name), self._calls)

    async def allocate_producer_id(self) -> int:
        """See `penstock.Store.allocate_producer_id`."""
        return await self._calls.run(self._store.allocate_producer_id)

    async def run_upkeep(self) -> None:
        """See `penstock.Store.run_upkeep`."""
        await self._calls.run(self._store.run_upkeep)

    async def clock_status(self) -> ClockStatus:
        """See `penstock.Store.clock_status`."""
        return await self._calls.run(self._store.clock_status)

    async def confirm_clock(self) -> ClockStatus:
        """See `penstock.Store.confirm_clock`."""
        return await self._calls.run(self._store.confirm_clock)

    async def close(self) -> None:
        """Close the store; see `penstock.Store.close`. Closing twice does nothing."""
        await self._calls.close(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
