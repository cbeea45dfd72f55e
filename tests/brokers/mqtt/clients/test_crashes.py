"""The node is killed at any packet of a flow: QoS 1 messages arrive, QoS 2 messages arrive once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tests.brokers.mqtt.clients.steady_client import LostConnectionError, SteadyClient
from tests.brokers.mqtt.node_process import NodeProcess
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import PATIENCE_S

from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Ack,
    Connect,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)

MESSAGES = 6


class KillError(Exception):
    """The node was killed at this packet."""


class Round:
    """Publishes messages, and receives them, while the node is killed at one packet."""

    def __init__(self, node: NodeProcess, qos: int, seed: int) -> None:
        self._node = node
        self._qos = qos
        self._random = random.Random(seed)
        self._left = self._random.randrange(1, 6 * MESSAGES)
        """Packets until the node is killed."""
        self._publisher = SteadyClient("publisher", self._count)
        self._subscriber = SteadyClient("subscriber", self._count)
        self._waiting = [b"%d/%d/%d" % (seed, qos, number) for number in range(MESSAGES)]
        self._sent: list[bytes] = []

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            time.sleep(self._random.choice((0.0, 0.001, 0.003)))
            self._node.kill()
            raise KillError

    def run(self) -> None:
        clients = (self._publisher, self._subscriber)
        for client in clients:
            client.connect(self._node.port)
        try:
            self._work()
        except (KillError, LostConnectionError):
            self._left = -1
            self._node.start()
            for client in clients:
                assert client.connect(self._node.port)
            self._work()
        for client in clients:
            client.close()

    def _work(self) -> None:
        if not self._sent:
            self._subscriber.subscribe("crash/#", self._qos)
        deadline = time.monotonic() + PATIENCE_S
        while self._waiting or self._publisher.has_unfinished or not self._has_all():
            assert time.monotonic() < deadline, (self._subscriber.received, self._node.log)
            if self._waiting:
                payload = self._waiting.pop()
                self._sent.append(payload)
                self._publisher.publish("crash/topic", payload, self._qos)
            if self._publisher.has_unfinished:
                self._publisher.process()
            if self._subscriber.has_input:
                self._subscriber.process()

    def _has_all(self) -> bool:
        return all(payload in self._subscriber.received for payload in self._sent)

    def check(self) -> None:
        """Every message has arrived; with QoS 2 no message twice."""
        received = self._subscriber.received
        own = {payload: received[payload] for payload in self._sent}
        if self._qos == 2:
            assert all(count == 1 for count in own.values()), (own, self._node.log)
        else:
            assert all(count >= 1 for count in own.values()), (own, self._node.log)


def run_rounds(directory: Path, seeds: range, *settings: str) -> None:
    with NodeProcess(directory, *settings) as node:
        for name in ("publisher", "subscriber"):
            client = SteadyClient(name)
            client.connect(node.port)
            client.close()
        for seed in seeds:
            one = Round(node, 1 + seed % 2, seed)
            one.run()
            one.check()


def test_messages_arrive_when_the_node_is_killed(directory: Path) -> None:
    run_rounds(directory, range(8))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_messages_arrive_when_the_node_is_killed_again_and_again(
    directory: Path, flush: str
) -> None:
    run_rounds(directory, range(150), f"broker.flush_disk_type={flush}")


def test_what_was_acknowledged_is_there_after_the_node_is_killed(directory: Path) -> None:
    with NodeProcess(directory) as node:
        keeps = Properties(session_expiry_interval=600)
        with RawClient(node.port) as client:
            client.connect(Connect(MQTT_5, "away", clean_start=False, properties=keeps))
            client.send(Subscribe(1, [SubscriptionRequest("kept/#", 1)]))
            client.receive(Suback)
        with RawClient(node.port) as client:
            client.connect(Connect(MQTT_5, "writes"))
            for number, payload in enumerate((b"old", b"new"), start=1):
                client.send(Publish("kept/retained", payload, 1, retain=True, packet_id=number))
                client.receive(Ack)
            client.send(Publish("kept/removed", b"x", 1, retain=True, packet_id=3))
            client.receive(Ack)
            client.send(Publish("kept/removed", b"", 1, retain=True, packet_id=4))
            client.receive(Ack)
            node.kill()
        node.start()
        with RawClient(node.port) as client:
            client.connect(Connect(MQTT_5, "reads"))
            client.send(Subscribe(1, [SubscriptionRequest("kept/+", 1)]))
            client.receive(Suback)
            message = client.receive(Publish)
            assert (message.topic, message.payload) == ("kept/retained", b"new")
            assert client.is_silent()
        with RawClient(node.port) as client:
            connect = Connect(MQTT_5, "away", clean_start=False, properties=keeps)
            assert client.connect(connect).session_present
            received = [client.receive(Publish) for _ in range(4)]
            by_topic = {message.topic: message.payload for message in received}
            assert by_topic == {"kept/retained": b"new", "kept/removed": b""}
