"""What the updates of the metadata mean for the replication of a node."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.engine.replication.runtime.assignments import AssignmentView
from penstock.meta import Node, Shard, Topic, TopicConfig, Update, min_insync_of
from penstock.meta.events import (
    Event,
    NodePut,
    NodeRemoved,
    ShardDeleted,
    ShardPut,
    TopicPut,
)

TOPIC = Topic(
    topic_id="orders-1",
    namespace="default",
    name="orders",
    partitions=1,
    config=TopicConfig(replication=3),
    status="active",
    created_at_ms=0,
    revision=1,
)
SHARD = Shard(
    topic_id="orders-1",
    partition=0,
    replicas=(1, 2, 3),
    in_sync=(1, 2, 3),
    leader=1,
    leader_epoch=0,
    active_segment=0,
    first_segment=0,
    status="active",
    revision=1,
)
NODE = Node(
    node_id=1,
    address="localhost:1",
    listeners={},
    roles=("storage",),
    boot_id="b",
    epoch=5,
    status="online",
    registered_at_ms=0,
)


def update(*events: Event, is_reset: bool = False) -> Update:
    return Update(1, events, is_reset)


def view() -> AssignmentView:
    view = AssignmentView(1)
    view.apply(update(TopicPut(TOPIC), ShardPut(SHARD), NodePut(NODE), is_reset=True))
    return view


def test_the_minimum_of_a_topic_is_a_majority_unless_it_says_otherwise() -> None:
    minimums = [min_insync_of(TopicConfig(replication=count)) for count in (1, 2, 3, 4, 5)]
    assert minimums == [1, 2, 2, 3, 3]
    assert min_insync_of(TopicConfig(replication=3, min_insync=1)) == 1


def test_a_leader_and_the_metadata_group_count_with_the_same_minimum() -> None:
    """A leader with a smaller one would commit records that an eligible replica lacks."""
    for config in (TopicConfig(replication=3), TopicConfig(replication=2, min_insync=5)):
        topic = replace(TOPIC, config=config)
        change = AssignmentView(1).apply(update(TopicPut(topic), ShardPut(SHARD)))
        assert change.assignments[0].min_insync == min_insync_of(config)


def test_a_replicated_shard_with_a_copy_here_is_assigned() -> None:
    change = AssignmentView(1).apply(update(TopicPut(TOPIC), ShardPut(SHARD), NodePut(NODE)))
    (assignment,) = change.assignments
    assert assignment.shard == "orders-1_0"
    assert (assignment.leader, assignment.min_insync) == (1, 2)
    assert change.broker_epochs == {1: 5}


def test_shards_of_other_nodes_and_shards_with_one_copy_are_not_assigned() -> None:
    elsewhere = AssignmentView(9).apply(update(TopicPut(TOPIC), ShardPut(SHARD)))
    assert not elsewhere.assignments
    alone = replace(TOPIC, config=TopicConfig())
    single = replace(SHARD, replicas=(1,), in_sync=(1,))
    assert not AssignmentView(1).apply(update(TopicPut(alone), ShardPut(single))).assignments


def test_a_shard_that_leaves_the_node_or_is_deleted_is_removed() -> None:
    moved = view().apply(update(ShardPut(replace(SHARD, replicas=(2, 3), in_sync=(2, 3)))))
    deleted = view().apply(update(ShardDeleted("orders-1", 0)))
    assert moved.removed == deleted.removed == ("orders-1_0",)


def test_a_reset_removes_what_it_does_not_name() -> None:
    kept = view().apply(update(TopicPut(TOPIC), ShardPut(SHARD), is_reset=True))
    gone = view().apply(update(TopicPut(TOPIC), is_reset=True))
    assert (kept.removed, gone.removed) == ((), ("orders-1_0",))


def test_another_minimum_of_the_topic_is_a_new_assignment() -> None:
    changed = replace(TOPIC, config=TopicConfig(replication=3, min_insync=3))
    (assignment,) = view().apply(update(TopicPut(changed))).assignments
    assert assignment.min_insync == 3


def test_nodes_that_are_offline_or_removed_take_no_part() -> None:
    known = view()
    assert known.apply(update(NodePut(replace(NODE, status="offline")))).broker_epochs == {}
    draining = replace(NODE, status="draining", epoch=6)
    assert known.apply(update(NodePut(draining))).broker_epochs == {1: 6}
    assert known.apply(update(NodeRemoved(1))).broker_epochs == {}
