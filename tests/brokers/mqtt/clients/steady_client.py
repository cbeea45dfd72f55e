"""A client that keeps its half of a session over reconnects, as MQTT asks for (4.4).

It sends again what was not acknowledged, receives each QoS 2 message once, and calls `on_packet`
after every packet that it has sent or received, where a test may kill the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.brokers.mqtt.raw_client import RawClient

from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Ack,
    Connect,
    Packet,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)


class LostConnectionError(Exception):
    """The node has ended."""


class SteadyClient:
    def __init__(self, name: str, on_packet: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.on_packet = on_packet
        self.received: Counter[bytes] = Counter()
        self._publishes: dict[int, Publish] = {}
        """Sent, without PUBACK or PUBREC, by packet id."""
        self._releases: dict[int, None] = {}
        """Received PUBREC, without PUBCOMP."""
        self._unreleased: set[int] = set()
        """QoS 2 messages of the node that it has not released."""
        self._is_subscribed = False
        self._next_id = 1
        self._client: RawClient | None = None

    def connect(self, port: int) -> bool:
        """Connect, and send again what has no end; return whether the session was there."""
        self.close()
        client = self._client = RawClient(port)
        wanted = Properties(session_expiry_interval=3600)
        connack = client.connect(Connect(MQTT_5, self.name, False, 0, properties=wanted))
        assert connack.reason_code == 0
        for packet_id in list(self._releases):
            self._send(Ack(PacketType.PUBREL, packet_id))
        for publish in list(self._publishes.values()):
            publish.dup = True
            self._send(publish)
        return connack.session_present

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._is_subscribed = False
        self._send(Subscribe(self._new_id(), [SubscriptionRequest(topic_filter, qos)]))
        while not self._is_subscribed:
            self.process()

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        packet_id = self._new_id()
        publish = Publish(topic, payload, qos, packet_id=packet_id)
        self._publishes[packet_id] = publish
        self._send(publish)

    @property
    def has_unfinished(self) -> bool:
        """Whether a publish of this client has no end yet."""
        return bool(self._publishes or self._releases)

    @property
    def has_input(self) -> bool:
        """Whether a packet arrives within a moment."""
        assert self._client is not None
        return not self._client.is_silent(0.005)

    def process(self) -> None:
        """Receive a packet, and answer it."""
        assert self._client is not None
        packet = self._client.next()
        if packet is None:
            raise LostConnectionError
        self.on_packet()
        match packet:
            case Publish():
                self._receive_message(packet)
            case Ack(kind=PacketType.PUBACK):
                self._publishes.pop(packet.packet_id, None)
            case Ack(kind=PacketType.PUBREC):
                if self._publishes.pop(packet.packet_id, None) is not None:
                    self._releases[packet.packet_id] = None
                self._send(Ack(PacketType.PUBREL, packet.packet_id))
            case Ack(kind=PacketType.PUBREL):
                self._unreleased.discard(packet.packet_id)
                self._send(Ack(PacketType.PUBCOMP, packet.packet_id))
            case Ack(kind=PacketType.PUBCOMP):
                self._releases.pop(packet.packet_id, None)
            case Suback():
                self._is_subscribed = True
            case _:
                raise AssertionError(f"{packet} is not expected")

    def _receive_message(self, message: Publish) -> None:
        if message.qos == 2:
            if message.packet_id not in self._unreleased:
                self._unreleased.add(message.packet_id)
                self.received[message.payload] += 1
            self._send(Ack(PacketType.PUBREC, message.packet_id))
        else:
            self.received[message.payload] += 1
            if message.qos:
                self._send(Ack(PacketType.PUBACK, message.packet_id))

    def _send(self, packet: Packet) -> None:
        assert self._client is not None
        try:
            self._client.send(packet)
        except OSError as error:
            raise LostConnectionError from error
        self.on_packet()

    def _new_id(self) -> int:
        used = self._publishes.keys() | self._releases.keys()
        while self._next_id in used:
            self._next_id = self._next_id % 65_535 + 1
        found = self._next_id
        self._next_id = found % 65_535 + 1
        return found
