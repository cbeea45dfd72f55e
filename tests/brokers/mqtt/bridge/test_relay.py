"""The relay: packet ids, acknowledgements, loops, limits."""

from __future__ import annotations

import asyncio

from tests.brokers.mqtt.on_a_loop import on_a_loop

from penstock.brokers.mqtt.bridge.relay import PATH_PROPERTY, BridgeCounters, Relay, Side
from penstock.brokers.mqtt.bridge.topics import TransferTable, tables_of
from penstock.brokers.mqtt.client import PacketChannel
from penstock.brokers.mqtt.wire.codec import Decoder, encode
from penstock.brokers.mqtt.wire.packets import (
    Ack,
    Connack,
    Packet,
    PacketType,
    Properties,
    Publish,
)
from penstock.settings.mqtt_bridge_section import MqttBridgeTopic

TOPICS = [MqttBridgeTopic(connection="b", filter="a/#", direction="both", qos=2)]
OUT, IN = tables_of(TOPICS, 5, "b")


class Pipe:
    """A side whose broker sends given packets, then closes."""

    def __init__(
        self, packets: list[Packet], version: int, connack: Connack, table: TransferTable
    ) -> None:
        self._data = b"".join(encode(packet, version) for packet in packets)
        self.written = b""
        self.version = version
        self.side = Side(PacketChannel(self, self, version, 1 << 20), connack, table)

    async def read(self, n: int = -1) -> bytes:
        del n
        data, self._data = self._data, b""
        return data

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        pass

    def sent(self) -> list[Packet]:
        return Decoder().decode(self.written, self.version)[0] if self.written else []


async def relayed(
    local_packets: list[Packet],
    remote_packets: list[Packet],
    *,
    remote_version: int = 5,
    local_connack: Connack | None = None,
    remote_connack: Connack | None = None,
) -> tuple[list[Packet], list[Packet], BridgeCounters]:
    """Return what the local and the remote broker received."""
    local = Pipe(local_packets, 5, local_connack or Connack(), OUT)
    remote = Pipe(remote_packets, remote_version, remote_connack or Connack(), IN)
    counters = BridgeCounters()
    relay = Relay(local.side, remote.side, "me", counters)
    relay.release_old_ids()
    await relay.pump(from_local=True)
    await relay.pump(from_local=False)
    return local.sent(), remote.sent(), counters


def path(*instances: str) -> Properties:
    return Properties(user_properties=[(PATH_PROPERTY, one) for one in instances])


@on_a_loop
async def test_a_message_keeps_its_packet_id_and_its_acknowledgements_come_back() -> None:
    message = Publish("a/b", b"x", 2, retain=True, packet_id=7)
    local, remote, counters = await relayed(
        [message, Ack(PacketType.PUBREL, 7)],
        [Ack(PacketType.PUBREC, 7), Ack(PacketType.PUBCOMP, 7)],
    )
    passed = Publish("a/b", b"x", 2, retain=True, packet_id=7, properties=path("me"))
    assert remote == [passed, Ack(PacketType.PUBREL, 7)]
    assert local == [Ack(PacketType.PUBREC, 7), Ack(PacketType.PUBCOMP, 7)]
    assert (counters.sent_out, counters.received_in) == (1, 0)


@on_a_loop
async def test_a_refusal_of_the_target_reaches_the_source() -> None:
    local, _, _ = await relayed(
        [Publish("a/b", b"x", 1, packet_id=7)], [Ack(PacketType.PUBACK, 7, 0x87)]
    )
    assert local == [Ack(PacketType.PUBACK, 7, 0x87)]


@on_a_loop
async def test_properties_are_not_sent_to_a_broker_of_the_older_version() -> None:
    _, remote, _ = await relayed(
        [Publish("a/b", b"x", properties=Properties(content_type="text"))], [], remote_version=4
    )
    assert remote == [Publish("a/b", b"x")]


@on_a_loop
async def test_a_message_that_was_here_before_is_acknowledged_and_not_passed_on() -> None:
    local, remote, counters = await relayed(
        [],
        [
            Publish("a/b", b"1", 1, packet_id=7, properties=path("me", "other")),
            Publish("a/b", b"2", 2, packet_id=8, properties=path("me")),
            Ack(PacketType.PUBREL, 8),
        ],
    )
    assert local == []
    assert remote == [
        Ack(PacketType.PUBACK, 7),
        Ack(PacketType.PUBREC, 8),
        Ack(PacketType.PUBCOMP, 8),
    ]
    assert counters.dropped == 2


@on_a_loop
async def test_a_message_of_a_removed_topic_is_acknowledged_and_not_passed_on() -> None:
    local, remote, _ = await relayed([Publish("other", b"x", 1, packet_id=7)], [])
    assert local == [Ack(PacketType.PUBACK, 7)]
    assert remote == []


@on_a_loop
async def test_a_message_above_the_limit_of_the_target_is_not_passed_on() -> None:
    small = Connack(properties=Properties(maximum_packet_size=100))
    local, remote, counters = await relayed(
        [Publish("a/b", b"x" * 200, 1, packet_id=7), Publish("a/b", b"x")],
        [],
        remote_connack=small,
    )
    assert local == [Ack(PacketType.PUBACK, 7)]
    assert [packet.payload for packet in remote if isinstance(packet, Publish)] == [b"x"]
    assert counters.dropped == 1


@on_a_loop
async def test_a_lost_session_releases_the_ids_that_the_other_broker_has() -> None:
    local, remote, _ = await relayed(
        [Publish("a/b", b"new", 2, packet_id=7)],
        [Ack(PacketType.PUBCOMP, 7, 0x92), Ack(PacketType.PUBREC, 7), Ack(PacketType.PUBCOMP, 7)],
        remote_connack=Connack(session_present=True),
    )
    released = {packet.packet_id for packet in remote if isinstance(packet, Ack)}
    assert released == set(range(1, 65_536))
    assert remote[-1] == Publish("a/b", b"new", 2, packet_id=7, properties=path("me"))
    assert local == [Ack(PacketType.PUBREC, 7), Ack(PacketType.PUBCOMP, 7)]
