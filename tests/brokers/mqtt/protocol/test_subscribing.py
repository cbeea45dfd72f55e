"""SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

import pytest
from tests.brokers.mqtt.raw_client import RawClient

from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Ack,
    Connect,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_each_filter_has_its_answer(port: int, version: int) -> None:
    with RawClient(port, version) as client:
        client.connect(Connect(version, f"filters{version}"))
        client.send(Subscribe(5, [SubscriptionRequest(f"f/{qos}", qos) for qos in (0, 1, 2)]))
        assert client.receive(Suback) == Suback(5, [0, 1, 2])
        client.send(Unsubscribe(6, ["f/0", "f/9"]))
        unsuback = client.receive(Unsuback)
        assert unsuback.packet_id == 6
        if version == MQTT_5:
            assert unsuback.reason_codes == [0, ReasonCode.NO_SUBSCRIPTION_EXISTED]


def test_messages_carry_the_identifiers_of_all_subscriptions_that_match(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="identifiers")
        for number, topic_filter in enumerate(("i/+", "i/a", "other"), start=1):
            properties = Properties(subscription_identifiers=[number])
            request = SubscriptionRequest(topic_filter, number % 2)
            client.send(Subscribe(number, [request], properties))
            client.receive(Suback)
        client.send(Publish("i/a", b"x", 1, packet_id=1))
        got = {type(packet): packet for packet in (client.next(), client.next())}
        message = got[Publish]
        assert isinstance(message, Publish)
        assert message.qos == 1
        assert message.properties is not None
        assert sorted(message.properties.subscription_identifiers or ()) == [1, 2]


def test_own_messages_are_left_out_on_request(port: int) -> None:
    with RawClient(port) as client, RawClient(port) as other:
        client.connect(client_id="own")
        other.connect(client_id="not-own")
        client.send(Subscribe(1, [SubscriptionRequest("own", 0, no_local=True)]))
        client.receive(Suback)
        client.send(Publish("own", b"mine"), Pingreq())
        client.receive(Pingresp)
        other.send(Publish("own", b"theirs"))
        assert client.receive(Publish).payload == b"theirs"


def test_no_local_for_a_shared_subscription_ends_the_connection(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="shared")
        client.send(Subscribe(1, [SubscriptionRequest("$share/g/t", 0, no_local=True)]))
        client.expect_end(ReasonCode.PROTOCOL_ERROR)


def test_filters_of_wildcards_match_no_system_topics(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="wild")
        client.send(Subscribe(1, [SubscriptionRequest("#"), SubscriptionRequest("+/x")]))
        client.receive(Suback)
        client.send(Publish("$other/x", b"hidden"), Publish("wild/x", b"shown"))
        message = client.receive(Publish)
        while message.topic != "wild/x":  # of other tests
            assert not message.topic.startswith("$")
            message = client.receive(Publish)


@pytest.mark.parametrize(
    ("handling", "is_new", "is_sent"),
    [(0, True, True), (0, False, True), (1, True, True), (1, False, False), (2, True, False)],
)
def test_retained_messages_follow_the_retain_handling(
    port: int, handling: int, is_new: bool, is_sent: bool
) -> None:
    topic = f"retained/{handling}/{is_new}"
    with RawClient(port) as client:
        client.connect(client_id=f"handling{handling}{is_new}")
        client.send(Publish(topic, b"kept", 1, retain=True, packet_id=1))
        client.receive(Ack)
        if not is_new:
            client.send(Subscribe(2, [SubscriptionRequest(topic, 0, retain_handling=2)]))
            client.receive(Suback)
        client.send(Subscribe(3, [SubscriptionRequest(topic, 0, retain_handling=handling)]))
        client.receive(Suback)
        if is_sent:
            message = client.receive(Publish)
            assert (message.payload, message.retain) == (b"kept", True)
        client.send(Publish(topic, b"next"))
        assert client.receive(Publish).payload == b"next"


def test_an_empty_payload_removes_the_retained_message(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="removes")
        for number, payload in enumerate((b"kept", b""), start=1):
            client.send(Publish("removed", payload, 1, retain=True, packet_id=number))
            client.receive(Ack)
        client.send(Subscribe(3, [SubscriptionRequest("removed", 0)]), Pingreq())
        client.receive(Suback)
        client.receive(Pingresp)
        client.send(Publish("removed", b"live"))
        assert client.receive(Publish).payload == b"live"


@pytest.mark.parametrize("is_kept", [False, True])
def test_the_retain_flag_of_live_messages_is_kept_on_request(port: int, is_kept: bool) -> None:
    topic = f"flag/{is_kept}"
    with RawClient(port) as client:
        client.connect(client_id=f"flag{is_kept}")
        request = SubscriptionRequest(topic, 0, retain_as_published=is_kept)
        client.send(Subscribe(1, [request]))
        client.receive(Suback)
        client.send(Publish(topic, b"x", retain=True))
        assert client.receive(Publish).retain is is_kept


def test_a_retained_message_that_has_expired_is_not_sent(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="expired")
        expiry = Properties(message_expiry_interval=0)
        client.send(Publish("expired", b"x", 1, retain=True, packet_id=1, properties=expiry))
        assert client.receive(Ack).kind is PacketType.PUBACK
        client.send(Subscribe(2, [SubscriptionRequest("expired")]), Pingreq())
        client.receive(Suback)
        client.receive(Pingresp)
        client.send(Publish("expired", b"live"))
        assert client.receive(Publish).payload == b"live"
