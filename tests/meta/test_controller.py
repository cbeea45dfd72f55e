"""What the controller decides, as scripts: a situation above the line, its decisions below.

node 1 online          node 2 online, but not heard of: 2 silent
shard t/0 replicas 1,2 in-sync 1,2 leader 2 epoch 4
---
2 is offline
t/0 leader 1 epoch 5
"""

from __future__ import annotations

import pytest

from penstock.meta.controller import (
    Leadership,
    failovers,
    lost_nodes,
    place_shards,
    raft_transfers,
)
from penstock.meta.raft.controller_loop import BEATLESS_ROUNDS, Beats
from penstock.meta.state import metadata_commands as cmd
from penstock.meta.state.model import Node, Shard

SCRIPTS = {
    "nobody is lost": """
        node 1
        node 2
        shard t/0 replicas 1,2 in-sync 1,2 leader 2 epoch 4
        ---
        """,
    "a replica in sync takes over": """
        node 1
        node 2 silent
        shard t/0 replicas 1,2 in-sync 1,2 leader 2 epoch 4
        ---
        2 is offline
        t/0 leader 1 epoch 5
        """,
    "a replica that lags must not lead": """
        node 1
        node 2 silent
        shard t/0 replicas 1,2 in-sync 2 leader 2 epoch 4
        ---
        2 is offline
        t/0 leader none epoch 5
        """,
    "a shard that waits for its replica is left alone": """
        node 1
        node 2 offline
        shard t/0 replicas 1,2 in-sync 2 leader none epoch 5
        ---
        """,
    "a replica that comes back leads again": """
        node 1
        node 2
        shard t/0 replicas 1,2 in-sync 2 leader none epoch 5
        ---
        t/0 leader 2 epoch 6
        """,
    "leaders go where fewest are": """
        node 1
        node 2 silent
        node 3
        shard t/0 replicas 1,2,3 in-sync 1,2,3 leader 2 epoch 1
        shard t/1 replicas 1,2,3 in-sync 1,2,3 leader 2 epoch 1
        shard t/2 replicas 1,2,3 in-sync 1,2,3 leader 1 epoch 1
        ---
        2 is offline
        t/0 leader 3 epoch 2
        t/1 leader 1 epoch 2
        """,
    "all are gone": """
        node 1 silent
        node 2 silent
        shard t/0 replicas 1,2 in-sync 1,2 leader 2 epoch 4
        ---
        1 is offline
        2 is offline
        t/0 leader none epoch 5
        """,
}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _node(words: list[str]) -> tuple[Node, bool]:
    status = "offline" if words[2:] == ["offline"] else "online"
    node = Node(
        node_id=int(words[1]),
        address="",
        listeners={},
        roles=(),
        boot_id="",
        epoch=7,
        status=status,
        registered_at_ms=0,
    )
    return node, status == "online" and words[2:] != ["silent"]


def _shard(words: list[str]) -> Shard:
    topic, partition = words[1].split("/")
    return Shard(
        topic_id=topic,
        partition=int(partition),
        replicas=_numbers(words[3]),
        in_sync=_numbers(words[5]),
        leader=None if words[7] == "none" else int(words[7]),
        leader_epoch=int(words[9]),
        active_segment=0,
        first_segment=0,
        status="active",
        revision=1,
    )


def _decide(situation: str) -> list[str]:
    lines = [line.split() for line in situation.strip().splitlines()]
    found = [_node(words) for words in lines if words[0] == "node"]
    shards = [_shard(words) for words in lines if words[0] == "shard"]
    alive = {node.node_id for node, is_alive in found if is_alive}
    said: list[str] = []
    for command in [*lost_nodes([node for node, _ in found], alive), *failovers(shards, alive)]:
        if isinstance(command, cmd.SetNodeStatus):
            assert command.epoch == 7, "a node that has registered again is not meant"
            said.append(f"{command.node_id} is {command.status}")
        else:
            assert isinstance(command, cmd.AssignLeader)
            leader = "none" if command.leader is None else command.leader
            where = f"{command.topic_id}/{command.partition}"
            said.append(f"{where} leader {leader} epoch {command.epoch}")
    return said


@pytest.mark.parametrize("name", SCRIPTS)
def test_decisions(name: str) -> None:
    situation, _, expected = SCRIPTS[name].partition("---")
    assert _decide(situation) == [line.strip() for line in expected.strip().splitlines()]


def test_shards_go_where_least_is_held_and_leaders_are_spread() -> None:
    placed = place_shards(range(6), 2, {1, 2, 3}, {1: 4})
    assert all(len(set(one.replicas)) == 2 for one in placed)
    held = {node: sum(node in one.replicas for one in placed) for node in (1, 2, 3)}
    assert held == {1: 2, 2: 5, 3: 5}
    led = [sum(one.leader == node for one in placed) for node in (2, 3)]
    assert max(led) - min(led) <= 2


def test_more_replicas_than_nodes_are_as_many_as_there_are_nodes() -> None:
    (placed,) = place_shards([0], 3, {1, 2}, {})
    assert set(placed.replicas) == {1, 2}


def test_a_shard_with_one_replica_stays_where_it_was_made() -> None:
    placed = place_shards(range(3), 1, {1, 2, 3}, {2: 50}, preferred=2)
    assert [one.replicas for one in placed] == [(2,), (2,), (2,)]


def test_leaders_of_offsets_leave_the_leader_of_metadata() -> None:
    leads = [
        Leadership(group="metadata", voters=(1, 2, 3), ready=frozenset({1, 2, 3})),
        Leadership(group="offset-0", voters=(1, 2, 3), ready=frozenset({1, 2, 3})),
        Leadership(group="offset-1", voters=(1, 2, 3), ready=frozenset({1, 3})),
        Leadership(group="offset-2", voters=(1, 2, 3), ready=frozenset({1})),
    ]
    assert raft_transfers(1, leads, metadata_leader=1) == [("offset-0", 3), ("offset-1", 3)]
    assert raft_transfers(1, leads, metadata_leader=2) == []


def test_a_node_outside_of_the_groups_is_lost_when_its_heartbeats_stay_out() -> None:
    beats = Beats()
    assert beats.alive({8: 100, 9: 101}) == {8, 9}
    for _ in range(BEATLESS_ROUNDS - 1):
        assert beats.alive({8: 100, 9: 101}) == {8, 9}
    assert beats.alive({8: 102, 9: 101}) == {8}
    assert beats.alive({8: 102, 9: 150}) == {8, 9}
    beats.forget()
    assert beats.alive({8: 102}) == {8}
