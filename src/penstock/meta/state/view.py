"""How a state machine sees its rows: a map from bytes to bytes, in key order.

`View` is all that the pure functions know of storage. `MemoryView` is a sorted map, for tests and
simulations; `Overlay` holds what a turn of the log changed until it is written in one batch, over
any reader.

A function that changes rows while it scans them gets no promise about what the scan still returns:
collect first, then change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import merge
from operator import itemgetter
from typing import Final, Protocol

Row = tuple[bytes, bytes]

_ROW_OVERHEAD: Final = 16

Changes = dict[bytes, bytes | None]
Caches = tuple[Changes, Changes]


class Reader(Protocol):
    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        """Yield the rows with start <= key < end, ascending."""
        ...


class View(Reader, Protocol):
    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None:
        """Remove a row; do nothing if there is none."""
        ...


class MemoryView:
    """Rows in memory."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = value

    def delete(self, key: bytes) -> None:
        if self._rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, end)]
        for key in keys:
            yield key, self._rows[key]


class Overlay:
    """Changes over a reader that stays as it is; `changes` is what a writer must store."""

    def __init__(self, below: Reader, caches: Caches = ({}, {})) -> None:
        """`caches` hold rows as `below` would return them, for native loops."""
        self._below = below
        self.caches: Final = caches
        self.changes: Changes = {}
        self.size = 0
        """Bytes of all changes made so far, overwritten ones included: what a batch may take."""

    def get(self, key: bytes) -> bytes | None:
        if key in self.changes:
            return self.changes[key]
        return self._below.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value
        self.size += len(key) + len(value) + _ROW_OVERHEAD

    def delete(self, key: bytes) -> None:
        self.changes[key] = None
        self.size += len(key) + _ROW_OVERHEAD

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        changed = sorted(key for key in self.changes if start <= key < end)
        mine = ((key, self.changes.get(key)) for key in changed)
        theirs = (row for row in self._below.scan(start, end) if row[0] not in self.changes)
        for key, value in merge(mine, theirs, key=itemgetter(0)):
            if value is not None:
                yield key, value
