"""What a session and a subscription take in memory; the test writes the figures out."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest
from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.sessions.world import World

from penstock.brokers.mqtt.sessions import row_writer
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.codec.select import IS_NATIVE

SESSIONS = 2_000
SUBSCRIPTIONS = 4
SESSION_BYTES_MAX = 1_500
SUBSCRIPTION_BYTES_MAX = 600


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def open_sessions(world: World, prefix: str, count: int) -> None:
    """Open sessions with one subscription each, and leave them offline."""
    for number in range(count):
        session, _, _ = await world.connect(f"{prefix}-{number}")
        await world.service.registry.subscribe(
            session, [Subscription(f"{prefix}/{number}/commands", 1)]
        )
        await world.disconnect(session)
        world.clients.clear()
    await world.quiet()
    await world.service.store.mark()


@pytest.mark.skipif(not IS_NATIVE, reason="the tree in Python takes more")
def test_an_offline_session_and_a_subscription_are_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @on_a_loop
    async def measure() -> None:
        world = World()
        await world.start()
        await open_sessions(world, "warm", 10)
        # The storage of this test is in memory, too.
        monkeypatch.setattr(row_writer, "_write_parts", lambda *_: {})
        tracemalloc.start()
        try:
            before = traced()
            await open_sessions(world, "device", SESSIONS)
            sessions = traced()
            for session in world.service.registry:
                for number in range(SUBSCRIPTIONS):
                    subscription = Subscription(f"groups/{number}/commands", 1)
                    await world.service.registry.subscribe(session, [subscription])
            await world.service.store.mark()
            subscriptions = traced()
        finally:
            tracemalloc.stop()
        per_session = (sessions - before) / SESSIONS
        per_subscription = (subscriptions - sessions) / SESSIONS / SUBSCRIPTIONS
        with capsys.disabled():
            sys.stdout.write(
                f"\n{per_session:.0f} B an offline session with one subscription, "
                f"{per_subscription:.0f} B a further subscription; the native tree not counted\n"
            )
        assert per_session < SESSION_BYTES_MAX
        assert per_subscription < SUBSCRIPTION_BYTES_MAX
        world.close()

    measure()
