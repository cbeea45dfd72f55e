"""Sessions over connections, and over starts of the node."""

from __future__ import annotations

from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.sessions.world import World, acks, puback

from penstock.brokers.mqtt.wire.packets import Ack, PacketType, Publish


@on_a_loop
async def test_messages_of_each_qos_reach_a_connected_subscriber() -> None:
    world = World()
    await world.start()
    session, client, is_present = await world.connect()
    assert not is_present
    await world.subscribe(session, "a/+", 2)
    for qos in (0, 1, 2):
        world.publish("a/b", b"%d" % qos, qos)
    await world.quiet()
    messages = client.messages()
    assert [(m.payload, m.qos, m.dup) for m in messages] == [
        (b"0", 0, False),
        (b"1", 1, False),
        (b"2", 2, False),
    ]
    assert puback(session, messages[1]) == b""
    session.acknowledged(messages[2].packet_id, PacketType.PUBREC)
    await world.quiet()
    assert client.read() == [Ack(PacketType.PUBREL, messages[2].packet_id)]
    session.acknowledged(messages[2].packet_id, PacketType.PUBCOMP)
    assert session.window is not None
    assert session.window.is_empty()
    world.close()


@on_a_loop
async def test_a_session_gets_what_was_published_while_its_client_was_away() -> None:
    world = World()
    await world.start()
    session, _, _ = await world.connect()
    await world.subscribe(session, "#", 1)
    await world.disconnect(session)
    expected = [b"%d" % number for number in range(40)]
    for payload in expected:
        world.publish("a", payload)
    world.publish("a", b"qos 0", 0)
    await world.quiet()
    session, client, is_present = await world.connect(receive_maximum=7)
    assert is_present
    got: list[bytes] = []
    while len(got) < 40:
        await world.quiet()
        messages = client.messages()
        assert 0 < len(messages) <= 7
        got += [m.payload for m in messages]
        for message in messages:
            puback(session, message)
    await world.quiet()
    assert got == expected
    assert client.messages() == []
    assert session.lagging is None
    world.publish("a", b"live")
    await world.quiet()
    assert client.payloads() == [b"live"]
    world.close()


@on_a_loop
async def test_a_session_survives_a_crash_of_the_node() -> None:
    world = World()
    await world.start()
    session, client, _ = await world.connect()
    await world.subscribe(session, "a/#", 2)
    number = session.number
    await world.service.store.mark()
    world.publish("a/1", b"1")
    world.publish("a/2", b"2", 2)
    world.publish("b", b"other")
    await world.quiet()
    assert client.payloads() == [b"1", b"2"]
    await world.crash()
    world.publish("a/3", b"3")
    session, client, is_present = await world.connect()
    await world.quiet()
    assert is_present
    assert session.number == number
    messages = client.messages()
    assert sorted((m.payload, m.dup) for m in messages) == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
    ]
    world.close()


@on_a_loop
async def test_qos_2_is_delivered_once_over_a_crash_at_each_step() -> None:
    for step in range(4):
        world = World(partitions=1)
        await world.start()
        session, client, _ = await world.connect()
        await world.subscribe(session, "a", 2)
        if step % 2:
            await world.service.store.mark()
        world.publish("a", b"1", 2)
        await world.quiet()
        (message,) = client.messages()
        if step >= 2:
            session.acknowledged(message.packet_id, PacketType.PUBREC)
            await world.quiet()
            assert acks(client.read(), PacketType.PUBREL) == [message.packet_id]
        await world.crash()
        session, client, _ = await world.connect()
        await world.quiet()
        packets = client.read()
        if step < 2:
            again = packets[0]
            assert isinstance(again, Publish)
            assert (again.packet_id, again.dup, again.payload) == (message.packet_id, True, b"1")
            session.acknowledged(message.packet_id, PacketType.PUBREC)
            await world.quiet()
            packets = client.read()
        assert packets == [Ack(PacketType.PUBREL, message.packet_id)], step
        session.acknowledged(message.packet_id, PacketType.PUBCOMP)
        world.publish("a", b"2", 2)
        await world.quiet()
        assert client.payloads() == [b"2"]
        world.close()


@on_a_loop
async def test_a_received_qos_2_message_is_known_after_a_crash_until_it_is_released() -> None:
    for marks in (False, True):
        world = World(partitions=1)
        await world.start()
        session, _, _ = await world.connect()
        session.mark_received(5)
        world.publish("a", b"1", 2, session=session, packet_id=5)
        session.mark_received(6)
        world.publish("a", b"2", 2, session=session, packet_id=6)
        session.mark_received(7)  # the append did not come to its end
        await world.quiet()
        if marks:
            await world.service.store.mark()
        assert await world.service.registry.release(session, 5)
        await world.crash()
        session, _, _ = await world.connect()
        assert [pid for pid in range(1, 10) if session.is_received(pid)] == [6]
        assert await world.service.registry.release(session, 6)
        assert not await world.service.registry.release(session, 6)
        await world.crash()
        session, _, _ = await world.connect()
        assert session.received_count == 0
        world.close()


@on_a_loop
async def test_messages_in_flight_are_sent_again_with_their_packet_ids() -> None:
    world = World(partitions=1)
    await world.start()
    session, client, _ = await world.connect()
    await world.subscribe(session, "a", 2)
    for number in range(6):
        world.publish("a", b"%d" % number, 1 + number % 2)
    await world.quiet()
    # Those of QoS 2 left later, when their row was stored.
    first = sorted(client.messages(), key=lambda message: message.payload)
    puback(session, first[2])
    session.acknowledged(first[3].packet_id, PacketType.PUBREC)
    await world.quiet()
    await world.disconnect(session)
    session, client, _ = await world.connect()
    world.publish("a", b"new", 1)
    await world.quiet()
    packets = client.read()
    assert packets[0] == Ack(PacketType.PUBREL, first[3].packet_id)
    again = [p for p in packets if isinstance(p, Publish)]
    expected = [(m.payload, m.packet_id, True) for m in first if m.payload not in {b"2", b"3"}]
    assert [(m.payload, m.packet_id, m.dup) for m in again[:4]] == expected
    assert [(m.payload, m.dup) for m in again[4:]] == [(b"new", False)]
    world.close()


@on_a_loop
async def test_a_second_connection_takes_the_session_over() -> None:
    world = World()
    await world.start()
    session, first, _ = await world.connect()
    await world.subscribe(session, "a", 1)
    same, second, is_present = await world.connect()
    assert same is session
    assert is_present
    assert first.reason_code == 0x8E
    await world.service.registry.close(session, sink=first, expiry_s=None, sends_will=True)
    world.publish("a", b"1")
    await world.quiet()
    assert second.payloads() == [b"1"]
    world.close()


@on_a_loop
async def test_a_session_that_expired_is_not_resumed() -> None:
    world = World()
    await world.start()
    session, _, _ = await world.connect(expiry_s=60)
    await world.subscribe(session, "a", 1)
    await world.disconnect(session)
    world.bench.clock.advance(59)
    world.service.registry.run_due()
    assert len(world.service.registry) == 1
    await world.crash()
    world.bench.clock.advance(2)
    world.service.registry.run_due()
    assert len(world.service.registry) == 0
    assert len(world.service.delivery.tree) == 0
    await world.quiet()
    await world.crash()
    _, _, is_present = await world.connect()
    assert not is_present
    world.close()
