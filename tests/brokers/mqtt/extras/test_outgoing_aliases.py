"""Topic aliases that the server sends."""

from __future__ import annotations

from penstock.brokers.mqtt.protocol.outgoing_aliases import OutgoingAliases
from penstock.brokers.mqtt.wire.codec import Decoder, encode
from penstock.brokers.mqtt.wire.packets import MQTT_5, Ack, PacketType, Properties, Publish


def sent(aliases: OutgoingAliases, *packets: Publish | Ack) -> list[object]:
    data = aliases.apply(b"".join(encode(packet, MQTT_5) for packet in packets))
    return list(Decoder(from_client=False).decode(data, MQTT_5)[0])


def test_a_topic_is_sent_in_full_once() -> None:
    aliases = OutgoingAliases(5, 1_000)
    properties = Properties(content_type="text")
    first, second, ack = sent(
        aliases,
        Publish("a/b", b"1", 1, packet_id=7, properties=properties),
        Publish("a/b", b"2"),
        Ack(PacketType.PUBACK, 9),
    )
    known = Properties(content_type="text", topic_alias=1)
    assert first == Publish("a/b", b"1", 1, packet_id=7, properties=known)
    assert second == Publish("", b"2", properties=Properties(topic_alias=1))
    assert ack == Ack(PacketType.PUBACK, 9)


def test_topics_beyond_the_aliases_of_the_client_are_sent_in_full() -> None:
    aliases = OutgoingAliases(1, 1_000)
    sent(aliases, Publish("a", b""))
    assert sent(aliases, Publish("b", b"")) == [Publish("b", b"")]
    assert sent(aliases, Publish("a", b"")) == [
        Publish("", b"", properties=Properties(topic_alias=1))
    ]


def test_a_packet_that_would_be_too_large_has_no_alias() -> None:
    packet = Publish("a/b", b"x" * 200)
    aliases = OutgoingAliases(5, len(encode(packet, MQTT_5)))
    assert sent(aliases, packet) == [packet]


def test_acknowledgements_are_not_changed() -> None:
    aliases = OutgoingAliases(5, 1_000)
    data = encode(Ack(PacketType.PUBACK, 9), MQTT_5)
    assert aliases.apply(data) == data
