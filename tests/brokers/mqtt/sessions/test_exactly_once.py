"""QoS 2 from a publisher to a subscriber, while the node is killed again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.brokers.mqtt.node_process import NodeProcess
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import PATIENCE_S

from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Ack,
    Connect,
    Packet,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    SubscriptionRequest,
)

IN_FLIGHT = 5


class Peer(threading.Thread):
    """A client that connects again until it is done; its state outlives its connections."""

    def __init__(self, port: int, client_id: str) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.client_id = client_id
        self.is_done = threading.Event()
        self.error: BaseException | None = None
        self.connects = 0

    def run(self) -> None:
        try:
            while not self.is_done.is_set():
                try:
                    self._serve()
                except OSError:
                    time.sleep(0.01)  # the node is being started
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error
            self.is_done.set()

    def _serve(self) -> None:
        with RawClient(self.port) as client:
            connect = Connect(MQTT_5, self.client_id, clean_start=False)
            connect.properties = Properties(session_expiry_interval=3600, receive_maximum=IN_FLIGHT)
            client.send(connect)
            if client.next() is None:
                return
            self.connects += 1
            self.connected(client)
            while not self.is_done.is_set():
                packet = client.next()
                if packet is None:
                    return
                self.received(client, packet)

    def connected(self, client: RawClient) -> None: ...

    def received(self, client: RawClient, packet: Packet) -> None: ...


class Publisher(Peer):
    def __init__(self, port: int, count: int) -> None:
        super().__init__(port, "publisher")
        self.left = list(range(count, 0, -1))
        self.sent: dict[int, int] = {}
        self.released: set[int] = set()

    def connected(self, client: RawClient) -> None:
        client.send(*[Ack(PacketType.PUBREL, packet_id) for packet_id in sorted(self.released)])
        for packet_id, number in self.sent.items():
            client.send(Publish("t", b"%d" % number, 2, dup=True, packet_id=packet_id))
        self._fill(client)

    def received(self, client: RawClient, packet: Packet) -> None:
        assert isinstance(packet, Ack)
        assert packet.reason_code in {0, 0x92}
        if packet.kind == PacketType.PUBREC:
            if self.sent.pop(packet.packet_id, None) is not None:
                self.released.add(packet.packet_id)
            client.send(Ack(PacketType.PUBREL, packet.packet_id))
        else:
            self.released.discard(packet.packet_id)
            self._fill(client)

    def _fill(self, client: RawClient) -> None:
        for packet_id in range(1, IN_FLIGHT + 1):
            if self.left and packet_id not in self.sent and packet_id not in self.released:
                self.sent[packet_id] = number = self.left.pop()
                client.send(Publish("t", b"%d" % number, 2, packet_id=packet_id))
        if not (self.left or self.sent or self.released):
            self.is_done.set()


class Subscriber(Peer):
    def __init__(self, port: int) -> None:
        super().__init__(port, "subscriber")
        self.numbers: list[int] = []
        self.unreleased: set[int] = set()
        self.is_subscribed = threading.Event()

    def connected(self, client: RawClient) -> None:
        if not self.is_subscribed.is_set():
            client.send(Subscribe(1, [SubscriptionRequest("t", 2)]))

    def received(self, client: RawClient, packet: Packet) -> None:
        if isinstance(packet, Publish):
            if packet.packet_id not in self.unreleased:
                self.unreleased.add(packet.packet_id)
                self.numbers.append(int(packet.payload))
            client.send(Ack(PacketType.PUBREC, packet.packet_id))
        elif isinstance(packet, Ack):
            self.unreleased.discard(packet.packet_id)
            client.send(Ack(PacketType.PUBCOMP, packet.packet_id))
        else:
            self.is_subscribed.set()


def poll(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _has(subscriber: Subscriber, count: int) -> bool:
    return len(subscriber.numbers) >= count or subscriber.error is not None


def run_with_kills(path: Path, count: int, kills: int) -> None:
    with NodeProcess(path / "data") as node:
        subscriber, publisher = Subscriber(node.port), Publisher(node.port, count)
        subscriber.start()
        assert subscriber.is_subscribed.wait(PATIENCE_S)
        publisher.start()
        for kill in range(kills):
            wanted = count * (kill + 1) // (kills + 1)
            poll(partial(_has, subscriber, wanted))
            node.kill()
            node.start()
        poll(lambda: publisher.is_done.is_set() or bool(subscriber.error))
        poll(partial(_has, subscriber, count))
        subscriber.is_done.set()
        for peer in (publisher, subscriber):
            assert peer.error is None, peer.error
        assert sorted(subscriber.numbers) == list(range(1, count + 1))


def test_messages_of_qos_2_arrive_once_while_the_node_is_killed(tmp_path: Path) -> None:
    run_with_kills(tmp_path, count=1_500, kills=2)


@pytest.mark.soak
def test_messages_of_qos_2_arrive_once_over_many_kills(tmp_path: Path) -> None:
    run_with_kills(tmp_path, count=60_000, kills=40)
