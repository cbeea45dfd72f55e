"""Where the calls of coroutines run: in threads that belong to the store, so that a slow device or
network never holds up the event loop.

At most `CALLS` run at once, the others wait their turn. Waiting for records has threads of its own:
however many consumers wait, a write goes on. Cancelling a coroutine stops the waiting, not the
call: a write is then done or not, never half.

Closing runs once, whoever asks for it and however often: all wait for its end, and get its error
if it has one. From its beginning on calls are refused; those that run are not cut off.
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
    """Threads for a store and all that comes from it; they are started when they are needed."""

    def __init__(self) -> None:
        self._calls: Final = ThreadPoolExecutor(CALLS, thread_name_prefix="penstock-aio")
        self._waits: Final = ThreadPoolExecutor(WAITS, thread_name_prefix="penstock-aio-wait")
        self._guard: Final = threading.Lock()
        self._closing: Future[None] | None = None

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        return await asyncio.wrap_future(self._submit(self._calls, call, *arguments, **named))

    async def wait(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Run a call that may wait for something to happen."""
        return await asyncio.wrap_future(self._submit(self._waits, call, *arguments, **named))

    async def close(self, call: Callable[[], None]) -> None:
        """Run the call that closes the store, then let go of the threads; or wait for the one that
        does so already."""
        with self._guard:
            if self._closing is None:
                self._closing = self._calls.submit(call)
                self._calls.shutdown(wait=False)
                self._waits.shutdown(wait=False)
        # Shielded: one of several who wait may be cancelled, and the others wait on.
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
