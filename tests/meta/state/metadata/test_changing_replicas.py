"""Reassignments, more and fewer replicas: the rules case by case, and random histories in which
every replica that counts has every committed record."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from penstock.meta.controller.controller_loop import decide_placements
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import REASSIGNMENT_ROLE, REPLICA_ORDER_ROLE
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata import replica_sets as rules
from penstock.meta.state.metadata.machine import apply
from penstock.meta.state.metadata.rows import NODES, SHARDS, TOPICS
from penstock.meta.state.model import Node, Shard, Topic, TopicConfig
from penstock.meta.state.view import MemoryView

BROKERS = {1: 11, 2: 12, 3: 13, 4: 14}
ROLES = ("replication", "reassignment")


def shard(replicas: tuple[int, ...], in_sync: tuple[int, ...], leader: int | None = 1) -> Shard:
    return Shard(
        topic_id="t",
        partition=0,
        replicas=replicas,
        in_sync=in_sync,
        leader=leader,
        leader_epoch=5,
        partition_epoch=7,
        active_segment=0,
        first_segment=0,
        status="active",
        revision=1,
    )


def moved(before: Shard, *target: int, min_insync: int = 2) -> Shard:
    outcome = rules.reassign(before, target, brokers=BROKERS, min_insync=min_insync)
    assert isinstance(outcome, Shard)
    return outcome


def test_old_replicas_stay_until_the_new_ones_are_in_sync() -> None:
    moving = moved(shard((1, 2, 3), (1, 2, 3)), 2, 3, 4)
    assert (moving.replicas, moving.adding, moving.removing) == ((2, 3, 4, 1), (4,), (1,))
    assert (moving.leader, moving.preferred_leader) == (1, 2)
    joined = replace(moving, in_sync=(1, 2, 3, 4))
    done = rules.complete_reassignment(joined, brokers=BROKERS, min_insync=2)
    assert (done.replicas, done.in_sync, done.is_moving) == ((2, 3, 4), (2, 3, 4), False)
    assert (done.leader, done.leader_epoch) == (2, 6), "the removed replica leads no more"


@pytest.mark.parametrize(
    ("change", "target"),
    [({}, (3,)), ({"address": ""}, None), ({"status": "online"}, None), ({"roles": ()}, None)],
    ids=["drains", "cannot be copied from", "online", "older release"],
)
def test_a_node_that_drains_gives_away_its_only_copies(
    change: dict[str, object], target: tuple[int, ...] | None
) -> None:
    leaving = node(1, status="draining")
    nodes = [replace(leaving, **change), node(2), node(3)]
    single = [shard((1,), (1,)), replace(shard((2,), (2,), 2), partition=1)]
    topic = Topic(
        topic_id="t",
        namespace="default",
        name="t",
        partitions=2,
        config=TopicConfig(),
        status="active",
        created_at_ms=0,
        revision=1,
    )
    commands = decide_placements(nodes, single, [], {"t": topic})
    expected = [] if target is None else [cmd.ReassignReplicas("t", 0, 7, target)]
    assert commands == expected
    assert not decide_placements(nodes, single, [], {"t": replace(topic, status="deleting")})


def node(node_id: int, status: str = "online") -> Node:
    return Node(
        node_id=node_id,
        address=f"n{node_id}:9193",
        listeners={"storage": f"n{node_id}:9190"},
        roles=("meta", REASSIGNMENT_ROLE),
        boot_id="",
        epoch=10 + node_id,
        status=status,
        registered_at_ms=0,
    )


def test_a_shard_that_gets_more_replicas_keeps_its_minimum_until_they_are_in_sync() -> None:
    before, config = TopicConfig(), TopicConfig(replication=3)
    growing = rules.follow_config(shard((1,), (1,)), before, config)
    assert (growing.min_insync, growing.partition_epoch) == (1, 8)
    assert rules.shard_min_insync(growing, config) == 1
    assert rules.with_topic_minimum(growing, config) == growing
    joined = rules.with_topic_minimum(replace(growing, in_sync=(1, 2)), config)
    assert rules.shard_min_insync(joined, config) == 2


def test_a_higher_minimum_alone_counts_immediately() -> None:
    before = TopicConfig(replication=3, min_insync=1)
    after = rules.follow_config(shard((1, 2, 3), (1,)), before, TopicConfig(replication=3))
    assert after.min_insync == 0


def test_a_replica_that_is_the_only_one_left_counts_as_in_sync() -> None:
    moving = replace(
        shard((2, 1), (), leader=None), eligible=(1,), adding=(2,), removing=(1,), last_leader=1
    )
    cancelled = rules.cancel_reassignment(moving, brokers=BROKERS, min_insync=1)
    assert isinstance(cancelled, Shard)
    assert (cancelled.replicas, cancelled.in_sync, cancelled.eligible) == ((1,), (1,), ())


@pytest.mark.parametrize(
    "targets",
    [[(4, 3, 2)], [(3, 4)], [(3, 2, 4), (4, 2, 3)], [(3, 4, 2), (1, 2, 4)], [(2, 1, 3, 4)]],
    ids=["other", "fewer", "changed", "given up", "more"],
)
def test_a_cancelled_move_restores_the_order_of_the_replicas(
    targets: list[tuple[int, ...]],
) -> None:
    history = History(1)
    for node in history.has:
        history.register(node, (*ROLES, REPLICA_ORDER_ROLE))
    before = replace(history.shard, replicas=(1, 2, 3), in_sync=(1, 2, 3), leader=1)
    SHARDS.put(history.view, before, "t", 0)
    for target in targets:
        history.run(cmd.ReassignReplicas("t", 0, history.shard.partition_epoch, target))
    moving = history.shard
    history.cancel()
    cancelled = history.shard
    assert (moving.is_moving, moving.previous) == (True, (1, 2, 3))
    assert (cancelled.is_moving, cancelled.previous) == (False, ())
    assert cancelled.replicas == (1, 2, 3)


def test_the_order_of_replicas_is_not_stored_while_a_node_runs_an_older_release() -> None:
    history = History(1)
    for node in history.has:
        history.register(node, (*ROLES, REPLICA_ORDER_ROLE) if node != 4 else ROLES)
    before = replace(history.shard, replicas=(1, 2, 3), in_sync=(1, 2, 3), leader=1)
    SHARDS.put(history.view, before, "t", 0)
    history.run(cmd.ReassignReplicas("t", 0, before.partition_epoch, (4, 3, 2)))
    assert history.shard.previous == ()
    SHARDS.put(history.view, replace(history.shard, previous=(1, 2, 3)), "t", 0)
    history.cancel()
    assert history.shard.replicas == (3, 2, 1), "as nodes of the older release have it"


def test_a_removed_node_does_not_come_back_with_a_cancelled_move() -> None:
    moving = replace(shard((4, 3, 1), (3, 1)), adding=(4,), removing=(1,), previous=(1, 2, 3))
    cancelled = rules.cancel_reassignment(moving, brokers=BROKERS, min_insync=2)
    assert isinstance(cancelled, Shard)
    assert cancelled.replicas == (1, 3)


class History:
    """One shard on four nodes. Which records a node has is modelled; the metadata are real."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.view = MemoryView()
        self.has: dict[int, set[int]] = {node: set() for node in range(1, 5)}
        """The records on each node, committed or not."""
        self.committed: set[int] = set()
        self.records = 0
        self.runs = 0
        for node in self.has:
            self.register(node)
        config = TopicConfig(replication=self.random.choice([1, 3]))
        replicas = (1, 2, 3)[: config.replication]
        placement = cmd.Placement(0, replicas, 1)
        self.run(cmd.CreateTopic("t", "default", "t", 1, config, (placement,)))

    def run(self, command: cmd.Command) -> cmd.Applied | Rejected:
        answer = apply(self.view, cmd.Request(1, command))
        self.check()
        return answer

    def register(self, node: int, roles: tuple[str, ...] = ROLES) -> None:
        known = NODES.get(self.view, node)
        self.runs += 1
        self.run(
            cmd.RegisterNode(
                node,
                "h",
                {"storage": f"h:{node}"},
                roles,
                f"run-{self.runs}",
                "S",
                is_proven=known is not None,
                previous_epoch=0 if known is None else known.epoch,
            )
        )

    @property
    def shard(self) -> Shard:
        found = SHARDS.get(self.view, "t", 0)
        assert found is not None
        return found

    @property
    def config(self) -> TopicConfig:
        topic = TOPICS.get(self.view, "t")
        assert topic is not None
        return topic.config

    def check(self) -> None:
        found = SHARDS.get(self.view, "t", 0)
        if found is None:
            return
        assert len(set(found.replicas)) == len(found.replicas) >= 1
        for node in (*found.in_sync, *found.eligible):
            assert node in found.replicas
            assert self.committed <= self.has[node], f"node {node} lacks records: {found}"
        assert found.leader is None or found.leader in found.in_sync

    # Steps

    def write(self) -> None:
        shard = self.shard
        if shard.leader is None:
            return
        self.records += 1
        self.has[shard.leader].add(self.records)
        for node in shard.in_sync:
            if node != shard.leader and self.random.random() < 0.7:
                self.has[node] = set(self.has[shard.leader])
        self.commit()

    def commit(self) -> None:
        shard = self.shard
        if shard.leader is not None and len(shard.in_sync) >= rules.shard_min_insync(
            shard, self.config
        ):
            self.committed |= set.intersection(*(self.has[node] for node in shard.in_sync))

    def copy(self) -> None:
        """A replica copies all, and its leader lets it join."""
        shard = self.shard
        online = {node.node_id: node.epoch for node in NODES.scan(self.view) if _is_online(node)}
        others = [node for node in shard.replicas if node != shard.leader and node in online]
        if shard.leader is None or not others:
            return
        node = self.random.choice(others)
        self.has[node] = set(self.has[shard.leader])
        members = tuple(dict.fromkeys((*shard.in_sync, node)))
        if not rules.is_replicated(shard, self.config):
            return
        self.propose(shard, tuple(member for member in members if member in online))

    def shrink(self) -> None:
        shard = self.shard
        if shard.leader is not None and len(shard.in_sync) > 1:
            self.propose(shard, (shard.leader,))

    def propose(self, shard: Shard, members: tuple[int, ...]) -> None:
        epochs = {node.node_id: node.epoch for node in NODES.scan(self.view)}
        assert shard.leader is not None
        change = cmd.InSyncChange(
            "t",
            0,
            shard.leader_epoch,
            shard.partition_epoch,
            tuple((member, epochs[member]) for member in members),
        )
        self.run(cmd.ChangeInSyncSets(shard.leader, epochs[shard.leader], (change,)))
        self.commit()

    def reassign(self) -> None:
        nodes = self.random.sample(range(1, 5), self.config.replication)
        self.run(cmd.ReassignReplicas("t", 0, self.shard.partition_epoch, tuple(nodes)))

    def cancel(self) -> None:
        self.run(cmd.CancelReassignment("t", 0))

    def alter(self) -> None:
        replication = self.random.choice([1, 2, 3, 3])
        minimum = self.random.choice([None, 1, replication])
        config = TopicConfig(replication=replication, min_insync=minimum)
        self.run(cmd.AlterTopic("t", config=config))

    def fence(self) -> None:
        self.run(cmd.SetNodeStatus(self.random.randint(1, 4), "offline"))

    def restart(self) -> None:
        self.register(self.random.randint(1, 4))

    def decide(self) -> None:
        """A round of the controller."""
        nodes = list(NODES.scan(self.view))
        topics = {topic.topic_id: topic for topic in TOPICS.scan(self.view)}
        shard = self.shard
        is_copied = rules.is_replicated(shard, self.config)
        single, copied = ([], [shard]) if is_copied else ([shard], [])
        for command in decide_placements(nodes, single, copied, topics):
            self.run(command)


def _is_online(node: object) -> bool:
    return getattr(node, "status", "") != "offline"


@pytest.mark.parametrize("seed", range(30))
def test_a_replica_that_counts_has_every_committed_record_in_random_histories(seed: int) -> None:
    history = History(seed)
    steps = [
        *(history.write, history.write, history.copy, history.copy, history.copy),
        *(history.decide, history.decide, history.shrink, history.reassign, history.cancel),
        *(history.alter, history.fence, history.restart),
    ]
    for _ in range(120):
        history.random.choice(steps)()
        history.check()
    for node in history.has:
        history.register(node)
    for _ in range(300):
        history.decide()
        history.copy()
    shard = history.shard
    assert not shard.is_moving, shard
    assert shard.leader is not None
    assert len(shard.replicas) == history.config.replication
    assert set(shard.in_sync) == set(shard.replicas)
    assert shard.min_insync == 0
