"""Reassignments and elections of many shards, as the clients of a cluster see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import ClusterInProcess

from penstock.engine.replication import ProposeInSync
from penstock.errors import BadRequestError, UnknownShardError
from penstock.meta import ReplicaMove, Shard, TopicConfig
from penstock.meta.raft.client import RaftMetaClient
from penstock.record import ShardId

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterInProcess]:
    with ClusterInProcess(tmp_path) as started:
        started.start_all()
        for node, client in started.clients.items():
            client.announce("storage", f"127.0.0.1:{node}")
        yield started


def join(cluster: ClusterInProcess, shard: Shard, *nodes: int) -> None:
    """Let the leader of a shard propose that nodes are in sync."""
    assert shard.leader is not None
    leader = cluster.clients[shard.leader]
    epochs = {node.node_id: node.epoch for node in leader.list_nodes()}
    members = tuple((node, epochs[node]) for node in nodes)
    proposal = ProposeInSync(shard.name, shard.leader_epoch, shard.partition_epoch, members)
    assert leader.change_in_sync([proposal]) == [None]


def only_shard(client: RaftMetaClient, shard: ShardId) -> Shard:
    found = client.get_shard(shard)
    assert found is not None
    return found


def test_a_shard_moves_when_its_new_replica_is_in_sync(cluster: ClusterInProcess) -> None:
    one = cluster.clients[1]
    topic = one.create_topic("t", config=TopicConfig(replication=2))
    (shard,) = one.list_shards(topic.topic_id)
    (new,) = {1, 2, 3} - set(shard.replicas)
    stays, goes = shard.replicas
    (started,) = one.start_reassignments([ReplicaMove(shard.id, (new, stays), throttle=5_000)])
    assert isinstance(started, Shard)
    assert (started.replicas, started.adding) == ((new, stays, goes), (new,))
    assert (started.removing, started.throttle) == ((goes,), 5_000)
    assert [moving.id for moving in one.list_reassignments()] == [shard.id]
    assert one.list_reassignments("other") == []

    join(cluster, started, stays, goes, new)
    moved = only_shard(one, shard.id)
    assert (moved.replicas, sorted(moved.in_sync)) == ((new, stays), sorted((new, stays)))
    assert (moved.adding, moved.removing, moved.throttle) == ((), (), 0)
    assert one.list_reassignments() == []


def test_a_cancelled_move_keeps_the_old_replicas(cluster: ClusterInProcess) -> None:
    one = cluster.clients[1]
    topic = one.create_topic("t", config=TopicConfig(replication=2))
    (shard,) = one.list_shards(topic.topic_id)
    (new,) = {1, 2, 3} - set(shard.replicas)
    one.start_reassignments([ReplicaMove(shard.id, (new, shard.replicas[0]))])
    (cancelled, unknown) = one.cancel_reassignments([shard.id, ShardId("none", 0)])
    assert isinstance(cancelled, Shard)
    assert cancelled.replicas == shard.replicas
    assert isinstance(unknown, UnknownShardError)
    (again,) = one.cancel_reassignments([shard.id])
    assert isinstance(again, BadRequestError)


def test_bad_targets_are_refused_one_by_one(cluster: ClusterInProcess) -> None:
    one = cluster.clients[1]
    topic = one.create_topic("t", partitions=3, config=TopicConfig(replication=2))
    first, second, third = (shard.id for shard in one.list_shards(topic.topic_id))
    outcomes = one.start_reassignments(
        [
            ReplicaMove(first, (1, 9)),
            ReplicaMove(second, (1, 1)),
            ReplicaMove(third, (3, 2)),
        ]
    )
    assert [str(outcome) for outcome in outcomes[:2]] == [
        "node 9 does not exist",
        f"a node is named twice in {second.name}",
    ]
    assert isinstance(outcomes[2], Shard)
    with pytest.raises(BadRequestError, match="named twice"):
        one.start_reassignments([ReplicaMove(first, (1,)), ReplicaMove(first, (2,))])


def test_leaders_are_handed_over_and_preferred_ones_elected(cluster: ClusterInProcess) -> None:
    one = cluster.clients[1]
    topic = one.create_topic("t", partitions=6, config=TopicConfig(replication=3))
    shards = [shard.id for shard in one.list_shards(topic.topic_id)]
    led = {shard.id for shard in one.list_shards(topic.topic_id) if shard.leader == 1}
    outcomes = one.hand_over_leaders(1)
    assert {outcome.shard for outcome in outcomes} == led
    assert {(outcome.kind, outcome.leader) for outcome in outcomes} == {
        ("elected", 2),
        ("elected", 3),
    }
    assert all(shard.leader != 1 for shard in one.list_shards(topic.topic_id))
    back = one.elect_preferred([*shards, ShardId("none", 0)])
    assert [outcome.kind for outcome in back] == [
        *("elected" if shard in led else "not-needed" for shard in shards),
        "unknown",
    ]
    assert [outcome.kind for outcome in one.elect_any(shards, is_unclean=True)] == [
        "not-needed"
    ] * 6
