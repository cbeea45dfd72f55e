"""MQTT over WebSocket against the whole server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.serving import PATIENCE_S, node_settings, serve
from tests.brokers.network.serving import Serving
from tests.brokers.network.websocket_client import (
    BINARY,
    CONTINUATION,
    TEXT,
    WebSocketClient,
    frame,
    request,
)
from tests.engine.quick_directory import quick_directory

from penstock.brokers.mqtt.wire.codec import Decoder, encode
from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode


class Place(Serving):
    """Where the WebSocket clients connect to."""

    def __init__(self, port: int) -> None:
        self._port = port

    @property
    def port(self) -> int:
        return self._port


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    settings = node_settings(
        websocket=True, websocket_port=0, packet_size_max=300_000, connect_timeout_ms=1_000
    )
    with quick_directory() as directory, serve(Path(directory) / "data", settings) as server:
        assert server.mqtt is not None
        assert server.mqtt.websocket_port is not None
        yield Place(server.mqtt.websocket_port)


class MqttOverWebSocket:
    def __init__(self, place: Place, subprotocol: str = "mqtt") -> None:
        self.web = WebSocketClient(place, request(Sec_WebSocket_Protocol=subprotocol))
        assert self.web.status == 101
        self._decoder = Decoder(from_client=False)
        self._rest = b""
        self._packets: list[Packet] = []

    def send(self, *packets: Packet) -> None:
        self.web.send(b"".join(encode(packet, MQTT_5) for packet in packets))

    def next(self) -> Packet:
        while not self._packets:
            opcode, payload = self.web.receive()
            assert opcode == BINARY
            self._rest += payload
            self._packets, consumed = self._decoder.decode(self._rest, MQTT_5)
            self._rest = self._rest[consumed:]
        return self._packets.pop(0)

    def connect(self, client_id: str) -> None:
        self.send(Connect(MQTT_5, client_id))
        assert isinstance(self.next(), Connack)

    def __enter__(self) -> MqttOverWebSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.web.socket.close()


@pytest.mark.parametrize("subprotocol", ["mqtt", "mqttv3.1"])
def test_messages_travel_over_websocket(place: Place, subprotocol: str) -> None:
    with MqttOverWebSocket(place, subprotocol) as client:
        client.connect(f"ws-{subprotocol}")
        client.send(Subscribe(1, [SubscriptionRequest(f"{subprotocol}/#", 1)]))
        assert isinstance(client.next(), Suback)
        payload = random.Random(1).randbytes(200_000)
        client.send(Publish(f"{subprotocol}/x", payload))
        found = client.next()
        assert isinstance(found, Publish)
        assert found.payload == payload


def test_packets_may_be_divided_into_frames_anywhere(place: Place) -> None:
    with MqttOverWebSocket(place) as client:
        data = encode(Connect(MQTT_5, "divided"), MQTT_5) + encode(Pingreq(), MQTT_5) * 3
        opcode = BINARY
        for position, byte in enumerate(data):
            is_last = position == len(data) - 1
            client.web.socket.sendall(frame(bytes([byte]), opcode, is_final=is_last))
            opcode = CONTINUATION
        assert isinstance(client.next(), Connack)
        assert [type(client.next()) for _ in range(3)] == [Pingresp] * 3


def test_a_packet_above_the_limit_is_answered_with_disconnect_and_a_close_frame(
    place: Place,
) -> None:
    with MqttOverWebSocket(place) as client:
        client.connect("too-large")
        client.send(Publish("x", bytes(400_000)))
        found = client.next()
        assert isinstance(found, Disconnect)
        assert found.reason_code == ReasonCode.PACKET_TOO_LARGE
        assert client.web.close_code() == 1000
        assert client.web.is_at_end()


def test_text_frames_are_refused(place: Place) -> None:
    with MqttOverWebSocket(place) as client:
        client.web.send(encode(Connect(MQTT_5, "text"), MQTT_5), TEXT)
        assert client.web.close_code() == 1003
        assert client.web.is_at_end()


def test_a_websocket_without_connect_is_ended(place: Place) -> None:
    with MqttOverWebSocket(place) as client:
        client.web.socket.settimeout(PATIENCE_S)
        assert client.web.is_at_end()


def test_random_frames_harm_no_other_client(place: Place) -> None:
    rng = random.Random(5)
    with MqttOverWebSocket(place) as other:
        other.connect("other")
        for _ in range(40):
            with MqttOverWebSocket(place) as client:
                try:
                    client.send(Connect(MQTT_5, "fuzz"))
                    for _ in range(3):
                        client.web.socket.sendall(
                            frame(rng.randbytes(rng.choice([0, 5, 400])), rng.choice([0, 2, 2, 9]))
                        )
                except ConnectionError:
                    pass
        other.send(Pingreq())
        assert isinstance(other.next(), Pingresp)
