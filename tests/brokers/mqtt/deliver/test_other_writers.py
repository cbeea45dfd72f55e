"""Messages that were not published through this front end, and history."""

from __future__ import annotations

from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.sessions.world import STORED, World, puback

from penstock.brokers.mqtt.wire.reason_codes import ReasonCode


@on_a_loop
async def test_records_of_other_writers_reach_subscribers_in_order() -> None:
    world = World(partitions=1)
    await world.start()
    session, client, _ = await world.connect()
    await world.subscribe(session, "a", 1)
    expected: list[bytes] = []
    for number in range(60):
        payload = b"%d" % number
        expected.append(payload)
        if number % 3:
            world.write("a", payload)
        else:
            world.publish("a", payload)
        if number % 7 == 0:
            await world.quiet()
    await world.quiet()
    messages = client.messages()
    assert [m.payload for m in messages] == expected
    assert {m.qos for m in messages} == {1}
    world.close()


@on_a_loop
async def test_records_of_other_writers_wait_for_an_offline_session() -> None:
    world = World(partitions=1)
    await world.start()
    session, _, _ = await world.connect()
    await world.subscribe(session, "a", 1)
    await world.disconnect(session)
    world.write("a", b"1")
    world.write("other", b"2")
    await world.quiet()
    await world.crash()
    world.write("a", b"3")
    await world.quiet()
    _, client, _ = await world.connect()
    await world.quiet()
    assert client.payloads() == [b"1", b"3"]
    world.close()


@on_a_loop
async def test_history_comes_before_live_messages_without_gap_or_duplicate() -> None:
    for start in ("earliest", "5", "@0", "1h"):
        world = World(partitions=1)
        await world.start()
        for number in range(10):
            world.publish("a/b", b"%d" % number, number % 3)
        world.publish("x", b"other")
        session, client, _ = await world.connect(receive_maximum=3)
        await world.subscribe(session, "a/#", 2)
        await world.subscribe(session, f"$replay/{start}/a/+", 1)
        got: list[bytes] = []
        for number in range(10, 60):
            world.publish("a/b", b"%d" % number, 1)
            await world.quiet()
            for message in client.messages():
                got.append(message.payload)
                if message.qos:
                    assert message.qos <= 2
                    if message.qos == 1:
                        puback(session, message)
        first = 5 if start == "5" else 0
        while True:
            await world.quiet()
            messages = client.messages()
            if not messages:
                break
            for message in messages:
                got.append(message.payload)
                puback(session, message)
        assert got == [b"%d" % number for number in range(first, 60)], start
        assert session.lagging is None
        await world.service.store.mark()
        assert not session.has_starts
        world.close()


@on_a_loop
async def test_history_is_not_for_other_subscriptions_of_the_session() -> None:
    world = World(partitions=1)
    await world.start()
    for number in range(4):
        world.publish("a", b"a%d" % number)
        world.publish("b", b"b%d" % number)
    session, client, _ = await world.connect()
    await world.subscribe(session, "b", 1)
    await world.subscribe(session, "$replay/earliest/a", 1)
    world.publish("b", b"b-live")
    await world.quiet()
    assert client.payloads() == [b"a0", b"a1", b"a2", b"a3", b"b-live"]
    world.close()


@on_a_loop
async def test_history_goes_on_after_a_crash() -> None:
    world = World(partitions=1)
    await world.start()
    for number in range(20):
        world.publish("a", b"%d" % number, 2)
    session, client, _ = await world.connect(receive_maximum=4)
    await world.subscribe(session, "$replay/earliest/a", 2)
    seen = {message.payload: message.packet_id for message in client.messages()}
    assert len(seen) == 4
    await world.crash()
    session, client, _ = await world.connect()
    await world.quiet()
    messages = client.messages()
    assert [m.payload for m in messages] == [b"%d" % number for number in range(20)]
    assert {m.payload: m.packet_id for m in messages if m.dup} == seen
    world.close()


@on_a_loop
async def test_a_start_that_cannot_be_read_is_refused() -> None:
    world = World()
    await world.start()
    session, _, _ = await world.connect()
    for topic_filter in ("$replay/soon/a", "$replay/earliest", "$replay/earliest/$share/g/a"):
        assert await world.subscribe(session, topic_filter) == ReasonCode.TOPIC_FILTER_INVALID
    assert not session.subscriptions
    world.close()


@on_a_loop
async def test_a_topic_that_is_deleted_and_created_again_begins_anew() -> None:
    world = World(partitions=1)
    await world.start()
    session, client, _ = await world.connect(receive_maximum=2)
    await world.subscribe(session, "a", 1)
    for number in range(6):
        world.publish("a", b"old %d" % number)
    await world.quiet()
    old = client.messages()
    assert len(old) == 2
    world.bench.admin.delete_topic(STORED)
    world.bench.create(STORED, 1, storage="segment", partitioner="key")
    world.service.topic_created(STORED)
    for message in old:
        puback(session, message)
    world.publish("a", b"new")
    await world.quiet()
    assert client.payloads() == [b"new"]
    assert session.lagging is None
    await world.crash()
    session, client, _ = await world.connect()
    await world.quiet()
    assert client.payloads() == [b"new"]
    world.close()
