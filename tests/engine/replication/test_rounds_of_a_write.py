"""How many messages a replicated write takes."""

from __future__ import annotations

from tests.engine.replication.simulated_log import SimulatedLog

from penstock.engine.replication import Assignment, ReplicaCore
from penstock.engine.replication.effects import Send
from penstock.engine.replication.messages import FetchReply, Message

SHARD = "t_0"
NODES = (1, 2, 3)
BROKERS = {1: 10, 2: 20, 3: 30}
LED = Assignment(
    shard=SHARD,
    replicas=NODES,
    in_sync=NODES,
    eligible=(),
    leader=1,
    leader_epoch=1,
    partition_epoch=3,
    min_insync=2,
)


class Trio:
    """A leader and two followers whose messages arrive immediately."""

    def __init__(self) -> None:
        self.logs = {node: SimulatedLog(is_sync=False) for node in NODES}
        self.cores = {node: self._core(node) for node in NODES}
        self.now = 0.0
        for node, core in self.cores.items():
            core.registered(BROKERS[node])
            core.apply(self.now, [LED], BROKERS)
        self.tick()
        self.tick()

    def _core(self, node: int) -> ReplicaCore:
        return ReplicaCore(node, lambda _: [self.logs[node]])

    def tick(self) -> list[Message]:
        self.now += 0.1
        for core in self.cores.values():
            core.tick(self.now)
        return self.deliver()

    def write(self, value: int) -> list[Message]:
        self.logs[1].append(value)
        self.cores[1].appended(self.now, SHARD)
        return self.deliver()

    def deliver(self) -> list[Message]:
        """Deliver messages until there are none; return the replies of the leader."""
        replies: list[Message] = []
        while sent := [
            (node, effect)
            for node, core in self.cores.items()
            for effect in core.drain_effects()
            if isinstance(effect, Send)
        ]:
            for node, effect in sent:
                self.cores[effect.to].receive(self.now, node, effect.message)
                replies += [effect.message] if isinstance(effect.message, FetchReply) else []
        return replies


def test_a_write_takes_one_reply_to_each_follower() -> None:
    trio = Trio()
    assert len(trio.write(7)) == 2
    assert trio.logs[1].commit == 1
    assert len(trio.write(8)) == 2
    assert trio.logs[1].commit == 2


def test_followers_learn_the_commit_offset_with_the_next_records_or_tick() -> None:
    trio = Trio()
    trio.write(7)
    assert [trio.logs[node].commit for node in NODES] == [1, 0, 0]
    trio.write(8)
    assert [trio.logs[node].commit for node in NODES] == [2, 1, 1]
    assert len(trio.tick()) == 2
    assert [trio.logs[node].commit for node in NODES] == [2, 2, 2]
    assert trio.tick() == []
