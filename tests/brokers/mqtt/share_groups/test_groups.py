"""Groups of shared subscriptions over real sessions and delivery, with clients in memory."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.brokers.mqtt.on_a_loop import on_a_loop
from tests.brokers.mqtt.sessions.world import Client, World, acks

from penstock.brokers.mqtt.sessions.session import Session
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.brokers.mqtt.wire.packets import Ack, PacketType, Publish
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

GROUP = "$share/g/a/#"


class Members:
    """Clients of one group that keep what they were sent."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.by_name: dict[str, tuple[Session, Client]] = {}
        self.got: Counter[bytes] = Counter()
        self.acknowledged: Counter[bytes] = Counter()

    async def join(
        self,
        name: str,
        topic_filter: str = GROUP,
        qos: int = 1,
        *,
        expiry_s: int = 3600,
        **limits: int,
    ) -> None:
        session, client, _ = await self.world.connect(
            name, clean=False, will=None, expiry_s=expiry_s, **limits
        )
        if topic_filter not in session.subscriptions:
            assert await self.world.subscribe(session, topic_filter, qos) == qos
        self.by_name[name] = (session, client)

    async def leave(self, name: str, *, expiry_s: int | None = None) -> None:
        session, _ = self.by_name.pop(name)
        await self.world.disconnect(session, expiry_s=expiry_s)

    def read(self, name: str) -> list[Publish]:
        session, client = self.by_name[name]
        messages = []
        for packet in client.read():
            if isinstance(packet, Publish):
                messages.append(packet)
                self.got[packet.payload] += 1
            elif isinstance(packet, Ack) and packet.kind == PacketType.PUBREL:
                session.acknowledged(packet.packet_id, PacketType.PUBCOMP)
        return messages

    def acknowledge(self, name: str, message: Publish) -> None:
        session, client = self.by_name[name]
        kind = PacketType.PUBACK if message.qos == 1 else PacketType.PUBREC
        answer = session.acknowledged(message.packet_id, kind)
        if answer:
            client.send(answer)
        self.acknowledged[message.payload] += 1

    async def work(self) -> Counter[str]:
        """Read and acknowledge until nothing comes any more; return how many each member had."""
        counts: Counter[str] = Counter()
        while True:
            await self.world.quiet()
            found = False
            for name in list(self.by_name):
                found = found or bool(self.by_name[name][1].packets)
                for message in self.read(name):
                    counts[name] += 1
                    if message.qos:
                        self.acknowledge(name, message)
            if not found:
                return counts


def payloads(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def started(partitions: int = 2) -> tuple[World, Members]:
    world = World(partitions)
    await world.start()
    return world, Members(world)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_in_turn(qos: int) -> None:
    @on_a_loop
    async def run() -> None:
        world, members = await started()
        for name in ("x", "y", "z"):
            await members.join(name, qos=qos)
        for payload in payloads(300):
            world.publish("a/b", payload, qos)
        counts = await members.work()
        assert members.got == Counter(payloads(300))
        assert set(counts.values()) == {100}
        assert world.shared.find(GROUP) is not None
        world.close()

    run()


@on_a_loop
async def test_a_queue_and_groups_with_other_names_get_their_own_copies() -> None:
    world, members = await started()
    for name, topic_filter in (("x", "$share/g/a"), ("y", "$share/h/a"), ("z", "$queue/a")):
        await members.join(name, topic_filter)
    await members.join("plain", "a")
    world.publish("a", b"1")
    assert await members.work() == {"x": 1, "y": 1, "z": 1, "plain": 1}
    world.close()


@on_a_loop
async def test_members_without_room_are_left_out() -> None:
    world, members = await started(partitions=1)
    await members.join("small", receive_maximum=2)
    await members.join("large", receive_maximum=100)
    for payload in payloads(50):
        world.publish("a/b", payload)
    await world.quiet()
    assert len(members.read("small")) == 2
    assert len(members.read("large")) == 48
    world.close()


@on_a_loop
async def test_a_full_group_reads_the_rest_from_the_log() -> None:
    world, members = await started()
    for name in ("x", "y"):
        await members.join(name, receive_maximum=3)
    for payload in payloads(400):
        world.publish(f"a/{payload[-1]}", payload)
    await world.quiet()
    assert len(members.by_name["x"][1].packets) == 3
    counts = await members.work()
    assert members.got == Counter(payloads(400))
    assert min(counts.values()) > 100
    group = world.shared.find(GROUP)
    assert group is not None
    assert group.queues == {}, "live again, with nothing to keep"
    world.publish("a/b", b"live")
    assert sum((await members.work()).values()) == 1
    world.close()


@on_a_loop
async def test_unacknowledged_messages_of_a_member_that_leaves_go_to_another() -> None:
    world, members = await started()
    await members.join("leaves")
    for payload in payloads(20):
        world.publish("a/b", payload)
    await world.quiet()
    had = members.read("leaves")
    for message in had[:5]:
        members.acknowledge("leaves", message)
    await members.join("stays")
    await members.leave("leaves")
    await world.quiet()
    again = members.read("stays")
    assert [message.payload for message in again] == payloads(15, 5)
    assert not any(message.dup for message in again), "new to this client"
    for message in again:
        members.acknowledge("stays", message)
    await members.join("leaves")
    assert await members.work() == {}
    world.close()


@on_a_loop
async def test_a_member_gets_its_own_message_again_as_a_duplicate() -> None:
    world, members = await started()
    await members.join("only")
    world.publish("a/b", b"1")
    await world.quiet()
    assert [m.dup for m in members.read("only")] == [False]
    await members.leave("only")
    await members.join("only")
    await world.quiet()
    assert [(m.payload, m.dup) for m in members.read("only")] == [(b"1", True)]
    world.close()


@on_a_loop
async def test_qos_2_stays_with_the_session_that_was_sent_it() -> None:
    world, members = await started()
    await members.join("leaves", qos=2)
    world.publish("a/b", b"1", 2)
    await world.quiet()
    (message,) = members.read("leaves")
    await members.join("other", qos=2)
    await members.leave("leaves")
    assert await members.work() == {}
    await members.join("leaves", qos=2)
    await world.quiet()
    (again,) = members.read("leaves")
    assert (again.packet_id, again.dup, again.payload) == (message.packet_id, True, b"1")
    members.acknowledge("leaves", again)
    await world.quiet()
    assert acks(members.by_name["leaves"][1].read(), PacketType.PUBREL) == [message.packet_id]
    world.close()


@on_a_loop
async def test_qos_2_of_a_session_that_ends_goes_to_no_other() -> None:
    world, members = await started()
    await members.join("ends", qos=2)
    world.publish("a/b", b"1", 2)
    await world.quiet()
    assert len(members.read("ends")) == 1
    await members.join("other", qos=2)
    await members.leave("ends", expiry_s=0)
    assert await members.work() == {}
    world.publish("a/b", b"2", 2)
    assert await members.work() == {"other": 1}
    world.close()


@on_a_loop
async def test_offline_members_get_nothing_while_another_is_connected() -> None:
    world, members = await started()
    await members.join("away")
    await members.join("here")
    await members.leave("away")
    for payload in payloads(10):
        world.publish("a/b", payload)
    assert await members.work() == {"here": 10}
    await members.join("away")
    assert await members.work() == {}
    world.close()


@on_a_loop
async def test_messages_wait_for_a_group_whose_members_are_all_away() -> None:
    world, members = await started()
    await members.join("x")
    await members.leave("x")
    for payload in payloads(30):
        world.publish("a/b", payload)
    world.publish("a/b", b"qos 0", 0)
    world.publish("other", b"other")
    await world.quiet()
    await members.join("x")
    assert await members.work() == {"x": 30}
    assert members.got == Counter(payloads(30))
    world.close()


@on_a_loop
async def test_a_group_ends_with_its_last_member() -> None:
    world, members = await started()
    await members.join("x", expiry_s=0)
    await members.join("y")
    assert len(world.shared) == 1
    await members.leave("x")
    await world.service.registry.unsubscribe(members.by_name["y"][0], [GROUP])
    assert len(world.shared) == 0
    assert len(world.service.delivery.tree) == 0
    world.publish("a/b", b"1")
    await members.join("z")
    assert await members.work() == {}, "a new group begins at the end"
    world.close()


@on_a_loop
async def test_members_keep_their_own_qos_and_identifiers() -> None:
    world, members = await started()
    await members.join("zero", qos=0)
    session, client, _ = await world.connect("five")
    await world.service.registry.subscribe(session, [Subscription(GROUP, 2, identifier=7)])
    world.publish("a/b", b"1", 2)
    world.publish("a/b", b"2", 2)
    await world.quiet()
    (first,) = members.read("zero")
    (second,) = client.messages()
    assert (first.qos, first.properties) == (0, None)
    assert second.qos == 2
    assert second.properties is not None
    assert second.properties.subscription_identifiers == [7]
    world.close()


@on_a_loop
async def test_a_message_too_large_for_one_member_goes_to_another() -> None:
    world, members = await started()
    await members.join("small", maximum_packet_size=100)
    await members.join("large")
    for number in range(4):
        world.publish("a/b", b"%d" % number * 200)
    assert await members.work() == {"large": 4}
    await members.leave("large")
    world.publish("a/b", b"x" * 200)
    world.publish("a/b", b"after")
    assert await members.work() == {"small": 1}
    assert world.service.delivery.counts.dropped_large == 1
    world.close()


@on_a_loop
async def test_a_member_whose_output_is_too_long_is_left_out_until_it_is_shorter() -> None:
    world, members = await started()
    for name in ("x", "y"):
        await members.join(name, qos=0)
    members.by_name["x"][1].unsent = 10 << 20
    for payload in payloads(10):
        world.publish("a/b", payload, 1)
    assert await members.work() == {"y": 10}
    members.by_name["x"][1].unsent = 0
    group = world.shared.find(GROUP)
    assert group is not None
    while len(group.ready) < 2:
        await world.quiet()
    for payload in payloads(10):
        world.publish("a/b", payload, 1)
    assert await members.work() == {"x": 5, "y": 5}
    world.close()


@on_a_loop
async def test_retained_messages_are_not_sent_to_shared_subscriptions() -> None:
    world, members = await started()
    await members.join("x")
    world.publish("a/b", b"1", retain=True)
    assert await members.work() == {"x": 1}
    await members.join("y")
    assert await members.work() == {}
    world.close()


@on_a_loop
async def test_a_refused_message_is_not_given_to_another_member() -> None:
    world, members = await started()
    await members.join("x", qos=2)
    await members.join("y", qos=2)
    world.publish("a/b", b"1", 1)
    world.publish("a/b", b"2", 2)
    await world.quiet()
    for name in ("x", "y"):
        session, _ = members.by_name[name]
        (message,) = members.read(name)
        kind = PacketType.PUBACK if message.qos == 1 else PacketType.PUBREC
        session.acknowledged(message.packet_id, kind, ReasonCode.QUOTA_EXCEEDED)
    assert await members.work() == {}
    await members.leave("x")
    assert await members.work() == {}
    world.close()


class Traffic:
    """Random members and messages; members acknowledge what they have read before they leave."""

    NAMES = tuple(f"m{number}" for number in range(6))

    def __init__(self, rng: random.Random, world: World, members: Members) -> None:
        self.rng = rng
        self.world = world
        self.members = members
        self.count = 0

    async def step(self) -> None:
        action = self.rng.randrange(5)
        if action == 0:
            await self.join(self.rng.choice(self.NAMES))
        elif action == 1 and self.members.by_name:
            await self.leave(self.rng.choice(sorted(self.members.by_name)))
        elif action == 2:
            for name in self.members.by_name:
                self.acknowledge(name)
        else:
            await self.publish()

    async def join(self, name: str) -> None:
        if name not in self.members.by_name:
            await self.members.join(
                name,
                qos=self.rng.choice([1, 2]),
                receive_maximum=self.rng.choice([1, 3, 20]),
                expiry_s=self.rng.choice([0, 3600]) if name != "m0" else 3600,
            )

    async def leave(self, name: str) -> None:
        while self.acknowledge(name):
            await self.world.quiet()
        await self.members.leave(name)

    def acknowledge(self, name: str) -> int:
        messages = self.members.read(name)
        for message in messages:
            self.members.acknowledge(name, message)
        return len(messages)

    async def publish(self) -> None:
        for _ in range(self.rng.randint(1, 30)):
            qos = self.rng.choice([1, 2])
            self.world.publish(f"a/{self.count % 7}", b"%d" % self.count, qos)
            self.count += 1
        if self.rng.random() < 0.7:
            await self.world.quiet()


@pytest.mark.parametrize("seed", range(6))
def test_each_message_arrives_once_while_members_come_and_go(seed: int) -> None:
    @on_a_loop
    async def run() -> None:
        world, members = await started(partitions=3)
        traffic = Traffic(random.Random(seed), world, members)
        await traffic.join("m0")
        for _ in range(120):
            await traffic.step()
        await traffic.join("m0")
        await members.work()
        assert members.got == Counter(payloads(traffic.count))
        world.close()

    run()


@pytest.mark.parametrize("seed", range(6))
def test_no_message_is_lost_when_members_leave_without_acknowledging(seed: int) -> None:
    @on_a_loop
    async def run() -> None:
        rng = random.Random(seed)
        world, members = await started(partitions=2)
        await members.join("m0")
        for number in range(200):
            world.publish(f"a/{number % 5}", b"%d" % number)
            if rng.random() < 0.2:
                await world.quiet()
            if rng.random() < 0.1:
                name = f"m{rng.randint(1, 4)}"
                if name in members.by_name:
                    await members.leave(name)
                else:
                    await members.join(name, receive_maximum=rng.choice([2, 50]))
        await members.work()
        assert members.acknowledged == Counter(payloads(200))
        world.close()

    run()
