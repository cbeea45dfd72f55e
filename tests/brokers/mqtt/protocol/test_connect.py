"""CONNECT and CONNACK."""

from __future__ import annotations

import pytest
from tests.brokers.mqtt.raw_client import RawClient

from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Will,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode


def test_connack_names_the_limits_of_the_node(port: int) -> None:
    with RawClient(port) as client:
        connack = client.connect(Connect(MQTT_5, "limits", keep_alive=10))
        assert connack == Connack(
            properties=Properties(
                topic_alias_maximum=10, maximum_packet_size=4096, receive_maximum=5
            )
        )


def test_an_empty_client_id_is_replaced(port: int) -> None:
    with RawClient(port) as client, RawClient(port) as other:
        first, second = (
            each.connect(Connect(MQTT_5, "", keep_alive=10)).properties for each in (client, other)
        )
        assert first is not None
        assert second is not None
        assert first.assigned_client_identifier
        assert first.assigned_client_identifier != second.assigned_client_identifier


@pytest.mark.parametrize(
    ("version", "clean", "reason"),
    [
        (MQTT_3_1_1, True, ReasonCode.SUCCESS),
        (MQTT_3_1_1, False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
        (MQTT_3_1, True, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
    ],
)
def test_older_clients_may_have_no_empty_client_id_with_a_session(
    port: int, version: int, clean: bool, reason: ReasonCode
) -> None:
    with RawClient(port, version) as client:
        client.send(Connect(version, "", clean_start=clean))
        packet = client.next()
        assert isinstance(packet, Connack)
        assert packet.reason_code == reason
        if reason:
            client.expect_end()


def test_a_longer_keep_alive_or_session_than_allowed_is_shortened(port: int) -> None:
    with RawClient(port) as client:
        connect = Connect(
            MQTT_5, "long", keep_alive=200, properties=Properties(session_expiry_interval=5000)
        )
        properties = client.connect(connect).properties
        assert properties is not None
        assert properties.server_keep_alive == 100
        assert properties.session_expiry_interval == 1000


def test_response_information_is_given_on_request(port: int) -> None:
    with RawClient(port) as client:
        connect = Connect(
            MQTT_5, "asks", keep_alive=10, properties=Properties(request_response_information=1)
        )
        properties = client.connect(connect).properties
        assert properties is not None
        assert properties.response_information == "answers/asks"


def test_a_packet_before_connect_ends_the_connection(port: int) -> None:
    with RawClient(port) as client:
        client.send(Pingreq())
        client.expect_end()


def test_a_client_that_does_not_connect_is_ended(port: int) -> None:
    with RawClient(port) as client:
        client.expect_end()


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_second_connect_ends_the_connection(port: int, version: int) -> None:
    with RawClient(port, version) as client:
        client.connect(client_id="twice")
        client.send(Connect(version, "twice"))
        client.expect_end(ReasonCode.PROTOCOL_ERROR if version == MQTT_5 else None)


def test_an_unknown_version_is_refused(port: int) -> None:
    with RawClient(port) as client:
        client.send_bytes(b"\x10\x0d\0\x04MQTT\x09\x02\0\x0a\0\x01x")
        assert client.receive(Connack).reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
        client.expect_end()


def test_an_unknown_authentication_method_is_refused(port: int) -> None:
    with RawClient(port) as client:
        connect = Connect(MQTT_5, "auth", properties=Properties(authentication_method="x"))
        assert client.connect(connect).reason_code == ReasonCode.BAD_AUTHENTICATION_METHOD
        client.expect_end()


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_client_that_is_silent_beyond_its_keep_alive_is_disconnected(
    port: int, version: int
) -> None:
    with RawClient(port, version) as client:
        client.connect(Connect(version, f"silent{version}", keep_alive=1))
        client.send(Pingreq())
        client.receive(Pingresp)
        client.expect_end(ReasonCode.KEEP_ALIVE_TIMEOUT if version == MQTT_5 else None)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_client_with_the_same_id_takes_the_session_over(port: int, version: int) -> None:
    with RawClient(port, version) as first, RawClient(port, version) as second:
        first.connect(client_id=f"same{version}")
        second.connect(client_id=f"same{version}")
        first.expect_end(ReasonCode.SESSION_TAKEN_OVER if version == MQTT_5 else None)
        second.send(Pingreq())
        second.receive(Pingresp)


def test_a_will_for_a_system_topic_is_refused(port: int) -> None:
    with RawClient(port) as client:
        connect = Connect(MQTT_5, "will", will=Will("$SYS/x", b""))
        assert client.connect(connect).reason_code == ReasonCode.NOT_AUTHORIZED


def test_packets_that_come_with_connect_are_handled_after_it(port: int) -> None:
    with RawClient(port) as client:
        client.send(
            Connect(MQTT_5, "eager", keep_alive=10), Publish("eager", b"1"), Pingreq(), Pingreq()
        )
        client.receive(Connack)
        client.receive(Pingresp)
        client.receive(Pingresp)
