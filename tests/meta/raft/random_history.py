"""A history of one seed: clients write and read while nodes crash and the network misbehaves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.meta.raft.simulated_cluster import SimulatedCluster, SimulatedNode

VOTER, REMOVED, LEARNER = 0, 1, 2


class RandomHistory:
    def __init__(self, seed: int) -> None:
        self.cluster = SimulatedCluster(seed, nodes=3 if seed % 4 else 5, groups=1 + seed % 3)
        self.random = self.cluster.random

    def play(self, ticks: int = 200) -> SimulatedCluster:
        cluster = self.cluster
        cluster.run_until(lambda: cluster.leader(0) is not None)
        for _ in range(ticks):
            if self.random.random() < 0.08:
                self.random.choice(self._troubles())()
            self._use()
            cluster.tick()
        self._replace_one()
        cluster.check_settled(tuple(cluster.nodes))
        return cluster

    def _use(self) -> None:
        running = self.cluster.running()
        for _ in range(self.random.randint(0, 3)):
            if running:
                node = self.random.choice(running)
                group = self.random.randrange(self.cluster.group_count)
                if self.random.random() < 0.6:
                    self.cluster.append(node.node_id, group)
                else:
                    self.cluster.read(node.node_id, group)

    def _troubles(self) -> list[Callable[[], None]]:
        return [
            self._bad_network,
            self._partition,
            self._one_way,
            self._crash,
            self._crash_in_a_call,
            self._kill,
            self._kill_leader,
            self._transfer,
            self.cluster.heal,
            self.cluster.heal,
        ]

    def _bad_network(self) -> None:
        self.cluster.drop_rate = self.random.choice([0.0, 0.05, 0.3])
        self.cluster.repeat_rate = self.random.choice([0.0, 0.2])
        self.cluster.delay_max = self.random.choice([1, 4, 12])

    def _partition(self) -> None:
        nodes = list(self.cluster.nodes)
        self.random.shuffle(nodes)
        cut = self.random.randint(1, len(nodes) - 1)
        for one in nodes[:cut]:
            for other in nodes[cut:]:
                self.cluster.cut_links |= {(one, other), (other, one)}

    def _one_way(self) -> None:
        one, other = self.random.sample(list(self.cluster.nodes), 2)
        self.cluster.cut_links.add((one, other))

    def _one_running(self) -> SimulatedNode | None:
        running = self.cluster.running()
        return self.random.choice(running) if running else None

    def _crash(self) -> None:
        node = self._one_running()
        if node is not None:
            node.crash(self.random, self.random.randint(1, 40))

    def _crash_in_a_call(self) -> None:
        node = self._one_running()
        if node is not None:
            database = node.database
            database.stop_at = len(database.operations) + self.random.randint(0, 12)
            database.is_done_at_stop = self.random.random() < 0.5

    def _kill(self) -> None:
        node = self._one_running()
        if node is not None:
            node.kill(self.random.randint(1, 40))

    def _kill_leader(self) -> None:
        leader = self.cluster.leader(self.random.randrange(self.cluster.group_count))
        if leader is not None:
            leader.crash(self.random, self.random.randint(1, 40))

    def _transfer(self) -> None:
        group = self.random.randrange(self.cluster.group_count)
        leader = self.cluster.leader(group)
        if leader is not None:
            leader.groups[group].transfer(self.random.choice(list(self.cluster.nodes)))

    def _replace_one(self) -> None:
        """Take a node out of all groups, wipe it, and let it join again."""
        cluster = self.cluster
        cluster.heal()
        cluster.run_until(lambda: len(cluster.running()) == len(cluster.nodes))
        wiped, through = self.random.sample(list(cluster.nodes), 2)
        groups = range(cluster.group_count)
        cluster.nodes[wiped].wipe()
        for kind in (REMOVED, LEARNER, VOTER):
            for group in groups:
                self._change_members(through, group, (kind, wiped))

    def _change_members(self, through: int, group: int, change: tuple[int, int]) -> None:
        # A leader that takes over may drop a change; asking again is what an operator's tool does.
        outcome: list[object] = []
        for _ in range(5):
            outcome = self.cluster.change(through, group, change)
            self.cluster.run_until(partial(bool, outcome))
            if outcome == [None]:
                return
        raise AssertionError(f"seed {self.cluster.seed}: {outcome}")
