"""What replicas do when records are damaged, or can be compared with nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.engine.replication.simulated_log import SimulatedLog

from penstock.engine.replication import Assignment, LeaveInSync, ReplicaCore, Send
from penstock.engine.replication.follower import FollowerReplica
from penstock.engine.replication.leader import LeaderReplica
from penstock.engine.replication.messages import (
    Fetch,
    FetchError,
    ShardFetch,
    ShardReply,
    StreamPosition,
    StreamReply,
)
from penstock.engine.replication.options import CoreOptions
from penstock.engine.replication.replies import reply_to
from penstock.engine.replication.sessions import ServedSession

SHARD = "t_0"
BROKERS = {1: 10, 2: 20, 3: 30}
LED = Assignment(
    shard=SHARD,
    replicas=(1, 2, 3),
    in_sync=(1, 2),
    eligible=(),
    leader=1,
    leader_epoch=1,
    partition_epoch=3,
    min_insync=1,
)
ALONE = replace(LED, in_sync=(1,))
GIVE_UP_S = 600.0


@pytest.fixture
def log() -> SimulatedLog:
    log = SimulatedLog(is_sync=False)
    log.begin_epoch(0)
    for value in range(1, 11):
        log.append(value)
    return log


def core_of(log: SimulatedLog, assignment: Assignment, brokers: dict[int, int]) -> ReplicaCore:
    core = ReplicaCore(1, lambda _: [log], CoreOptions(give_up_s=GIVE_UP_S))
    core.registered(10)
    core.apply(0.0, [assignment], brokers)
    core.drain_effects()
    return core


def damage(log: SimulatedLog, offset: int) -> None:
    log.flip(offset)
    log.find_damage(offset)


def has_damage(log: SimulatedLog) -> bool:
    return log.damaged_at is not None


def fetch_of(node: int, end: int, *, commit: int = 0) -> Fetch:
    shard = ShardFetch(SHARD, 1, 3, (StreamPosition(end, 0, end, commit),))
    return Fetch(BROKERS[node], session=1, sequence=0, shards=(shard,), max_size=1 << 20)


def leaves(core: ReplicaCore) -> list[LeaveInSync]:
    return [effect for effect in core.drain_effects() if isinstance(effect, LeaveInSync)]


def test_a_leader_resigns_as_soon_as_a_reader_has_found_damage(log: SimulatedLog) -> None:
    core = core_of(log, LED, BROKERS)
    damage(log, 4)
    core.appended(0.1, SHARD)  # not with the next tick
    assert leaves(core) == [LeaveInSync(SHARD, 3)]
    core.receive(0.2, 2, fetch_of(2, 10))
    assert log.commit == 4


@pytest.mark.parametrize("leader", [1, 2], ids=["leads", "follows"])
def test_a_replica_whose_device_failed_leaves_the_set_and_copies_nothing(
    log: SimulatedLog, leader: int
) -> None:
    core = core_of(log, replace(LED, leader=leader), BROKERS)
    log.fail_device()
    core.tick(0.1)
    assert leaves(core) == [LeaveInSync(SHARD, 3)]
    outside = replace(LED, leader=2, leader_epoch=2, in_sync=(2,), partition_epoch=4)
    core.apply(0.2, [outside], BROKERS)
    core.tick(2.0)
    effects = core.drain_effects()
    fetches = [one.message for one in effects if isinstance(one, Send)]
    assert not any(isinstance(one, Fetch) and one.shards for one in fetches)


def test_a_leader_whose_device_failed_leads_on_while_no_other_can(log: SimulatedLog) -> None:
    core = core_of(log, LED, {1: 10, 3: 30})
    log.fail_device()
    core.tick(0.1)
    assert leaves(core) == []
    core.apply(0.2, [], BROKERS)
    core.tick(0.3)
    assert leaves(core) == [LeaveInSync(SHARD, 3)]


@pytest.mark.parametrize(
    ("assignment", "brokers"),
    [(ALONE, BROKERS), (replace(ALONE, eligible=(2,)), {1: 10, 3: 30}), (LED, {1: 10, 3: 30})],
    ids=["no other is in sync", "the eligible one is down", "the one in sync is down"],
)
def test_a_leader_that_no_node_can_replace_leads_on(
    log: SimulatedLog, assignment: Assignment, brokers: dict[int, int]
) -> None:
    core = core_of(log, assignment, brokers)
    damage(log, 4)
    core.tick(0.1)
    assert leaves(core) == []
    assert log.damaged_at == 4
    log.append(11)
    core.appended(0.2, SHARD)
    assert log.commit == (11 if assignment is ALONE or assignment.eligible else 0)


def test_the_last_leader_keeps_damaged_records_that_a_follower_has(log: SimulatedLog) -> None:
    core = core_of(log, ALONE, BROKERS)
    damage(log, 4)
    core.receive(0.1, 2, fetch_of(2, 8))
    core.receive(0.1, 3, fetch_of(3, 2))
    core.tick(0.2)
    assert log.damaged_at == 4
    core.apply(0.3, [replace(ALONE, in_sync=(1, 2), partition_epoch=4)], BROKERS)
    core.tick(5.0)
    assert leaves(core) == [LeaveInSync(SHARD, 4)]


def test_the_last_leader_gives_up_what_no_replica_has(log: SimulatedLog) -> None:
    core = core_of(log, ALONE, BROKERS)
    damage(log, 4)
    core.receive(0.1, 2, fetch_of(2, 4))
    core.tick(0.2)
    assert has_damage(log)  # node 3 may have it
    core.receive(0.3, 3, fetch_of(3, 2))
    core.tick(0.4)
    assert not has_damage(log)
    assert log.records[4] == (0, 0)


def test_the_last_leader_keeps_damaged_records_that_are_on_their_way(log: SimulatedLog) -> None:
    core = core_of(log, ALONE, BROKERS)
    core.receive(0.1, 3, fetch_of(3, 2))
    core.receive(0.1, 2, fetch_of(2, 2))  # the reply has all records
    damage(log, 4)
    core.receive(0.2, 2, replace(fetch_of(2, 2), sequence=1))  # the reply ends before the damage
    core.disconnected(0.3, 3)
    core.receive(0.3, 3, replace(fetch_of(3, 2), session=2))
    core.tick(0.4)
    assert has_damage(log)


@pytest.mark.parametrize("says", [True, False], ids=["new", "older release"])
def test_the_last_leader_gives_up_what_a_follower_got_and_has_cut_since(
    log: SimulatedLog, *, says: bool
) -> None:
    core = core_of(log, ALONE, BROKERS)
    core.receive(0.1, 3, fetch_of(3, 2))
    core.receive(0.1, 2, fetch_of(2, 2))  # the reply has all records
    got = replace(fetch_of(2, 10), sequence=1, answered=0 if says else -1)
    core.receive(0.2, 2, got)
    damage(log, 4)
    cut = replace(fetch_of(2, 4), sequence=2, answered=0 if says else -1)
    core.receive(0.3, 2, cut)  # it had found damage of its own
    core.disconnected(0.4, 3)
    core.receive(0.4, 3, replace(fetch_of(3, 2), session=2))
    core.tick(0.5)
    assert has_damage(log) is not says


def test_the_last_leader_waits_for_a_silent_node_for_a_time(log: SimulatedLog) -> None:
    core = core_of(log, ALONE, BROKERS)
    damage(log, 4)
    core.tick(1.0)
    core.receive(2.0, 2, fetch_of(2, 4))
    core.tick(GIVE_UP_S)
    assert has_damage(log)
    core.tick(GIVE_UP_S + 1.0)
    assert not has_damage(log)


def test_a_leader_without_records_has_others_cut_at_its_end() -> None:
    log = SimulatedLog(is_sync=False)
    log.restart_at(6)
    leader = LeaderReplica(1, LED, [log], 0.0)
    fetch = ShardFetch(SHARD, 1, 3, (StreamPosition(9, 3, 9, 6),))
    streams = leader.divergence(fetch)
    assert streams is not None
    mine = SimulatedLog(is_sync=False)
    mine.records = [(1, n) for n in range(1, 7)] + [(3, n) for n in range(7, 10)]
    mine.set_commit(6)
    follower = FollowerReplica(LED, [mine])
    follower.apply(ShardReply(SHARD, FetchError.NONE, 1, streams))
    assert (follower.damage, mine.end) == (None, 6)


@pytest.mark.parametrize("commit", [3, 6])
def test_a_follower_begins_anew_where_its_records_cannot_be_compared(commit: int) -> None:
    log = SimulatedLog(is_sync=False)
    log.restart_at(6)
    log.records = [(2, 7)]
    leader = LeaderReplica(1, LED, [log], 0.0)
    mine = SimulatedLog(is_sync=False)
    mine.records = [(1, n) for n in range(1, 7)]
    mine.set_commit(commit)
    follower = FollowerReplica(LED, [mine])
    is_known = commit == 6
    assert leader.may_count(follower.fetch()) is is_known
    follower.apply(ShardReply(SHARD, FetchError.NONE, 1, (StreamReply(6, 6, 6),)))
    assert (mine.start, mine.end, mine.commit) == (0 if is_known else 6, 6, 6)
    assert leader.may_count(follower.fetch())


def test_a_repaired_follower_does_not_commit_what_was_not_compared() -> None:
    mine = SimulatedLog(is_sync=False)
    mine.records = [(1, n) for n in range(1, 7)]
    mine.set_commit(2)
    damage(mine, 4)
    follower = FollowerReplica(replace(LED, in_sync=(1,)), [mine])
    follower.is_repairing = True
    follower.apply(ShardReply(SHARD, FetchError.NONE, 1, (StreamReply(6, 9, 9),)))
    assert (mine.start, mine.end, mine.damaged_at) == (9, 9, None)


@pytest.mark.parametrize("may_begin_anew", [False, True])
def test_only_a_replica_that_nothing_counts_on_drops_committed_records(
    may_begin_anew: bool,
) -> None:
    log = SimulatedLog(is_sync=False)
    log.records = [(1, 1), (1, 2), (5, 3)]
    leader = LeaderReplica(1, replace(LED, leader_epoch=6), [log], 0.0)
    mine = SimulatedLog(is_sync=False)
    mine.records = [(1, 1), (1, 2), (2, 9), (2, 10)]
    mine.set_commit(4)
    follower = FollowerReplica(replace(LED, leader_epoch=6), [mine])
    streams = leader.divergence(follower.fetch())
    assert streams is not None
    reply = ShardReply(SHARD, FetchError.NONE, 6, streams)
    follower.apply(reply)
    assert follower.damage is not None
    assert (mine.end, mine.commit) == (4, 4)
    follower.update(replace(LED, leader_epoch=6, partition_epoch=4, may_begin_anew=may_begin_anew))
    if not may_begin_anew:
        assert not follower.may_fetch
        return
    follower.apply(reply)
    assert follower.may_fetch
    assert (mine.start, mine.end, mine.commit) == (0, 0, 0)


def test_a_follower_whose_damaged_records_were_deleted_copies_on(log: SimulatedLog) -> None:
    core = core_of(log, replace(LED, leader=2, in_sync=(2,)), BROKERS)
    log.set_commit(10)
    damage(log, 3)
    core.disconnected(1.0, 2)
    core.tick(1.1)
    assert not [fetch for fetch in _fetches_of(core) if fetch.shards], "it is damaged"
    log.start, log.records = 5, log.records[5:]
    log.damaged_at = None
    core.tick(1.2)
    assert [shard.shard for fetch in _fetches_of(core) for shard in fetch.shards] == [SHARD]


def _fetches_of(core: ReplicaCore) -> list[Fetch]:
    return [
        effect.message
        for effect in core.drain_effects()
        if isinstance(effect, Send) and isinstance(effect.message, Fetch)
    ]


@pytest.mark.parametrize(("in_sync", "is_answered"), [((1, 3), True), ((1, 2), False)])
def test_a_damaged_follower_of_an_idle_shard_is_answered_once_nothing_counts_on_it(
    log: SimulatedLog, in_sync: tuple[int, ...], *, is_answered: bool
) -> None:
    """Without an answer it would wait for the next record before it cuts its log."""
    leader = LeaderReplica(1, replace(LED, in_sync=in_sync), (log,), 0.0)
    log.set_commit(10)
    whole = ShardFetch(SHARD, 1, 3, (StreamPosition(10, 0, 10, 10),))
    damaged = ShardFetch(SHARD, 1, 3, (StreamPosition(10, 0, 4, 10),))
    session = ServedSession(fetch_of(2, 10))
    session.list_shard(whole)
    assert reply_to(leader, 2, session, SHARD, 1 << 20) is None
    nothing = ShardReply(SHARD, FetchError.NONE, 1, (StreamReply(10, 10, 0),))
    session.list_shard(damaged)
    reply = reply_to(leader, 2, session, SHARD, 1 << 20)
    assert reply == (nothing if is_answered else None)


def test_a_follower_that_is_found_damaged_leaves_immediately(log: SimulatedLog) -> None:
    core = core_of(log, replace(LED, leader=2), BROKERS)
    damage(log, 4)
    core.appended(0.1, SHARD)  # not with the next tick
    assert leaves(core) == [LeaveInSync(SHARD, 3)]


def test_a_repair_ends_with_the_damage_that_it_was_for(log: SimulatedLog) -> None:
    """The leader may add a replica that reports no damage: what it finds damaged later, it must not
    cut before it has left the set again."""
    core = core_of(log, replace(LED, leader=2), BROKERS)
    log.set_commit(10)
    damage(log, 3)
    core.tick(0.1)
    assert leaves(core) == [LeaveInSync(SHARD, 3)]
    outside = replace(LED, leader=2, in_sync=(2,), partition_epoch=4)
    core.apply(0.2, [outside], BROKERS)
    core.tick(0.3)
    assert core.followers[SHARD].is_repairing
    log.start, log.records, log.damaged_at = 5, log.records[5:], None  # deleted by retention
    core.drain_effects()
    core.disconnected(0.4, 2)
    assert [shard.shard for fetch in _fetches_of(core) for shard in fetch.shards] == [SHARD]
    damage(log, 8)
    core.appended(0.5, SHARD)
    assert not core.followers[SHARD].is_repairing
    assert leaves(core) == [LeaveInSync(SHARD, 4)]
