"""Where a subscriber is in a shard while it is not live: it reads the log, or is offline."""

from __future__ import annotations

from collections import deque
from typing import Final

HINTS_MAX: Final = 16
"""Offsets that an offline session keeps one by one; with more it keeps the first and the last."""


class Hint:
    """Which messages of a shard wait for an offline session."""

    __slots__ = ("dup_until", "first", "last", "offsets")

    def __init__(self, first: int, last: int, offsets: list[int] | None = None) -> None:
        """`offsets` None: any of [first, last] may be wanted."""
        self.first: Final = first
        self.last = last
        self.offsets = offsets
        self.dup_until = 0
        """Messages before this offset may have been sent before the node started."""

    def add(self, offset: int) -> None:
        """Add a message after all others."""
        self.last = offset
        if self.offsets is not None:
            if len(self.offsets) < HINTS_MAX:
                self.offsets.append(offset)
            else:
                self.offsets = None


class Cursor:
    """The next message of a shard that a connected subscriber reads from the log."""

    __slots__ = ("dup_until", "has_qos0", "is_waiting", "last", "next", "offsets", "until")

    def __init__(self, next_offset: int) -> None:
        self.next = next_offset
        self.offsets: deque[int] | None = None
        """The only offsets before `until` that are wanted; None: all."""
        self.last = -1
        """After this one nothing is wanted before `until`."""
        self.until = 0
        self.has_qos0 = False
        """Whether QoS 0 deliveries are read here, too, and not delivered live."""
        self.dup_until = 0
        """Messages before this offset may have been sent before the node started."""
        self.is_waiting = False
        """Whether a read of the log is on its way for it."""

    @classmethod
    def of_hint(cls, hint: Hint, known_end: int) -> Cursor:
        """Return where a session begins to read that was offline until now."""
        cursor = cls(hint.first)
        cursor.last = hint.last
        cursor.until = known_end
        cursor.dup_until = hint.dup_until
        if hint.offsets is not None:
            cursor.offsets = deque(hint.offsets)
        return cursor

    def as_hint(self, known_end: int) -> Hint:
        """Return what waits for a session whose connection has ended."""
        first = self.position
        hint = Hint(first, max(first, known_end - 1))
        hint.dup_until = self.dup_until
        return hint

    @property
    def position(self) -> int:
        """The lowest offset that may be wanted."""
        return self.offsets[0] if self.offsets else self.next

    def move_past(self, offset: int) -> None:
        """Go on after `offset`, past what is not wanted."""
        self.next = max(self.next, offset + 1)
        offsets = self.offsets
        if offsets is not None:
            while offsets and offsets[0] <= offset:
                offsets.popleft()
            if offsets:
                self.next = max(self.next, offsets[0])
                return
            self.offsets = None
            self.last = min(self.last, offset)
        if self.last < self.next < self.until:
            self.next = self.until
