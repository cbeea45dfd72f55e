"""`DueTimes`: what is due when, in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class DueTimes(Generic[T]):
    def __init__(self) -> None:
        self._heap: Final[list[tuple[int, int, T]]] = []
        self._order: Final = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, item: T) -> None:
        heappush(self._heap, (due_ms, next(self._order), item))

    def pop_due(self, now_ms: int) -> Iterator[tuple[int, T]]:
        """Remove and yield what is due, with its time."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, item = heappop(self._heap)
            yield due_ms, item
