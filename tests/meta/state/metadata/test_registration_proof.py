"""A node that registers again: which proof counts."""

from __future__ import annotations

import pytest

from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.machine import apply
from penstock.meta.state.metadata.rows import SHARDS
from penstock.meta.state.model import Shard, TopicConfig
from penstock.meta.state.view import MemoryView


def run(view: MemoryView, command: cmd.Command) -> cmd.Applied:
    answer = apply(view, cmd.Request(1, command))
    assert isinstance(answer, cmd.Applied), answer
    return answer


def register(view: MemoryView, node: int, run_id: str, *, epoch: int = 0, store: str = "S") -> None:
    command = cmd.RegisterNode(
        node,
        "h",
        {},
        ("replication",),
        run_id,
        store,
        is_proven=True,
        previous_epoch=epoch,
    )
    run(view, command)


def shard_after(epoch: int, store: str = "S") -> Shard:
    """Return the shard after its leader, node 1 under epoch 1, was restarted."""
    view = MemoryView()
    for node in (1, 2, 3):
        register(view, node, f"first-{node}")
    placement = cmd.Placement(0, (1, 2, 3), 1)
    config = TopicConfig(replication=3)
    run(view, cmd.CreateTopic("t", "default", "t", 1, config, (placement,)))
    register(view, 1, "second", epoch=epoch, store=store)
    shard = SHARDS.get(view, "t", 0)
    assert shard is not None
    return shard


def test_a_proof_of_the_last_epoch_keeps_the_leader_under_a_new_epoch() -> None:
    shard = shard_after(1)
    assert (shard.leader, shard.leader_epoch, shard.in_sync) == (1, 1, (1, 2, 3))


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_proof_of_another_epoch_is_none(epoch: int) -> None:
    shard = shard_after(epoch)
    assert (shard.leader, shard.in_sync, shard.eligible) == (2, (2, 3), ())


def test_a_proof_of_another_store_is_none() -> None:
    shard = shard_after(1, store="other")
    assert (shard.leader, shard.in_sync) == (2, (2, 3))
