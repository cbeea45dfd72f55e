"""What one node of a cluster leaves to the others: their shards, and offsets of what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapter.bench import Bench

from penstock.meta.state.metadata.commands import NodeResult, RegisterNode
from penstock.node.node import Node
from penstock.offsets.strategy import OffsetCommit
from penstock.record import Offset, ShardId


def move_away(bench: Bench, shard: ShardId, node: int = 2) -> None:
    bench.meta._done(RegisterNode(node, "elsewhere:1"), NodeResult)
    bench.meta.assign_leader(shard, node, 1, replicas=[node], in_sync=[node])


def test_a_deleted_topic_is_kept_in_the_metadata_until_its_other_node_has_deleted_it() -> None:
    with Bench() as bench:
        topic = bench.create("orders", 2)
        move_away(bench, ShardId(topic, 1))
        bench.admin.delete_topic("orders")
        assert bench.engine.list_shard(topic) in ([], [ShardId(topic, 1)])
        assert [shard.partition for shard in bench.meta.list_shards(topic)] == [1]
        assert bench.admin.finish_deletions() == 0
        bench.meta.remove_node(2)
        assert bench.admin.finish_deletions() == 1
        assert bench.meta.list_shards(topic) == []
        assert bench.meta.list_deleting_topics() == []


def test_a_node_that_does_not_lead_leaves_the_shards_of_lost_nodes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Bench() as bench:
        topic = bench.create("orders", 2)
        move_away(bench, ShardId(topic, 1))
        bench.meta.remove_node(2)
        monkeypatch.setattr(bench.admin, "_is_controller", lambda: False)
        bench.admin.delete_topic("orders")
        assert [shard.partition for shard in bench.meta.list_shards(topic)] == [1]


def test_shards_that_a_topic_lacks_are_created_by_the_node_that_has_its_first() -> None:
    with Bench() as bench:
        mine = bench.create("mine")
        theirs = bench.create("theirs")
        move_away(bench, ShardId(theirs, 0))
        for topic in (mine, theirs):
            bench.is_deaf = True
            bench.meta.alter_topic(topic, partitions=2)
            bench.meta.delete_shard(ShardId(topic, 1))
            bench.is_deaf = False
        for update in bench.unheard:
            bench.take_over(update)
        assert bench.admin.finish_creations() == 1
        assert len(bench.meta.list_shards(mine)) == 2
        assert len(bench.meta.list_shards(theirs)) == 1


def test_offsets_of_topics_in_memory_are_forgotten_only_where_the_records_were(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "data")
    with Node(path, background=False) as node:
        topic = node.admin.create_topic_full("orders", 2, {"storage": "memory"})
        here, there = (ShardId(topic.topic_id, partition) for partition in (0, 1))
        commits = {shard: OffsetCommit(Offset(5)) for shard in (here, there)}
        node.offset_manager.commit_offsets("readers", commits)
        node.meta.assign_leader(there, 2, 1, replicas=[2], in_sync=[2])
    with Node(path, background=False) as node:
        assert set(node.offset_manager.get_offsets("readers")) == {there}
