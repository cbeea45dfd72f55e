"""Mistakes that lost records in other systems, planted into replication: the simulation must find
each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from msgspec.structs import replace
from tests.engine.replication.simulated_log import SimulatedLog
from tests.engine.replication.simulated_metadata import SimulatedMetadata
from tests.engine.replication.simulated_node import SimulatedNode

from penstock.engine.replication import Assignment, ReplicaCore, ReplicaLog
from penstock.engine.replication.follower import FollowerReplica
from penstock.engine.replication.in_sync_set import InSyncSet
from penstock.engine.replication.leader import LeaderReplica
from penstock.engine.replication.messages import (
    Fetch,
    FetchError,
    ShardFetch,
    StreamPosition,
    StreamReply,
)
from penstock.meta.state.metadata import replica_sets
from penstock.meta.state.model import Shard

Plant = Callable[[pytest.MonkeyPatch], None]


def ignore_proposed_members(patch: pytest.MonkeyPatch) -> None:
    def propose(self: InSyncSet, members: tuple[int, ...]) -> None:
        self._proposed = members

    patch.setattr(InSyncSet, "propose", propose)


def commit_below_the_minimum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSyncSet, "may_commit", property(lambda _: True))


def count_members_not_heard_of_as_absent(patch: pytest.MonkeyPatch) -> None:
    original = LeaderReplica._safe

    def safe(self: LeaderReplica, node: int, stream: int) -> int:
        if node != self._node_id and node not in self._followers:
            return self.logs[stream].end
        return original(self, node, stream)

    patch.setattr(LeaderReplica, "_safe", safe)


def elect_any_replica(patch: pytest.MonkeyPatch) -> None:
    original = replica_sets.elect

    def elect(
        shard: Shard, *, brokers: Mapping[int, int], min_insync: int, preferred: int | None = None
    ) -> Shard:
        led = original(shard, brokers=brokers, min_insync=min_insync, preferred=preferred)
        if led.leader is not None or not brokers:
            return led
        leader = min(brokers)
        return replace(led, leader=leader, in_sync=(leader,), eligible=())

    patch.setattr(replica_sets, "elect", elect)


def keep_eligible_replicas_for_ever(patch: pytest.MonkeyPatch) -> None:
    def with_in_sync(shard: Shard, nodes: tuple[int, ...], _min_insync: int) -> Shard:
        former = dict.fromkeys((*shard.eligible, *shard.in_sync))
        eligible = tuple(node for node in former if node not in nodes)
        return replace(
            shard, in_sync=nodes, eligible=eligible, partition_epoch=shard.partition_epoch + 1
        )

    patch.setattr(replica_sets, "_with_in_sync", with_in_sync)


def believe_every_restart(patch: pytest.MonkeyPatch) -> None:
    original = SimulatedMetadata.register

    def register(self: SimulatedMetadata, node: int, *, is_proven: bool) -> int:
        return original(self, node, is_proven=True)

    patch.setattr(SimulatedMetadata, "register", register)


def lead_before_the_registration(patch: pytest.MonkeyPatch) -> None:
    original = ReplicaCore.apply

    def apply(
        self: ReplicaCore,
        now: float,
        assignments: Iterable[Assignment],
        broker_epochs: Mapping[int, int],
    ) -> None:
        self._broker_epoch = broker_epochs.get(self._node_id, -1)
        original(self, now, assignments, broker_epochs)

    patch.setattr(ReplicaCore, "apply", apply)


def ignore_broker_epochs(patch: pytest.MonkeyPatch) -> None:
    original = ReplicaCore._serve

    def serve(self: ReplicaCore, now: float, sender: int, fetch: Fetch) -> None:
        epoch = self._broker_epochs.get(sender, fetch.broker_epoch)
        original(self, now, sender, replace(fetch, broker_epoch=epoch))

    patch.setattr(ReplicaCore, "_serve", serve)
    patch.setattr(ReplicaCore, "_drop_follower", lambda _self, _node: None)
    patch.setattr(LeaderReplica, "_broker_epoch", lambda _self, node, epochs: epochs.get(node, -1))


def cut_at_the_own_commit_offset(patch: pytest.MonkeyPatch) -> None:
    original = FollowerReplica.__init__

    def create(self: FollowerReplica, assignment: Assignment, logs: Sequence[ReplicaLog]) -> None:
        original(self, assignment, logs)
        for log in logs:
            if log.commit < log.end:
                log.cut(log.commit)

    patch.setattr(FollowerReplica, "__init__", create)


def forget_a_cut_in_a_crash(patch: pytest.MonkeyPatch) -> None:
    original = SimulatedLog.restart

    def restart(self: SimulatedLog) -> None:
        original(self)
        if self.cut_tail is not None:
            offset, tail = self.cut_tail
            first = offset - self.start
            self.records[first : first + len(tail)] = tail

    patch.setattr(SimulatedLog, "restart", restart)


def use_offsets_after_the_commit_offset_again(patch: pytest.MonkeyPatch) -> None:
    original = LeaderReplica.__init__

    def create(
        self: LeaderReplica,
        node_id: int,
        assignment: Assignment,
        logs: Sequence[ReplicaLog],
        now: float,
    ) -> None:
        for log in logs:
            if log.commit < log.end:
                log.cut(log.commit)
        original(self, node_id, assignment, logs, now)

    patch.setattr(LeaderReplica, "__init__", create)


def lead_on_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedNode, "holds_lease", lambda _self: True)


def count_fetches_of_other_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReplica, "check_fetch", lambda *_: FetchError.NONE)
    patch.setattr(LeaderReplica, "divergence", lambda *_: None)


def repair_before_leaving_the_set(patch: pytest.MonkeyPatch) -> None:
    def handle(_self: ReplicaCore, _now: float, replica: LeaderReplica | FollowerReplica) -> None:
        for log in replica.logs:
            if log.damaged_at is not None:
                log.cut(log.damaged_at)

    patch.setattr(ReplicaCore, "_handle_damage", handle)


def add_replicas_that_do_not_know_they_left(patch: pytest.MonkeyPatch) -> None:
    original = LeaderReplica._may_join

    def may_join(self: LeaderReplica, node: int, epochs: Mapping[int, int]) -> bool:
        progress = self._followers.get(node)
        if progress is not None:
            progress.partition_epoch = self.set.partition_epoch
        return original(self, node, epochs)

    patch.setattr(LeaderReplica, "_may_join", may_join)


def give_up_records_that_other_replicas_have(patch: pytest.MonkeyPatch) -> None:
    def give_up(
        self: LeaderReplica, _now: float, _wait_s: float, _sessions: Mapping[int, int]
    ) -> None:
        for log in self.logs:
            if log.damaged_at is not None:
                log.give_up_damaged(log.damaged_at)

    patch.setattr(LeaderReplica, "give_up_damaged", give_up)


def count_damaged_records(patch: pytest.MonkeyPatch) -> None:
    def fetch(self: FollowerReplica) -> ShardFetch:
        positions = tuple(
            StreamPosition(log.end, log.last_epoch, log.safe, log.commit) for log in self.logs
        )
        known = self.assignment
        return ShardFetch(known.shard, known.leader_epoch, known.partition_epoch, positions)

    patch.setattr(ReplicaCore, "_check_damage", lambda *_: None)
    patch.setattr(FollowerReplica, "may_fetch", property(lambda _: True))
    patch.setattr(FollowerReplica, "fetch", fetch)


def keep_records_that_the_leader_cannot_compare(patch: pytest.MonkeyPatch) -> None:
    original = FollowerReplica._append

    def append(self: FollowerReplica, log: ReplicaLog, reply: StreamReply) -> bool:
        if reply.start == log.end:
            if reply.data:
                log.append_range(reply.data)
            return True
        return original(self, log, reply)

    patch.setattr(FollowerReplica, "_append", append)
    patch.setattr(LeaderReplica, "may_count", lambda self, fetch: self.divergence(fetch) is None)


BUGS: tuple[Plant, ...] = (
    ignore_proposed_members,
    commit_below_the_minimum,
    count_members_not_heard_of_as_absent,
    elect_any_replica,
    keep_eligible_replicas_for_ever,
    believe_every_restart,
    lead_before_the_registration,
    ignore_broker_epochs,
    cut_at_the_own_commit_offset,
    forget_a_cut_in_a_crash,
    use_offsets_after_the_commit_offset_again,
    lead_on_without_a_lease,
    count_fetches_of_other_epochs,
    repair_before_leaving_the_set,
    add_replicas_that_do_not_know_they_left,
    give_up_records_that_other_replicas_have,
    count_damaged_records,
    keep_records_that_the_leader_cannot_compare,
)
