"""Rows to put and to delete together.

Why not the binding's own batch: that one is used up by a write that RocksDB refuses, and could not
be tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from rocksdict import ColumnFamily, WriteBatch

CHANGES_SIZE_MAX: Final = 1 << 20
"""Callers keep changes below this where they can: a write holds the interpreter's lock, for 2 to
7 ms with so much."""

_ROW_OVERHEAD: Final = 512
"""What a row costs beside its bytes, in bytes that take as long: with bytes alone as the measure, a
batch of ten thousand small rows held the lock for 30 ms."""

Handles = Mapping[str, ColumnFamily]
Fill = Callable[[WriteBatch, Handles], None]
"""Puts rows into a batch of the binding, given the handles of the families."""


class Changes:
    """Changes of one family, applied in this order: ranges, deletes, puts."""

    __slots__ = ("deletes", "puts", "ranges", "size")

    def __init__(self) -> None:
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.ranges: list[tuple[bytes, bytes]] = []
        self.size = 0

    def put(self, key: bytes, row: bytes) -> None:
        self.puts.append((key, row))
        self.size += len(key) + len(row) + _ROW_OVERHEAD

    def delete(self, key: bytes) -> None:
        self.deletes.append(key)
        self.size += len(key) + _ROW_OVERHEAD

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every row with start <= key < end."""
        self.ranges.append((start, end))
        self.size += len(start) + len(end) + _ROW_OVERHEAD

    def fill(self, family: str) -> Fill:
        def fill(raw: WriteBatch, handles: Handles) -> None:
            handle, put = handles[family], raw.put
            for start, end in self.ranges:
                raw.delete_range(start, end, handle)
            for key in self.deletes:
                raw.delete(key, handle)
            for key, row in self.puts:
                put(key, row, handle)

        return fill


class Batch:
    """Changes of several families, applied in the order in which they were made."""

    __slots__ = ("operations", "size")

    def __init__(self) -> None:
        self.operations: list[tuple[Literal["put", "delete", "delete_range"], str, bytes, bytes]]
        self.operations = []
        self.size = 0

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.operations.append(("put", family, key, value))
        self.size += len(key) + len(value)

    def delete(self, family: str, key: bytes) -> None:
        self.operations.append(("delete", family, key, b""))
        self.size += len(key)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove all rows with start <= key < end."""
        self.operations.append(("delete_range", family, start, end))
        self.size += len(start) + len(end)

    def fill(self, raw: WriteBatch, handles: Handles) -> None:
        put = raw.put
        for kind, family, key, value in self.operations:
            if kind == "put":
                put(key, value, handles[family])
            elif kind == "delete":
                raw.delete(key, handles[family])
            else:
                raw.delete_range(key, value, handles[family])
