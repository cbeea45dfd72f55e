"""Shards with several replicas, as the clients of a cluster see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import ClusterInProcess, wait_until

from penstock.errors import BadRequestError
from penstock.meta import Election, InSyncProposal, StandaloneMetaClient, TopicConfig
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
    members = ((shard.leader, leader.broker_epoch), (followers[0], known[followers[0]]))
    proposal = InSyncProposal(shard.id, shard.leader_epoch, shard.partition_epoch, members)
    (accepted,) = leader.change_in_sync([proposal])
    assert accepted.is_accepted
    (refused,) = leader.change_in_sync([proposal])
    assert (refused.is_accepted, refused.partition_epoch) == (False, accepted.partition_epoch)
    (stranger,) = cluster.clients[followers[0]].change_in_sync([proposal])
    assert "does not lead" in stranger.reason

    left = cluster.clients[followers[0]].leave_in_sync(shard.id, accepted.partition_epoch)
    assert left.is_accepted
    last = leader.leave_in_sync(shard.id, left.partition_epoch)
    assert last.is_last

    (elected,) = one.elect_leaders(
        [Election(shard.topic_id, shard.partition, left.partition_epoch, followers[1])]
    )
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
