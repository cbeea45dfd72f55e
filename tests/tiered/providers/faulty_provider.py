"""A tier that fails as real ones do: no answer, an answer that is lost, an end of the process
between any two calls."""

from __future__ import annotations

import random
from collections.abc import Iterator

from penstock.errors import TierUnavailableError
from penstock.tiered.providers import ObjectBytes, ObjectInfo, TierProvider


class Killed(BaseException):
    """The process ends here."""


class FaultyProvider:
    def __init__(self, inner: TierProvider) -> None:
        self.inner = inner
        self.fault_ratio = 0.0
        self.is_gone = False
        self.calls = 0
        self.kill_at: int | None = None
        """The call behind, or before, which the process ends: 2n before the n-th, 2n+1 behind."""
        self._random = random.Random(7)

    @property
    def url(self) -> str:
        return self.inner.url

    def _before(self) -> None:
        if self.kill_at == 2 * self.calls:
            raise Killed
        if self.is_gone or self._random.random() < self.fault_ratio:
            raise TierUnavailableError("503 slow down")

    def _behind(self) -> None:
        self.calls += 1
        if self.kill_at == 2 * self.calls - 1:
            raise Killed
        if self._random.random() < self.fault_ratio:
            raise TierUnavailableError("the answer was lost")

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._before()
        self.inner.put_if_absent(key, data)
        self._behind()

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        self._before()
        version = self.inner.compare_and_set(key, data, expected)
        self._behind()
        return version

    def get(self, key: str) -> ObjectBytes:
        self._before()
        found = self.inner.get(key)
        self._behind()
        return found

    def get_range(self, key: str, start: int, size: int) -> bytes:
        self._before()
        found = self.inner.get_range(key, start, size)
        self._behind()
        return found

    def head(self, key: str) -> ObjectInfo | None:
        self._before()
        found = self.inner.head(key)
        self._behind()
        return found

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._before()
        found = list(self.inner.list(prefix))
        self._behind()
        return iter(found)

    def delete(self, key: str) -> None:
        self._before()
        self.inner.delete(key)
        self._behind()

    def close(self) -> None:
        self.inner.close()
