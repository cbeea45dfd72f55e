"""Bytes of the tier in memory: bounded, shared by all readers, each fetched once.

Concurrent readers of the same range wait for one request. Finished entries go, least recently used
first, when all together exceed the limit; loads in flight are bounded by the fetcher's window.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final, Generic, TypeVar

_Value = TypeVar("_Value")


class BlockCache(Generic[_Value]):
    def __init__(self, size_max: int, size_of: Callable[[_Value], int]) -> None:
        self._size_max: Final = size_max
        self._size_of: Final = size_of
        self._lock: Final = threading.Lock()
        self._entries: OrderedDict[object, Future[_Value]] = OrderedDict()
        self._sizes: dict[object, int] = {}
        self.size = 0
        self.hits = 0

    def start(
        self, key: object, load: Callable[[], _Value], executor: Executor | None = None
    ) -> Future[_Value]:
        """Return the future of the value that is cached or being loaded, or of one that `load`
        gets, in a thread of `executor`, or in this one."""
        with self._lock:
            cached = self._entries.get(key)
            if cached is not None:
                self._entries.move_to_end(key)
                self.hits += 1
                return cached
            future: Future[_Value] = Future()
            self._entries[key] = future
        if executor is None:
            self._run(key, load, future)
        else:
            executor.submit(self._run, key, load, future)
        return future

    def peek(self, key: object) -> _Value | None:
        """Return a value that is there already."""
        with self._lock:
            cached = self._entries.get(key)
        done = cached is not None and cached.done() and cached.exception() is None
        return cached.result() if cached is not None and done else None

    def get(self, key: object, load: Callable[[], _Value]) -> _Value:
        return self.start(key, load).result()

    def _run(self, key: object, load: Callable[[], _Value], future: Future[_Value]) -> None:
        try:
            value = load()
        except BaseException as error:  # noqa: BLE001 - it is raised where the value is awaited
            with self._lock:
                self._entries.pop(key, None)
            future.set_exception(error)
            return
        with self._lock:
            if key in self._entries:
                self._sizes[key] = self._size_of(value)
                self.size += self._sizes[key]
            self._evict(key)
        future.set_result(value)

    def _evict(self, newest: object) -> None:
        if self.size <= self._size_max:
            return
        for key in list(self._entries):
            if self.size <= self._size_max:
                return
            if key != newest and key in self._sizes:
                del self._entries[key]
                self.size -= self._sizes.pop(key)
