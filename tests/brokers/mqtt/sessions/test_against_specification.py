"""Random histories of clients, publishes and crashes, against the executable specification."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.brokers.mqtt.sessions.specification import ModelClient
from tests.brokers.mqtt.sessions.world import STORED, World

from penstock.adapter.topics.routes import TopicRoute
from penstock.brokers.mqtt.sessions import row_writer
from penstock.brokers.mqtt.sessions.row_writer import Fence
from penstock.errors import DiskFullError, StoreError
from penstock.record import Offset, Record

T = TypeVar("T")
NAMES = ("x", "y")
CLIENTS = st.sampled_from(NAMES)
TOPICS = st.sampled_from(["a", "a/b", "b"])
FILTERS = st.sampled_from(["a", "a/#", "+", "#", "+/b"])
QOS = st.sampled_from([0, 1, 1, 2, 2])
EXPIRY_S = 600
PATIENCE_S = 5.0


class Disk:
    """Refuses the rows of sessions while it is full."""

    def __init__(self) -> None:
        self._write = row_writer._write_parts
        self.is_full = self.was_full = False

    def write(
        self, route: TopicRoute, parts: dict[int, list[Record]], fence: Fence | None
    ) -> dict[int, StoreError]:
        if self.is_full:
            return dict.fromkeys(parts, DiskFullError("the disk is full"))
        return self._write(route, parts, fence)

    def restore(self) -> None:
        row_writer._write_parts = self._write


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World(partitions=2)
        self.clients = {name: ModelClient(name) for name in NAMES}
        self.disk = Disk()
        row_writer._write_parts = self.disk.write
        self.number = 0
        self.under_way: set[int] = set()
        """Stored, and perhaps not delivered yet: a new subscription may get them."""
        self.stored: dict[int, int] = {}
        """How often each number must be in the log."""

    def run(self, work: Coroutine[None, None, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    def on_the_loop(self, call: Callable[[], T]) -> T:
        async def work() -> T:
            return call()

        return self.run(work())

    def quiet(self) -> None:
        self.run(self.world.quiet())
        self.under_way.clear()

    @initialize()
    def start(self) -> None:
        self.run(self.world.start())
        for name in NAMES:
            self.connect(name, clean=False, maximum=3)
            self.subscribe(name, "#", 2)

    @rule(name=CLIENTS, clean=st.sampled_from([False] * 9 + [True]), maximum=st.integers(1, 5))
    def connect(self, name: str, clean: bool, maximum: int) -> None:
        client = self.clients[name]
        client.lost_connection()
        if clean:
            client.expected = None
        try:
            session, sink, is_present = self.run(
                self.world.connect(name, clean=clean, expiry_s=EXPIRY_S, receive_maximum=maximum)
            )
        except DiskFullError:
            return
        assert is_present or client.expected is None, "a session is lost"
        if not is_present:
            client.new_session()
        elif client.expected is None:
            # The rows of a session that has ended could not be removed before a crash.
            assert self.disk.was_full
            client.new_session(is_uncertain=True)
        client.session, client.sink = session, sink
        for packet_id, (number, is_received) in list(client.sent.items()):
            if is_received:
                self.release(name, packet_id)
            else:
                self.send_qos2(client, packet_id, number)

    @rule(name=CLIENTS)
    def disconnect(self, name: str) -> None:
        client = self.clients[name]
        if client.session is not None:
            with suppress(DiskFullError):
                self.run(self.world.disconnect(client.session))
            client.lost_connection()

    @rule(name=CLIENTS, topic_filter=FILTERS, qos=QOS)
    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        client = self.clients[name]
        if client.session is None or client.expected is None:
            return
        client.expected.changed()
        client.expected.allowed |= self.under_way
        try:
            self.run(self.world.subscribe(client.session, topic_filter, qos))
        except DiskFullError:
            client.expected.is_uncertain = True
            return
        self.under_way.clear()
        client.expected.subscriptions[topic_filter] = qos

    @rule(name=CLIENTS, topic_filter=FILTERS)
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        client = self.clients[name]
        if client.session is None or client.expected is None:
            return
        if topic_filter in client.expected.subscriptions:
            client.expected.changed()
            del client.expected.subscriptions[topic_filter]
        try:
            self.run(self.world.service.registry.unsubscribe(client.session, [topic_filter]))
        except DiskFullError:
            client.expected.is_uncertain = True

    @rule(topic=TOPICS, qos=QOS, count=st.integers(1, 6), waits=st.booleans())
    def publish(self, topic: str, qos: int, count: int, waits: bool) -> None:
        for _ in range(count):
            number = self.expect(topic, qos)
            self.on_the_loop(partial(self.world.publish, topic, b"%d" % number, qos))
        if waits:
            self.quiet()

    @rule(topic=TOPICS, count=st.integers(1, 3), waits=st.booleans())
    def write(self, topic: str, count: int, waits: bool) -> None:
        """Another front end writes."""
        for _ in range(count):
            number = self.expect(topic, 1)
            self.world.write(topic, b"%d" % number)
        if waits:
            self.quiet()

    def expect(self, topic: str, qos: int) -> int:
        self.number += 1
        for client in self.clients.values():
            if client.expected is not None:
                client.expected.published(self.number, topic, qos)
        self.stored[self.number] = 1
        self.under_way.add(self.number)
        return self.number

    @rule(name=CLIENTS, packet_id=st.integers(1, 3))
    def publish_qos2(self, name: str, packet_id: int) -> None:
        """A client publishes with QoS 2; PUBREC may be lost."""
        client = self.clients[name]
        if client.session is None:
            return
        if packet_id not in client.sent:
            client.sent[packet_id] = (self.expect("a", 2), False)
        self.send_qos2(client, packet_id, client.sent[packet_id][0])

    def send_qos2(self, client: ModelClient, packet_id: int, number: int) -> None:
        session = client.session
        assert session is not None
        if not session.is_received(packet_id):
            assert not client.sent[packet_id][1], "the node does not know what it has received"
            session.mark_received(packet_id)
            self.on_the_loop(
                lambda: self.world.publish(
                    "a", b"%d" % number, 2, session=session, packet_id=packet_id
                )
            )

    @rule(name=CLIENTS, packet_id=st.integers(1, 3))
    def release(self, name: str, packet_id: int) -> None:
        """PUBREC has come, and the client releases; then the packet id is free."""
        client = self.clients[name]
        if client.session is None or packet_id not in client.sent:
            return
        client.sent[packet_id] = (client.sent[packet_id][0], True)
        with suppress(DiskFullError):
            self.run(self.world.service.registry.release(client.session, packet_id))
            del client.sent[packet_id]

    @rule(name=CLIENTS, reads=st.integers(1, 8), acknowledges=st.integers(0, 8))
    def receive(self, name: str, reads: int, acknowledges: int) -> None:
        client = self.clients[name]
        self.on_the_loop(lambda: client.read(reads) + client.acknowledge(acknowledges))

    @rule()
    def mark(self) -> None:
        with suppress(DiskFullError):
            self.run(self.world.service.store.mark())

    @rule(name=CLIENTS, is_blocked=st.booleans())
    def block(self, name: str, is_blocked: bool) -> None:
        """The client does not take its output, or does again."""
        self.on_the_loop(lambda: self.clients[name].block(is_blocked))

    @rule(is_full=st.sampled_from([False, False, True]))
    def fill_disk(self, is_full: bool) -> None:
        """Rows of sessions cannot be written, or can be again."""
        self.disk.is_full = is_full
        self.disk.was_full |= is_full

    @rule()
    def lose_disconnected(self) -> None:
        """The node has disconnected clients whose rows it could not write."""
        self.quiet()
        for client in self.clients.values():
            if client.sink is not None and client.sink.reason_code is not None:
                self.disconnect(client.client_id)

    @rule(waits=st.booleans())
    def crash(self, waits: bool) -> None:
        """Kill the node; what it has not written or sent is lost."""
        if waits:
            self.quiet()
        self.run(self.world.crash())
        for client in self.clients.values():
            client.lost_connection()

    @rule(seconds=st.sampled_from([1] * 9 + [EXPIRY_S + 1]))
    def pass_time(self, seconds: int) -> None:
        """Sessions whose clients stay away for too long end."""
        self.world.bench.clock.advance(seconds)
        self.on_the_loop(self.world.service.registry.run_due)
        for client in self.clients.values():
            if client.session is None and seconds > EXPIRY_S:
                client.expected = None
                client.sent.clear()

    @invariant()
    def connections_last(self) -> None:
        for client in self.clients.values():
            assert client.sink is None or client.sink.reason_code in {None, 0x80}

    def teardown(self) -> None:
        try:
            self.disk.is_full = False
            self.lose_disconnected()
            for name in NAMES:
                self.block(name, is_blocked=False)
            for name, client in self.clients.items():
                if client.expected is not None and client.session is None:
                    self.connect(name, clean=False, maximum=3)
            self.drain()
            for client in self.clients.values():
                if client.expected is not None:
                    client.check_all_arrived()
            self.check_log()
        finally:
            self.disk.restore()
            self.world.close()
            self.loop.close()

    def drain(self) -> None:
        """Let all clients read and acknowledge until nothing comes any more."""
        idle = 0
        while idle < 2:
            self.quiet()
            done = self.on_the_loop(self.read_all)
            idle = 0 if done else idle + 1

    def read_all(self) -> int:
        return sum(client.read() + client.acknowledge() for client in self.clients.values())

    def check_log(self) -> None:
        found: dict[int, int] = {}
        for partition in range(2):
            for record in self.world.bench.manager.read_by_offset(
                STORED, partition, Offset(0), max_records=10_000
            ):
                number = int(record.value or b"0")
                found[number] = found.get(number, 0) + 1
        assert found == self.stored


Histories.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


TestHistories = Histories.TestCase


@pytest.mark.soak
def test_many_random_histories() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Histories, settings=settings(max_examples=3_000, stateful_step_count=60, deadline=None)
    )
