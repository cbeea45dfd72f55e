"""PUBLISH of clients: acknowledgements, aliases, limits."""

from __future__ import annotations

import pytest
from tests.brokers.mqtt.raw_client import RawClient

from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Ack,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

PUBACK, PUBREC, PUBREL, PUBCOMP = (
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
)


def subscriber(port: int, name: str, topic: str, qos: int = 2, version: int = MQTT_5) -> RawClient:
    client = RawClient(port, version)
    client.connect(Connect(version, name))
    client.send(Subscribe(1, [SubscriptionRequest(topic, qos)]))
    client.receive(Suback)
    return client


def test_acknowledgements_leave_in_the_order_of_the_publishes(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="order")
        packets = [Publish(f"order/{n % 3}", b"x", 1 + n % 2, packet_id=n) for n in range(1, 6)]
        client.send(*packets)
        acks = [client.receive(Ack) for _ in packets]
        assert [ack.packet_id for ack in acks] == [1, 2, 3, 4, 5]
        assert [ack.kind for ack in acks] == [PUBREC, PUBACK, PUBREC, PUBACK, PUBREC]


def test_more_publishes_than_the_receive_maximum_end_the_connection(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="quota")
        client.send(*[Publish("quota", b"x", 2, packet_id=n) for n in range(1, 7)])
        for number in range(1, 6):
            assert client.receive(Ack).packet_id == number
        client.expect_end(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)


def test_released_packet_ids_count_no_more(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="released")
        for number in range(1, 20):
            client.send(Publish("released", b"x", 2, packet_id=number))
            assert client.receive(Ack).kind is PUBREC
            client.send(Ack(PUBREL, number))
            assert client.receive(Ack) == Ack(PUBCOMP, number)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_qos_2_publish_that_is_repeated_is_stored_once(port: int, version: int) -> None:
    topic = f"repeated/{version}"
    with (
        subscriber(port, f"rs{version}", topic, 0) as watching,
        RawClient(port, version) as client,
    ):
        client.connect(Connect(version, f"rp{version}"))
        for is_repeated in (False, True):
            client.send(Publish(topic, b"once", 2, dup=is_repeated, packet_id=7))
            assert client.receive(Ack) == Ack(PUBREC, 7)
        client.send(Ack(PUBREL, 7))
        assert client.receive(Ack) == Ack(PUBCOMP, 7)
        client.send(Publish(topic, b"twice", 2, packet_id=7))
        assert client.receive(Ack) == Ack(PUBREC, 7)
        assert watching.receive(Publish).payload == b"once"
        assert watching.receive(Publish).payload == b"twice"


def test_a_release_of_an_unknown_packet_id_is_answered(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="unknown-release")
        client.send(Ack(PUBREL, 9))
        assert client.receive(Ack) == Ack(PUBCOMP, 9)


def test_an_alias_stands_for_the_topic_it_was_set_with(port: int) -> None:
    with subscriber(port, "as", "alias/#", 0) as watching, RawClient(port) as client:
        client.connect(client_id="ap")
        client.send(
            Publish("alias/a", b"1", properties=Properties(topic_alias=3)),
            Publish("", b"2", properties=Properties(topic_alias=3)),
            Publish("alias/b", b"3", properties=Properties(topic_alias=3)),
            Publish("", b"4", properties=Properties(topic_alias=3)),
        )
        got = [watching.receive(Publish) for _ in range(4)]
        assert [message.topic for message in got] == ["alias/a", "alias/a", "alias/b", "alias/b"]
        assert all(message.properties is None for message in got)


@pytest.mark.parametrize(
    ("topic", "alias", "reason"),
    [
        ("x", 11, ReasonCode.TOPIC_ALIAS_INVALID),
        ("x", 0, ReasonCode.TOPIC_ALIAS_INVALID),
        ("", 2, ReasonCode.PROTOCOL_ERROR),
    ],
)
def test_a_bad_alias_ends_the_connection(
    port: int, topic: str, alias: int, reason: ReasonCode
) -> None:
    with RawClient(port) as client:
        client.connect(client_id="bad-alias")
        client.send(Publish(topic, b"", properties=Properties(topic_alias=alias)))
        client.expect_end(reason)


def test_a_packet_above_the_maximum_size_ends_the_connection(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="large")
        client.send(Publish("large", b"x" * 5000))
        client.expect_end(ReasonCode.PACKET_TOO_LARGE)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_system_topics_are_read_only(port: int, version: int) -> None:
    with RawClient(port, version) as client:
        client.connect(Connect(version, f"sys{version}"))
        client.send(Publish("$SYS/x", b"", 0), Pingreq())
        client.receive(Pingresp)
        client.send(Publish("$SYS/x", b"", 1, packet_id=1))
        if version == MQTT_5:
            assert client.receive(Ack) == Ack(PUBACK, 1, ReasonCode.NOT_AUTHORIZED)
        else:
            client.expect_end()


def test_properties_reach_the_subscriber(port: int) -> None:
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\0\xff",
        user_properties=[("a", "1"), ("a", "2"), ("content-type", "x"), ("mqtt.qos", "7")],
    )
    with subscriber(port, "ps", "properties", 1) as watching, RawClient(port) as client:
        client.connect(client_id="pp")
        client.send(Publish("properties", b"x", 1, packet_id=1, properties=properties))
        message = watching.receive(Publish)
        assert message.properties == properties


def test_a_message_that_expires_is_delivered_with_the_time_that_is_left(port: int) -> None:
    with subscriber(port, "es", "expiring", 1) as watching, RawClient(port) as client:
        client.connect(client_id="ep")
        wanted = Properties(message_expiry_interval=100)
        client.send(Publish("expiring", b"x", 1, packet_id=1, properties=wanted))
        left = watching.receive(Publish).properties
        assert left is not None
        assert left.message_expiry_interval in {99, 100}


def test_a_will_is_published_when_a_client_leaves_without_disconnect(port: int) -> None:
    with subscriber(port, "ws", "wills/#", 1) as watching:
        for name, packet, has_will in (
            ("lost", None, True),
            ("leaves", Disconnect(), False),
            ("asks", Disconnect(ReasonCode.DISCONNECT_WITH_WILL), True),
        ):
            client = RawClient(port)
            client.connect(Connect(MQTT_5, f"w-{name}", will=Will(f"wills/{name}", b"gone", 1)))
            if packet is not None:
                client.send(packet)
                client.expect_end()
            client.close()
            if has_will:
                message = watching.receive(Publish)
                assert (message.topic, message.payload) == (f"wills/{name}", b"gone")
                watching.send(Ack(PUBACK, message.packet_id))


def test_disconnect_cannot_lengthen_a_session_that_connect_did_not_ask_for(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="longer")
        client.send(Disconnect(0, Properties(session_expiry_interval=10)))
        client.expect_end(ReasonCode.PROTOCOL_ERROR)


def test_disconnect_can_end_a_session(port: int) -> None:
    keeps = Properties(session_expiry_interval=100)
    for is_present, expiry_s in ((False, 50), (True, 0), (False, 50)):
        with RawClient(port) as client:
            connack = client.connect(Connect(MQTT_5, "ends", False, 10, properties=keeps))
            assert isinstance(connack, Connack)
            assert connack.session_present is is_present
            client.send(Disconnect(0, Properties(session_expiry_interval=expiry_s)))
            client.expect_end()
