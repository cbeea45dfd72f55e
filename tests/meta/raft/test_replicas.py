"""Shards with several replicas, as the clients of a cluster see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import ClusterInProcess, wait_until

from penstock.engine.replication import ProposeInSync
from penstock.errors import BadRequestError
from penstock.meta import Election, StandaloneMetaClient, TopicConfig
from penstock.meta.raft.client import RaftMetaClient

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(300)

THREE = TopicConfig(replication=3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterInProcess]:
    with ClusterInProcess(tmp_path) as started:
        started.start_all()
        for node, client in started.clients.items():
            client.announce("storage", f"127.0.0.1:{node}")
        yield started


def epochs(client: RaftMetaClient) -> dict[int, int]:
    return {node.node_id: node.epoch for node in client.list_nodes()}


def test_replicas_are_elected_changed_and_left_by_their_epochs(cluster: ClusterInProcess) -> None:
    one = cluster.clients[1]
    topic = one.create_topic("t", config=THREE)
    (shard,) = one.list_shards(topic.topic_id)
    assert sorted(shard.replicas) == sorted(shard.in_sync) == [1, 2, 3]
    assert shard.leader == shard.replicas[0]
    assert shard.leader is not None
    leader = cluster.clients[shard.leader]
    known = epochs(one)
    assert known == {node: client.broker_epoch for node, client in cluster.clients.items()}

    followers = [node for node in shard.replicas if node != shard.leader]
    members = tuple((node, known[node]) for node in (shard.leader, followers[0]))
    proposal = ProposeInSync(shard.name, shard.leader_epoch, 0, members)
    assert leader.change_in_sync([proposal]) == [None]
    assert leader.change_in_sync([proposal]) == [1]
    assert cluster.clients[followers[0]].change_in_sync([proposal]) == [1]

    assert cluster.clients[followers[0]].leave_in_sync(shard.name, 1)
    changed = one.get_shard(shard.id)
    assert changed is not None
    assert (changed.in_sync, changed.partition_epoch) == ((shard.leader,), 2)
    assert not leader.leave_in_sync(shard.name, 2), "it is the last one"

    (elected,) = one.elect_leaders([Election(shard.topic_id, shard.partition, 2, followers[1])])
    assert "not in sync" in elected.reason


def test_a_node_that_says_more_of_itself_keeps_its_broker_epoch(cluster: ClusterInProcess) -> None:
    seen: list[int] = []
    client = cluster.clients[2]
    client.on_registered(seen.append)
    client.announce("kafka", "127.0.0.1:9")
    assert seen == [client.broker_epoch] * 2
    client.set_node_status(2, "offline")
    wait_until(lambda: client.broker_epoch != seen[0], "a fenced node registers again")
    wait_until(lambda: seen[-1] == client.broker_epoch, "its owner hears of the new epoch")
    assert epochs(cluster.clients[1])[2] == client.broker_epoch


def test_more_replicas_than_nodes_are_refused(cluster: ClusterInProcess) -> None:
    with pytest.raises(BadRequestError, match="replication 4 needs 4 nodes; 3 are online"):
        cluster.clients[1].create_topic("t", config=TopicConfig(replication=4))


def test_a_node_alone_refuses_a_second_replica(tmp_path: Path) -> None:
    with StandaloneMetaClient.open(str(tmp_path / "meta")) as client:
        assert (client.broker_epoch, client.lease_holds()) == (0, True)
        with pytest.raises(BadRequestError, match="replication 2 needs 2 nodes; this node is"):
            client.create_topic("t", config=TopicConfig(replication=2))
