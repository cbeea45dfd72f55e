"""A client that subscribes again to what it is subscribed to keeps the messages that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.serving import port_of, serve
from tests.engine.quick_directory import quick_directory

from penstock.brokers.mqtt.client import ClientOptions, MqttClient, PacketChannel, open_channel
from penstock.brokers.mqtt.client.channel import exchange_connect
from penstock.brokers.mqtt.wire.packets import (
    Ack,
    Packet,
    PacketType,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)

WAIT_S = 60.0


@pytest.fixture
def port() -> Iterator[int]:
    with quick_directory() as directory, serve(Path(directory) / "data") as server:
        yield port_of(server)


async def next_packets(channel: PacketChannel, count: int) -> list[Packet]:
    packets: list[Packet] = []
    async with asyncio.timeout(WAIT_S):
        while len(packets) < count:
            packets += await channel.receive()
    return packets


@on_a_loop
async def test_messages_that_wait_for_the_window_are_sent_after_another_subscribe(
    port: int,
) -> None:
    options = ClientOptions(
        port=port, client_id="s", clean_start=False, session_expiry_s=3600, receive_maximum=1
    )
    async with MqttClient(options) as client:
        await client.subscribe("a", qos=1)
    async with MqttClient(ClientOptions(port=port, client_id="p")) as publisher:
        for number in range(3):
            await publisher.publish("a", b"%d" % number, qos=1)
    channel = await open_channel(options)
    connack = await exchange_connect(channel, options.connect_packet(clean_start=False), WAIT_S)
    assert connack.session_present
    received = await next_packets(channel, 1)
    channel.send(Subscribe(9, [SubscriptionRequest("a", 1)]))
    received += await next_packets(channel, 1)
    assert isinstance(received[1], Suback)
    for _ in range(2):
        last = received[-1] if isinstance(received[-1], Publish) else received[0]
        assert isinstance(last, Publish)
        channel.send(Ack(PacketType.PUBACK, last.packet_id))
        received += await next_packets(channel, 1)
    payloads = [packet.payload for packet in received if isinstance(packet, Publish)]
    assert payloads == [b"0", b"1", b"2"]
    channel.close()
