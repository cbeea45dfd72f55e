"""Random histories of whole clusters; a failure names its seed, and the seed plays it again."""

from __future__ import annotations

import pytest
from tests.meta.raft.random_history import RandomHistory
from tests.meta.raft.simulated_cluster import SimulatedCluster

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

SEEDS_A_TEST = 10


@pytest.mark.parametrize("start", range(0, 300, SEEDS_A_TEST))
def test_nothing_acknowledged_is_lost_and_reads_are_linearizable(start: int) -> None:
    for seed in range(start, start + SEEDS_A_TEST):
        RandomHistory(seed).play(ticks=120)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(10_000, 15_000, 100))
def test_long_histories(start: int) -> None:
    for seed in range(start, start + 100):
        RandomHistory(seed).play(ticks=300)


def test_a_seed_plays_the_same_history_again() -> None:
    one, other = RandomHistory(7).play(), RandomHistory(7).play()
    assert one.states == other.states
    assert one.leaders == other.leaders
    assert [list(group) for group in one.acknowledged] == [
        list(group) for group in other.acknowledged
    ]


def test_members_of_a_healthy_cluster_are_never_shown_as_silent() -> None:
    """The core forgets whom it has heard of once in an election timeout."""
    cluster = SimulatedCluster(3, nodes=3, groups=1)
    cluster.run_until(lambda: cluster.leader(0) is not None)
    cluster.delay_max = 6
    cluster.run(20)
    leader = cluster.leader(0)
    assert leader is not None
    for _ in range(60):
        cluster.tick()
        assert [one[4] for one in leader.groups[0].status.progress] == [True] * 3
    silent = next(node for node in cluster.nodes if node != leader.node_id)
    cluster.nodes[silent].kill(1_000)
    cluster.run(15)
    active = {one[0]: one[4] for one in leader.groups[0].status.progress}
    assert active == {node: node != silent for node in cluster.nodes}
