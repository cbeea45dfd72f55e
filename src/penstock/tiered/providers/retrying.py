"""Repeats what may be repeated, and finds out what a lost answer meant.

A write whose answer did not come may have taken place, and a repeated write is then answered with
"exists" or "changed": by our own first attempt. So a rival is never assumed: the object is read
back, and if it holds exactly our bytes, the write was ours. Whatever is written through here is
unique to its writer (names and manifests say whose they are), so equal bytes are proof.

Bounds: `ATTEMPTS` per call, `BACKOFF_MAX_S` between two of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from penstock.errors import AlreadyExistsError, StaleWriteError, TierUnavailableError
from penstock.platform.clock import Clock, SystemClock
from penstock.tiered.providers.contract import (
    Blocks,
    ObjectBytes,
    ObjectInfo,
    ObjectMissingError,
    TierProvider,
    UnsyncedWriteError,
    get_range_into,
    get_range_summed,
    path_of,
    remove_leftovers,
)

ATTEMPTS: Final = 5
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0

_Found = TypeVar("_Found")


class RetryingProvider:
    def __init__(
        self, inner: TierProvider, *, attempts: int = ATTEMPTS, clock: Clock | None = None
    ) -> None:
        self.inner: Final = inner
        self._attempts: Final = attempts
        self._clock: Final = clock or SystemClock()
        self._never: Final = threading.Event()
        self._random: Final = random.Random()

    @property
    def url(self) -> str:
        return self.inner.url

    def put_if_absent(self, key: str, data: bytes) -> None:
        def attempt() -> None:
            try:
                self.inner.put_if_absent(key, data)
            except UnsyncedWriteError:
                raise
            except (AlreadyExistsError, TierUnavailableError):
                if not self._holds(key, data):
                    raise

        self._repeat(attempt)

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        def attempt() -> str:
            try:
                return self.inner.compare_and_set(key, data, expected)
            except UnsyncedWriteError:
                raise
            except (StaleWriteError, TierUnavailableError):
                stored = self._read_back(key)
                if stored is not None and stored.data == data:
                    return stored.version
                raise

        return self._repeat(attempt)

    def _holds(self, key: str, data: bytes) -> bool:
        info = self.inner.head(key)
        if info is None or info.size != len(data):
            return False
        stored = self._read_back(key)
        return stored is not None and stored.data == data

    def _read_back(self, key: str) -> ObjectBytes | None:
        try:
            return self.inner.get(key)
        except ObjectMissingError:
            return None

    def get(self, key: str) -> ObjectBytes:
        return self._repeat(lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, size: int) -> bytes:
        return self._repeat(lambda: self.inner.get_range(key, start, size))

    def get_range_into(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview]
    ) -> None:
        self._repeat(lambda: get_range_into(self.inner, key, start, size, get_buffer))

    def get_range_summed(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview], blocks: Blocks
    ) -> bytes:
        return self._repeat(
            lambda: get_range_summed(self.inner, key, start, size, get_buffer, blocks)
        )

    def path_of(self, key: str) -> str | None:
        return path_of(self.inner, key)

    def head(self, key: str) -> ObjectInfo | None:
        return self._repeat(lambda: self.inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter(self._repeat(lambda: list(self.inner.list(prefix))))

    def delete(self, key: str) -> None:
        self._repeat(lambda: self.inner.delete(key))

    def remove_leftovers(self, before_ms: int) -> int:
        return self._repeat(lambda: remove_leftovers(self.inner, before_ms))

    def close(self) -> None:
        self.inner.close()

    def _repeat(self, attempt: Callable[[], _Found]) -> _Found:
        pause_s = BACKOFF_FIRST_S
        for _ in range(self._attempts - 1):
            try:
                return attempt()
            except TierUnavailableError:
                self._clock.wait(self._never, pause_s * self._random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, BACKOFF_MAX_S)
        return attempt()
