"""`AsyncConsumer`: reads topics on behalf of a group, its calls as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

from penstock.adapter import Message
from penstock.aio.thread_pool import CallExecutor
from penstock.api import Consumer
from penstock.api.consumer import PAGE
from penstock.api.validation import as_seconds
from penstock.errors import ClosedError
from penstock.record import Offset

_SLICE_S: Final = 1.0
"""How long a thread waits for a coroutine that may have been cancelled."""

P = ParamSpec("P")
R = TypeVar("R")


def _in_pool(
    method: Callable[Concatenate[Consumer, P], R],
) -> Callable[Concatenate[AsyncConsumer, P], Coroutine[object, None, R]]:
    """As `pooled.in_pool`, for a consumer that opens with its first call."""

    @wraps(method)
    async def call(self: AsyncConsumer, /, *arguments: P.args, **named: P.kwargs) -> R:
        return await self._calls.run(method, await self._opened(), *arguments, **named)

    return call


class AsyncConsumer:
    """A consumer of a group; see `penstock.Consumer`. One coroutine uses it at a time."""

    def __init__(self, make: Callable[[], Consumer], calls: CallExecutor) -> None:
        self._make: Final = make
        self._calls: Final = calls
        self._consumer: Consumer | None = None
        self._closed = False

    def __repr__(self) -> str:
        state = "not opened yet" if self._consumer is None else repr(self._consumer)
        return f"<AsyncConsumer: {state}>"

    async def _opened(self) -> Consumer:
        if self._consumer is None:
            consumer = await self._calls.run(self._make)
            if self._closed:
                await self._calls.run(consumer.close)
            self._consumer = consumer
        return self._consumer

    # Reading

    async def poll(self, timeout: float = 0.0, *, max_records: int = PAGE) -> list[Message]:  # noqa: ASYNC109 - as penstock.Consumer.poll
        """Return the next records; when there are none, wait for some, up to `timeout` seconds."""
        consumer = await self._opened()
        seconds = consumer.check_poll(timeout, max_records)
        page = await self._fetch(consumer, seconds, max_records)
        for _ in consumer.hand_out(page):
            pass
        return page

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate until everything that is there was handed out. A position moves when its record
        is handed out, so that a loop can commit, or seek, in its midst. Raises the error of a
        partition that cannot be read, when the others are at their end."""
        async for message in self._messages(0.0):
            yield message
        if not self._closed:
            await self.check_errors()

    async def follow(self, timeout: float | None = None) -> AsyncIterator[Message]:  # noqa: ASYNC109 - as penstock.Consumer.follow
        """Iterate without an end, waiting for records; with `timeout`, until none arrived for that
        many seconds."""
        seconds = _SLICE_S if timeout is None else as_seconds(timeout, "timeout")
        while not self._closed:
            async for message in self._messages(seconds):
                yield message
            if timeout is not None:
                return

    async def _messages(self, timeout: float) -> AsyncIterator[Message]:  # noqa: ASYNC109 - as above
        consumer = await self._opened()
        while page := await self._fetch(consumer, timeout, PAGE):
            for message in consumer.hand_out(page):
                yield message
            if self._closed:
                return

    async def _fetch(self, consumer: Consumer, timeout: float, max_records: int) -> list[Message]:  # noqa: ASYNC109 - as above
        deadline = asyncio.get_running_loop().time() + timeout
        page = await self._calls.run(consumer.fetch, 0.0, max_records)
        while not page and not self._closed:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            page = await self._calls.wait(consumer.fetch, min(left, _SLICE_S), max_records)
        return page

    errors = _in_pool(Consumer.errors)
    check_errors = _in_pool(Consumer.check_errors)
    skip = _in_pool(Consumer.skip)

    # Positions

    async def positions(self) -> Mapping[tuple[str, int], Offset]:
        """Return the next offset to read, by topic and partition."""
        return (await self._opened()).positions

    commit = _in_pool(Consumer.commit)
    committed = _in_pool(Consumer.committed)
    seek = _in_pool(Consumer.seek)
    seek_to = _in_pool(Consumer.seek_to)
    lag = _in_pool(Consumer.lag)

    async def close(self) -> None:
        """Stop reading and leave the group; nothing is committed by this."""
        self._closed = True
        if self._consumer is not None:
            with suppress(ClosedError):  # a store that was closed has closed its consumers
                await self._calls.run(self._consumer.close)

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
