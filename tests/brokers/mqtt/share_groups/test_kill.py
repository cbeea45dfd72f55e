"""The node is killed while a group has messages in flight: QoS 1 arrives at some member, QoS 2 at
one member, once."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.brokers.mqtt.clients.steady_client import LostConnectionError, SteadyClient
from tests.brokers.mqtt.node_process import NodeProcess
from tests.brokers.mqtt.serving import PATIENCE_S

MESSAGES = 8
GROUP = "$share/g/crash/#"
MEMBERS = ("x", "y")


class KillError(Exception):
    """The node was killed at this packet."""


class Round:
    """Publishes messages that two members receive, while the node is killed at one packet."""

    def __init__(self, node: NodeProcess, qos: int, seed: int) -> None:
        self._node = node
        self._qos = qos
        self._random = random.Random(seed)
        self._left = self._random.randrange(1, 7 * MESSAGES)
        """Packets until the node is killed."""
        self._publisher = SteadyClient("publisher", self._count)
        self._members = [SteadyClient(name, self._count) for name in MEMBERS]
        self._waiting = [b"%d/%d" % (seed, number) for number in range(MESSAGES)]
        self._sent: list[bytes] = []

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            time.sleep(self._random.choice((0.0, 0.001, 0.003)))
            self._node.kill()
            raise KillError

    @property
    def received(self) -> Counter[bytes]:
        return sum((member.received for member in self._members), Counter())

    def run(self) -> None:
        clients = [self._publisher, *self._members]
        for client in clients:
            client.connect(self._node.port)
        try:
            for member in self._members:
                member.subscribe(GROUP, self._qos)
            self._work()
        except (KillError, LostConnectionError):
            self._left = -1
            self._node.start()
            for client in clients:
                client.connect(self._node.port)
            for member in self._members:
                member.subscribe(GROUP, self._qos)
            self._work()
        for client in clients:
            client.close()

    def _work(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._waiting or self._publisher.has_unfinished or not self._has_all():
            assert time.monotonic() < deadline, (self.received, self._node.log)
            if self._waiting:
                payload = self._waiting.pop()
                self._sent.append(payload)
                self._publisher.publish("crash/topic", payload, self._qos)
            if self._publisher.has_unfinished:
                self._publisher.process()
            for member in self._members:
                if member.has_input:
                    member.process()

    def _has_all(self) -> bool:
        return all(payload in self.received for payload in self._sent)

    def check(self) -> None:
        own = {payload: self.received[payload] for payload in self._sent}
        if self._qos == 2:
            assert all(count == 1 for count in own.values()), (own, self._node.log)
        else:
            assert all(count >= 1 for count in own.values()), (own, self._node.log)


def run_rounds(directory: Path, seeds: range) -> None:
    with NodeProcess(directory) as node:
        for seed in seeds:
            one = Round(node, 1 + seed % 2, seed)
            one.run()
            one.check()


def test_a_group_delivers_everything_when_the_node_is_killed(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", range(6))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_group_delivers_everything_when_the_node_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    run_rounds(tmp_path / "data", range(6, 150))
