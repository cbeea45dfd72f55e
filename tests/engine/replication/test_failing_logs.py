"""A log that fails holds up its own shard only."""

from __future__ import annotations

from collections.abc import Sequence

from tests.engine.replication.simulated_log import SimulatedLog

from penstock.engine.replication import ReplicaCore, Send
from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.core import OpenLogs
from penstock.engine.replication.effects import Assigned, Failed
from penstock.engine.replication.log import ReplicaLog
from penstock.errors import BusyError, UnknownShardError

SHARDS = ("a_0", "b_0", "c_0")
EPOCHS = {1: 1, 2: 2}


class FailingLog(SimulatedLog):
    """Fails like a full disk, or like a shard that was deleted, while it is told to."""

    def __init__(self) -> None:
        super().__init__(is_sync=False)
        self.is_full = False
        self.is_gone = False

    def append_range(self, data: bytes) -> None:
        if self.is_full:
            raise BusyError("the disk is full")
        super().append_range(data)

    @property
    def commit(self) -> int:
        if self.is_gone:
            raise UnknownShardError("gone")
        return super().commit


class Pair:
    """Node 1 leads all shards, node 2 follows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.logs = {node: {shard: FailingLog() for shard in SHARDS} for node in EPOCHS}
        self.unopened: set[str] = set()
        self.cores = {node: ReplicaCore(node, self._opener(node)) for node in EPOCHS}
        self.failures: list[str] = []
        self.assigned: list[tuple[int, str]] = []
        assignments = [Assignment(shard, (1, 2), (1, 2), (), 1, 1, 1, 2) for shard in SHARDS]
        self.assignments = assignments

    def _opener(self, node: int) -> OpenLogs:
        def open_logs(shard: str) -> Sequence[ReplicaLog]:
            if node == 2 and shard in self.unopened:
                raise BusyError("the disk is full")
            return [self.logs[node][shard]]

        return open_logs

    def start(self) -> None:
        for node, core in self.cores.items():
            core.registered(EPOCHS[node])
            core.apply(self.now, self.assignments, EPOCHS)
        self.exchange()

    def write(self) -> None:
        for shard in SHARDS:
            self.logs[1][shard].append(7)
            self.cores[1].appended(self.now, shard)
        self.exchange()

    def exchange(self) -> None:
        for _ in range(100):
            sent = [
                (node, effect)
                for node, core in self.cores.items()
                for effect in core.drain_effects()
            ]
            if not sent:
                return
            for node, effect in sent:
                if isinstance(effect, Send):
                    self.cores[effect.to].receive(self.now, node, effect.message)
                elif isinstance(effect, Failed):
                    self.failures.append(effect.shard)
                elif isinstance(effect, Assigned):
                    self.assigned.append((node, effect.assignment.shard))

    def tick(self, count: int = 30) -> None:
        for _ in range(count):
            self.now += 0.1
            for core in self.cores.values():
                core.tick(self.now)
            self.exchange()

    def ends(self) -> list[int]:
        return [self.logs[2][shard].end for shard in SHARDS]


def test_a_full_disk_of_one_shard_does_not_hold_up_the_others_of_its_session() -> None:
    pair = Pair()
    pair.start()
    pair.logs[2]["a_0"].is_full = True
    pair.write()
    pair.tick()
    assert pair.ends() == [0, 1, 1]
    assert set(pair.failures) == {"a_0"}
    pair.write()
    pair.tick()
    assert pair.ends() == [0, 2, 2]
    pair.logs[2]["a_0"].is_full = False
    pair.tick()
    assert pair.ends() == [2, 2, 2]


def test_a_follower_whose_shard_is_deleted_goes_on_with_the_others() -> None:
    pair = Pair()
    pair.start()
    pair.logs[2]["b_0"].is_gone = True
    pair.write()
    pair.tick()
    assert [pair.logs[2][shard].end for shard in ("a_0", "c_0")] == [1, 1]


def test_a_leader_whose_shard_is_deleted_goes_on_with_the_others() -> None:
    pair = Pair()
    pair.start()
    pair.logs[1]["b_0"].is_gone = True
    pair.write()
    pair.tick()
    assert [pair.logs[2][shard].end for shard in ("a_0", "c_0")] == [1, 1]
    assert [pair.logs[1][shard].commit for shard in ("a_0", "c_0")] == [1, 1]


def test_a_shard_that_cannot_be_opened_is_opened_later() -> None:
    pair = Pair()
    pair.unopened.add("a_0")
    pair.start()
    pair.write()
    pair.tick()
    assert pair.ends() == [0, 1, 1]
    pair.unopened.clear()
    pair.tick()
    assert pair.ends() == [1, 1, 1]
    assert (2, "a_0") in pair.assigned
