"""Publishes that native code stores have the same records, answers and deliveries as others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import node_settings, port_of, serve
from tests.brokers.mqtt.wire.strategies import PAYLOADS, properties

from penstock.brokers.mqtt.protocol.hooks import Action, Client
from penstock.brokers.mqtt.wire.codec import encode
from penstock.brokers.mqtt.wire.packets import (
    PINGREQ,
    Ack,
    Connect,
    Packet,
    PacketType,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.brokers.mqtt.wire.properties import Properties
from penstock.codec.select import IS_NATIVE
from penstock.record import Record, StoredRecord
from penstock.remote.server.node_server import Server

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason="native code stores the publishes")
TOPICS = ["plain", "a b", "ß/ü", "deep/er/still", "n"]
WITHOUT = ("topic_alias", "subscription_identifiers")
_numbers = count()


class Servers(NamedTuple):
    """One with the fast path, and one without."""

    fast: Server
    slow: Server


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    chosen = node_settings(no_subscribers_reason=True)
    with (
        serve(tmp_path_factory.mktemp("fast") / "data", chosen) as fast,
        serve(tmp_path_factory.mktemp("slow") / "data", chosen) as slow,
    ):
        assert slow.mqtt is not None
        slow.mqtt.broker.publish_path.fast = None
        yield Servers(fast, slow)


@st.composite
def publishes(draw: st.DrawFn, version: int) -> list[Publish]:
    """Publishes of one buffer; few properties, because those with others are not fed."""
    made = []
    for number in range(draw(st.integers(1, 12))):
        qos = draw(st.integers(0, 2))
        found: Properties | None = None
        if version == 5 and draw(st.integers(0, 3)) == 0:
            found = draw(
                properties(PacketType.PUBLISH, ("topic_alias", "subscription_identifiers"))
            )
            if found is not None and found.message_expiry_interval is not None:
                found.message_expiry_interval = 1_000_000
        publish = Publish(
            draw(st.sampled_from(TOPICS)),
            draw(PAYLOADS),
            qos,
            retain=draw(st.integers(0, 15)) == 0,
            packet_id=number + 1 if qos else 0,
            properties=found,
        )
        made.append(publish)
    return made


def stored(server: Server, prefix: str) -> dict[str, list[Record]]:
    """Return the records of the topics with a prefix, without what differs between servers."""
    found: dict[str, list[Record]] = {}
    drivers = server.node.driver_manager
    for partition in range(8):
        info = drivers.shard_info("mqtt", partition)
        offset = info.earliest
        while offset < info.commit:
            records = drivers.read_by_offset("mqtt", partition, offset)
            for record in records:
                key = (record.key or b"").decode()
                if key.startswith(prefix):
                    found.setdefault(key, []).append(_content(record))
            offset = type(offset)(records[-1].offset + 1)
    return found


def _content(record: StoredRecord) -> Record:
    expires = None if record.expires_at_ms is None else 1
    headers = tuple((name, value) for name, value in record.headers if name != "mqtt.receipt")
    receipts = [value for name, value in record.headers if name == "mqtt.receipt" and value]
    ids = tuple(
        (name, name.encode()) for name in (each.decode().split(":")[1] for each in receipts)
    )
    return Record(record.value, record.key, record.tags, headers + ids, None, expires)


class Exchange(NamedTuple):
    """What one server did with the buffers of a client."""

    acks: list[Packet]
    delivered: list[Publish]
    records: dict[str, list[Record]]


def exchange(
    server: Server, prefix: str, version: int, buffers: list[list[Publish]], *, clean: bool
) -> Exchange:
    """Send buffers of publishes, and wait for everything that comes of them."""
    expiry = None if version != 5 else Properties(session_expiry_interval=0 if clean else 600)
    with RawClient(port_of(server), version) as reader, RawClient(port_of(server), version) as own:
        reader.connect(client_id=f"{prefix}-reader")
        reader.send(Subscribe(1, [SubscriptionRequest(f"{prefix}/#", 2)]))
        reader.receive(Suback)
        own.connect(Connect(version, f"{prefix}-own", clean, properties=expiry))
        acks: list[Packet] = []
        for buffer in buffers:
            named = [replace(publish, topic=f"{prefix}/{publish.topic}") for publish in buffer]
            data = b"".join(encode(publish, version) for publish in named)
            own.send_bytes(data + encode(PINGREQ, version))
            acks += _answers(own, buffer)
        total = sum(len(buffer) for buffer in buffers)
        delivered = _deliveries(reader, total)
        return Exchange(acks, delivered, stored(server, prefix))


def _answers(own: RawClient, buffer: list[Publish]) -> list[Packet]:
    """Return the acknowledgements of a buffer in their order, after releasing what is of QoS 2."""
    acks: list[Packet] = []
    pings = 0
    while len(acks) < sum(publish.qos > 0 for publish in buffer) or not pings:
        packet = own.next()
        if isinstance(packet, Pingresp):
            pings += 1
        else:
            assert isinstance(packet, Ack)
            acks.append(packet)
    for publish in buffer:
        if publish.qos == 2:
            own.send(Ack(PacketType.PUBREL, publish.packet_id))
            acks.append(own.receive(Ack))
    return acks


def _deliveries(reader: RawClient, total: int) -> list[Publish]:
    """Return so many messages, after their exchanges have ended."""
    found: list[Publish] = []
    unreleased = 0
    while len(found) < total or unreleased:
        packet = reader.next()
        if isinstance(packet, Publish):
            found.append(_without_id(packet))
            if packet.qos == 1:
                reader.send(Ack(PacketType.PUBACK, packet.packet_id))
            elif packet.qos == 2:
                unreleased += 1
                reader.send(Ack(PacketType.PUBREC, packet.packet_id))
        else:
            assert isinstance(packet, Ack)
            assert packet.kind == PacketType.PUBREL
            unreleased -= 1
            reader.send(Ack(PacketType.PUBCOMP, packet.packet_id))
    return found


def _without_id(publish: Publish) -> Publish:
    """Return a delivery without what differs between servers."""
    if publish.properties is not None and publish.properties.message_expiry_interval is not None:
        publish.properties.message_expiry_interval = 1
    return replace(publish, packet_id=0)


def by_topic(delivered: list[Publish]) -> dict[str, list[Publish]]:
    """Return deliveries in the order that MQTT promises."""
    found: dict[str, list[Publish]] = {}
    for publish in delivered:
        found.setdefault(publish.topic, []).append(publish)
    return found


def fed_messages(server: Server) -> int:
    assert server.mqtt is not None
    fast = server.mqtt.broker.publish_path.fast
    assert fast is not None
    return fast.messages


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), version=st.sampled_from([4, 5]), clean=st.booleans())
def test_both_ways_have_the_same_records_answers_and_deliveries(
    servers: Servers, data: st.DataObject, version: int, clean: bool
) -> None:
    prefix = f"t{next(_numbers)}"
    buffers = data.draw(st.lists(publishes(version), min_size=2, max_size=4))
    warm = [Publish(topic, b"first", 1, packet_id=index) for index, topic in enumerate(TOPICS, 1)]
    fast, slow = (
        exchange(server, prefix, version, [warm, *buffers], clean=clean) for server in servers
    )
    assert fast.acks == slow.acks
    assert by_topic(fast.delivered) == by_topic(slow.delivered)
    assert fast.records == slow.records


def test_the_second_publish_of_a_topic_is_fed(servers: Servers) -> None:
    with RawClient(port_of(servers.fast)) as client:
        client.connect(client_id="fed")
        client.send(Publish("fed/topic", b"1", 1, packet_id=1))
        client.receive(Ack)
        before = fed_messages(servers.fast)
        packets = [
            Publish("fed/topic", b"%d" % number, 1, packet_id=number) for number in range(2, 9)
        ]
        client.send(*packets)
        ids = [client.receive(Ack).packet_id for _ in packets]
        assert ids == list(range(2, 9))
        assert fed_messages(servers.fast) == before + len(packets)
    values = [record.value for record in stored(servers.fast, "fed/topic")["fed/topic"]]
    assert values == [b"%d" % number for number in range(1, 9)]


def test_a_change_of_the_metadata_drops_the_admitted_topics(servers: Servers) -> None:
    with RawClient(port_of(servers.fast)) as client:
        client.connect(client_id="dropped")
        client.send(Publish("dropped/topic", b"1", 1, packet_id=1))
        client.receive(Ack)
        servers.fast.node.driver_manager.routes.invalidate()
        before = fed_messages(servers.fast)
        client.send(Publish("dropped/topic", b"2", 1, packet_id=2))
        client.receive(Ack)
        assert fed_messages(servers.fast) == before
        client.send(Publish("dropped/topic", b"3", 1, packet_id=3))
        client.receive(Ack)
        assert fed_messages(servers.fast) == before + 1


def test_a_buffer_that_arrives_in_pieces_is_stored_once(servers: Servers) -> None:
    rng = random.Random(7)
    with RawClient(port_of(servers.fast), 4) as client:
        client.connect(client_id="pieces")
        packets = [Publish("pieces", b"%d" % n, 1, packet_id=n) for n in range(1, 200)]
        data = b"".join(encode(packet, 4) for packet in packets)
        while data:
            size = rng.randrange(1, 60)
            client.send_bytes(data[:size])
            data = data[size:]
        ids = [client.receive(Ack).packet_id for _ in packets]
        assert ids == list(range(1, 200))
    values = [record.value for record in stored(servers.fast, "pieces")["pieces"]]
    assert values == [packet.payload for packet in packets]


def test_a_broken_packet_after_fed_ones_ends_the_connection(servers: Servers) -> None:
    with RawClient(port_of(servers.fast)) as client:
        client.connect(client_id="broken")
        client.send(Publish("broken", b"1", 1, packet_id=1))
        client.receive(Ack)
        good = encode(Publish("broken", b"2", 1, packet_id=2), 5)
        client.send_bytes(good + bytes.fromhex("3605000161626364"))
        assert client.receive(Ack).packet_id == 2
        client.expect_end(0x81)
    assert len(stored(servers.fast, "broken")["broken"]) == 2


def test_a_log_that_is_full_is_rolled_between_two_buffers(tmp_path: Path) -> None:
    chosen = node_settings(broker__commit_log_file_size=8 << 20)
    payload = b"x" * 20_000
    with serve(tmp_path / "data", chosen) as server, RawClient(port_of(server), 4) as client:
        client.connect(client_id="roll")
        sent = 0
        for _ in range(40):
            packets = [Publish("roll", payload, 1, packet_id=n) for n in range(1, 21)]
            client.send(*packets)
            sent += len(packets)
            assert [client.receive(Ack).packet_id for _ in packets] == list(range(1, 21))
        assert fed_messages(server) > sent // 2
        assert len(stored(server, "roll")["roll"]) == sent


def test_qos_2_is_released_and_a_packet_id_is_used_again(servers: Servers) -> None:
    for server in servers:
        with RawClient(port_of(server)) as client:
            client.connect(client_id="released")
            for round_ in range(3):
                for packet_id in (1, 2, 3):
                    client.send(Publish("released", b"%d" % round_, 2, packet_id=packet_id))
                answers = [client.receive(Ack) for _ in range(3)]
                assert [(ack.kind, ack.packet_id) for ack in answers] == [
                    (PacketType.PUBREC, packet_id) for packet_id in (1, 2, 3)
                ]
                client.send(Publish("released", b"again", 2, dup=True, packet_id=2))
                assert client.receive(Ack).kind == PacketType.PUBREC
                client.send(*[Ack(PacketType.PUBREL, packet_id) for packet_id in (3, 2, 1)])
                answers = [client.receive(Ack) for _ in range(3)]
                assert [(ack.kind, ack.packet_id) for ack in answers] == [
                    (PacketType.PUBCOMP, packet_id) for packet_id in (3, 2, 1)
                ]
        values = [record.value for record in stored(server, "released")["released"]]
        assert values == [b"0"] * 3 + [b"1"] * 3 + [b"2"] * 3


class OneTopic:
    """An authorizer that allows publishes to one topic."""

    def __init__(self) -> None:
        self.revision = 10
        self.topic = "allowed"

    def allows(self, client: Client, action: Action, topic: str, qos: int, retain: bool) -> bool:
        return action is not Action.PUBLISH or topic == self.topic


def test_a_client_may_publish_what_it_was_allowed_and_nothing_else(servers: Servers) -> None:
    hooks = servers.fast.mqtt.broker.hooks if servers.fast.mqtt else None
    assert hooks is not None
    with RawClient(port_of(servers.fast)) as client:
        client.connect(client_id="rights")
        client.send(Publish("denied", b"", 1, packet_id=1), Publish("allowed", b"", 1, packet_id=2))
        assert [client.receive(Ack).reason_code & 0x80 for _ in range(2)] == [0, 0]
        before = hooks.authorizer
        hooks.authorizer = rules = OneTopic()
        try:
            for _ in range(3):
                client.send(
                    Publish("allowed", b"", 1, packet_id=1), Publish("denied", b"", 1, packet_id=2)
                )
                codes = [client.receive(Ack).reason_code for _ in range(2)]
                assert codes[0] < 0x80
                assert codes[1] == 0x87
            rules.revision += 1
            rules.topic = "other"
            client.send(Publish("allowed", b"", 1, packet_id=1))
            assert client.receive(Ack).reason_code == 0x87
        finally:
            hooks.authorizer = before
