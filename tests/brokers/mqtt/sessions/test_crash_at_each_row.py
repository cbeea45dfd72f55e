"""One history, in which the node is killed at each write of rows, before and after the write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.sessions.specification import ModelClient
from tests.brokers.mqtt.sessions.world import World

from penstock.adapter.topics.routes import TopicRoute
from penstock.brokers.mqtt.sessions import row_writer
from penstock.brokers.mqtt.sessions.row_writer import Fence
from penstock.errors import StoreError
from penstock.record import Record

UNLIMITED = 1 << 30
WRITES_MAX = 40


class KilledError(Exception):
    """The node was killed at a write."""


class Killer:
    """Lets so many writes of rows through; the next one kills, before it or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = row_writer._write_parts
        self.reset(UNLIMITED, is_after=False)
        monkeypatch.setattr(row_writer, "_write_parts", self.write)

    def reset(self, left: int, *, is_after: bool) -> None:
        self.is_after = is_after
        self.left = left
        self.is_dead = False

    def write(
        self, route: TopicRoute, parts: dict[int, list[Record]], fence: Fence | None
    ) -> dict[int, StoreError]:
        if self.is_dead:
            raise KilledError
        self.left -= 1
        if self.left >= 0:
            return self._write(route, parts, fence)
        if self.is_after:
            self._write(route, parts, fence)
        self.is_dead = True
        raise KilledError


async def history(world: World, client: ModelClient, steps: list[str]) -> None:
    """A session in which QoS 1 and 2 messages are delivered, acknowledged and left."""
    session, sink, _ = await world.connect(client.client_id, receive_maximum=3)
    if client.expected is None:
        client.new_session()
    client.session, client.sink = session, sink
    await world.subscribe(session, "a", 2)
    assert client.expected is not None
    client.expected.subscriptions["a"] = 2
    steps.append("subscribed")
    for number in range(1, 7):
        client.expected.published(number, "a", 1 + number % 2)
        world.publish("a", b"%d" % number, 1 + number % 2)
        await world.quiet()
        client.read(1)
        client.acknowledge(1)
        await world.quiet()
        if number % 2:
            await world.service.store.mark()
    steps.append("published")
    await world.disconnect(session)
    client.lost_connection()
    for number in range(7, 9):
        client.expected.published(number, "a", 2)
        world.publish("a", b"%d" % number, 2)
    await world.quiet()
    await world.service.store.mark()
    steps.append("complete")


async def drain(world: World, clients: Sequence[ModelClient]) -> None:
    idle = 0
    while idle < 2:
        await world.quiet()
        done = sum(client.read() + client.acknowledge() for client in clients)
        idle = 0 if done else idle + 1


async def killed_at(killer: Killer, writes: int, *, is_after: bool) -> bool:
    """Run the history, kill at a write, start again, and check; return False if the history had
    fewer writes."""
    world, client, steps = World(partitions=1), ModelClient("c"), list[str]()
    killer.reset(UNLIMITED, is_after=is_after)
    await world.start()
    killer.left = writes
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    running = loop.create_task(history(world, client, steps))
    while not (running.done() or killer.is_dead):  # noqa: ASYNC110 - set by another thread
        await asyncio.sleep(0.001)
    is_killed = killer.is_dead
    if not is_killed:
        running.result()
    running.cancel()
    with suppress(asyncio.CancelledError, KilledError):
        await running
    killer.reset(UNLIMITED, is_after=is_after)
    client.lost_connection()
    await world.crash()
    session, sink, is_present = await world.connect("c")
    if not is_present:
        assert "subscribed" not in steps, "a session that was acknowledged is lost"
        client.new_session()
    client.session, client.sink = session, sink
    await drain(world, [client])
    if "subscribed" in steps:
        client.check_all_arrived()
    world.close()
    return is_killed


@pytest.mark.parametrize("is_after", [False, True])
def test_nothing_is_lost_or_repeated_when_the_node_is_killed_at_a_row(
    monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    @on_a_loop
    async def kill_at_each() -> None:
        killer = Killer(monkeypatch)
        writes = 0
        while await killed_at(killer, writes, is_after=is_after):
            writes += 1
            assert writes < WRITES_MAX
        assert writes > 10

    kill_at_each()
