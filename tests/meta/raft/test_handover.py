"""A member that is about to stop gives up what it leads, and the others log nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import ClusterInProcess, wait_until

from penstock.meta import LeadingNode, TopicConfig
from penstock.meta.raft.client import RaftMetaClient
from penstock.meta.state.constants import OFFLINE, STOPPING

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterInProcess]:
    with ClusterInProcess(tmp_path) as started:
        started.start_all()
        for node, client in started.clients.items():
            client.announce("storage", f"127.0.0.1:{node}")
        yield started


def led_groups(client: RaftMetaClient) -> list[str]:
    return [status.name for status in client.raft_status if status.role == "leader"]


def test_a_member_gives_up_shards_and_groups_before_it_stops(cluster: ClusterInProcess) -> None:
    one = cluster.clients[1]
    topic = one.create_topic("t", partitions=6, config=TopicConfig(replication=3))
    leads = next(node for node, client in cluster.clients.items() if client.leads_metadata())
    leaving = cluster.clients[leads]
    assert isinstance(leaving, LeadingNode)
    assert leaving.can_announce_stop()
    assert leaving.announce_stop() == frozenset()
    assert leaving.give_up_groups(60) == []
    assert led_groups(leaving) == []
    left = next(client for node, client in cluster.clients.items() if node != leads)
    shards = left.list_shards(topic.topic_id)
    assert all(shard.leader not in {None, leads} for shard in shards)
    assert all(leads in shard.in_sync for shard in shards)
    states = {node.node_id: node.status for node in left.list_nodes()}
    assert states[leads] == STOPPING
    leaving.announce_stop()  # again: nothing changes
    assert left.list_shards(topic.topic_id) == shards


def test_groups_of_a_fenced_node_are_led_by_another_one_without_a_timeout(
    cluster: ClusterInProcess,
) -> None:
    def leader_of(name: str) -> int:
        statuses = cluster.clients[1].raft_status
        return next(status.leader for status in statuses if status.name == name)

    def has_another_leader() -> bool:
        """Return whether the leader of the offsets is not that of the metadata, and move it."""
        metadata, offsets = leader_of("metadata"), leader_of("offset-0")
        if metadata and metadata == offsets:
            to = next(node for node in cluster.clients if node != metadata)
            cluster.clients[metadata].transfer("offset-0", to)
        return 0 not in {metadata, offsets} and metadata != offsets

    wait_until(has_another_leader, "two nodes lead")
    fenced = leader_of("offset-0")
    # It is alive, so that no timeout of Raft ends its lead.
    cluster.clients[leader_of("metadata")].set_node_status(fenced, OFFLINE)
    wait_until(lambda: leader_of("offset-0") not in {0, fenced}, "another one leads")


def test_a_clean_end_of_the_metadata_leader_is_not_reported_as_a_loss(
    cluster: ClusterInProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    leads = next(node for node, client in cluster.clients.items() if client.leads_metadata())
    leaving = cluster.clients[leads]
    leaving.announce_stop()
    leaving.give_up_groups(60)
    leaving.leave()
    cluster.stop(leads)
    left = next(client for node, client in cluster.clients.items() if node != leads)
    wait_until(lambda: left.probe(leads) == "refused", "its port is closed")
    left.create_topic("goes-on")
    said = capsys.readouterr()
    for word in ("metadata_leader_gone", "nodes_lost"):
        assert word not in said.out + said.err
