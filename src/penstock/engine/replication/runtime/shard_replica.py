"""`ShardReplica`: a replicated shard of this node, for the threads that write to it.

    check   may this node write now, under which leader epoch
    wait    until every replica in sync has the records

A writer names the epoch that `check` returned. When this node stops leading, or leads again under
another epoch, its waits end: another leader may have replaced the records that they wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

from msgspec import Struct

from penstock.engine.contract import Acks, OnCommitted
from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.log import ReplicaLog
from penstock.errors import (
    DeadlineError,
    NotEnoughReplicasError,
    NotLeaderError,
    StoreError,
)

WAITERS_MAX: Final = 100_000
"""Writes to one shard that may wait for replicas."""


class ReplicaPosition(Struct, frozen=True):
    """How far a replica is."""

    start: int
    end: int
    commit: int
    """The commit offset as its node knows it."""
    epoch: int
    """The leader epoch of the last record; -1 in an empty log."""


class Owner(Protocol):
    """The `Replicator`, as its shards see it."""

    def touch(self, shard: str) -> None:
        """Records of a shard were appended, or synced."""
        ...

    def lease_holds(self) -> bool:
        """Say whether this node may acknowledge what it alone has."""
        ...


class ShardReplica:
    __slots__ = (
        "_has_ended",
        "_lock",
        "_name",
        "_node_id",
        "_number",
        "_owner",
        "_ready_epoch",
        "_waiters",
        "assignment",
        "epoch_start",
        "logs",
    )

    def __init__(
        self, name: str, node_id: int, logs: Sequence[ReplicaLog], owner: Owner, start: Assignment
    ) -> None:
        self._name: Final = name
        self._node_id: Final = node_id
        self._owner: Final = owner
        self.logs: Final = logs
        self.assignment = start
        self._lock: Final = threading.Lock()
        self._waiters: Final[list[tuple[int, int, OnCommitted]]] = []
        """Ends to wait for, the smallest first; the second number keeps the order."""
        self._number = 0
        self._ready_epoch = -1
        self._has_ended = False
        self.epoch_start = logs[0].end
        """Where the records of the current leader epoch begin, when this node leads."""

    @property
    def is_leader(self) -> bool:
        return self.assignment.leader == self._node_id

    @property
    def is_ready(self) -> bool:
        """Whether this node leads, and knows all that it must before it serves clients."""
        return self.is_leader and self._ready_epoch == self.assignment.leader_epoch

    @property
    def may_serve_readers(self) -> bool:
        """Whether this node follows another one in sync: what its copy knows to be committed is
        not far behind. A node that has not heard of the metadata may be out of sync by now."""
        assignment = self.assignment
        return (
            assignment.leader not in {None, self._node_id}
            and self._node_id in assignment.in_sync
            and self._owner.lease_holds()
        )

    @property
    def start(self) -> int:
        """The first offset that this node's log has, not counting a tier."""
        return self.logs[0].start

    @property
    def end(self) -> int:
        """The offset after the last record on this node, committed or not."""
        return self.logs[0].end

    @property
    def is_settled(self) -> bool:
        """Whether everything is committed that this node had when it became leader. Before that,
        readers of the last leader may have seen more than this one shows."""
        return self._has_ended or self.logs[0].commit >= self.epoch_start

    @property
    def position(self) -> ReplicaPosition:
        log = self.logs[0]
        return ReplicaPosition(log.start, log.end, log.commit, log.last_epoch)

    # Readers

    def check_lease(self) -> None:
        """Raise `NotLeaderError` when this node leads as far as it knows, but others may lead: it
        has not heard of the metadata service for the length of its lease. What it would show was
        committed; but its end may not be the end, and who waits here for more would wait in
        vain."""
        if self.assignment.leader == self._node_id and not self._owner.lease_holds():
            raise NotLeaderError(self._name, leader=None)

    def check_settled(self) -> None:
        """Raise when this node leads newly, and what it would find or delete may be less than was
        acknowledged: it learns within moments from its followers what is committed."""
        if not self.is_leader or self.is_settled:
            return
        assignment = self.assignment
        in_sync, needed = len(assignment.in_sync), assignment.min_insync
        if in_sync < needed:
            raise NotEnoughReplicasError(self._name, in_sync=in_sync, needed=needed)
        raise NotLeaderError(self._name, leader=None)

    @property
    def may_serve(self) -> bool:
        """Whether readers may take what this node shows for current."""
        return self._owner.lease_holds()

    def resign_damaged(self, offset: int | None) -> bool:
        """A client's read, which began at `offset`, has found a damaged record. Let another
        replica lead; return False when none can take over, or the damage is elsewhere."""
        if not self.is_leader:
            return True
        log = self.logs[0]
        if log.damaged_at is None and offset is not None and offset >= log.start:
            log.find_damage(offset)
        if log.damaged_at is None:
            return False
        self._owner.touch(self._name)
        return any(node != self._node_id for node in self.assignment.in_sync)

    def report_damage(self, offset: int) -> None:
        """The record at `offset` is damaged: have it copied again, whichever node leads."""
        log = self.logs[0]
        if log.damaged_at is None and offset >= log.start:
            log.find_damage(offset)
        self._owner.touch(self._name)

    # Writers

    def check(self, acks: Acks) -> int:
        """Return the leader epoch under which a write may begin; raise when none may."""
        assignment = self.assignment
        if assignment.leader != self._node_id or self._ready_epoch != assignment.leader_epoch:
            raise self._not_leader()
        in_sync, needed = len(assignment.in_sync), assignment.min_insync
        if acks is Acks.ALL and in_sync < needed:
            raise NotEnoughReplicasError(self._name, in_sync=in_sync, needed=needed)
        return assignment.leader_epoch

    def appended(self) -> None:
        """Let the followers have what was appended."""
        self._owner.touch(self._name)

    def wait(self, end: int, epoch: int, acks: Acks, seconds: float) -> None:
        """Return when a write that ends before `end` may be acknowledged."""
        self._owner.touch(self._name)
        if acks is not Acks.ALL:
            self._check_lease()
            return
        woken = threading.Event()
        outcome: list[StoreError | None] = []

        def done(error: StoreError | None) -> None:
            outcome.append(error)
            woken.set()

        self.call_when_committed(end, epoch, done)
        if not woken.wait(seconds):
            raise self._late(seconds)
        if outcome[0] is not None:
            raise outcome[0]

    def call_when_committed(self, end: int, epoch: int, done: OnCommitted) -> None:
        """Call `done` when the records before `end`, which were appended under `epoch`, are
        committed or may be replaced by others. It may be called before this returns, by this
        thread, or later by the thread of the replication."""
        with self._lock:
            error = self._end_of_wait(epoch)
            is_over = error is not None or self._has_ended or self.logs[0].commit >= end
            if not is_over and len(self._waiters) >= WAITERS_MAX:
                # Not `BusyError`: that says that nothing was written.
                error = DeadlineError(
                    f"{WAITERS_MAX} writes to {self._name!r} wait for replicas, which is the "
                    "limit; the outcome is unknown, try again"
                )
                is_over = True
            if not is_over:
                self._number += 1
                heappush(self._waiters, (end, self._number, done))
        if is_over:
            done(error)

    def _end_of_wait(self, epoch: int) -> StoreError | None:
        assignment = self.assignment
        if assignment.leader != self._node_id or assignment.leader_epoch != epoch:
            # Not `NotLeaderError`: that says that nothing was written, and clients would write the
            # records again under another sequence.
            return self._deposed()
        in_sync, needed = len(assignment.in_sync), assignment.min_insync
        if in_sync < needed:
            return NotEnoughReplicasError(
                self._name, in_sync=in_sync, needed=needed, is_appended=True
            )
        return None

    def _check_lease(self) -> None:
        if not self._owner.lease_holds():
            raise DeadlineError(
                f"node {self._node_id} has not heard of the metadata service and may not lead "
                f"{self._name!r} any more; the outcome is unknown, try again"
            )

    def _late(self, seconds: float) -> DeadlineError:
        return DeadlineError(
            f"the replicas of {self._name!r} did not have the records within {seconds:g} s; the "
            "outcome is unknown"
        )

    def _deposed(self) -> DeadlineError:
        return DeadlineError(
            f"node {self._node_id} stopped leading {self._name!r} before all replicas had the "
            "records; the outcome is unknown, try again"
        )

    def _not_leader(self) -> NotLeaderError:
        leader = self.assignment.leader
        name = None if leader in {None, self._node_id} else str(leader)
        return NotLeaderError(self._name, leader=name)

    # The replication thread

    def assign(self, assignment: Assignment) -> None:
        """Follow a new assignment; end the waits that it makes hopeless."""
        with self._lock:
            before, self.assignment = self.assignment, assignment
            if before.leader_epoch != assignment.leader_epoch:
                self.epoch_start = self.logs[0].end
            ended: list[tuple[int, int, OnCommitted]] = []
            error = self._end_of_wait(before.leader_epoch)
            if error is not None:
                ended, self._waiters[:] = self._waiters[:], []
        for _, _, done in ended:
            done(error)

    def set_ready(self, epoch: int) -> None:
        """Serve clients under `epoch`."""
        self._ready_epoch = epoch

    def committed(self) -> None:
        """End the waits for what is committed now."""
        if not self._waiters or self._has_ended:
            return
        done: list[OnCommitted] = []
        with self._lock:
            commit = self.logs[0].commit
            while self._waiters and self._waiters[0][0] <= commit:
                done.append(heappop(self._waiters)[2])
        for call in done:
            call(None)

    def become_single(self) -> None:
        """End all waits: this is the only copy, and all of it is committed."""
        with self._lock:
            self._has_ended = True
            ended, self._waiters[:] = self._waiters[:], []
        for _, _, done in ended:
            done(None)

    def close(self) -> None:
        """End all waits: this node does not replicate the shard any more."""
        self._ready_epoch = -1
        with self._lock:
            ended, self._waiters[:] = self._waiters[:], []
        for _, _, done in ended:
            done(self._deposed())
