"""Waiting for records: called back, or woken, when a shard was written to.

Without subscribers a write costs one check of an empty tuple. A callback runs in the writer's
thread, after the write, and must only pass the news on (set an event, notify an event loop). It may
also be called when its shard was deleted, so that no caller waits for records that will never come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.platform.clock import Clock


class AppendSubscription:
    """Calls `notify` after every write to one of `shards`, until closed. Shards that do not exist
    are left out."""

    def __init__(
        self, cache: StorageCacheManager, shards: Sequence[str], notify: Callable[[], None]
    ) -> None:
        self._lock: Final = cache.lock
        self._notify: Final = notify
        self._entries: list[ShardEntry] = []
        with self._lock:
            for name in shards:
                entry = cache.shards.get(name)
                if entry is not None:
                    entry.appended = (*entry.appended, notify)
                    self._entries.append(entry)

    def close(self) -> None:
        with self._lock:
            for entry in self._entries:
                left = list(entry.appended)
                left.remove(self._notify)
                entry.appended = tuple(left)
            self._entries = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def wait_for_append(
    cache: StorageCacheManager,
    clock: Clock,
    shards: Sequence[str],
    has_records: Callable[[], bool],
    seconds: float,
    pause: float,
) -> bool:
    """Wait until `has_records` returns true; return whether it did within `seconds`. It is called
    immediately, after every write to `shards` through this node, and every `pause` seconds."""
    woken = threading.Event()
    deadline = clock.monotonic() + seconds
    with AppendSubscription(cache, shards, woken.set):
        while not has_records():
            left = deadline - clock.monotonic()
            if left <= 0:
                return False
            clock.wait(woken, min(left, pause))
            woken.clear()
        return True
