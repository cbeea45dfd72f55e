"""Many clients publish to the same shards while another writer appends to them."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import port_of, serve

from penstock.brokers.mqtt.wire.codec import encode
from penstock.brokers.mqtt.wire.packets import (
    Ack,
    PacketType,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.record import Record
from penstock.remote.server.node_server import Server

TOPICS = [f"shared/{number}" for number in range(5)]
DONE = "shared/done"


def publish_all(port: int, name: str, count: int, seed: int) -> None:
    """Publish numbered messages in random buffers, some of them in pieces, and wait for the end."""
    rng = random.Random(seed)
    with RawClient(port, 4) as client:
        client.connect(client_id=name)
        number = 0
        while number < count:
            size = min(rng.randrange(1, 40), count - number)
            packets = []
            for packet_id in range(1, size + 1):
                payload = f"{name} {number}".encode() + b"." * rng.randrange(50)
                qos = rng.choice([1, 1, 1, 2])
                retain = rng.random() < 0.02
                packets.append(Publish(rng.choice(TOPICS), payload, qos, retain, False, packet_id))
                number += 1
            data = b"".join(encode(packet, 4) for packet in packets)
            cut = rng.randrange(len(data))
            client.send_bytes(data[:cut])
            client.send_bytes(data[cut:])
            kinds = {packet.packet_id: packet.qos for packet in packets}
            for packet_id, qos in kinds.items():
                ack = client.receive(Ack)
                assert ack.packet_id == packet_id
                assert ack.kind == (PacketType.PUBACK if qos == 1 else PacketType.PUBREC)
            releases = [Ack(PacketType.PUBREL, each) for each, qos in kinds.items() if qos == 2]
            client.send(*releases)
            for release in releases:
                assert client.receive(Ack) == Ack(PacketType.PUBCOMP, release.packet_id)


def write_all(server: Server, count: int) -> None:
    """Append records as another writer does: without the front end."""
    for number in range(count):
        topic = TOPICS[number % len(TOPICS)]
        server.node.driver_manager.write(
            "mqtt", Record(f"foreign {number}".encode(), topic.encode(), (topic,))
        )


def collect(port: int, ready: threading.Event, found: list[Publish]) -> None:
    with RawClient(port, 4) as reader:
        reader.connect(client_id="reader")
        reader.send(Subscribe(1, [SubscriptionRequest("shared/#", 2)]))
        reader.receive(Suback)
        ready.set()
        while True:
            packet = reader.next()
            if isinstance(packet, Ack):
                reader.send(Ack(PacketType.PUBCOMP, packet.packet_id))
                continue
            assert isinstance(packet, Publish)
            if packet.topic == DONE:
                return
            found.append(packet)
            if packet.qos == 1:
                reader.send(Ack(PacketType.PUBACK, packet.packet_id))
            elif packet.qos == 2:
                reader.send(Ack(PacketType.PUBREC, packet.packet_id))


@pytest.mark.parametrize("seed", [random.randrange(1 << 30)], ids=["random"])
def test_all_messages_are_delivered_once_and_in_their_order(tmp_path: Path, seed: int) -> None:
    count, foreign = 400, 100
    found: list[Publish] = []
    ready = threading.Event()
    with serve(tmp_path / "data") as server:
        port = port_of(server)
        publish_all(port, "first", 10, seed)
        reader = threading.Thread(target=collect, args=(port, ready, found))
        reader.start()
        assert ready.wait(60)
        writers = [
            threading.Thread(target=publish_all, args=(port, f"p{number}", count, seed + number))
            for number in range(4)
        ]
        writers.append(threading.Thread(target=write_all, args=(server, foreign)))
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(120)
        with RawClient(port, 4) as client:
            client.connect(client_id="last")
            expected = 4 * count + foreign
            _wait_until(lambda: len(_of_others(found)) >= expected)
            client.send(Publish(DONE, b""))
            reader.join(60)
    assert not reader.is_alive()
    _check_order(_of_others(found), count, foreign)


def _of_others(found: list[Publish]) -> list[Publish]:
    """Leave out retained messages from before the subscription."""
    return [publish for publish in list(found) if not publish.payload.startswith(b"first")]


def _wait_until(is_reached: object) -> None:
    assert callable(is_reached)
    pause = threading.Event()
    for _ in range(600):
        if is_reached():
            return
        pause.wait(0.1)


def _check_order(found: list[Publish], count: int, foreign: int) -> None:
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for publish in found:
        name, number = publish.payload.rstrip(b".").decode().split(" ")
        numbers[name, publish.topic].append(int(number))
    for key, seen in numbers.items():
        assert seen == sorted(set(seen)), key
    for name in [f"p{number}" for number in range(4)]:
        total = sum(len(seen) for (each, _), seen in numbers.items() if each == name)
        assert total == count, name
    assert sum(len(seen) for (name, _), seen in numbers.items() if name == "foreign") == foreign
