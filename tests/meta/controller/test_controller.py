"""What the controller decides, as scripts: `controller_scripts`.

A script describes a situation, then asks; the answer is indented. A situation begins anew with the
first line that describes something behind an answer.

    node 2 silent                 registered, but not heard of; also: offline, draining, serves
    shard t/0 replicas 1,2 in-sync 1,2 leader 2 epoch 4         with `lost` behind it: that, too
    decide                        what is lost, and who leads shards with one copy then
      2 is offline
      t/0 leader 1 epoch 5 in-sync 1
    elect, balance                who leads shards with several replicas
      t/0 leader 1
    move                          which nodes have replicas then
      t/0 replicas 1,3
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from penstock.meta import events
from penstock.meta.controller.controller_loop import MISSED_HEARTBEAT_ROUNDS, HeartbeatRounds
from penstock.meta.controller.decisions import (
    Leadership,
    Load,
    abandoned_shards,
    can_hold_shards,
    failovers,
    idle_groups,
    last_replicas,
    load_of,
    lost_nodes,
    place_shards,
    raft_transfers,
    storage_nodes,
)
from penstock.meta.controller.replica_decisions import (
    MOVES_MAX,
    balances,
    drains,
    moves,
    vacancies,
)
from penstock.meta.controller.shard_counts import ShardCounts
from penstock.meta.state.answers import Head, Rejected
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.commands import Moment
from penstock.meta.state.metadata.rows import SHARDS
from penstock.meta.state.metadata.shards import assign_leader, change_in_sync
from penstock.meta.state.model import Node, Shard
from penstock.meta.state.offsets.commands import GroupName
from penstock.meta.state.view import MemoryView

SCRIPTS = sorted((Path(__file__).parent / "controller_scripts").glob("*.txt"))
EPOCH, REVISION = 7, 40


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one != "none")


class Situation:
    """What a script has described."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.silent: set[int] = set()
        self.shards: list[Shard] = []
        self.groups: list[tuple[GroupName, int]] = []

    def describe(self, words: list[str]) -> None:
        match words:
            case ["node", number, *states]:
                self._add_node(int(number), states)
            case ["shard", _, "replicas", _, "in-sync", _, "leader", _, "epoch", _, *_]:
                self.shards.append(_shard(words))
            case ["group", name, "last", last]:
                self.groups.append((GroupName("default", name), int(last)))
            case _:
                raise AssertionError(f"no line of a script: {words}")

    def _add_node(self, number: int, states: list[str]) -> None:
        statuses = {"offline", "draining"} & set(states)
        self.nodes.append(
            Node(
                node_id=number,
                address="",
                listeners={"storage": "host:1"} if "serves" in states else {},
                roles=(),
                boot_id="",
                epoch=EPOCH,
                status=statuses.pop() if statuses else "online",
                registered_at_ms=0,
            )
        )
        if "silent" in states:
            self.silent.add(number)

    def answer(self, words: list[str]) -> list[str] | None:  # noqa: PLR0911 - one per question
        match words:
            case ["decide"]:
                return self._decide()
            case ["balance"]:
                return [_elected(one) for one in balances(self.shards, self._with("online"))]
            case ["elect"]:
                return self._elect()
            case ["move", *copies]:
                return self._move(int(copies[0]) if copies else 0)
            case ["place", count, *how, "from", asking]:
                replication = int(how[1]) if how[:1] == ["replication"] else 1
                topic = how[2] if how[:2] == ["more", "of"] else ""
                return self._place(int(count), replication, int(asking), topic)
            case ["expire", "before", before, *kept]:
                keep = {GroupName("default", name) for name in kept[1:]}
                return [one.group for one in idle_groups(self.groups, int(before), keep)]
            case ["abandoned"]:
                nodes = {node.node_id for node in self.nodes}
                found = abandoned_shards(self.shards, nodes)
                return [f"{one.topic_id}/{one.partition}" for one in found]
            case ["only", "on", number]:
                found = last_replicas(self.shards, int(number))
                return [f"{one.topic_id}/{one.partition}" for one in found]
        return None

    def _with(self, status: str) -> set[int]:
        return {
            node.node_id
            for node in self.nodes
            if node.status == status and node.node_id not in self.silent
        }

    def _decide(self) -> list[str]:
        lost = lost_nodes(self.nodes, {node.node_id for node in self.nodes} - self.silent)
        assert all(one.epoch == EPOCH for one in lost), "who has registered again is not meant"
        moved = failovers(self.shards, self._with("online"), self._with("draining"))
        return [f"{one.node_id} is {one.status}" for one in lost] + [_said(one) for one in moved]

    def _elect(self) -> list[str]:
        online, draining = self._with("online"), self._with("draining")
        elections = vacancies(self.shards, online | draining)
        return [_elected(one) for one in elections + drains(self.shards, online, draining)]

    def _move(self, replication: int) -> list[str]:
        able = {node.node_id for node in self.nodes if can_hold_shards(node)} - self.silent
        moved = moves(
            self.shards,
            {node.node_id for node in self.nodes},
            able,
            self._with("draining"),
            {shard.topic_id: replication for shard in self.shards},
        )
        return [
            f"{one.topic_id}/{one.partition} replicas {','.join(map(str, one.replicas))}"
            for one in moved
        ]

    def _place(self, count: int, replication: int, asking: int, topic: str = "") -> list[str]:
        nodes = storage_nodes(self.nodes, asking)
        own = load_of(shard for shard in self.shards if shard.topic_id == topic)
        placed = place_shards(range(count), replication, nodes, load_of(self.shards), own)
        return [
            f"{one.partition} replicas {','.join(map(str, one.replicas))} leader {one.leader}"
            for one in placed
        ]


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
        status="lost" if "lost" in words else "active",
        eligible=_numbers(words[words.index("eligible") + 1]) if "eligible" in words else (),
        adding=_numbers(words[words.index("adding") + 1]) if "adding" in words else (),
        removing=_numbers(words[words.index("removing") + 1]) if "removing" in words else (),
        revision=REVISION,
    )


def _said(one: cmd.AssignLeader) -> str:
    assert one.expected_revision == REVISION, "a decision counts for what it was made of"
    assert one.in_sync is not None
    leader = "none" if one.leader is None else one.leader
    in_sync = ",".join(map(str, one.in_sync))
    return f"{one.topic_id}/{one.partition} leader {leader} epoch {one.epoch} in-sync {in_sync}"


def _elected(one: cmd.Election) -> str:
    return f"{one.topic_id}/{one.partition} leader {'any' if one.leader is None else one.leader}"


def _played(script: str) -> str:
    """Return the script with the answers that were really given."""
    situation, was_asked = Situation(), False
    played: list[str] = []
    for line in script.splitlines():
        if line.startswith("  "):
            continue
        played.append(line)
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        answer = situation.answer(words)
        if answer is not None:
            played += [f"  {one}" for one in answer]
            was_asked = True
            continue
        if was_asked:
            situation, was_asked = Situation(), False
        situation.describe(words)
    return "\n".join(played) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_decisions(path: Path) -> None:
    script = path.read_text()
    if "PENSTOCK_REWRITE" in os.environ:
        path.write_text(_played(script))
    assert _played(script) == script


def test_replicas_are_spread_over_racks_before_they_are_spread_over_nodes() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    placed = place_shards(range(12), 3, racks, Load(), racks=racks)
    assert all({racks[node] for node in one.replicas} == {"a", "b", "c"} for one in placed)
    assert set(Counter(node for one in placed for node in one.replicas).values()) == {6}
    assert set(Counter(one.leader for one in placed).values()) == {2}
    two = {1: "a", 2: "a", 3: "b"}
    for one in place_shards(range(6), 3, two, Load(), racks=two):
        assert set(one.replicas) == {1, 2, 3}, "fewer racks than replicas"
    for one in place_shards(range(6), 2, two, Load(), racks=two):
        assert 3 in one.replicas
    mixed = place_shards(range(6), 2, {1, 2, 3}, Load(), racks={1: "a", 2: "a"})
    assert all(3 in one.replicas for one in mixed), "a node without a rack is one of its own"
    full = Load(short={3})
    assert place_shards([0], 2, two, full, racks=two)[0].replicas == (1, 2)


def test_balance_moves_a_bounded_number_of_leaders_at_once() -> None:
    shard = _shard("shard t/0 replicas 2,1 in-sync 1,2 leader 1 epoch 1".split())
    shards = [shard] * (4 * MOVES_MAX)
    assert len(balances(shards, {1, 2})) == MOVES_MAX


def test_a_decision_that_was_overtaken_changes_nothing() -> None:
    view = MemoryView()
    shard = _shard("shard t/0 replicas 1,2,3 in-sync 1,2,3 leader 2 epoch 4".split())
    SHARDS.put(view, shard, "t", 0)
    (decided,) = failovers([shard], {1, 3})
    assert decided.leader == 1
    # Before it is taken in, the old leader drops the node that was chosen.
    shrunk = change_in_sync(view, cmd.ChangeInSync("t", 0, 4, (2, 3)), Moment(1, 41, Head()))
    assert not isinstance(shrunk, Rejected)
    outcome = assign_leader(view, decided, Moment(1, 42, Head()))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "stale"
    now = SHARDS.get(view, "t", 0)
    assert now is not None
    (again,) = failovers([now], {1, 3})
    assert again.leader == 3
    assert not isinstance(assign_leader(view, again, Moment(1, 42, Head())), Rejected)


def test_what_nodes_hold_is_counted_with_every_change() -> None:
    view, counts = MemoryView(), ShardCounts()
    shards = [
        _shard(f"shard t/{number} replicas 1,2 in-sync 1,2 leader 1 epoch 4".split())
        for number in range(3)
    ]
    SHARDS.put(view, shards[0], "t", 0)
    counts.reset(view)
    counts.apply(
        [events.ShardPut(shards[1]), events.ShardPut(shards[2]), events.ShardPut(shards[2])]
    )
    moved = _shard("shard t/1 replicas 2,3 in-sync 2,3 leader 3 epoch 5".split())
    counts.apply([events.ShardPut(moved), events.ShardDeleted("t", 0), events.ShardDeleted("t", 9)])
    load = counts.load()
    expected = load_of([moved, shards[2]])
    assert {node: held for node, held in load.replicas.items() if held} == expected.replicas
    assert {node: led for node, led in load.leaders.items() if led} == expected.leaders
    seen = counts.changes
    counts.apply([events.NodeRemoved(3)])
    assert counts.changes > seen


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
    beats = HeartbeatRounds()
    assert beats.alive({8: 100, 9: 101}) == {8, 9}
    for _ in range(MISSED_HEARTBEAT_ROUNDS - 1):
        assert beats.alive({8: 100, 9: 101}) == {8, 9}
    assert beats.alive({8: 102, 9: 101}) == {8}
    assert beats.alive({8: 102, 9: 150}) == {8, 9}
    beats.reset()
    assert beats.alive({8: 102}) == {8}
