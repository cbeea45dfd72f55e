"""`LeaderReplica`: the leader's view of one shard: who has which records, and what is committed.

Rules:

  * the commit offset is the smallest safe end over the maximal in-sync set (`InSyncSet`). It moves
    only while the confirmed set has at least `min_insync` members, and never goes back
  * a member that was not heard of under this leader epoch counts with nothing
  * a follower counts only under the broker epoch that the metadata know
  * a follower joins the set when it has everything committed, and everything that was in the log
    when this leader's epoch began
  * a leader with damaged records counts for those before them, until it has left the set. One that
    no other replica can replace (`is_last`) leads on: it gives up damaged records only when every
    replica was heard of and lacks them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.effects import ProposeInSync
from penstock.engine.replication.in_sync_set import InSyncSet
from penstock.engine.replication.log import ReplicaLog, countable
from penstock.engine.replication.messages import (
    FetchError,
    ShardFetch,
    StreamPosition,
    StreamReply,
)
from penstock.engine.replication.sessions import ServedSession


class FollowerProgress:
    """What a leader knows of one follower."""

    __slots__ = (
        "_ends_at_fetch",
        "_fetched_at",
        "broker_epoch",
        "caught_up_at",
        "partition_epoch",
        "positions",
        "sent",
        "sent_in_reply",
        "session",
    )

    def __init__(self, now: float) -> None:
        self.positions: tuple[StreamPosition, ...] = ()
        self.broker_epoch = -1
        self.partition_epoch = -1
        self.session = -1
        self.sent: tuple[int, ...] = ()
        """The ends of what the leader sent and the follower has not received yet."""
        self.sent_in_reply = -1
        """The fetch of the session that the last of these replies answers."""
        self.caught_up_at = now
        """When the follower last had all records that the leader had."""
        self._fetched_at = now
        self._ends_at_fetch: tuple[int, ...] | None = None

    def update(
        self, now: float, fetch: ShardFetch, ends: tuple[int, ...], session: ServedSession
    ) -> None:
        if session.session != self.session or session.answered_until >= self.sent_in_reply:
            self.session, self.sent, self.sent_in_reply = session.session, (), -1
        self.positions = fetch.positions
        self.broker_epoch = session.broker_epoch
        self.partition_epoch = fetch.partition_epoch
        fetched = tuple(position.end for position in fetch.positions)
        if _covers(fetched, ends):
            self.caught_up_at = now
        elif self._ends_at_fetch is not None and _covers(fetched, self._ends_at_fetch):
            self.caught_up_at = max(self.caught_up_at, self._fetched_at)
        self._fetched_at, self._ends_at_fetch = now, ends

    def safe(self, stream: int) -> int:
        return self.positions[stream].safe if self.positions else 0

    def known_end(self, stream: int) -> int:
        """Return how far the follower's log may go."""
        end = self.positions[stream].end
        return max(end, self.sent[stream]) if self.sent else end

    def has(self, ends: Sequence[int]) -> bool:
        """Say whether all records before `ends` are safe on the follower."""
        return bool(self.positions) and _covers([p.safe for p in self.positions], ends)

    def covers(self, ends: Sequence[int]) -> bool:
        return bool(self.positions) and _covers([p.end for p in self.positions], ends)


class LeaderReplica:
    __slots__ = (
        "_epoch_starts",
        "_followers",
        "_last_ends",
        "_node_id",
        "_since",
        "assignment",
        "last_since",
        "logs",
        "set",
    )

    def __init__(
        self, node_id: int, assignment: Assignment, logs: Sequence[ReplicaLog], now: float
    ) -> None:
        self._node_id: Final = node_id
        self.logs: Final = tuple(logs)
        self.assignment = assignment
        self.set: Final = InSyncSet(assignment)
        self._since: Final = now
        for log in logs:
            log.begin_epoch(assignment.leader_epoch)
        self._epoch_starts: Final = tuple(log.end for log in logs)
        self._followers: Final[dict[int, FollowerProgress]] = {}
        self._last_ends: Final[dict[int, int]] = {}
        """Where each replica was when it was last heard of; for metrics alone."""
        self.last_since: float | None = None
        """Since when this leader is damaged, and no other replica can replace it."""

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(log.end for log in self.logs)

    @property
    def is_settled(self) -> bool:
        """Whether everything that this leader found in its log is committed; until then the end
        of what readers may see is not known."""
        return all(
            log.commit >= start for log, start in zip(self.logs, self._epoch_starts, strict=True)
        )

    def update(self, assignment: Assignment) -> None:
        """Take over a newer assignment under the same leader epoch."""
        self.assignment = assignment
        self.set.set_confirmed(assignment)
        for node in [node for node in self._followers if node not in assignment.replicas]:
            del self._followers[node]

    # Followers

    def check_fetch(self, node: int, fetch: ShardFetch) -> FetchError:
        assignment = self.assignment
        if fetch.leader_epoch != assignment.leader_epoch:
            is_old = fetch.leader_epoch < assignment.leader_epoch
            return FetchError.OLD_EPOCH if is_old else FetchError.NEW_EPOCH
        if node not in assignment.replicas or len(fetch.positions) != len(self.logs):
            return FetchError.NOT_REPLICA
        return FetchError.NONE

    def divergence(self, fetch: ShardFetch) -> tuple[StreamReply, ...] | None:
        """Return how the follower has to cut its logs; None when they are prefixes of the
        leader's."""
        replies = tuple(
            _compare(log, position)
            for log, position in zip(self.logs, fetch.positions, strict=True)
        )
        differs = any(reply.cut_end >= 0 for reply in replies)
        return replies if differs else None

    def may_count(self, fetch: ShardFetch) -> bool:
        """Say whether a follower's logs are known to be prefixes of the leader's. Of one that ends
        where the leader's log begins there is nothing to compare with: it counts when it knows
        that everything in it is committed, and begins anew otherwise."""
        if self.divergence(fetch) is not None:
            return False
        return all(
            position.end > log.start or position.commit >= position.end
            for log, position in zip(self.logs, fetch.positions, strict=True)
        )

    def record_fetch(
        self, now: float, node: int, fetch: ShardFetch, session: ServedSession
    ) -> None:
        """Count what a follower has; its logs are prefixes of the leader's."""
        progress = self._followers.get(node)
        if progress is None:
            progress = self._followers[node] = FollowerProgress(self._since)
        progress.update(now, fetch, self.ends, session)
        self._last_ends[node] = fetch.positions[0].end

    def record_sent(self, node: int, ends: tuple[int, ...], sequence: int) -> None:
        """Remember how far the records go that are on their way to a follower, in the reply to its
        fetch `sequence`."""
        progress = self._followers.get(node)
        if progress is not None:
            # Of several fetches from the same position, the reply to an earlier one may go further.
            known = progress.sent or ends
            progress.sent = tuple(max(pair) for pair in zip(known, ends, strict=True))
            progress.sent_in_reply = sequence

    def drop_follower(self, node: int) -> None:
        """Forget the position of a follower that has registered again: its log may be shorter."""
        self._followers.pop(node, None)

    def lags(self) -> dict[int, int]:
        """Return how many records each other replica lacks."""
        start, end = self.logs[0].start, self.logs[0].end
        return {
            node: max(0, end - max(self._last_ends.get(node, 0), start))
            for node in self.assignment.replicas
            if node != self._node_id
        }

    # The commit offset

    def advance_commit(self) -> bool:
        """Move the commit offsets as far as the in-sync set allows; return whether one moved."""
        if not self.set.may_commit:
            return False
        moved = False
        for stream, log in enumerate(self.logs):
            commit = min(self._safe(node, stream) for node in self.set.maximal)
            if commit > log.commit:
                log.set_commit(commit)
                moved = True
        return moved

    def _safe(self, node: int, stream: int) -> int:
        if node == self._node_id:
            log = self.logs[stream]
            return log.safe if self.last_since is not None else countable(log)
        progress = self._followers.get(node)
        return 0 if progress is None else progress.safe(stream)

    # Damage

    def give_up_damaged(self, now: float, wait_s: float, sessions: Mapping[int, int]) -> None:
        """Give up the damaged records that no replica has, so that the followers can go on. Those
        that were not heard of in their current session may have them, and are waited for
        `wait_s`."""
        assert self.last_since is not None, "another replica may have everything"
        others = [node for node in self.assignment.replicas if node != self._node_id]
        heard = [
            progress
            for node in others
            if (progress := self._followers.get(node)) is not None
            and progress.session == sessions.get(node)
        ]
        is_waiting = len(heard) < len(others) and now - self.last_since < wait_s
        if not heard or is_waiting:
            return
        for stream, log in enumerate(self.logs):
            if log.damaged_at is not None:
                log.give_up_damaged(max(progress.known_end(stream) for progress in heard))

    # The in-sync set

    def propose(
        self, slow_before: float, broker_epochs: Mapping[int, int], heard: Mapping[int, float]
    ) -> ProposeInSync | None:
        """Return the next change of the in-sync set, if one is due and none is pending. A replica
        that last had all records before `slow_before` leaves; `heard` says when the last fetch of
        each node came."""
        if self.set.is_pending:
            return None
        confirmed = self.set.confirmed
        kept = [
            node
            for node in confirmed
            if node == self._node_id or self._caught_up_at(node, heard) >= slow_before
        ]
        added = [
            node
            for node in self.assignment.replicas
            if node not in confirmed
            and self._caught_up_at(node, heard) >= slow_before
            and self._may_join(node, broker_epochs)
        ]
        members = tuple(kept + added)
        if set(members) == set(confirmed):
            return None
        if any(node not in broker_epochs for node in members):
            return None  # the metadata that name it are yet to come
        self.set.propose(members)
        return ProposeInSync(
            self.assignment.shard,
            self.assignment.leader_epoch,
            self.set.partition_epoch,
            tuple((node, self._broker_epoch(node, broker_epochs)) for node in members),
        )

    def _broker_epoch(self, node: int, broker_epochs: Mapping[int, int]) -> int:
        progress = self._followers.get(node)
        return broker_epochs[node] if progress is None else progress.broker_epoch

    def _caught_up_at(self, node: int, heard: Mapping[int, float]) -> float:
        """Return when a follower last had all records. While nothing is appended its fetches do
        not name the shard, and say so by coming at all."""
        progress = self._followers.get(node)
        if progress is None:
            return self._since
        if progress.covers(self.ends):
            progress.caught_up_at = max(progress.caught_up_at, heard.get(node, self._since))
        return progress.caught_up_at

    def _may_join(self, node: int, broker_epochs: Mapping[int, int]) -> bool:
        progress = self._followers.get(node)
        if progress is None or progress.broker_epoch != broker_epochs.get(node):
            return False
        if progress.partition_epoch != self.set.partition_epoch:
            return False  # it may have left because of damage, and be about to cut its log
        needed = [
            max(log.commit, start) for log, start in zip(self.logs, self._epoch_starts, strict=True)
        ]
        return progress.has(needed)


def _compare(log: ReplicaLog, position: StreamPosition) -> StreamReply:
    """Return where a follower's log stops being a prefix of the leader's."""
    if position.end <= log.start or position.epoch < 0:
        return StreamReply(position.end, log.commit, log.start)  # it begins anew, or has nothing
    epoch, end = log.epoch_end(position.epoch)
    if epoch < position.epoch or end < position.end:
        return StreamReply(position.end, log.commit, log.start, cut_epoch=epoch, cut_end=end)
    return StreamReply(position.end, log.commit, log.start)


def _covers(ends: Sequence[int], others: Sequence[int]) -> bool:
    return all(end >= other for end, other in zip(ends, others, strict=True))
