"""`ShareQueue`: which messages of one shard a group has delivered. Pure: no clock, no I/O.

    offsets   … acknowledged … | next                                  | end
                 └ but for: in flight (owner), released (to deliver again)

    available ──acquire──▶ in flight ──acknowledge──▶ acknowledged
        ▲                      │
        └── released ◀─release─┘

A group that is live has acquired, or does not want, everything before the end that delivery knows:
`next` then has no meaning. After a crash some offsets from `next` on are not available: `excluded`.
"""

from __future__ import annotations

from bisect import insort
from typing import Final

UNKNOWN: Final = 0
"""Instead of the number of an owner."""


class ShareQueue:
    __slots__ = (
        "dup_until",
        "excluded",
        "final",
        "in_flight",
        "is_behind",
        "is_waiting",
        "next",
        "previous",
        "released",
    )

    def __init__(self) -> None:
        self.is_behind = False
        self.next = 0
        """Not live: the first offset that was not looked at."""
        self.in_flight: Final[dict[int, int]] = {}
        """Owners by offset."""
        self.released: Final[list[int]] = []
        """Offsets to deliver again, in ascending order."""
        self.previous: Final[dict[int, int]] = {}
        """The last owners of released offsets."""
        self.excluded: Final[set[int]] = set()
        self.final: Final[set[int]] = set()
        """Those in flight that are not delivered again after the node has ended."""
        self.is_waiting = False
        """Whether a read of the log is on its way."""
        self.dup_until = 0
        """Messages before this offset may have been sent before the node started."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be kept: live, and everything is acknowledged."""
        return not (self.is_behind or self.in_flight or self.released or self.excluded)

    def fall_behind(self, offset: int) -> None:
        """Look at `offset` and what follows it later."""
        assert not self.is_behind, "a cursor moves on by `pass_to` only"
        self.is_behind = True
        self.next = offset

    def pass_to(self, offset: int) -> None:
        """Everything before `offset` was acquired, or is not wanted."""
        assert offset >= self.next, "a cursor moves forward"
        self.next = offset

    def catch_up(self) -> None:
        """The cursor is at the end: live."""
        self.is_behind = False
        self.excluded.clear()

    def claim_exclusion(self, offset: int) -> bool:
        """Return whether an offset that the cursor has reached must be passed over."""
        if offset in self.excluded:
            self.excluded.remove(offset)
            return True
        return False

    def acquire(self, offset: int, owner: int) -> None:
        """A member gets a message that was never in flight."""
        assert offset not in self.in_flight, "a message is in flight to one member"
        self.in_flight[offset] = owner

    def mark_final(self, offset: int) -> None:
        """The owner does not outlive the node, and no other member may get the message."""
        self.final.add(offset)

    def acquire_released(self, owner: int) -> bool:
        """A member gets the first released message; return whether it had it before."""
        offset = self.released.pop(0)
        self.in_flight[offset] = owner
        return self.previous.pop(offset, UNKNOWN) == owner

    def drop_released(self) -> None:
        """The first released message was deleted, has expired, or is too large for all members."""
        self.previous.pop(self.released.pop(0), None)

    def acknowledge(self, offset: int) -> None:
        """The message needs nothing more; nor if it is not in flight any more."""
        self.in_flight.pop(offset, None)
        self.final.discard(offset)

    def release(self, offset: int) -> None:
        """A message that is in flight is to be delivered again."""
        owner = self.in_flight.pop(offset, None)
        if owner is None:
            return
        self.final.discard(offset)
        insort(self.released, offset)
        self.previous[offset] = owner

    def pending(self) -> list[int]:
        """Return the offsets that are to be delivered if the node ends now, in ascending order;
        besides those that the cursor has not reached."""
        return sorted([*(self.in_flight.keys() - self.final), *self.released])
