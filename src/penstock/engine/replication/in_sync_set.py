"""The in-sync set of a shard as its leader knows it: what the metadata confirm, and what they may
have accepted already.

A leader that proposed to add a replica must count it from then on: the metadata group may have
accepted the proposal, elected that replica, and the answer may be lost. A leader that proposed to
remove a replica must count it until the removal is confirmed. The commit offset is the minimum over
the union of both, the maximal set.
"""

from __future__ import annotations

from penstock.engine.replication.assignment import Assignment


class InSyncSet:
    __slots__ = ("_proposed", "confirmed", "maximal", "min_insync", "partition_epoch")

    def __init__(self, assignment: Assignment) -> None:
        self._proposed: tuple[int, ...] | None = None
        self.set_confirmed(assignment)

    def set_confirmed(self, assignment: Assignment) -> None:
        """Take over what the metadata say; a proposal for an older partition epoch is decided."""
        self.confirmed: tuple[int, ...] = assignment.in_sync
        self.partition_epoch = assignment.partition_epoch
        self.min_insync = assignment.min_insync
        self._proposed = None
        self.maximal: tuple[int, ...] = self.confirmed

    @property
    def is_pending(self) -> bool:
        """Whether a proposal was made whose outcome is not known."""
        return self._proposed is not None

    @property
    def may_commit(self) -> bool:
        return len(self.confirmed) >= self.min_insync

    def propose(self, members: tuple[int, ...]) -> None:
        self._proposed = members
        self.maximal = tuple(dict.fromkeys((*self.confirmed, *members)))

    def withdraw(self, partition_epoch: int) -> None:
        """Drop a proposal that the metadata group has refused: it can have no effect later."""
        if self.partition_epoch == partition_epoch:
            self._proposed = None
            self.maximal = self.confirmed
