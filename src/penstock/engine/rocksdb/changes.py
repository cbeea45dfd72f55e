"""Rows to put and to delete together.

Why not the binding's own batch: that one is used up by a write that RocksDB refuses, and could not
be tried again.
"""

from __future__ import annotations

from typing import Final

CHANGES_SIZE_MAX: Final = 1 << 20
"""Callers keep changes below this where they can: a write holds the interpreter's lock, for about
3 ms with so much."""

_ROW_OVERHEAD: Final = 16


class Changes:
    """Applied in this order: ranges, deletes, puts."""

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
