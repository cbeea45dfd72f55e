"""Plans of reassignments, and when preferred leaders lead again."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from penstock.errors import BadRequestError
from penstock.meta.controller.decisions import Load, place_shards, short_of_room
from penstock.meta.controller.reassignment_plans import plan_balance, plan_to
from penstock.meta.controller.replica_decisions import PreferredLeaders, completions
from penstock.meta.state.model import Node, Shard


def shard(partition: int, *replicas: int, leader: int | None = None) -> Shard:
    return Shard(
        topic_id="t",
        partition=partition,
        replicas=replicas,
        in_sync=replicas,
        leader=replicas[0] if leader is None else leader,
        leader_epoch=1,
        active_segment=0,
        first_segment=0,
        status="active",
        revision=1,
    )


def node(number: int, free_bytes: int = -1) -> Node:
    return Node(
        node_id=number,
        address="h:1",
        listeners={"storage": "h:2"},
        roles=(),
        boot_id="",
        epoch=number,
        status="online",
        registered_at_ms=0,
        free_bytes=free_bytes,
    )


def test_a_plan_keeps_what_is_on_its_nodes() -> None:
    moves = plan_to([shard(0, 1, 2, 3), shard(1, 2, 3, 4)], [2, 3, 4])
    assert [(move.shard.partition, move.replicas) for move in moves] == [(0, (2, 3, 4))]


def test_a_plan_with_too_few_nodes_is_refused() -> None:
    with pytest.raises(BadRequestError, match="t_0 has 3 replicas, but only 2 nodes"):
        plan_to([shard(0, 1, 2, 3)], [2, 3])


@pytest.mark.parametrize("seed", range(20))
def test_a_balanced_plan_leaves_nodes_that_differ_little(seed: int) -> None:
    random = Random(seed)
    nodes = list(range(1, random.randint(4, 7)))
    shards = [shard(n, *random.sample(nodes, 3)) for n in range(random.randint(1, 40))]
    planned = {move.shard: move.replicas for move in plan_balance(shards, nodes)}
    after = [planned.get(one.id, one.replicas) for one in shards]
    assert all(len(set(replicas)) == 3 for replicas in after)
    held = Counter(dict.fromkeys(nodes, 0)) + Counter(n for replicas in after for n in replicas)
    assert max(held.values()) - min(held[n] for n in nodes) <= 3
    moved = [replace(one, replicas=replicas) for one, replicas in zip(shards, after, strict=True)]
    again = plan_balance(moved, nodes)
    assert len(again) <= len(planned)


def test_nodes_with_little_free_disk_come_last() -> None:
    nodes = [node(1, 1 << 40), node(2, 1 << 30), node(3, 1 << 39), node(4)]
    assert short_of_room(nodes) == {2}
    (move,) = plan_to([shard(0, 1)], [2, 3], short_of_room(nodes))
    assert move.replicas == (3,)
    (placed,) = place_shards([0], 2, [1, 2, 3], Load(short=short_of_room(nodes)))
    assert set(placed.replicas) == {1, 3}


def test_a_preferred_leader_leads_when_two_checks_have_found_it_in_sync() -> None:
    preferred = PreferredLeaders()
    away = shard(0, 1, 2, 3, leader=2)
    assert preferred.check([away], {1, 2, 3}) == []
    (election,) = preferred.check([away], {1, 2, 3})
    assert (election.leader, election.partition_epoch) == (1, away.partition_epoch)
    assert preferred.check([shard(0, 1, 2, 3)], {1, 2, 3}) == []
    assert not preferred.is_waiting
    # It was away between two checks.
    assert preferred.check([away], {1, 2, 3}) == []
    assert preferred.check([replace(away, in_sync=(2, 3))], {2, 3}) == []
    assert preferred.check([away], {1, 2, 3}) == []


def test_a_move_that_nothing_holds_up_is_completed_by_the_controller() -> None:
    moving = replace(shard(0, 2, 3, 1), adding=(3,), removing=(1,), throttle=5)
    (command,) = completions([moving, shard(1, 1, 2)], {1: 1, 2: 2, 3: 3}, {"t": 2})
    assert (command.partition, command.replicas) == (0, (2, 3))
    waiting = replace(moving, in_sync=(1, 2))
    assert completions([waiting], {1: 1, 2: 2, 3: 3}, {"t": 2}) == []
