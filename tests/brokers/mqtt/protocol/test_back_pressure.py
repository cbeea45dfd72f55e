"""Publishes that wait for a device, and clients that are faster than it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import PATIENCE_S, node_settings, port_of, serve

from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Ack,
    Connect,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.remote.server.node_server import Server

SETTINGS = node_settings(broker__flush_disk_type="SYNC_FLUSH", unacknowledged_size_max=4096)


def test_acknowledgements_of_synced_publishes_keep_their_order(directory: Path) -> None:
    with serve(directory, SETTINGS) as server, RawClient(port_of(server)) as client:
        client.connect(Connect(MQTT_5, "synced"))
        count = 300
        packets = [
            Publish(f"synced/{number % 7}", b"x" * 100, 1 + number % 2, packet_id=number + 1)
            for number in range(count)
        ]
        sending = threading.Thread(target=client.send, args=packets)
        sending.start()
        acks = [client.receive(Ack) for _ in packets]
        sending.join(PATIENCE_S)
        assert [ack.packet_id for ack in acks] == list(range(1, count + 1))
        assert {ack.kind for ack in acks} == {PacketType.PUBACK, PacketType.PUBREC}
        client.send(Pingreq())
        client.receive(Pingresp)


@contextmanager
def slow_device(server: Server) -> Iterator[threading.Event]:
    """Let appends to the topic `mqtt` wait for an event."""
    route = server.node.driver_manager.routes.find("mqtt")
    driver, original = route.driver, route.driver.batch_write
    held = threading.Event()

    def wait(*arguments: object, **more: object) -> object:
        if arguments[0] in route.shards:
            held.wait(PATIENCE_S)
        return original(*arguments, **more)  # type: ignore[arg-type] # passed on

    driver.batch_write = wait  # type: ignore[misc,assignment] # until the test ends
    try:
        yield held
    finally:
        held.set()
        driver.batch_write = original  # type: ignore[misc] # as it was


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_is_read_from_a_client_whose_publishes_wait(directory: Path) -> None:
    with serve(directory, SETTINGS) as server, RawClient(port_of(server)) as client:
        assert server.mqtt is not None
        writer = server.mqtt.broker.writer
        client.connect(Connect(MQTT_5, "held", keep_alive=1))
        client.send(Publish("held", b"first", 1, packet_id=1))
        client.receive(Ack)
        with slow_device(server):
            client.send(*[Publish("held", b"x" * 1000, 1, packet_id=n) for n in range(2, 100)])
            wait_until(lambda: writer.waiting_size >= 4096)
            # Longer than the keep-alive: the client cannot show that it lives.
            time.sleep(2.0)
        assert [client.receive(Ack).packet_id for _ in range(98)] == list(range(2, 100))


def test_a_publish_that_is_repeated_on_another_connection_is_stored_first(directory: Path) -> None:
    keeps = Properties(session_expiry_interval=60)
    with (
        serve(directory, SETTINGS) as server,
        RawClient(port_of(server)) as watching,
        RawClient(port_of(server)) as first,
        RawClient(port_of(server)) as second,
    ):
        assert server.mqtt is not None
        writer = server.mqtt.broker.writer
        watching.connect(Connect(MQTT_5, "watching"))
        watching.send(Subscribe(1, [SubscriptionRequest("again", 0)]))
        watching.receive(Suback)
        first.connect(Connect(MQTT_5, "again", clean_start=False, properties=keeps))
        first.send(Publish("again", b"0", 1, packet_id=1))
        first.receive(Ack)
        with slow_device(server) as held:
            first.send(Publish("again", b"1", 2, packet_id=7))
            wait_until(lambda: writer.waiting_size > 0)
            second.connect(Connect(MQTT_5, "again", clean_start=False, properties=keeps))
            second.send(Publish("again", b"1", 2, dup=True, packet_id=7), Pingreq())
            second.receive(Pingresp)
            assert second.is_silent()
            held.set()
            assert second.receive(Ack) == Ack(PacketType.PUBREC, 7)
        second.send(Ack(PacketType.PUBREL, 7))
        assert second.receive(Ack) == Ack(PacketType.PUBCOMP, 7)
        second.send(Publish("again", b"2", 1, packet_id=8))
        assert [watching.receive(Publish).payload for _ in range(3)] == [b"0", b"1", b"2"]
