"""Thread pools for the calls of coroutines, so that a slow device or network does not block the
event loop.

At most `CALLS` calls run concurrently; others queue. Long polls have a pool of their own, so that
waiting consumers do not delay writes. Cancelling a coroutine cancels the wait, not the call: a
write is complete or not done.

Closing runs once for all callers, which wait for it and get its error. New calls are rejected from
then on; running calls complete.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from penstock.errors import ClosedError

CALLS: Final = 16
WAITS: Final = 64

P = ParamSpec("P")
R = TypeVar("R")


class CallExecutor:
    """The threads of a store and its topics and consumers, started on demand."""

    def __init__(self) -> None:
        self._calls: Final = ThreadPoolExecutor(CALLS, thread_name_prefix="penstock-aio")
        self._waits: Final = ThreadPoolExecutor(WAITS, thread_name_prefix="penstock-aio-wait")
        self._guard: Final = threading.Lock()
        self._closing: Future[None] | None = None

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        return await asyncio.wrap_future(self._submit(self._calls, call, *arguments, **named))

    async def wait(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Run a call that may wait for records."""
        return await asyncio.wrap_future(self._submit(self._waits, call, *arguments, **named))

    async def close(self, call: Callable[[], None]) -> None:
        """Run the call that closes the store and shut the pools down, or wait for a close that is
        already running."""
        with self._guard:
            if self._closing is None:
                self._closing = self._calls.submit(call)
                self._calls.shutdown(wait=False)
                self._waits.shutdown(wait=False)
        # Shielded: cancelling one waiting coroutine must not cancel the close for the others.
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def _submit(
        self,
        threads: ThreadPoolExecutor,
        call: Callable[P, R],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Future[R]:
        with self._guard:
            if self._closing is not None:
                raise ClosedError("this store is closed")
            return threads.submit(call, *arguments, **named)
