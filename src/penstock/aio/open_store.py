"""A store that is being opened: awaited, or entered by `async with`, which closes it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Final

from penstock.aio.store import AsyncStore
from penstock.api import Store


class Opening(Coroutine[object, None, AsyncStore]):
    """What `penstock.aio.open` and `penstock.aio.connect` return; it opens one store, once.

    store = await penstock.aio.open("data")
    async with penstock.aio.open("data") as store: ...
    """

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make: Final = make
        self._store: AsyncStore | None = None
        self._running: Coroutine[object, None, AsyncStore] | None = None

    def _begin(self) -> Coroutine[object, None, AsyncStore]:
        """Return the coroutine that opens; made late, so that one that is never awaited is not
        reported."""
        if self._running is None:
            self._running = self._open()
        return self._running

    async def _open(self) -> AsyncStore:
        self._store = AsyncStore(await asyncio.to_thread(self._make))
        return self._store

    def __await__(self) -> Generator[object, None, AsyncStore]:
        return self._begin().__await__()

    def send(self, value: None, /) -> object:
        return self._begin().send(value)

    def throw(self, error: BaseException, /) -> object:  # type: ignore[override] # as asyncio does
        return self._begin().throw(error)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()

    async def __aenter__(self) -> AsyncStore:
        return await (await self).__aenter__()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await self._store.__aexit__(error_type, error, traceback)
