"""Threads for blocking calls, so that the event loop never blocks.

Bounds: `threads` calls run concurrently, `waiting_max` more may wait; the next one is rejected with
`BusyError`. A cancelled call that has not begun never runs; one that has begun is finished by its
thread, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.errors import BusyError, ClosedError

T = TypeVar("T")

THREADS: Final = 8
WAITING_MAX: Final = 4_096


class BlockingPool:
    def __init__(self, threads: int = THREADS, waiting_max: int = WAITING_MAX) -> None:
        self._executor: Final = ThreadPoolExecutor(threads, thread_name_prefix="penstock-blocking")
        self._calls_max: Final = threads + waiting_max
        self._lock: Final = threading.Lock()
        self._calls = 0

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` in a thread and return what it returns."""
        with self._lock:
            if self._calls >= self._calls_max:
                raise BusyError(f"{self._calls} calls wait for a thread; nothing was done")
            self._calls += 1
        try:
            future = self._executor.submit(call)
        except RuntimeError as error:
            with self._lock:
                self._calls -= 1
            raise ClosedError("the store was closed") from error
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    @property
    def calls(self) -> int:
        """How many calls run or wait."""
        return self._calls

    def close(self) -> None:
        """Finish what runs; what waits fails with a cancellation."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _done(self, _: Future[T]) -> None:
        with self._lock:
            self._calls -= 1
