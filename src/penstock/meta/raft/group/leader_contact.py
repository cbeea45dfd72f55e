"""`LeaderContact`: until when this member may have confirmed the lead of an earlier leader.

A leader grants leases after a majority has answered it. A member answers no leader of an earlier
term any more. So when a majority of the voters is in a term, the last of their contacts with
earlier leaders is the last moment at which a lease of an earlier leader can have begun: each
majority that confirmed one has a member in this majority.

Guarantees:

  * the time that `report` names is never longer than the one that has passed since the contact:
    ticks come no faster than the clock, a member that was stopped misses some, and the ticks in
    which contact and report were made count for nothing
  * a member that led was in contact with itself until it is known that it leads no more
  * what a member did before it was started happened before its first tick
  * a report names a term only once that is on the device: no restart leads back to an earlier one
"""

from __future__ import annotations

from typing import Final

_UNCERTAIN_TICKS: Final = 2


class LeaderContact:
    """`observe` whenever term or role may have changed, `record` after each message of the leader,
    `tick`, and `publish` when the term is on the device; any thread may read `report`."""

    def __init__(self, term: int) -> None:
        self._term = term
        self._ticks = 0
        self._contact = 0
        """When this member was last in contact with the leader of the current term, or of one
        before it."""
        self._earlier = 0
        """The last contact with the leader of an earlier term."""
        self._leads = False
        self.report: tuple[int, int] = (term, 0)
        """The current term, and the ticks since the last contact with a leader of an earlier
        one."""

    def tick(self) -> None:
        self._ticks += 1

    def observe(self, term: int, *, leads: bool) -> None:
        if self._leads:
            self._contact = self._ticks
        if term != self._term:
            self._term = term
            self._earlier = self._contact
        self._leads = leads

    def publish(self) -> None:
        passed = max(0, self._ticks - self._earlier - _UNCERTAIN_TICKS)
        self.report = (self._term, passed)

    def record(self) -> None:
        self._contact = self._ticks
