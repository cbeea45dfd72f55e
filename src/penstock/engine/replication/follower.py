"""`FollowerReplica`: a copy of one shard that follows its leader.

Rules:

  * a follower cuts its log only where the leader's epoch history says so, never by its own commit
    offset, and never below it: a leader that asks for that has lost committed records. One that
    nothing counts on begins anew instead: see `Assignment.may_begin_anew`
  * it takes over the leader's bytes, and the leader's commit offset as far as its own safe end
  * one with damaged records stops until the metadata do not count on it any more; then it asks its
    leader, and cuts at the damage when the leader has everything that was committed here
  * one whose device failed copies nothing: it would be added to the in-sync set of an idle shard
  * a reply counts only under the leader epoch and from the position for which it was asked
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.effects import Damaged
from penstock.engine.replication.log import ReplicaLog, countable
from penstock.engine.replication.messages import (
    ShardFetch,
    ShardReply,
    StreamPosition,
    StreamReply,
)
from penstock.errors import CorruptionError


class FollowerReplica:
    __slots__ = ("assignment", "damage", "is_repairing", "logs")

    def __init__(self, assignment: Assignment, logs: Sequence[ReplicaLog]) -> None:
        self.assignment = assignment
        self.logs: Final = tuple(logs)
        self.damage: Damaged | None = None
        """Why this replica is not copied any more."""
        self.is_repairing = False
        """Whether damaged records are to be copied again: the metadata do not count on this
        replica any more, so it may go back before its commit offset."""

    def update(self, assignment: Assignment) -> None:
        self.assignment = assignment
        if assignment.may_begin_anew:
            self.damage = None

    @property
    def may_fetch(self) -> bool:
        """Whether there is something to copy, and nothing in the way of it."""
        if self.damage is not None or any(log.has_failed for log in self.logs):
            return False
        return self.is_repairing or all(log.damaged_at is None for log in self.logs)

    def fetch(self) -> ShardFetch:
        """Return what to ask the leader for."""
        positions = tuple(
            StreamPosition(log.end, log.last_epoch, countable(log), log.commit) for log in self.logs
        )
        assignment = self.assignment
        return ShardFetch(
            assignment.shard, assignment.leader_epoch, assignment.partition_epoch, positions
        )

    def apply(self, reply: ShardReply) -> bool:
        """Take over what the leader sent; return whether a commit offset moved."""
        if reply.leader_epoch != self.assignment.leader_epoch:
            return False
        moved = False
        self.is_repairing &= any(log.damaged_at is not None for log in self.logs)
        for log, stream in zip(self.logs, reply.streams, strict=True):
            if log.end != stream.position:
                continue  # the reply to an earlier fetch has come meanwhile
            if stream.cut_end >= 0:
                if not self._cut(log, stream):
                    if self.assignment.may_begin_anew:
                        self._begin_anew(reply)
                    return moved
                continue  # the rest may differ, too: the next fetch asks
            if log.damaged_at is not None:
                self._repair(log, stream)
                continue  # of what is left, the leader has not said that it is the same
            if not self._append(log, stream):
                return moved
            commit = min(stream.commit, log.safe)
            if commit > log.commit:
                log.set_commit(commit)
                moved = True
        return moved

    def _repair(self, log: ReplicaLog, reply: StreamReply) -> None:
        """Drop damaged records. Only now: the leader has everything that was committed here."""
        if self.is_repairing and log.damaged_at is not None:
            if reply.start >= log.end:
                log.restart_at(reply.start)
            else:
                log.cut(log.damaged_at)

    def _append(self, log: ReplicaLog, reply: StreamReply) -> bool:
        """Append what the leader sent; return False when that is damaged."""
        if reply.start > log.end or (reply.start == log.end and log.commit < log.end):
            # The leader's log begins later: earlier records are deleted, or in the tier. Where it
            # begins at the end of this one, it cannot say whether they are the same.
            log.restart_at(reply.start)
            return True
        if reply.data:
            try:
                log.append_range(reply.data)
            except CorruptionError:
                return False  # damaged on the way: it is asked for again
        return True

    def _begin_anew(self, reply: ShardReply) -> None:
        """Drop all that is here, and copy what the leader has."""
        self.damage = None
        for log, stream in zip(self.logs, reply.streams, strict=True):
            log.restart_at(stream.start)

    def _cut(self, log: ReplicaLog, reply: StreamReply) -> bool:
        _, own_end = log.epoch_end(reply.cut_epoch)
        end = max(min(reply.cut_end, own_end), log.start)
        if end < log.commit:
            self.damage = Damaged(
                self.assignment.shard,
                f"leader {self.assignment.leader} of epoch {self.assignment.leader_epoch} asks to "
                f"cut at {end}, but the records before {log.commit} are committed",
            )
            return False
        if end < log.end:
            log.cut(end)
        return True
