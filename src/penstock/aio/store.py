"""`AsyncStore`: a store of an asyncio program."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self, Unpack

from penstock.adapter.topics import TopicOptions
from penstock.aio.consumer import AsyncConsumer
from penstock.aio.pooled import Pooled, in_pool
from penstock.aio.thread_pool import CallExecutor
from penstock.aio.topic import AsyncTopic
from penstock.aio.write_coalescing import WriteCoalescer
from penstock.api import Store
from penstock.api.consumer import ConsumerArguments, as_options


class AsyncStore(Pooled[Store]):
    """Use `penstock.aio.open` or `penstock.aio.connect`; see `penstock.Store`."""

    def __init__(self, store: Store, calls: CallExecutor | None = None) -> None:
        super().__init__(store, calls if calls is not None else CallExecutor())
        self._writes: Final = WriteCoalescer(self._calls)

    def __repr__(self) -> str:
        return repr(self._target).replace("<Store", "<AsyncStore", 1)

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
            lambda: self._target.create_topic(
                name, partitions=partitions, exist_ok=exist_ok, **options
            )
        )
        return self.topic(name)

    def topic(self, name: str) -> AsyncTopic:
        """Return a handle on a topic; it is not checked for existence until it is used."""
        return AsyncTopic(self._target.topic(name), self._calls, self._writes)

    __getitem__ = topic

    topics = in_pool(Store.topics)
    list_topics = in_pool(Store.list_topics)
    write_many = in_pool(Store.write_many)

    # Groups of consumers

    def consumer(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerArguments]
    ) -> AsyncConsumer:
        """Return a consumer; its topics are checked, and it joins its group, with its first
        use. Callbacks are called in a thread of the store."""
        as_options(**options)  # reports wrong options here
        return AsyncConsumer(lambda: self._target.consumer(group, topics, **options), self._calls)

    groups = in_pool(Store.groups)
    describe_group = in_pool(Store.describe_group)
    reset_group = in_pool(Store.reset_group)
    delete_group = in_pool(Store.delete_group)

    # The store

    def namespace(self, name: str) -> AsyncStore:
        """See `penstock.Store.namespace`."""
        return AsyncStore(self._target.namespace(name), self._calls)

    allocate_producer_id = in_pool(Store.allocate_producer_id)
    run_upkeep = in_pool(Store.run_upkeep)
    clock_status = in_pool(Store.clock_status)
    confirm_clock = in_pool(Store.confirm_clock)

    async def close(self) -> None:
        """Close the store; see `penstock.Store.close`. Closing twice does nothing."""
        await self._calls.close(self._target.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
