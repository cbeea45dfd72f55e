"""The client against a scripted server: acknowledgements, repeats, refusals, timeouts."""

from __future__ import annotations

import asyncio

import pytest
from tests.brokers.mqtt.client.scripted_server import Peer, scripted_server
from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.free_ports import free_ports

from penstock.brokers.mqtt.client import (
    ClientOptions,
    ConnectionLostError,
    MqttClient,
    RefusedError,
)
from penstock.brokers.mqtt.client import client as client_module
from penstock.brokers.mqtt.wire.packets import (
    Ack,
    Connack,
    Disconnect,
    PacketType,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock.errors import DeadlineError

WAIT_S = 60.0


def options(port: int, **more: object) -> ClientOptions:
    return ClientOptions(port=port, client_id="c", **more)  # type: ignore[arg-type] # plain keywords


@on_a_loop
async def test_a_publish_of_each_qos_ends_with_its_last_acknowledgement() -> None:
    async def serve(peer: Peer) -> None:
        await peer.accept()
        assert await peer.receive() == Publish("t", b"0")
        first = await peer.receive()
        assert first == Publish("t", b"1", 1, packet_id=1)
        peer.send(Ack(PacketType.PUBACK, 1, 0x10))
        second = await peer.receive()
        assert second == Publish("t", b"2", 2, packet_id=2)
        peer.send(Ack(PacketType.PUBREC, 2))
        assert await peer.receive() == Ack(PacketType.PUBREL, 2)
        peer.send(Ack(PacketType.PUBCOMP, 2))
        assert isinstance(await peer.receive(), Disconnect)

    async with scripted_server(serve) as port, MqttClient(options(port)) as client:
        assert await client.publish("t", b"0") == 0
        assert await client.publish("t", b"1", qos=1) == 0x10
        assert await client.publish("t", b"2", qos=2) == 0


@pytest.mark.parametrize("qos", [1, 2])
@on_a_loop
async def test_a_refused_publish_raises_with_the_reason(qos: int) -> None:
    async def serve(peer: Peer) -> None:
        await peer.accept()
        await peer.receive()
        peer.send(Ack(PacketType.PUBACK if qos == 1 else PacketType.PUBREC, 1, 0x87))
        await peer.receive()

    async with scripted_server(serve) as port, MqttClient(options(port)) as client:
        with pytest.raises(RefusedError, match="not authorized") as refusal:
            await client.publish("t", b"x", qos=qos)
        assert refusal.value.reason_code == 0x87


@on_a_loop
async def test_received_messages_are_acknowledged_and_a_repeat_is_delivered_once() -> None:
    async def serve(peer: Peer) -> None:
        await peer.accept()
        peer.send(Publish("t", b"1", 1, packet_id=7))
        assert await peer.receive() == Ack(PacketType.PUBACK, 7)
        peer.send(Publish("t", b"2", 2, packet_id=8))
        assert await peer.receive() == Ack(PacketType.PUBREC, 8)
        peer.send(Publish("t", b"2", 2, dup=True, packet_id=8))
        assert await peer.receive() == Ack(PacketType.PUBREC, 8)
        peer.send(Ack(PacketType.PUBREL, 8))
        assert await peer.receive() == Ack(PacketType.PUBCOMP, 8)
        peer.send(Publish("t", b"3"))
        await peer.receive()

    async with scripted_server(serve) as port, MqttClient(options(port)) as client:
        received = [(await client.next_message(WAIT_S)).payload for _ in range(3)]
        assert received == [b"1", b"2", b"3"]


@on_a_loop
async def test_subscriptions_are_granted_or_refused() -> None:
    async def serve(peer: Peer) -> None:
        await peer.accept()
        for code in (1, 0x87):
            packet = await peer.receive()
            assert isinstance(packet, Subscribe)
            peer.send(Suback(packet.packet_id, [code]))
        end = await peer.receive()
        assert isinstance(end, Unsubscribe)
        peer.send(Unsuback(end.packet_id, [0x11]))
        await peer.receive()

    async with scripted_server(serve) as port, MqttClient(options(port)) as client:
        assert await client.subscribe("a", qos=2) == 1
        with pytest.raises(RefusedError, match="the subscription to b"):
            await client.subscribe("b")
        assert await client.unsubscribe("a") == 0x11


@on_a_loop
async def test_a_lost_connection_is_made_again_and_unacknowledged_publishes_are_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "RETRY_MIN_S", 0.01)

    async def lose(peer: Peer) -> None:
        await peer.accept()
        await peer.receive()
        await peer.receive()
        peer.send(Ack(PacketType.PUBREC, 2))
        assert await peer.receive() == Ack(PacketType.PUBREL, 2)

    async def resume(peer: Peer) -> None:
        connect = await peer.accept(Connack(session_present=True))
        assert not connect.clean_start
        assert await peer.receive() == Publish("t", b"1", 1, dup=True, packet_id=1)
        assert await peer.receive() == Ack(PacketType.PUBREL, 2)
        peer.send(Ack(PacketType.PUBACK, 1), Ack(PacketType.PUBCOMP, 2))
        await peer.receive()

    async with (
        scripted_server(lose, resume) as port,
        MqttClient(options(port, reconnects=True)) as client,
    ):
        codes = await asyncio.gather(
            client.publish("t", b"1", qos=1), client.publish("t", b"2", qos=2)
        )
        assert list(codes) == [0, 0]


@on_a_loop
async def test_a_client_whose_session_is_gone_subscribes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "RETRY_MIN_S", 0.01)

    async def subscribe(peer: Peer) -> None:
        await peer.accept()
        packet = await peer.receive()
        assert isinstance(packet, Subscribe)
        assert packet.subscriptions[0].filter == "a/#"
        peer.send(Suback(packet.packet_id, [1]), Publish("a/b", b"x"))

    async def stay(peer: Peer) -> None:
        await subscribe(peer)
        await peer.receive()

    async with (
        scripted_server(subscribe, stay) as port,
        MqttClient(options(port, reconnects=True)) as client,
    ):
        await client.subscribe("a/#", qos=1)
        for _ in range(2):
            assert (await client.next_message(WAIT_S)).topic == "a/b"


@on_a_loop
async def test_a_refused_connection_names_the_reason() -> None:
    async def serve(peer: Peer) -> None:
        await peer.accept(Connack(reason_code=0x86))
        await peer.receive()

    async with scripted_server(serve) as port:
        with pytest.raises(RefusedError, match="bad user name or password"):
            await MqttClient(options(port)).connect()


@on_a_loop
async def test_a_server_that_does_not_answer_is_given_up() -> None:
    async def serve(peer: Peer) -> None:
        await peer.receive()
        await peer.receive()

    async with scripted_server(serve) as port:
        with pytest.raises(DeadlineError, match="no CONNACK within"):
            await MqttClient(options(port, connect_timeout_s=0.05)).connect()


@on_a_loop
async def test_an_address_without_a_server_is_named() -> None:
    [port] = free_ports(1)
    with pytest.raises(ConnectionLostError, match=f"127.0.0.1:{port}"):
        await MqttClient(options(port)).connect()


@on_a_loop
async def test_an_acknowledgement_that_does_not_come_is_a_timeout() -> None:
    async def serve(peer: Peer) -> None:
        await peer.accept()
        await peer.receive()
        await peer.receive()

    async with (
        scripted_server(serve) as port,
        MqttClient(options(port, response_timeout_s=0.05)) as client,
    ):
        with pytest.raises(DeadlineError, match="did not answer the publish to t"):
            await client.publish("t", b"x", qos=1)


@on_a_loop
async def test_the_end_of_the_connection_ends_what_waits() -> None:
    async def serve(peer: Peer) -> None:
        await peer.accept()
        await peer.receive()
        peer.send(Disconnect(0x8E))

    async with scripted_server(serve) as port, MqttClient(options(port)) as client:
        with pytest.raises(RefusedError, match="session taken over"):
            await client.publish("t", b"x", qos=1)
        with pytest.raises(RefusedError, match="session taken over"):
            await client.next_message(WAIT_S)
