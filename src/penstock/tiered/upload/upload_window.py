"""Concurrent puts of immutable objects, a few at most.

Nothing refers to an object before `wait` has returned, so the order in which they arrive does not
matter. Threads live from the first `put` to the next `wait`: a node has many shards, and few of
them are uploaded at a time.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from penstock.tiered.providers.contract import TierProvider


class UploadWindow:
    def __init__(self, provider: TierProvider, size: int) -> None:
        self._provider: Final = provider
        self._size: Final = max(1, size)
        self._executor: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()

    def put(self, key: str, data: bytes) -> None:
        """Begin to put an object; wait for the oldest when too many are in flight. Raises what
        went wrong with that one. One at a time needs no thread."""
        if self._size == 1:
            self._provider.put_if_absent(key, data)
            return
        while len(self._under_way) >= self._size:
            self._under_way[0].result()
            self._under_way.popleft()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._size, thread_name_prefix="penstock-put")
        self._under_way.append(self._executor.submit(self._provider.put_if_absent, key, data))

    def wait(self) -> None:
        """Return when all are there; raise the first error when none is in flight any more."""
        executor, self._executor = self._executor, None
        waiting, self._under_way = self._under_way, deque()
        if executor is not None:
            executor.shutdown(wait=True)
        for future in waiting:
            future.result()

    def abandon(self) -> None:
        """Wait for the puts in flight and ignore their outcome."""
        executor, self._executor = self._executor, None
        self._under_way.clear()
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)
