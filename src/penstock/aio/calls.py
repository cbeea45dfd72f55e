"""Where the calls of coroutines run: in threads that belong to the store, so that a slow device or
network never holds up the event loop.

At most `CALLS` run at once, the others wait their turn. Waiting for records has threads of its own:
however many consumers wait, a write goes on. Cancelling a coroutine stops the waiting, not the
call: a write is then done or not, never half.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

CALLS: Final = 16
WAITS: Final = 64

P = ParamSpec("P")
R = TypeVar("R")


class Calls:
    """Threads for a store and all that comes from it; they are started when they are needed."""

    def __init__(self) -> None:
        self._calls: Final = ThreadPoolExecutor(CALLS, thread_name_prefix="penstock-aio")
        self._waits: Final = ThreadPoolExecutor(WAITS, thread_name_prefix="penstock-aio-wait")

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._calls, lambda: call(*arguments, **named))

    async def wait(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Run a call that may wait for something to happen."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._waits, lambda: call(*arguments, **named))

    def close(self) -> None:
        self._calls.shutdown(wait=False)
        self._waits.shutdown(wait=False)
