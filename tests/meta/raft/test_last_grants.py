"""Random histories of leaders: no lease of an earlier one begins later than voters have reported.

A lease begins when a node sends its heartbeat, here: when the leader's read begins that confirms
its lead. Nodes are killed, lose power, stand still, and the network drops, delays and cuts.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.meta.raft.simulated_cluster import SimulatedCluster, SimulatedNode

from penstock.errors import StoreError
from penstock.meta.raft.multi_raft import MultiRaft

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

TICKS = 200
SEEDS_A_TEST = 10
Paused = dict[int, tuple[MultiRaft, int]]


class LeaseHistory:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = SimulatedCluster(seed, nodes=self.random.choice((3, 5)), groups=1)
        self.grants: list[tuple[int, int]] = []
        """The term of a leader, and when a lease began that it granted."""
        self.contacts: dict[tuple[int, int], int] = {}
        """For each term and voter: the earliest moment that its reports came to."""
        self.bounds: dict[int, int] = {}
        self.paused: Paused = {}

    def play(self) -> LeaseHistory:
        for _ in range(TICKS):
            self._disturb()
            self.cluster.tick()
            for node in self.cluster.running():
                self._begin_lease(node)
                self._report(node)
            self._check()
        return self

    def _disturb(self) -> None:
        cluster, random = self.cluster, self.random
        for number, (multi, until) in list(self.paused.items()):
            if cluster.now >= until:
                cluster.nodes[number].multi = multi
                del self.paused[number]
        if random.random() > 0.12:
            return
        node, leader = random.choice(list(cluster.nodes.values())), cluster.leader(0)
        if leader is not None and random.random() < 0.5:
            node = leader
        if node.multi is not None and random.random() < 0.5:
            self._stop(node, node.multi)
        elif leader is not None and random.random() < 0.3:
            leader.groups[0].transfer(random.choice(list(cluster.nodes)))
        else:
            self._change_network(node.node_id)

    def _stop(self, node: SimulatedNode, multi: MultiRaft) -> None:
        random = self.random
        match random.randint(0, 3):
            case 0:
                node.kill(random.randint(1, 20))
            case 1:
                node.crash(random, random.randint(1, 20))
            case _:
                # What is sent to it meanwhile is lost, as in buffers that are full.
                until = self.cluster.now + random.randint(1, 40)
                self.paused[node.node_id] = multi, until
                node.multi, node.down_until = None, until + 1

    def _change_network(self, node: int) -> None:
        cluster, random = self.cluster, self.random
        cluster.cut_links.clear()
        if random.random() < 0.5:
            cluster.drop_rate = random.choice((0.0, 0.0, 0.1))
            cluster.delay_max = random.choice((1, 4, 12))
            return
        others = [number for number in cluster.nodes if number != node]
        cluster.cut_links |= {(node, other) for other in others}
        if random.random() < 0.5:
            cluster.cut_links |= {(other, node) for other in others}

    def _begin_lease(self, node: SimulatedNode) -> None:
        group = node.groups[0]
        if not group.is_leader:
            return
        term, began = group.term, self.cluster.now

        def confirmed(error: StoreError | None) -> None:
            if error is None and group.is_leader and group.term == term:
                self.grants.append((term, began))

        group.read(confirmed)

    def _report(self, node: SimulatedNode) -> None:
        term, ticks = node.groups[0].contact.report
        moment = self.cluster.now - ticks
        key = term, node.node_id
        self.contacts[key] = min(moment, self.contacts.get(key, moment))
        majority = len(self.cluster.nodes) // 2 + 1
        known = sorted(moment for (of, _), moment in self.contacts.items() if of == term)
        if len(known) >= majority:
            self.bounds[term] = known[majority - 1]

    def _check(self) -> None:
        for term, bound in self.bounds.items():
            late = [grant for grant in self.grants if grant[0] < term and grant[1] > bound]
            assert not late, f"seed {self.cluster.seed}: {late} after {bound}, term {term}"


@pytest.mark.parametrize("start", range(0, 200, SEEDS_A_TEST))
def test_no_lease_begins_after_the_reported_contacts(start: int) -> None:
    histories = [LeaseHistory(seed).play() for seed in range(start, start + SEEDS_A_TEST)]
    terms = sum(len({term for term, _ in history.grants}) for history in histories)
    assert terms > 2 * SEEDS_A_TEST, "leaders changed, and granted leases"


def test_the_reports_of_a_majority_come_close_to_the_last_lease() -> None:
    """Else they would be right, and of no use."""
    cluster = SimulatedCluster(5, nodes=3, groups=1)
    cluster.run_until(lambda: cluster.leader(0) is not None)
    cluster.run(30)
    gone = cluster.leader(0)
    assert gone is not None
    gone.kill(1_000)
    ended = cluster.now
    cluster.run_until(lambda: cluster.leader(0) is not None)
    cluster.run(10)
    reports = [node.groups[0].contact.report for node in cluster.running()]
    assert len({term for term, _ in reports}) == 1
    assert all(0 <= cluster.now - ticks - ended <= 4 for _, ticks in reports)
