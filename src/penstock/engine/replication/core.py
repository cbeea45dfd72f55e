"""`ReplicaCore`: the replication of all shards of one node, without input or output.

Every call gets the time, of a clock that never goes back, and leaves what is to be done in
`effects`; the owner carries it out and calls again with what came of it. One thread calls.

    registered   the metadata group has registered this node
    apply        the metadata changed: assignments, broker epochs of the nodes
    receive      a message of another node
    appended     a client's record was appended, or synced, on a shard that this node leads
    tick         time passed
    refused      the metadata group has refused a proposal

A log that fails (a full disk, a lost device, a shard that was deleted meanwhile) holds up its own
shard only: the step leaves `Failed`, goes on with the next shard, and a later tick tries again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.catch_up import CatchUpThrottle
from penstock.engine.replication.counts import ReplicationCounts
from penstock.engine.replication.effects import (
    Assigned,
    Committed,
    Effect,
    Failed,
    LeaveInSync,
    ProposeInSync,
    Removed,
    Send,
    SyncLog,
)
from penstock.engine.replication.follower import FollowerReplica
from penstock.engine.replication.leader import LeaderReplica
from penstock.engine.replication.log import ReplicaLog, is_unfit
from penstock.engine.replication.messages import (
    Fetch,
    FetchError,
    FetchReply,
    Message,
    ShardFetch,
    ShardReply,
)
from penstock.engine.replication.options import CoreOptions
from penstock.engine.replication.replies import has_only_commits, refusal_of, reply_to
from penstock.engine.replication.sessions import FetchSession, ServedSession
from penstock.engine.replication.turns import ShardTurns
from penstock.errors import StoreError, UnknownShardError

OpenLogs = Callable[[str], Sequence[ReplicaLog]]


class ReplicaCore:
    def __init__(
        self, node_id: int, open_logs: OpenLogs, options: CoreOptions | None = None
    ) -> None:
        self._node_id: Final = node_id
        self._open_logs: Final = open_logs
        self._options: Final = options if options is not None else CoreOptions()
        self._broker_epoch = -1
        self._broker_epochs: dict[int, int] = {}
        self.counts: Final = ReplicationCounts()
        self.leaders: Final[dict[str, LeaderReplica]] = {}
        self.followers: Final[dict[str, FollowerReplica]] = {}
        self._fetching: Final[dict[int, FetchSession]] = {}
        self._serving: Final[dict[int, ServedSession]] = {}
        self._heard: Final[dict[int, float]] = {}
        """When the last fetch of each node came."""
        self._proposals: Final[dict[str, tuple[ProposeInSync, float]]] = {}
        self._leaving: Final[dict[str, tuple[int, float]]] = {}
        """Shards with damaged records: the partition epoch at which the damage was found, and when
        the metadata group was asked last."""
        self._unassigned: Final[dict[str, tuple[Assignment, float]]] = {}
        """Assignments that failed, and when."""
        self._throttle: Final = CatchUpThrottle(self._options.catch_up_rate)
        self._sessions = 0
        self._turns: Final = ShardTurns()
        self.effects: list[Effect] = []

    def drain_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    # Metadata

    def registered(self, broker_epoch: int) -> None:
        """Set the broker epoch of this run of the node. Until the metadata show it, they speak of
        a run before: what that one had in its log need not be there any more. The owner calls
        `apply` again afterwards, with the metadata that it has."""
        self._broker_epoch = broker_epoch

    def apply(
        self, now: float, assignments: Iterable[Assignment], broker_epochs: Mapping[int, int]
    ) -> None:
        """Follow the metadata. Assignments that are not newer than the known one change nothing;
        `broker_epochs` names the nodes that may take part. Metadata from before the registration
        of this node, or after it was fenced, are ignored."""
        if broker_epochs.get(self._node_id) != self._broker_epoch:
            return
        for node, epoch in list(self._broker_epochs.items()):
            if broker_epochs.get(node) != epoch:
                self._drop_follower(node)
        self._broker_epochs = dict(broker_epochs)
        for assignment in assignments:
            self._try_to_assign(now, assignment)
        for session in self._fetching.values():
            self._send_fetch(now, session)

    def remove(self, shard: str) -> None:
        """Stop the replication of a shard: it was deleted, or has no replica here any more."""
        self._unassigned.pop(shard, None)
        if self._known(shard) is None:
            return
        self._stop_leading(shard)
        self._stop_following(shard)
        self._leaving.pop(shard, None)
        self.effects.append(Removed(shard))

    def drop_single(self, shard: str) -> None:
        """Stop the replication of a shard whose only copy this node has and leads."""
        self.leaders.pop(shard, None)
        self._proposals.pop(shard, None)
        self._leaving.pop(shard, None)
        for session in self._serving.values():
            session.drop(shard)

    def _drop_follower(self, node: int) -> None:
        """A node that registers again may have lost records: what it reported does not count."""
        self._serving.pop(node, None)
        for leader in self.leaders.values():
            leader.drop_follower(node)

    def _try_to_assign(self, now: float, assignment: Assignment) -> None:
        self._unassigned.pop(assignment.shard, None)
        try:
            self._assign(now, assignment)
        except StoreError as error:
            self._unassigned[assignment.shard] = assignment, now
            self._fail(assignment.shard, error)

    def _fail(self, shard: str, error: StoreError) -> None:
        if isinstance(error, UnknownShardError):
            return  # deleted here: the metadata that say so are on their way
        self.effects.append(Failed(shard, f"{type(error).__name__}: {error}"))

    def _assign(self, now: float, assignment: Assignment) -> None:
        known = self._known(assignment.shard)
        if known is not None and not assignment.is_newer_than(known.assignment):
            is_same = known.assignment.is_newer_than(assignment) is False
            if not is_same or known.assignment.min_insync == assignment.min_insync:
                return  # else only the minimum of the topic changed
        if self._node_id not in assignment.replicas:
            self.remove(assignment.shard)
            return
        if assignment.leader == self._node_id:
            self._lead(now, assignment)
        else:
            self._follow(assignment)
        self.effects.append(Assigned(assignment))

    def _known(self, shard: str) -> LeaderReplica | FollowerReplica | None:
        return self.leaders.get(shard) or self.followers.get(shard)

    def _lead(self, now: float, assignment: Assignment) -> None:
        shard = assignment.shard
        leader = self.leaders.get(shard)
        self._proposals.pop(shard, None)
        known = leader or self.followers.get(shard)
        if known is not None:
            self.counts.count_sets(known.assignment.in_sync, assignment.in_sync)
        if leader is not None and leader.assignment.leader_epoch == assignment.leader_epoch:
            leader.update(assignment)
        else:
            self._stop_leading(shard)
            self._stop_following(shard)
            logs = self._open_logs(shard)
            self.counts.elections += 1
            leader = self.leaders[shard] = LeaderReplica(self._node_id, assignment, logs, now)
        self._after_progress(now, leader)

    def _follow(self, assignment: Assignment) -> None:
        shard = assignment.shard
        self._stop_leading(shard)
        follower = self.followers.get(shard)
        if follower is None:
            logs = self._open_logs(shard)
            for log in logs:
                log.follow()
            follower = self.followers[shard] = FollowerReplica(assignment, logs)
        else:
            self._leave_session(follower)
            follower.update(assignment)
        if assignment.leader is not None and follower.damage is None:
            session = self._fetching.get(assignment.leader)
            if session is None:
                session = FetchSession(assignment.leader, self._next_session())
                self._fetching[assignment.leader] = session
            session.add(shard)

    def _stop_leading(self, shard: str) -> None:
        leader = self.leaders.pop(shard, None)
        if leader is not None:
            for log in leader.logs:
                log.follow()
            self._proposals.pop(shard, None)
            for session in self._serving.values():
                session.drop(shard)

    def _stop_following(self, shard: str) -> None:
        follower = self.followers.pop(shard, None)
        if follower is not None:
            self._leave_session(follower)

    def _leave_session(self, follower: FollowerReplica) -> None:
        session = self._session_of(follower)
        if session is not None:
            session.remove(follower.assignment.shard)

    def _session_of(self, follower: FollowerReplica) -> FetchSession | None:
        leader = follower.assignment.leader
        return self._fetching.get(leader) if leader is not None else None

    def _next_session(self) -> int:
        self._sessions += 1
        return self._sessions

    # Records of this node

    def appended(self, now: float, shard: str) -> None:
        """Send what was appended, or synced, since the last call to the followers; a replica that
        was found damaged leaves the in-sync set."""
        leader = self.leaders.get(shard)
        if leader is not None:
            self._check_damage(now, leader)
            self._after_progress(now, leader)
        else:
            follower = self.followers.get(shard)
            if follower is not None:
                self._check_damage(now, follower)
                self._report_sync(now, follower)

    def _after_progress(self, now: float, leader: LeaderReplica) -> None:
        shard = leader.assignment.shard
        try:
            if leader.advance_commit():
                self._report_commit(shard, leader.logs, is_leader=True)
            self._propose(now, leader)
        except StoreError as error:
            self._fail(shard, error)
        self._wake_followers(shard)

    def _report_commit(self, shard: str, logs: Sequence[ReplicaLog], *, is_leader: bool) -> None:
        self.effects.append(Committed(shard, tuple(log.commit for log in logs), is_leader))

    def _wake_followers(self, shard: str) -> None:
        for node, session in self._serving.items():
            if session.wake(shard):
                self._answer(node, session)

    def _report_sync(self, now: float, follower: FollowerReplica) -> None:
        """The safe end of a copy moved: the leader counts it from the next fetch on."""
        session = self._session_of(follower)
        is_delayed = self._throttle.is_delayed(follower.assignment.shard)
        if session is not None and follower.may_fetch and not is_delayed:
            session.list_again(follower.assignment.shard)
            self._send_fetch(now, session)

    # Time

    def tick(self, now: float) -> None:
        for shard in self._turns.next(self.leaders, self.followers):
            replica = self._known(shard)
            if replica is not None:
                self._look_at(now, replica)
        for assignment, failed_at in list(self._unassigned.values()):
            if now - failed_at > self._options.retry_s:
                self._try_to_assign(now, assignment)
        for node, served in self._serving.items():
            if served.parked_at is not None:
                is_due = now - served.parked_at >= self._options.wait_s
                self._answer(node, served, is_due=is_due, is_tick=True)
        self._throttle.report(now, self.counts)
        for shard in self._throttle.due(now):
            self._list_delayed(shard)
        for session in self._fetching.values():
            if session.is_waiting and now - session.asked_at > self._options.reply_s:
                session.begin_again(self._next_session())
            self._send_fetch(now, session)

    def _look_at(self, now: float, replica: LeaderReplica | FollowerReplica) -> None:
        self._check_damage(now, replica)
        if isinstance(replica, LeaderReplica):
            self._after_progress(now, replica)

    def _check_damage(self, now: float, replica: LeaderReplica | FollowerReplica) -> None:
        shard = replica.assignment.shard
        try:
            if any(map(is_unfit, replica.logs)):
                self._handle_damage(now, replica)
                return
        except StoreError as error:
            self._fail(shard, error)
            return
        self._leaving.pop(shard, None)
        if isinstance(replica, LeaderReplica):
            replica.last_since = None
        else:
            replica.is_repairing = False

    def _handle_damage(self, now: float, replica: LeaderReplica | FollowerReplica) -> None:
        """Leave the sets first, then copy the damaged records again: a cut replica that counts as
        in sync could be elected and take the records from the others. Also a replica outside of
        the sets leaves: its leader may be about to add it. A leader stays as long as no other
        replica could lead."""
        assignment = replica.assignment
        if isinstance(replica, LeaderReplica) and not self._has_successor(assignment):
            self._lead_damaged(now, replica)
            return
        shard, epoch = assignment.shard, assignment.partition_epoch
        found_at, asked_at = self._leaving.get(shard, (epoch, -math.inf))
        if assignment.counts_on(self._node_id) or epoch <= found_at:
            if now - asked_at > self._options.retry_s:
                self._leaving[shard] = found_at, now
                self.effects.append(LeaveInSync(shard, epoch))
        elif isinstance(replica, FollowerReplica):
            replica.is_repairing = True
            session = self._session_of(replica)
            if session is not None:
                session.list_again(shard)

    def _has_successor(self, assignment: Assignment) -> bool:
        """Say whether another node could lead a shard now."""
        members = (*assignment.in_sync, *assignment.eligible)
        return any(node != self._node_id and node in self._broker_epochs for node in members)

    def _lead_damaged(self, now: float, leader: LeaderReplica) -> None:
        """Lead on with damaged records: a replica that has everything may come back, and is asked
        to lead then. What no replica has is given up."""
        if leader.last_since is None:
            leader.last_since = now
        sessions = {node: served.session for node, served in self._serving.items()}
        leader.give_up_damaged(now, self._options.give_up_s, sessions)

    def is_last(self, now: float, shard: str) -> None:
        """The metadata group has refused to let this replica leave: no other one has the committed
        records."""
        leader = self.leaders.get(shard)
        if leader is not None and any(map(is_unfit, leader.logs)):
            self._lead_damaged(now, leader)

    def _propose(self, now: float, leader: LeaderReplica) -> None:
        shard = leader.assignment.shard
        slow_before = now - self._options.lag_s
        proposal = leader.propose(slow_before, self._broker_epochs, self._heard)
        if proposal is not None:
            self._proposals[shard] = (proposal, now)
            self.effects.append(proposal)
            return
        pending = self._proposals.get(shard)
        if pending is not None and now - pending[1] > self._options.retry_s:
            self._proposals[shard] = (pending[0], now)
            self.effects.append(pending[0])

    def refused(self, proposal: ProposeInSync, partition_epoch: int) -> None:
        """Drop a proposal that the metadata group has refused at `partition_epoch`. At a later one
        than its own the group may have accepted it before, and refused its repetition: then it
        counts until the metadata arrive."""
        if partition_epoch != proposal.partition_epoch:
            return
        shard = proposal.shard
        leader = self.leaders.get(shard)
        pending = self._proposals.get(shard)
        if leader is None or pending is None or pending[0] != proposal:
            return
        del self._proposals[shard]
        leader.set.withdraw(proposal.partition_epoch)
        if leader.advance_commit():
            self._report_commit(shard, leader.logs, is_leader=True)
            self._wake_followers(shard)

    # Messages

    def receive(self, now: float, sender: int, message: Message) -> None:
        if isinstance(message, Fetch):
            self._serve(now, sender, message)
        else:
            self._receive_reply(now, sender, message)

    def disconnected(self, now: float, node: int) -> None:
        """The connection to a node is lost: a fetch there has no reply."""
        self._serving.pop(node, None)
        self._fetch_again(now, node)

    def connected(self, now: float, node: int) -> None:
        """Begin anew with a node: what was sent to it before may be lost."""
        served = self._serving.pop(node, None)
        if served is not None:
            self._send(node, FetchReply(served.session, served.sequence, (), is_reset=True))
        self._fetch_again(now, node)

    def _fetch_again(self, now: float, node: int) -> None:
        session = self._fetching.get(node)
        if session is not None:
            session.begin_again(self._next_session())
            self._send_fetch(now, session)

    # The leader's part

    def _serve(self, now: float, sender: int, fetch: Fetch) -> None:
        if fetch.broker_epoch != self._broker_epochs.get(sender):
            self._send(sender, refusal_of(fetch))
            return
        session = self._serving.get(sender)
        if fetch.sequence == 0:
            if session is not None and fetch.session <= session.session:
                return  # late, or repeated
            session = self._serving[sender] = ServedSession(fetch)
        elif session is None or session.session != fetch.session:
            if session is None or fetch.session > session.session:
                self._send(sender, FetchReply(fetch.session, fetch.sequence, (), is_reset=True))
            return
        elif fetch.sequence != session.sequence + 1:
            return  # repeated, or after one that is lost: the follower begins another session
        self._heard[sender] = now
        session.sequence = fetch.sequence
        session.max_size = fetch.max_size
        session.parked_at = now
        session.answered_until = fetch.answered
        moved = [self._record(now, sender, session, shard) for shard in fetch.shards]
        for shard in moved:
            if shard is not None:
                self._after_progress(now, self.leaders[shard])
        if session.parked_at is not None:
            self._answer(sender, session)

    def _record(
        self, now: float, sender: int, session: ServedSession, fetch: ShardFetch
    ) -> str | None:
        """Count a follower's position; return the shard when the commit offset may move."""
        session.list_shard(fetch)
        leader = self.leaders.get(fetch.shard)
        if leader is None or leader.check_fetch(sender, fetch) is not FetchError.NONE:
            return None
        try:
            if not leader.may_count(fetch):
                return None
            leader.record_fetch(now, sender, fetch, session)
        except StoreError as error:
            self._fail(fetch.shard, error)
            return None
        return fetch.shard

    def _answer(
        self, node: int, session: ServedSession, *, is_due: bool = False, is_tick: bool = False
    ) -> None:
        """Answer a parked fetch if there is something to say. News of commit offsets alone wait for
        the next records, or for a tick, unless followers have readers, too: without that, every
        write would take two rounds."""
        left = min(session.max_size, self._options.reply_size)
        replies: list[ShardReply] = []
        commits: list[ShardReply] = []
        for shard in session.drain_ready():
            if left <= 0:
                session.wake(shard)
                continue
            try:
                limit = min(left, self._options.shard_size)
                reply = reply_to(self.leaders.get(shard), node, session, shard, limit)
            except StoreError as error:
                self._fail(shard, error)  # the next progress, or tick, wakes the shard again
                continue
            if reply is not None:
                (commits if has_only_commits(reply) else replies).append(reply)
                left -= sum(len(stream.data) for stream in reply.streams)
        if replies or is_due or is_tick or self._options.sends_commits:
            replies += commits
        else:
            for reply in commits:
                session.wake(reply.shard)
        for reply in replies:
            session.answered(reply.shard)
        if replies or is_due:
            session.parked_at = None
            last, session.last_reply = session.last_reply, session.sequence
            answer = FetchReply(session.session, session.sequence, tuple(replies), after=last)
            self._send(node, answer)

    # The follower's part

    def _send_fetch(self, now: float, session: FetchSession) -> None:
        """Fetch what is listed. While the last fetch waits at the leader, only shards that it does
        not name are worth another one, which takes its place there."""
        if not session.may_send:
            return
        fetches = self._fetches(session)
        if not fetches and (session.is_waiting or session.sequence == 0):
            return
        message = Fetch(
            self._broker_epoch,
            session.session,
            session.sequence,
            fetches,
            self._options.reply_size,
            session.answered_until,
        )
        session.sent(now)
        self._send(session.leader, message)

    def _fetches(self, session: FetchSession) -> tuple[ShardFetch, ...]:
        fetches: list[ShardFetch] = []
        for shard in session.drain_listed():
            follower = self.followers[shard]
            try:
                self._end_repair(follower)
                if follower.may_fetch:
                    fetches.append(follower.fetch())
                else:
                    session.list_again(shard)  # damaged records may be deleted without a repair
            except StoreError as error:
                session.list_again(shard)
                self._fail(shard, error)
        return tuple(fetches)

    def _end_repair(self, follower: FollowerReplica) -> None:
        """Damage that is found from now on is another one: the leader may add this replica."""
        if all(log.damaged_at is None for log in follower.logs):
            self._leaving.pop(follower.assignment.shard, None)
            follower.is_repairing = False

    def _receive_reply(self, now: float, sender: int, reply: FetchReply) -> None:
        session = self._fetching.get(sender)
        if session is None or not session.answered(now, reply):
            return
        if reply.is_reset or session.has_gap:
            session.begin_again(self._next_session())
            return  # with the next tick: the metadata may have to arrive first
        refused = False
        for shard_reply in reply.shards:
            refused |= shard_reply.error is not FetchError.NONE
            try:
                self._apply_reply(now, session, shard_reply)
            except StoreError as error:
                refused = True
                self._fail(shard_reply.shard, error)
        if not refused:
            self._send_fetch(now, session)

    def _apply_reply(self, now: float, session: FetchSession, reply: ShardReply) -> None:
        follower = self.followers.get(reply.shard)
        if follower is None or reply.shard not in session.shards:
            return
        self._list_again(now, session, follower, sum(len(stream.data) for stream in reply.streams))
        if reply.error is not FetchError.NONE:
            return
        end = follower.logs[0].end
        if follower.apply(reply):
            self._report_commit(reply.shard, follower.logs, is_leader=False)
        if reply.streams[0].data and follower.logs[0].end > end:
            self.counts.copied_records += follower.logs[0].end - end
            self.counts.copied_bytes += len(reply.streams[0].data)
        self._end_repair(follower)
        if any(log.safe < log.end for log in follower.logs):
            self.effects.append(SyncLog(reply.shard))
        if follower.damage is not None:
            session.remove(reply.shard)
            self.effects.append(follower.damage)

    def _list_again(
        self, now: float, session: FetchSession, follower: FollowerReplica, size: int
    ) -> None:
        """Ask for more of a shard with the next fetch, or when the throttle allows it: `size` bytes
        of it have come."""
        assignment = follower.assignment
        is_in_sync = self._node_id in assignment.in_sync
        self.counts.catch_up_bytes += 0 if is_in_sync else size
        if is_in_sync or self._throttle.admits(now, assignment.shard, assignment.throttle, size):
            session.list_again(assignment.shard)

    def _list_delayed(self, shard: str) -> None:
        follower = self.followers.get(shard)
        session = None if follower is None else self._session_of(follower)
        if session is not None:
            session.list_again(shard)

    def _send(self, to: int, message: Message) -> None:
        self.effects.append(Send(to, message))
