"""Positions of groups over crashes of the node."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.sessions.world import World, acks
from tests.brokers.mqtt.share_groups.test_groups import GROUP, Members, payloads, started

from penstock.brokers.mqtt.wire.packets import Ack, PacketType
from penstock.errors import StoreError


@on_a_loop
async def test_what_was_acknowledged_before_the_mark_is_not_delivered_again() -> None:
    world, members = await started()
    await members.join("x")
    for payload in payloads(20):
        world.publish("a/b", payload)
    await world.quiet()
    messages = members.read("x")
    for message in messages[::2]:
        members.acknowledge("x", message)
    await world.service.store.mark()
    await world.crash()
    members.by_name.clear()
    await members.join("y")
    await world.quiet()
    again = members.read("y")
    assert [m.payload for m in again] == payloads(20)[1::2]
    assert all(m.dup for m in again)
    for message in again:
        members.acknowledge("y", message)
    await world.service.store.mark()
    await world.crash()
    members.by_name.clear()
    await members.join("y")
    assert await members.work() == {}
    world.close()


@on_a_loop
async def test_messages_since_the_mark_are_delivered_again_but_not_older_ones() -> None:
    world, members = await started()
    await members.join("x")
    for payload in payloads(10):
        world.publish("a/b", payload)
    await members.work()
    await world.service.store.mark()
    for payload in payloads(10, 10):
        world.publish("a/b", payload)
    await members.work()
    await world.crash()
    members.by_name.clear()
    members.got.clear()
    await members.join("x")
    await members.work()
    assert members.got == Counter(payloads(10, 10))
    world.close()


@on_a_loop
async def test_a_group_has_nothing_from_before_it_was_made() -> None:
    world, members = await started()
    for payload in payloads(10):
        world.publish("a/b", payload)
    await world.quiet()
    await members.join("x")
    await world.crash()
    members.by_name.clear()
    world.publish("a/b", b"new")
    await members.join("x")
    await members.work()
    assert members.got == Counter([b"new"])
    world.close()


@on_a_loop
async def test_messages_wait_over_a_crash_for_members_that_are_away() -> None:
    world, members = await started()
    await members.join("x")
    await members.leave("x")
    for payload in payloads(30):
        world.publish("a/b", payload)
    await world.service.store.mark()
    for payload in payloads(30, 30):
        world.publish("a/b", payload)
    await world.quiet()
    await world.crash()
    await world.crash()
    await members.join("x")
    await members.work()
    assert members.got == Counter(payloads(60))
    world.close()


@on_a_loop
async def test_qos_2_in_flight_stays_with_its_session_over_a_crash() -> None:
    world, members = await started()
    await members.join("x", qos=2)
    await members.join("y", qos=2)
    await world.service.store.mark()
    world.publish("a/b", b"1", 2)
    world.publish("a/b", b"2", 2)
    await world.quiet()
    (message,) = members.read("x")
    (other,) = members.read("y")
    members.acknowledge("y", other)
    await world.quiet()
    await world.crash()
    members.by_name.clear()
    await members.join("y", qos=2)
    assert await members.work() == {}, "it has its message, and the other one is not its own"
    await members.join("x", qos=2)
    await world.quiet()
    (again,) = members.read("x")
    assert (again.payload, again.packet_id, again.dup) == (message.payload, message.packet_id, True)
    members.acknowledge("x", again)
    await members.work()
    await world.service.store.mark()
    await world.crash()
    members.by_name.clear()
    await members.join("x", qos=2)
    await members.join("y", qos=2)
    assert await members.work() == {}
    world.close()


@on_a_loop
async def test_qos_2_of_a_session_that_ends_with_the_node_goes_to_no_other() -> None:
    world, members = await started()
    await members.join("ends", qos=2, expiry_s=0)
    await members.join("stays", qos=2)
    world.publish("a/b", b"1", 2)
    world.publish("a/b", b"2", 2)
    await world.quiet()
    assert [m.payload for m in members.read("ends")] == [b"1"]
    await world.service.store.mark()
    await world.crash()
    members.by_name.clear()
    await members.join("stays", qos=2)
    await world.quiet()
    assert [m.payload for m in members.read("stays")] == [b"2"]
    world.close()


def has_row(world: World) -> bool:
    group = world.shared.find(GROUP)
    assert group is not None
    return group.has_row


@on_a_loop
async def test_the_row_of_a_group_is_removed_with_it() -> None:
    world, members = await started()
    await members.join("x")
    world.publish("a/b", b"1")
    await world.quiet()
    await world.service.store.mark()
    assert has_row(world)
    await members.work()
    await world.service.store.mark()
    assert not has_row(world), "live, and everything is acknowledged"
    world.publish("a/b", b"2")
    await world.quiet()
    await world.service.store.mark()
    await members.leave("x", expiry_s=0)
    await world.service.store.mark()
    await world.crash()
    await members.join("x")
    assert await members.work() == {}
    world.close()


@on_a_loop
async def test_a_mark_that_failed_is_made_up_for_by_the_next() -> None:
    world, members = await started()
    await members.join("x")
    for payload in payloads(6):
        world.publish("a/b", payload)
    await world.quiet()
    writer = world.service.store.writer
    write = writer.write

    async def fail(_: object) -> None:
        raise StoreError("no space")

    messages = members.read("x")
    for message in messages[:3]:
        members.acknowledge("x", message)
    writer.write = fail  # type: ignore[method-assign,assignment] # for one mark
    with pytest.raises(StoreError):
        await world.service.store.mark()
    writer.write = write  # type: ignore[method-assign] # as before
    await world.service.store.mark()
    await world.crash()
    members.by_name.clear()
    await members.join("x")
    await world.quiet()
    assert [m.payload for m in members.read("x")] == payloads(3, 3)
    world.close()


class Clients:
    """Members that know which QoS 2 packet ids they have received, over all connections."""

    NAMES = ("x", "y", "z")

    def __init__(self, rng: random.Random, world: World, members: Members) -> None:
        self.rng = rng
        self.world = world
        self.members = members
        self.held: dict[str, set[int]] = {name: set() for name in self.NAMES}
        self.delivered: Counter[bytes] = Counter()
        self.qos: dict[bytes, int] = {}

    async def step(self) -> None:
        action = self.rng.random()
        if action < 0.5:
            self.publish()
            return
        if action < 0.75:
            await self.world.quiet()
            for name in self.members.by_name:
                self.read(name, acknowledged=0.7)
        elif action < 0.85:
            await self.world.quiet()
            await self.world.service.store.mark()
        elif action < 0.93:
            await self.change(self.rng.choice(self.NAMES))
        else:
            await self.world.quiet()
            await self.world.crash()
            self.members.by_name.clear()
            await self.join_all()

    def publish(self) -> None:
        for _ in range(self.rng.randint(1, 10)):
            payload = b"%d" % len(self.qos)
            self.qos[payload] = self.rng.choice([1, 2])
            self.world.publish(f"a/{len(self.qos) % 3}", payload, self.qos[payload])

    async def change(self, name: str) -> None:
        if name in self.members.by_name:
            self.complete_releases(name)
            await self.members.leave(name)
        else:
            await self.join(name)

    async def join_all(self) -> None:
        for name in self.NAMES:
            await self.join(name)

    async def join(self, name: str) -> None:
        if name not in self.members.by_name:
            maximum = self.rng.choice([2, 10])
            await self.members.join(name, qos=2, receive_maximum=maximum)

    def complete_releases(self, name: str) -> None:
        session, client = self.members.by_name[name]
        packets = client.read()
        client.packets += [packet for packet in packets if not isinstance(packet, Ack)]
        for packet_id in acks(packets, PacketType.PUBREL):
            self.held[name].discard(packet_id)
            session.acknowledged(packet_id, PacketType.PUBCOMP)

    def read(self, name: str, *, acknowledged: float) -> int:
        """Read as a client does, for which QoS 2 is new unless its packet id is known; acknowledge
        this part of the messages. Return how many packets there were."""
        count = len(self.members.by_name[name][1].packets)
        self.complete_releases(name)
        messages = self.members.read(name)
        for message in messages:
            if message.qos == 1 or message.packet_id not in self.held[name]:
                self.delivered[message.payload] += 1
            if message.qos == 2:
                self.held[name].add(message.packet_id)
            if self.rng.random() < acknowledged:
                self.members.acknowledge(name, message)
        return count

    async def finish(self) -> None:
        for name in list(self.members.by_name):
            await self.members.leave(name)
        await self.join_all()
        found = 1
        while found:
            await self.world.quiet()
            found = sum(self.read(name, acknowledged=1) for name in self.NAMES)


@pytest.mark.parametrize("seed", range(10))
def test_no_message_is_lost_and_qos_2_is_never_repeated_over_random_crashes(seed: int) -> None:
    @on_a_loop
    async def run() -> None:
        world, members = await started(partitions=2)
        clients = Clients(random.Random(seed), world, members)
        await clients.join_all()
        for _ in range(80):
            await clients.step()
        await clients.finish()
        assert clients.delivered.keys() == clients.qos.keys()
        repeated = [p for p, n in clients.delivered.items() if clients.qos[p] == 2 and n > 1]
        assert repeated == []
        world.close()

    run()
