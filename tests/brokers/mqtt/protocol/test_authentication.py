"""Enhanced authentication: AUTH packets after CONNECT, and again later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory

from penstock.brokers.mqtt.protocol.hooks import (
    Action,
    AllowEveryone,
    Client,
    Exchange,
    ExchangeStep,
    Verdict,
)
from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Ack,
    Auth,
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode


class CountingExchange:
    """Asks twice for the number of the step."""

    def __init__(self) -> None:
        self._step = 0

    async def step(self, client: Client, data: bytes | None) -> ExchangeStep:
        if data != b"%d" % self._step:
            return ExchangeStep(Verdict(ReasonCode.NOT_AUTHORIZED, reason="wrong number"))
        self._step += 1
        if self._step < 3:
            return ExchangeStep(Verdict(ReasonCode.CONTINUE_AUTHENTICATION), b"next")
        return ExchangeStep(Verdict(principal="counted"), b"done")


class Authenticator(AllowEveryone):
    def exchange(self, method: str) -> Exchange | None:
        return CountingExchange() if method == "count" else None


class OwnTopics:
    """Lets clients use only topics that begin with `open/`."""

    revision = 1

    def allows(self, client: Client, action: Action, topic: str, qos: int, retain: bool) -> bool:
        return topic.startswith("open/")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    settings = node_settings(connect_timeout_ms=1500, sweep_interval_ms=50)
    with quick_directory() as directory, serve(Path(directory) / "data", settings) as server:
        assert server.mqtt is not None
        server.mqtt.broker.hooks.authenticator = Authenticator()
        server.mqtt.broker.hooks.authorizer = OwnTopics()
        yield port_of(server)


def properties(data: bytes, method: str = "count") -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


def start(client: RawClient, name: str) -> None:
    client.send(Connect(MQTT_5, name, properties=properties(b"0")))
    for number in (1, 2):
        auth = client.receive(Auth)
        assert auth == Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(b"next"))
        client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(b"%d" % number)))


def test_a_client_is_accepted_when_the_exchange_has_ended(port: int) -> None:
    with RawClient(port) as client:
        start(client, "ends")
        connack = client.receive(Connack)
        assert connack.reason_code == 0
        assert connack.properties is not None
        assert connack.properties.authentication_method == "count"
        assert connack.properties.authentication_data == b"done"
        client.send(Pingreq())
        client.receive(Pingresp)


def test_a_client_that_fails_the_exchange_is_refused(port: int) -> None:
    with RawClient(port) as client:
        client.send(Connect(MQTT_5, "fails", properties=properties(b"0")))
        client.receive(Auth)
        client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(b"7")))
        assert client.receive(Connack).reason_code == ReasonCode.NOT_AUTHORIZED
        client.expect_end()


@pytest.mark.parametrize("answer", [Pingreq(), Publish("open/x", b"")])
def test_other_packets_during_the_exchange_end_the_connection(
    port: int, answer: Pingreq | Publish
) -> None:
    with RawClient(port) as client:
        client.send(Connect(MQTT_5, "other", properties=properties(b"0")))
        client.receive(Auth)
        client.send(answer)
        assert client.receive(Connack).reason_code == ReasonCode.PROTOCOL_ERROR
        client.expect_end()


def test_a_client_that_does_not_answer_is_refused(port: int) -> None:
    with RawClient(port) as client:
        client.send(Connect(MQTT_5, "mute", properties=properties(b"0")))
        client.receive(Auth)
        assert client.receive(Connack).reason_code == ReasonCode.NOT_AUTHORIZED
        client.expect_end()


def test_another_method_in_the_exchange_is_refused(port: int) -> None:
    with RawClient(port) as client:
        client.send(Connect(MQTT_5, "method", properties=properties(b"0")))
        client.receive(Auth)
        client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(b"1", "other")))
        assert client.receive(Connack).reason_code == ReasonCode.PROTOCOL_ERROR
        client.expect_end()


def test_a_client_can_be_authenticated_again(port: int) -> None:
    with RawClient(port) as client:
        start(client, "again")
        client.receive(Connack)
        client.send(Auth(ReasonCode.REAUTHENTICATE, properties(b"0")))
        client.receive(Auth)
        # Other packets wait until the exchange has ended.
        client.send(Publish("open/x", b"", 1, packet_id=1), Pingreq())
        client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(b"1")))
        client.receive(Auth)
        client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(b"2")))
        assert client.receive(Auth) == Auth(ReasonCode.SUCCESS, properties(b"done"))
        assert {type(client.next()), type(client.next())} == {Ack, Pingresp}


def test_a_client_that_fails_to_be_authenticated_again_is_disconnected(port: int) -> None:
    with RawClient(port) as client:
        start(client, "again-fails")
        client.receive(Connack)
        client.send(Auth(ReasonCode.REAUTHENTICATE, properties(b"9")))
        client.expect_end(ReasonCode.NOT_AUTHORIZED)


def test_a_client_without_a_method_cannot_be_authenticated_again(port: int) -> None:
    with RawClient(port) as client:
        client.connect(Connect(MQTT_5, "plain"))
        client.send(Auth(ReasonCode.REAUTHENTICATE, properties(b"0")))
        client.expect_end(ReasonCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_what_the_authorizer_refuses_is_answered(port: int, version: int) -> None:
    with RawClient(port, version) as client:
        client.connect(Connect(version, f"rules{version}"))
        requests = [SubscriptionRequest("open/#", 1), SubscriptionRequest("closed/#", 1)]
        client.send(Subscribe(1, requests))
        refused = ReasonCode.NOT_AUTHORIZED if version == MQTT_5 else 0x80
        assert client.receive(Suback) == Suback(1, [1, refused])
        client.send(Publish("open/x", b"", 1, packet_id=2))
        assert {type(client.next()), type(client.next())} == {Publish, Ack}
        client.send(Publish("closed/x", b"", 1, packet_id=3))
        if version == MQTT_5:
            assert client.receive(Ack).reason_code == ReasonCode.NOT_AUTHORIZED
        else:
            client.expect_end()
