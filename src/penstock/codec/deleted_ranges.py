"""The deleted offsets of one shard, as disjoint half-open ranges.

    bounds   start 0 · end 0 · start 1 · end 1 · …

Invariants:

  * the bounds ascend strictly: ranges neither overlap nor touch, so one set has one form
  * an offset is deleted exactly when an odd number of bounds lie at or below it

One flat array of 64-bit integers holds them: 100,000 single deleted offsets take 1.6 MB, a lookup
is one bisection, and a deletion is one splice. Readers of a shard ask while its writer deletes, so
every method takes the lock.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Self

_MERGE_SHARE = 16
"""More new ranges than this share of the old ones are merged in one pass, not spliced one by one:
a splice moves half of the array, a pass touches all of it."""


class DeletedRanges:
    __slots__ = ("_bounds", "_lock")

    def __init__(self) -> None:
        self._bounds = array("q")
        self._lock = threading.Lock()

    def add(self, start: int, end: int) -> None:
        """Delete the offsets of `[start, end)`; those already deleted stay so."""
        assert 0 <= start <= end, f"[{start}, {end}) is not a range of offsets"
        if start < end:
            with self._lock:
                self._splice(start, end)

    def add_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Delete all of `ranges`, which may come in any order and overlap."""
        merged = coalesce(ranges)
        with self._lock:
            if len(merged) * _MERGE_SHARE > len(self._bounds) // 2:
                self._bounds = _flatten(coalesce([*_pairs(self._bounds), *merged]))
            else:
                for start, end in merged:
                    self._splice(start, end)

    def drop_before(self, offset: int) -> None:
        """Forget what is below `offset`: the shard no longer holds those offsets at all."""
        with self._lock:
            index = bisect_right(self._bounds, offset)
            inside = index % 2 == 1
            self._bounds[:index] = array("q", [offset] if inside else [])

    def truncate_from(self, offset: int) -> None:
        """Forget what is at or past `offset`."""
        with self._lock:
            index = bisect_left(self._bounds, offset)
            inside = index % 2 == 1
            self._bounds[index:] = array("q", [offset] if inside else [])

    def overlapping(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges that share an offset with `[start, end)`, whole and ascending."""
        with self._lock:
            bounds = self._bounds
            # Back to the start of the range that holds `start`, on to the end of the last one.
            first = bisect_right(bounds, start) & ~1
            last = (bisect_left(bounds, end) + 1) & ~1
            part = bounds[first:last] if first < last and start < end else array("q")
        return list(_pairs(part))

    def __contains__(self, offset: int) -> bool:
        with self._lock:
            return bisect_right(self._bounds, offset) % 2 == 1

    def __len__(self) -> int:
        """Return how many ranges there are, which is what they cost."""
        return len(self._bounds) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.to_list())

    @property
    def count(self) -> int:
        """How many offsets are deleted."""
        with self._lock:
            return sum(self._bounds[1::2]) - sum(self._bounds[::2])

    def to_list(self) -> list[tuple[int, int]]:
        with self._lock:
            part = self._bounds[:]
        return list(_pairs(part))

    @classmethod
    def from_list(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        new = cls()
        new.add_ranges(ranges)
        return new

    def to_steps(self) -> list[int]:
        """Return the distance of each bound from the one before: small numbers, which pack well."""
        with self._lock:
            bounds = self._bounds.tolist()
        return [bound - before for bound, before in zip(bounds, [0, *bounds], strict=False)]

    @classmethod
    def from_steps(cls, steps: Iterable[int]) -> Self:
        """Restore what `to_steps` gave; raise ValueError for anything that it cannot have given."""
        distances = list(steps)
        if distances and (distances[0] < 0 or min(distances[1:], default=1) < 1):
            raise ValueError("bounds of deleted ranges do not ascend")
        if len(distances) % 2:
            raise ValueError("the last deleted range has no end")
        new = cls()
        try:
            new._bounds = array("q", accumulate(distances))
        except OverflowError as error:
            raise ValueError("a deleted range ends past any offset") from error
        return new

    def _splice(self, start: int, end: int) -> None:
        bounds = self._bounds
        first = bisect_left(bounds, start)
        last = bisect_right(bounds, end, first)
        # An odd index is inside a range, or touches its end: that range's own bound stays.
        between = [] if first % 2 else [start]
        if last % 2 == 0:
            between.append(end)
        bounds[first:last] = array("q", between)


def coalesce(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return `ranges` sorted, with empty ones left out and touching ones joined."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        assert 0 <= start <= end, f"[{start}, {end}) is not a range of offsets"
        if start == end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def cover(ranges: Iterable[tuple[int, int]], start: int, end: int) -> bool:
    """Say whether ascending ranges hold all of `[start, end)`."""
    for first, stop in ranges:
        if start >= end or first > start:
            break
        start = max(start, stop)
    return start >= end


def _pairs(bounds: array[int]) -> Iterator[tuple[int, int]]:
    return zip(bounds[::2], bounds[1::2], strict=True)


def _flatten(ranges: list[tuple[int, int]]) -> array[int]:
    bounds = array("q", bytes(16 * len(ranges)))
    bounds[::2] = array("q", [start for start, _ in ranges])
    bounds[1::2] = array("q", [end for _, end in ranges])
    return bounds
