"""The power goes at every single call of the database: the group comes back as it should."""

from __future__ import annotations

from functools import partial

import pytest
from tests.meta.raft.random_history import LEARNER, REMOVED, VOTER
from tests.meta.raft.simulated_cluster import LIMITS, SimulatedCluster, SimulatedNode

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


def _cluster_with_a_past(seed: int) -> SimulatedCluster:
    cluster = SimulatedCluster(seed, nodes=3, groups=1)
    cluster.run_until(lambda: cluster.leader(0) is not None)
    for _ in range(LIMITS.entries_max + 4):
        cluster.append(1, 0)
    cluster.run(6)
    return cluster


def _crash_at(node: SimulatedNode, call: int, *, is_done: bool) -> None:
    node.database.stop_at = len(node.database.operations) + call
    node.database.is_done_at_stop = is_done


def _is_running(node: SimulatedNode) -> bool:
    return node.multi is not None


def _has_values(node: SimulatedNode) -> bool:
    return bool(node.groups) and node.values(0) != []


@pytest.mark.parametrize("is_done", [False, True])
def test_a_crash_at_any_call_of_appends_and_compaction(is_done: bool) -> None:
    for call in range(24):
        cluster = _cluster_with_a_past(call)
        leader = cluster.leader(0)
        assert leader is not None
        _crash_at(leader, call, is_done=is_done)
        for _ in range(LIMITS.entries_max):
            running = cluster.running()
            cluster.append(running[0].node_id, 0)
            cluster.tick()
        cluster.check_settled((1, 2, 3))


@pytest.mark.parametrize("is_done", [False, True])
def test_a_crash_at_any_call_of_a_snapshot_that_is_installed(is_done: bool) -> None:
    crashed = 0
    for call in range(20):
        cluster = _cluster_with_a_past(100 + call)
        wiped = cluster.nodes[3]
        wiped.wipe()
        before = wiped.starts
        through = next(node for node in cluster.running() if node.node_id != 3)
        for kind in (REMOVED, LEARNER):
            outcome = cluster.change(through.node_id, 0, (kind, 3))
            cluster.run_until(partial(bool, outcome))
            if kind == REMOVED:
                cluster.run_until(partial(_is_running, wiped))
                before = wiped.starts
                _crash_at(wiped, call, is_done=is_done)
        cluster.run_until(partial(_has_values, wiped))
        outcome = cluster.change(through.node_id, 0, (VOTER, 3))
        cluster.run_until(partial(bool, outcome))
        cluster.check_settled((1, 2, 3))
        crashed += wiped.starts > before
    assert crashed > 3, "some calls lie within the installation"


@pytest.mark.parametrize("is_done", [False, True])
def test_a_crash_of_the_leader_at_any_call_while_it_sends_its_state(is_done: bool) -> None:
    crashed = 0
    for call in range(16):
        cluster = _cluster_with_a_past(200 + call)
        leader = cluster.leader(0)
        assert leader is not None
        late = next(node for node in cluster.nodes.values() if node is not leader)
        # It is away for long enough that it needs the state, and the leader writes on meanwhile.
        late.kill(60)
        for _ in range(2 * LIMITS.entries_max):
            cluster.append(leader.node_id, 0)
            cluster.tick()
        before = leader.starts
        late.down_until = 0
        cluster.run_until(partial(_is_running, late))
        _crash_at(leader, call, is_done=is_done)
        for _ in range(LIMITS.entries_max):
            cluster.append(cluster.running()[0].node_id, 0)
            cluster.tick()
        cluster.check_settled((1, 2, 3))
        crashed += leader.starts > before
    assert crashed > 8, "most calls lie within the transfer and the appends beside it"
