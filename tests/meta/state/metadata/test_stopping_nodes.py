"""A node that is about to stop: who leads its shards, by one entry of the metadata."""

from __future__ import annotations

from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import HANDOVER_ROLE, OFFLINE, REPLICATION_ROLE, STOPPING
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.machine import apply
from penstock.meta.state.metadata.rows import NODES, SHARDS
from penstock.meta.state.model import Shard, TopicConfig
from penstock.meta.state.view import MemoryView

ROLES = (REPLICATION_ROLE, HANDOVER_ROLE)


def run(view: MemoryView, command: cmd.Command) -> cmd.Applied:
    answer = apply(view, cmd.Request(1, command))
    assert isinstance(answer, cmd.Applied), answer
    return answer


def cluster(partitions: int, *, roles: tuple[str, ...] = ROLES) -> MemoryView:
    """Return a cluster of three nodes with a topic that node 1 leads."""
    view = MemoryView()
    for node in (1, 2, 3):
        known = roles if node == 3 else ROLES
        run(view, cmd.RegisterNode(node, "h", {}, known, f"run-{node}", f"store-{node}"))
    placements = tuple(cmd.Placement(number, (1, 2, 3), 1) for number in range(partitions))
    config = TopicConfig(replication=3)
    run(view, cmd.CreateTopic("t", "default", "t", partitions, config, placements))
    return view


def shards_of(view: MemoryView) -> list[Shard]:
    return list(SHARDS.scan(view, "t"))


def test_others_lead_evenly_under_new_epochs_and_the_node_stays_in_sync() -> None:
    view = cluster(6)
    before = shards_of(view)
    answer = run(view, cmd.SetNodeStatus(1, STOPPING))
    after = shards_of(view)
    assert sorted(shard.leader or 0 for shard in after) == [2, 2, 2, 3, 3, 3]
    for old, new in zip(before, after, strict=True):
        assert new.leader_epoch == old.leader_epoch + 1
        assert new.partition_epoch > old.partition_epoch
        assert new.in_sync == (1, 2, 3)
    assert len(answer.events) == 13, "the node, its shards and their segments, in one entry"


def test_the_last_node_that_stays_gets_what_the_others_hand_over() -> None:
    view = cluster(4)
    run(view, cmd.SetNodeStatus(1, STOPPING))
    run(view, cmd.SetNodeStatus(2, STOPPING))
    assert {shard.leader for shard in shards_of(view)} == {3}
    epochs = [shard.leader_epoch for shard in shards_of(view)]
    run(view, cmd.SetNodeStatus(3, STOPPING))
    assert {shard.leader for shard in shards_of(view)} == {3}, "no node that stays can lead"
    assert [shard.leader_epoch for shard in shards_of(view)] == epochs
    run(view, cmd.SetNodeStatus(3, OFFLINE))
    assert None not in {shard.leader for shard in shards_of(view)}


def test_a_replica_that_is_not_in_sync_gets_no_lead() -> None:
    view = cluster(1)
    (shard,) = shards_of(view)
    epochs = {node.node_id: node.epoch for node in NODES.scan(view)}
    change = cmd.InSyncChange("t", 0, shard.leader_epoch, 0, ((1, epochs[1]),))
    run(view, cmd.ChangeInSyncSets(1, epochs[1], (change,)))
    run(view, cmd.SetNodeStatus(1, STOPPING))
    assert [shard.leader for shard in shards_of(view)] == [1]


def test_a_cluster_with_an_older_release_refuses_the_status_as_that_release_does() -> None:
    view = cluster(1, roles=(REPLICATION_ROLE,))
    answer = apply(view, cmd.Request(1, cmd.SetNodeStatus(1, STOPPING)))
    assert isinstance(answer, Rejected)
    assert answer.reason == "a node cannot be 'stopping'"
    assert [shard.leader for shard in shards_of(view)] == [1]
