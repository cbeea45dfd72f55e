"""When the will of a connection is published, and that it is published once."""

from __future__ import annotations

from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.sessions.world import World

from penstock.brokers.mqtt.sessions.session import WillRecord
from penstock.brokers.mqtt.wire.packets import Will


def will(delay_s: int = 0, payload: bytes = b"gone") -> WillRecord:
    return WillRecord(Will("will", payload, 1), delay_s)


async def wait(world: World, seconds: int) -> None:
    world.bench.clock.advance(seconds)
    world.service.registry.run_due()
    await world.quiet()


@on_a_loop
async def test_a_will_is_published_when_the_connection_is_lost() -> None:
    world = World()
    await world.start()
    for expiry_s in (0, 60):
        session, _, _ = await world.connect(expiry_s=expiry_s, will=will(), clean=True)
        await world.disconnect(session, sends_will=True)
        await world.quiet()
        assert world.wills.pop() == ("will", b"gone")
    session, _, _ = await world.connect(will=will())
    await world.disconnect(session, sends_will=False)
    await world.quiet()
    assert not world.wills
    world.close()


@on_a_loop
async def test_a_will_waits_for_its_delay_or_the_end_of_the_session() -> None:
    for delay_s, expiry_s in ((10, 60), (60, 10)):
        world = World()
        await world.start()
        session, _, _ = await world.connect(expiry_s=expiry_s, will=will(delay_s))
        await world.disconnect(session, sends_will=True)
        await wait(world, 9)
        assert not world.wills
        await wait(world, 2)
        assert len(world.wills) == 1
        await wait(world, 100)
        assert len(world.wills) == 1
        world.close()


@on_a_loop
async def test_a_client_that_is_back_in_time_has_no_will_published() -> None:
    world = World()
    await world.start()
    session, _, _ = await world.connect(will=will(10))
    await world.disconnect(session, sends_will=True)
    await world.connect()
    await wait(world, 20)
    assert not world.wills
    world.close()


@on_a_loop
async def test_a_take_over_publishes_a_will_without_delay_or_of_an_ended_session() -> None:
    for delay_s, clean, expected in ((0, False, 1), (10, False, 0), (10, True, 1)):
        world = World()
        await world.start()
        await world.connect(will=will(delay_s))
        await world.connect(clean=clean)
        await wait(world, 20)
        assert len(world.wills) == expected, (delay_s, clean)
        world.close()


@on_a_loop
async def test_a_will_is_published_once_over_a_crash_at_any_moment() -> None:
    for moment in range(5):
        world = World()
        await world.start()
        session, _, _ = await world.connect(will=will(10))
        await world.service.store.mark()
        if moment >= 1:
            await world.disconnect(session, sends_will=True)
        if moment >= 2:
            await wait(world, 11)
        if moment >= 3:
            await world.service.store.mark()
        await world.crash()
        if moment >= 4:
            await world.crash()
        await wait(world, 11)
        await wait(world, 11)
        assert len(world.wills) == 1, moment
        world.close()


@on_a_loop
async def test_a_will_that_is_not_stored_is_published_after_the_next_start() -> None:
    world = World()
    await world.start()
    session, _, _ = await world.connect(will=will())
    world.fails_wills = True
    await world.disconnect(session, sends_will=True)
    await world.crash_while_busy()
    assert not world.wills
    world.fails_wills = False
    await world.crash()
    await wait(world, 1)
    assert len(world.wills) == 1
    world.close()
