"""Who may lead a shard, and who is in sync: the rules, case by case."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.meta.state.answers import Rejected
from penstock.meta.state.metadata import replica_sets as rules
from penstock.meta.state.model import Shard

BROKERS = {1: 11, 2: 12, 3: 13}


def shard(
    in_sync: tuple[int, ...] = (1, 2, 3),
    *,
    eligible: tuple[int, ...] = (),
    leader: int | None = 1,
) -> Shard:
    return Shard(
        topic_id="t",
        partition=0,
        replicas=(1, 2, 3),
        in_sync=in_sync,
        eligible=eligible,
        leader=leader,
        leader_epoch=5,
        partition_epoch=7,
        active_segment=0,
        first_segment=0,
        status="active",
        revision=1,
    )


def change(before: Shard, *nodes: int, **other: int) -> Shard | Rejected:
    members = tuple((node, other.get(f"epoch_{node}", BROKERS.get(node, 0))) for node in nodes)
    return rules.change_in_sync(
        before,
        sender=other.get("sender", 1),
        leader_epoch=other.get("leader_epoch", 5),
        partition_epoch=other.get("partition_epoch", 7),
        members=members,
        brokers=BROKERS,
        min_insync=2,
    )


def accepted(outcome: Shard | Rejected) -> Shard:
    assert isinstance(outcome, Shard), outcome
    return outcome


def refusal(outcome: Shard | Rejected) -> str:
    assert isinstance(outcome, Rejected), outcome
    return outcome.reason


def test_a_replica_that_leaves_a_large_enough_set_is_not_eligible() -> None:
    after = accepted(change(shard(), 1, 2))
    assert (after.in_sync, after.eligible, after.partition_epoch) == ((1, 2), (), 8)


def test_a_replica_that_leaves_a_set_at_its_minimum_stays_eligible() -> None:
    after = accepted(change(shard((1, 2)), 1))
    assert (after.in_sync, after.eligible) == ((1,), (2,))


def test_nobody_is_eligible_once_the_set_is_large_enough_again() -> None:
    after = accepted(change(shard((1,), eligible=(2,)), 1, 3))
    assert (after.in_sync, after.eligible) == ((1, 3), ())


def test_a_change_under_an_old_epoch_is_refused() -> None:
    assert "leader epoch 5, not 4" in refusal(change(shard(), 1, 2, leader_epoch=4))
    assert "partition epoch 7, not 6" in refusal(change(shard(), 1, 2, partition_epoch=6))
    assert "does not lead" in refusal(change(shard(), 1, 2, sender=2))


def test_a_replica_that_registered_again_does_not_join_under_its_old_epoch() -> None:
    assert "broker epoch 3" in refusal(change(shard((1, 2)), 1, 2, 3, epoch_3=3))
    assert accepted(change(shard((1, 2)), 1, 2, 3)).in_sync == (1, 2, 3)


def test_a_set_without_its_leader_or_with_strangers_is_refused() -> None:
    assert "always in sync" in refusal(change(shard(), 2, 3))
    assert "no replica" in refusal(change(shard(), 1, 9))
    assert "twice" in refusal(change(shard(), 1, 2, 2))


def fenced(before: Shard, node: int, *, is_proven: bool = True) -> Shard:
    brokers = {number: epoch for number, epoch in BROKERS.items() if number != node}
    return rules.without_node(before, node, brokers=brokers, min_insync=2, is_proven=is_proven)


def test_a_fenced_leader_is_replaced_by_a_replica_in_sync() -> None:
    after = fenced(shard(), 1)
    assert (after.leader, after.leader_epoch, after.in_sync) == (2, 6, (2, 3))
    assert after.last_leader == 2


def test_an_eligible_replica_leads_when_none_is_in_sync() -> None:
    after = fenced(shard((1,), eligible=(3,)), 1)
    assert (after.leader, after.in_sync) == (3, (3,))
    assert after.eligible == (1,), "the old leader has all that is committed, too"


def test_a_shard_without_a_candidate_has_no_leader_and_keeps_the_one_to_wait_for() -> None:
    after = fenced(shard((1,)), 1)
    assert (after.leader, after.in_sync, after.eligible) == (None, (), (1,))
    assert (after.leader_epoch, after.last_leader) == (6, 1)
    back = rules.elect(after, brokers=BROKERS, min_insync=2)
    assert (back.leader, back.in_sync) == (1, (1,))


def test_a_node_that_may_have_lost_records_leaves_both_sets() -> None:
    after = fenced(shard((1, 2), eligible=(3,)), 2, is_proven=False)
    assert (after.in_sync, after.eligible) == ((1,), (3,))
    after = fenced(shard((1,), eligible=(3,)), 3, is_proven=False)
    assert (after.in_sync, after.eligible, after.partition_epoch) == ((1,), (), 8)


def test_a_leader_that_restarts_leads_on_under_a_new_epoch() -> None:
    after = rules.restarted(shard(), 1, brokers=BROKERS, min_insync=2)
    assert (after.leader, after.leader_epoch) == (1, 6)
    assert rules.restarted(shard(), 2, brokers=BROKERS, min_insync=2) == shard()


def test_a_leader_moves_only_to_a_replica_in_sync() -> None:
    moved = accepted(rules.move_leader(shard(), 3, brokers=BROKERS, min_insync=2))
    assert (moved.leader, moved.leader_epoch, moved.in_sync) == (3, 6, (1, 2, 3))
    outcome = rules.move_leader(shard((1, 2)), 3, brokers=BROKERS, min_insync=2)
    assert "not in sync" in refusal(outcome)


def test_a_damaged_replica_leaves_unless_it_is_the_last() -> None:
    left = accepted(rules.leave(shard(), 1, brokers=BROKERS, min_insync=2))
    assert (left.leader, left.in_sync, left.eligible) == (2, (2, 3), ())
    outcome = rules.leave(shard((1,)), 1, brokers=BROKERS, min_insync=2)
    assert "the last" in refusal(outcome)
    outside = accepted(rules.leave(shard((1, 2)), 3, brokers=BROKERS, min_insync=2))
    assert outside.partition_epoch == 8, "proposals that add it are void"


def test_an_operator_may_elect_a_replica_that_lacks_records() -> None:
    offline = replace(shard((), eligible=(), leader=None))
    led = accepted(rules.elect_unclean(offline, 3, brokers=BROKERS))
    assert (led.leader, led.in_sync, led.leader_epoch) == (3, (3,), 6)
    assert "no replica" in refusal(rules.elect_unclean(offline, 9, brokers=BROKERS))


def test_the_other_replicas_copy_anew_after_an_election_that_gave_records_up() -> None:
    offline = replace(shard((), eligible=(), leader=None))
    led = rules.copied_anew(accepted(rules.elect_unclean(offline, 3, brokers=BROKERS)))
    assert (led.adding, led.removing, led.in_sync) == ((1, 2), (), (3,))
    joined = replace(led, in_sync=(3, 1, 2))
    done = rules.complete_reassignment(joined, brokers=BROKERS, min_insync=2)
    assert (done.adding, done.replicas, done.in_sync) == ((), (1, 2, 3), (3, 1, 2))


def test_a_new_minimum_makes_nobody_eligible() -> None:
    assert rules.change_min_insync(shard((1,), eligible=(2,))).eligible == ()
