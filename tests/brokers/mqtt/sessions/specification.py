"""The executable specification of delivery: what one client must and may receive.

`Expected` is a broker without windows, rows, logs or connections: at a publish it decides for each
session what is owed to it. `ModelClient` is a client that follows the protocol; it checks each
packet against what is expected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.brokers.mqtt.sessions.world import Client

from penstock.brokers.mqtt.sessions.session import Session
from penstock.brokers.mqtt.subscriptions.filters import matches
from penstock.brokers.mqtt.wire.packets import Ack, PacketType, Publish


@dataclass
class Expected:
    """What one session is owed. Payloads are numbers, in the order of publishing."""

    subscriptions: dict[str, int] = field(default_factory=dict)
    owed: dict[int, int] = field(default_factory=dict)
    """QoS of the messages that must arrive."""
    allowed: set[int] = field(default_factory=set)
    """Messages that may arrive, any number of times: subscriptions have changed since."""
    is_uncertain: bool = False
    """Whether a change of the subscriptions failed, so that they are those before or after it."""
    fleeting: set[int] = field(default_factory=set)
    """Messages of QoS 0: at most once, with that QoS."""

    def published(self, number: int, topic: str, qos: int) -> None:
        if self.is_uncertain:
            self.allowed.add(number)
            return
        granted = [sub_qos for name, sub_qos in self.subscriptions.items() if matches(name, topic)]
        if not granted:
            return
        effective = min(qos, max(granted))
        if effective:
            self.owed[number] = effective
        else:
            self.fleeting.add(number)

    def changed(self) -> None:
        """The subscriptions change: what has not arrived may arrive in another way, or not."""
        self.allowed |= self.owed.keys()
        self.owed.clear()


class ModelClient:
    """One client id, over all of its connections."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.session: Session | None = None
        self.sink: Client | None = None
        self.expected: Expected | None = None
        """None: there is no session."""
        self.unreleased: set[int] = set()
        """QoS 2 messages that the client has, by packet id."""
        self.to_acknowledge: list[tuple[int, PacketType]] = []
        self.arrived: dict[int, int] = {}
        """How often each message has arrived; a repeated QoS 2 packet does not count."""
        self.newest: dict[tuple[str, int], int] = {}
        self.sent: dict[int, tuple[int, bool]] = {}
        """QoS 2 publishes of the client by packet id: number, and whether PUBREC has come."""

    def new_session(self, *, is_uncertain: bool = False) -> None:
        self.expected = Expected(is_uncertain=is_uncertain)
        self.unreleased.clear()
        self.arrived.clear()
        self.newest.clear()
        self.sent.clear()

    def block(self, is_blocked: bool) -> None:
        """Take no output, or take it again."""
        if self.sink is not None and self.session is not None:
            self.sink.unsent = (2 << 20) * is_blocked
            if not is_blocked:
                self.session.writable()

    def lost_connection(self) -> None:
        """What was not read is lost."""
        self.sink = None
        self.session = None
        self.to_acknowledge.clear()

    def read(self, count: int | None = None) -> int:
        """Read packets that have come; return how many."""
        if self.sink is None:
            return 0
        packets = self.sink.packets[:count]
        del self.sink.packets[:count]
        for packet in packets:
            if isinstance(packet, Publish):
                self._publish(packet)
            elif isinstance(packet, Ack) and packet.kind == PacketType.PUBREL:
                self.unreleased.discard(packet.packet_id)
                self.to_acknowledge.append((packet.packet_id, PacketType.PUBCOMP))
        return len(packets)

    def acknowledge(self, count: int | None = None) -> int:
        session, sink = self.session, self.sink
        if session is None or sink is None:
            return 0
        now = self.to_acknowledge[:count]
        del self.to_acknowledge[:count]
        for packet_id, kind in now:
            sink.send(session.acknowledged(packet_id, kind))
        return len(now)

    def _publish(self, packet: Publish) -> None:
        number = int(packet.payload)
        expected = self.expected
        assert expected is not None
        if packet.qos == 2:
            self.to_acknowledge.append((packet.packet_id, PacketType.PUBREC))
            if packet.packet_id in self.unreleased:
                assert packet.dup, "a QoS 2 packet is repeated without DUP"
                return
            self.unreleased.add(packet.packet_id)
        elif packet.qos == 1:
            self.to_acknowledge.append((packet.packet_id, PacketType.PUBACK))
        times = self.arrived[number] = self.arrived.get(number, 0) + 1
        if number in expected.allowed or expected.is_uncertain:
            return
        if packet.qos == 0:
            assert number in expected.fleeting, f"{number} came with QoS 0"
            assert times == 1, f"{number} came {times} times with QoS 0"
        else:
            assert expected.owed.get(number) == packet.qos, f"{number} came with {packet.qos}"
            if times > 1:
                assert packet.qos == 1, f"{number} came {times} times with QoS 2"
                assert packet.dup, f"{number} came {times} times without DUP"
                return
        order = (packet.topic, packet.qos)
        assert self.newest.get(order, -1) < number, f"{number} came after {self.newest[order]}"
        self.newest[order] = number

    def check_all_arrived(self) -> None:
        assert self.expected is not None
        missing = [number for number in self.expected.owed if number not in self.arrived]
        assert not missing, f"{self.client_id} never got {missing}"
