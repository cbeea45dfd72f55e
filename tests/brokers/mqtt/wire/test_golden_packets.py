"""Packets of every type, version and property have the bytes that the standards give."""

from __future__ import annotations

import pytest

from penstock.brokers.mqtt.wire.codec import Decoder, encode
from penstock.brokers.mqtt.wire.packets import (
    PINGREQ,
    PINGRESP,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.brokers.mqtt.wire.properties import FORMS, WILL, Form, Properties
from penstock.brokers.mqtt.wire.pure.decode import Decoder as Reference

Golden = tuple[int, Packet, str]

FROM_CLIENTS: list[Golden] = [
    (3, Publish("a/b", b"hi"), "30 07 0003 612f62 6869"),
    (4, Publish("a/b", b"hi", 1, packet_id=10), "32 09 0003 612f62 000a 6869"),
    (4, Publish("a", b"", 2, retain=True, dup=True, packet_id=1), "3d 05 0001 61 0001"),
    (5, Publish("a/b", b"hi"), "30 08 0003 612f62 00 6869"),
    (
        5,
        Publish("ß", b"x" * 200, 1, packet_id=65_535, properties=Properties(topic_alias=7)),
        "32 d201 0002 c39f ffff 03 23 0007 " + "78" * 200,
    ),
    (5, Publish("", b"", properties=Properties(topic_alias=1)), "30 06 0000 03 23 0001"),
    (4, Ack(PacketType.PUBACK, 1), "40 02 0001"),
    (4, Ack(PacketType.PUBREC, 258), "50 02 0102"),
    (4, Ack(PacketType.PUBREL, 1), "62 02 0001"),
    (4, Ack(PacketType.PUBCOMP, 1), "70 02 0001"),
    (5, Ack(PacketType.PUBACK, 1), "40 02 0001"),
    (5, Ack(PacketType.PUBACK, 1, 0x10), "40 03 0001 10"),
    (5, Ack(PacketType.PUBREC, 1, 0x97), "50 03 0001 97"),
    (5, Ack(PacketType.PUBREL, 1, 0x92), "62 03 0001 92"),
    (
        5,
        Ack(PacketType.PUBCOMP, 1, 0, Properties(reason_string="r")),
        "70 08 0001 00 04 1f 0001 72",
    ),
    (
        3,
        Subscribe(1, [SubscriptionRequest("a/+", 1), SubscriptionRequest("#", 2)]),
        "82 0c 0001 0003 612f2b 01 0001 23 02",
    ),
    (
        5,
        Subscribe(
            1,
            [
                SubscriptionRequest(
                    "a", 2, no_local=True, retain_as_published=True, retain_handling=2
                )
            ],
            Properties(subscription_identifiers=[300]),
        ),
        "82 0a 0001 03 0b ac02 0001 61 2e",
    ),
    (4, Unsubscribe(1, ["a", "b/#"]), "a2 0a 0001 0001 61 0003 622f23"),
    (5, Unsubscribe(1, ["a"]), "a2 06 0001 00 0001 61"),
    (4, PINGREQ, "c0 00"),
    (4, Disconnect(), "e0 00"),
    (5, Disconnect(), "e0 00"),
    (5, Disconnect(4), "e0 01 04"),
    (5, Disconnect(0, Properties(session_expiry_interval=10)), "e0 07 00 05 11 0000000a"),
    (5, Auth(), "f0 00"),
    (
        5,
        Auth(0x18, Properties(authentication_method="S", authentication_data=b"\1\2")),
        "f0 0b 18 09 15 0001 53 16 0002 0102",
    ),
]
FROM_SERVERS: list[Golden] = [
    (4, Connack(session_present=True), "20 02 01 00"),
    (3, Connack(reason_code=0x84), "20 02 00 01"),
    (4, Connack(reason_code=0x85), "20 02 00 02"),
    (4, Connack(reason_code=0x88), "20 02 00 03"),
    (4, Connack(reason_code=0x86), "20 02 00 04"),
    (4, Connack(reason_code=0x87), "20 02 00 05"),
    (5, Connack(), "20 03 00 00 00"),
    (
        5,
        Connack(
            properties=Properties(
                topic_alias_maximum=10, maximum_packet_size=2_000_000, receive_maximum=20
            )
        ),
        "20 0e 00 00 0b 22 000a 27 001e8480 21 0014",
    ),
    (4, Suback(1, [0, 1, 2, 0x80]), "90 06 0001 00 01 02 80"),
    (5, Suback(1, [2, 0x87]), "90 05 0001 00 02 87"),
    (4, Unsuback(1, []), "b0 02 0001"),
    (5, Unsuback(1, [0, 0x11]), "b0 05 0001 00 00 11"),
    (4, PINGRESP, "d0 00"),
    (5, Disconnect(0x8E), "e0 01 8e"),
]
CONNECTS: list[Golden] = [
    (3, Connect(3, "c", True, 60), "10 0f 0006 4d5149736470 03 02 003c 0001 63"),
    (4, Connect(4, "", True, 0), "10 0c 0004 4d515454 04 02 0000 0000"),
    (
        4,
        Connect(4, "c", False, 1, "u", b"\0p", Will("w", b"m", 2, True)),
        "10 1a 0004 4d515454 04 f4 0001 0001 63 0001 77 0001 6d 0001 75 0002 0070",
    ),
    (
        5,
        Connect(
            5,
            "c",
            keep_alive=10,
            password=b"p",
            will=Will("w", b"", 1, properties=Properties(will_delay_interval=5)),
            properties=Properties(session_expiry_interval=0xFFFFFFFF, receive_maximum=2),
        ),
        "10 24 0004 4d515454 05 4e 000a 0821000211ffffffff 000163 051800000005 000177 0000 000170",
    ),
]


def check(golden: Golden, version: int | None, *, from_client: bool) -> None:
    encoding, packet, text = golden
    data = bytes.fromhex(text)
    assert encode(packet, encoding) == data
    for decoder in (Decoder(from_client=from_client), Reference(from_client=from_client)):
        assert decoder.decode(data, version) == ([packet], len(data))


@pytest.mark.parametrize("golden", FROM_CLIENTS, ids=str)
def test_packets_of_clients_have_these_bytes(golden: Golden) -> None:
    check(golden, golden[0], from_client=True)


@pytest.mark.parametrize("golden", FROM_SERVERS, ids=str)
def test_packets_of_servers_have_these_bytes(golden: Golden) -> None:
    check(golden, golden[0], from_client=False)


@pytest.mark.parametrize("golden", CONNECTS, ids=str)
def test_connect_has_these_bytes(golden: Golden) -> None:
    check(golden, None, from_client=True)


GOLDEN_PROPERTIES: dict[str, tuple[object, str]] = {
    "payload_format_indicator": (1, "01 01"),
    "message_expiry_interval": (258, "02 00000102"),
    "content_type": ("t", "03 0001 74"),
    "response_topic": ("r", "08 0001 72"),
    "correlation_data": (b"\0", "09 0001 00"),
    "subscription_identifiers": ([1], "0b 01"),
    "session_expiry_interval": (1, "11 00000001"),
    "assigned_client_identifier": ("c", "12 0001 63"),
    "server_keep_alive": (60, "13 003c"),
    "authentication_method": ("m", "15 0001 6d"),
    "authentication_data": (b"d", "16 0001 64"),
    "request_problem_information": (0, "17 00"),
    "will_delay_interval": (2, "18 00000002"),
    "request_response_information": (1, "19 01"),
    "response_information": ("i", "1a 0001 69"),
    "server_reference": ("s", "1c 0001 73"),
    "reason_string": ("r", "1f 0001 72"),
    "receive_maximum": (1, "21 0001"),
    "topic_alias_maximum": (0, "22 0000"),
    "topic_alias": (1, "23 0001"),
    "maximum_qos": (1, "24 01"),
    "retain_available": (0, "25 00"),
    "user_properties": ([("n", "v"), ("n", "")], "26 0001 6e 0001 76 26 0001 6e 0000"),
    "maximum_packet_size": (1, "27 00000001"),
    "wildcard_subscription_available": (0, "28 00"),
    "subscription_identifier_available": (0, "29 00"),
    "shared_subscription_available": (0, "2a 00"),
}


def carrier(packet: int, found: Properties) -> tuple[Packet, bool]:
    """Return a packet with properties, and whether clients send it."""
    kind = PacketType(packet) if packet != WILL else None
    from_client: dict[PacketType | None, Packet] = {
        None: Connect(5, "c", will=Will("w", b"", properties=found)),
        PacketType.CONNECT: Connect(5, "c", properties=found),
        PacketType.SUBSCRIBE: Subscribe(1, [SubscriptionRequest("a")], found),
        PacketType.UNSUBSCRIBE: Unsubscribe(1, ["a"], found),
        PacketType.AUTH: Auth(0x19, found),
    }
    if kind in from_client:
        return from_client[kind], True
    from_server: dict[PacketType | None, Packet] = {
        PacketType.CONNACK: Connack(properties=found),
        PacketType.PUBLISH: Publish("a", b"", properties=found),
        PacketType.SUBACK: Suback(1, [0], found),
        PacketType.UNSUBACK: Unsuback(1, [0], found),
        PacketType.DISCONNECT: Disconnect(0, found),
    }
    if kind in from_server:
        return from_server[kind], False
    assert kind is not None
    return Ack(kind, 1, 0, found), False


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_property_has_its_bytes_in_every_packet_that_has_it(form: object) -> None:
    assert isinstance(form, tuple)
    name, packets = form[1], form[3]
    value, text = GOLDEN_PROPERTIES[name]
    data = bytes.fromhex(text)
    for packet in packets - {PacketType.PINGREQ, PacketType.PINGRESP}:
        found = Properties(**{name: value})  # type: ignore[arg-type] # the value fits the name
        if name == "authentication_data":
            found.authentication_method = "m"
            data = bytes.fromhex(GOLDEN_PROPERTIES["authentication_method"][1] + text)
        carried, is_from_client = carrier(packet, found)
        encoded = encode(carried, 5)
        assert bytes((len(data),)) + data in encoded
        version = None if isinstance(carried, Connect) else 5
        decoder = Decoder(from_client=is_from_client)
        assert decoder.decode(encoded, version) == ([carried], len(encoded))


def test_the_table_of_properties_is_complete() -> None:
    assert {form.name for form in FORMS} == set(GOLDEN_PROPERTIES)
    assert len({form.identifier for form in FORMS}) == len(FORMS) == 27
    assert {form.form for form in FORMS} == set(Form)
