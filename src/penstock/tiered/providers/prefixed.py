"""A part of a tier as if it were the whole: all keys below one prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.tiered.providers.contract import (
    Blocks,
    ObjectBytes,
    ObjectInfo,
    TierProvider,
    get_range_into,
    get_range_summed,
    path_of,
)


class PrefixedProvider:
    def __init__(self, inner: TierProvider, prefix: str) -> None:
        self._inner: Final = inner
        self._prefix: Final = f"{prefix.strip('/')}/"

    @property
    def url(self) -> str:
        return f"{self._inner.url.rstrip('/')}/{self._prefix.rstrip('/')}"

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._inner.put_if_absent(self._prefix + key, data)

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        return self._inner.compare_and_set(self._prefix + key, data, expected)

    def get(self, key: str) -> ObjectBytes:
        return self._inner.get(self._prefix + key)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        return self._inner.get_range(self._prefix + key, start, size)

    def get_range_into(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview]
    ) -> None:
        get_range_into(self._inner, self._prefix + key, start, size, get_buffer)

    def get_range_summed(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview], blocks: Blocks
    ) -> bytes:
        return get_range_summed(self._inner, self._prefix + key, start, size, get_buffer, blocks)

    def path_of(self, key: str) -> str | None:
        return path_of(self._inner, self._prefix + key)

    def head(self, key: str) -> ObjectInfo | None:
        info = self._inner.head(self._prefix + key)
        return None if info is None else info._replace(key=key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in self._inner.list(self._prefix + prefix):
            yield info._replace(key=info.key.removeprefix(self._prefix))

    def delete(self, key: str) -> None:
        self._inner.delete(self._prefix + key)

    def close(self) -> None:
        self._inner.close()
