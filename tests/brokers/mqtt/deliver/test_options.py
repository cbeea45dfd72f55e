"""What the options of a subscription and the limits of a client do to deliveries."""

from __future__ import annotations

from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.sessions.world import World, puback

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.settings import MqttSettings


@on_a_loop
async def test_overlapping_subscriptions_give_one_copy() -> None:
    world = World()
    await world.start()
    session, client, _ = await world.connect()
    await world.subscribe(session, "", 0, Subscription("a/#", 0, identifier=1))
    await world.subscribe(session, "", 0, Subscription("a/+", 2, identifier=7))
    await world.subscribe(session, "", 0, Subscription("a/b", 1))
    world.publish("a/b", b"1", 1)
    await world.quiet()
    (message,) = client.messages()
    assert message.qos == 1
    assert message.properties is not None
    assert message.properties.subscription_identifiers == [1, 7]
    world.close()


@on_a_loop
async def test_own_messages_are_left_out_with_no_local() -> None:
    for is_away in (False, True):
        world = World()
        await world.start()
        session, client, _ = await world.connect()
        await world.subscribe(session, "", 0, Subscription("a", 1, no_local=True))
        if is_away:
            await world.disconnect(session)
        world.publish("a", b"mine", session=session)
        world.publish("a", b"yours")
        await world.quiet()
        if is_away:
            _, client, _ = await world.connect()
            await world.quiet()
        assert client.payloads() == [b"yours"]
        world.close()


@on_a_loop
async def test_the_retain_flag_stays_with_retain_as_published() -> None:
    world = World()
    await world.start()
    one, first, _ = await world.connect("one")
    two, second, _ = await world.connect("two")
    await world.subscribe(one, "", 0, Subscription("a", 1, retain_as_published=True))
    await world.subscribe(two, "a", 1)
    world.publish("a", b"1", retain=True)
    await world.quiet()
    assert [m.retain for m in first.messages()] == [True]
    assert [m.retain for m in second.messages()] == [False]
    world.close()


@on_a_loop
async def test_a_message_that_expires_is_delivered_with_what_is_left_or_not_at_all() -> None:
    world = World()
    await world.start()
    session, client, _ = await world.connect()
    await world.subscribe(session, "a", 1)
    now_ms = world.bench.clock.now_ms()
    world.publish("a", b"live", expires_at_ms=now_ms + 60_000)
    await world.quiet()
    (message,) = client.messages()
    assert message.properties is not None
    assert message.properties.message_expiry_interval == 60
    puback(session, message)
    await world.disconnect(session)
    world.publish("a", b"late", expires_at_ms=now_ms + 60_000)
    world.publish("a", b"gone", expires_at_ms=now_ms + 5_000)
    world.bench.clock.advance(20)
    session, client, _ = await world.connect()
    await world.quiet()
    (message,) = client.messages()
    assert message.payload == b"late"
    assert message.properties is not None
    assert message.properties.message_expiry_interval == 40
    world.close()


@on_a_loop
async def test_a_message_above_the_maximum_packet_size_is_dropped_and_counted() -> None:
    for qos in (0, 1, 2):
        for is_away in (False, True):
            world = World()
            await world.start()
            session, client, _ = await world.connect(maximum_packet_size=50)
            await world.subscribe(session, "a", qos)
            if is_away and qos:
                await world.disconnect(session)
            for payload in (b"1", b"x" * 60, b"2"):
                world.publish("a", payload, qos)
                await world.quiet()
            if is_away and qos:
                _, client, _ = await world.connect(maximum_packet_size=50, receive_maximum=2)
                await world.quiet()
            assert client.payloads() == [b"1", b"2"], (qos, is_away)
            assert world.service.delivery.counts.dropped_large == 1
            world.close()


@on_a_loop
async def test_a_slow_subscriber_falls_behind_and_loses_nothing_but_qos_0() -> None:
    world = World(partitions=3)
    await world.start()
    session, client, _ = await world.connect()
    await world.subscribe(session, "#", 2)
    client.unsent = 2 << 20
    expected: list[bytes] = []
    for number in range(600):
        payload = b"%d" % number
        qos = number % 3
        world.publish(f"t{number % 5}", payload, qos)
        if qos:
            expected.append(payload)
        if number % 50 == 0:
            await world.quiet()
    await world.quiet()
    assert client.messages() == []
    assert session.has_waiting()
    assert world.service.delivery.counts.dropped_slow == 200
    client.unsent = 0
    session.writable()
    await world.quiet()
    assert sorted(client.payloads()) == sorted(expected)
    assert session.lagging is None
    world.publish("t0", b"live", 0)
    await world.quiet()
    assert client.payloads() == [b"live"]
    world.close()


@on_a_loop
async def test_retained_messages_come_with_new_subscriptions_as_the_client_asks() -> None:
    world = World()
    await world.start()
    for number in range(30):
        topic = f"r/{number}"
        world.retained.messages[topic] = Message(topic, b"%d" % number, 1, True)
    session, client, _ = await world.connect(receive_maximum=4)
    handling_codes = [(0, 30), (0, 30), (1, 0), (2, 0)]
    for handling, count in handling_codes:
        subscription = Subscription("r/+", 1, retain_handling=handling)
        await world.subscribe(session, "", 0, subscription)
        got: list[bytes] = []
        while messages := client.messages():
            assert len(messages) <= 4
            assert all(m.retain and not m.dup for m in messages)
            got += [m.payload for m in messages]
            for message in messages:
                puback(session, message)
            await world.quiet()
        assert sorted(got) == sorted(b"%d" % number for number in range(count)), handling
    world.close()


@on_a_loop
async def test_retained_messages_in_flight_are_sent_again() -> None:
    for crashes in (False, True):
        for qos in (1, 2):
            world = World()
            await world.start()
            world.retained.messages["r"] = Message("r", b"1", 2, True)
            session, client, _ = await world.connect()
            await world.subscribe(session, "r", qos)
            (first,) = client.messages()
            await world.service.store.mark()
            if crashes:
                await world.crash()
            else:
                await world.disconnect(session)
            session, client, _ = await world.connect()
            await world.quiet()
            (again,) = client.messages()
            assert (again.payload, again.dup, again.retain, again.qos) == (b"1", True, True, qos)
            if qos == 2:
                assert again.packet_id == first.packet_id
            world.close()


@on_a_loop
async def test_subscriptions_beyond_the_limit_are_refused() -> None:
    world = World(settings=MqttSettings(subscriptions_per_session_max=2))
    await world.start()
    session, _, _ = await world.connect()
    items = [Subscription(name, 1) for name in ("a", "b", "a", "c")]
    codes = await world.service.registry.subscribe(session, items)
    assert codes == [1, 1, 1, ReasonCode.QUOTA_EXCEEDED]
    assert len(world.service.delivery.tree) == 2
    world.close()


@on_a_loop
async def test_an_offline_session_gets_qos_0_only_if_the_settings_say_so() -> None:
    for queues in (False, True):
        world = World(settings=MqttSettings(queue_qos0=queues))
        await world.start()
        session, _, _ = await world.connect()
        await world.subscribe(session, "a", 1)
        await world.disconnect(session)
        world.publish("a", b"0", 0)
        world.publish("a", b"1", 1)
        await world.quiet()
        _, client, _ = await world.connect()
        await world.quiet()
        assert client.payloads() == ([b"0", b"1"] if queues else [b"1"])
        world.close()
