"""Runs reads of a tier in a few threads, for callers that must not wait.

A future can be cancelled at any time, also while its read runs: the caller does not wait,
and the thread drops the outcome (a read over several chunks ends before the next one). At most
`pending_max` reads are open at a time; further ones fail with `BusyError`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.errors import BusyError, ClosedError

PENDING_MAX: Final = 1024
IsCancelled = Callable[[], bool]
_Found = TypeVar("_Found")


class AsyncReads:
    def __init__(self, threads: int, pending_max: int = PENDING_MAX) -> None:
        self._threads: Final = threads
        self._pending_max: Final = pending_max
        self._lock: Final = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self._number = 0
        self._open: dict[int, Callable[[Exception], None]] = {}
        """How to end each read that has no outcome yet with an error."""

    def submit(self, read: Callable[[IsCancelled], _Found]) -> Future[_Found]:
        """Return the outcome of `read`, which is called in another thread with a function that
        says whether the caller has given up."""
        future: Future[_Found] = Future()
        with self._lock:
            rejection = self._rejection()
            if rejection is None:
                self._number += 1
                self._open[self._number] = lambda error: _fail(future, error)
                self._threads_of_pool().submit(self._run, self._number, future, read)
        if rejection is not None:
            _fail(future, rejection)
        return future

    def _threads_of_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="penstock-tier-read")
        return self._pool

    def _run(
        self, number: int, future: Future[_Found], read: Callable[[IsCancelled], _Found]
    ) -> None:
        if future.cancelled():
            self._claim(number)
            future.set_running_or_notify_cancel()  # wakes the threads that wait for it
            return
        try:
            result = read(future.cancelled)
        except Exception as error:  # noqa: BLE001 - it is raised where the future is awaited
            if self._claim(number):
                _fail(future, error)
        else:
            if self._claim(number) and future.set_running_or_notify_cancel():
                future.set_result(result)

    def _rejection(self) -> Exception | None:
        if self._closed:
            return ClosedError("the reader of this tier was closed")
        if len(self._open) >= self._pending_max:
            return BusyError(
                f"{len(self._open)} reads of this tier are open (limit {self._pending_max}); "
                "wait for some of them"
            )
        return None

    def _claim(self, number: int) -> bool:
        """Say whether a read still lacks an outcome; from now on it has one."""
        with self._lock:
            return self._open.pop(number, None) is not None

    def close(self) -> None:
        """End all reads that have no outcome yet with `ClosedError`."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
            ended = list(self._open.values())
            self._open = {}
        for fail in ended:
            fail(ClosedError("the reader of this tier was closed"))
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _fail(future: Future[_Found], error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
