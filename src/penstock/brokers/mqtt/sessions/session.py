"""`Session`: what the node keeps of a client between its connections.

A session is a subscriber (`Outgoing`) that has subscriptions, a will, and the QoS 2 messages that
the client has published and not released. Used on the event loop alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.outgoing import Outgoing
from penstock.brokers.mqtt.deliver.window import ID_BYTES
from penstock.brokers.mqtt.wire.codec import encode_acks
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packet_types import PacketType
from penstock.brokers.mqtt.wire.reason_codes import FAILURE, ReasonCode

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.context import DeliveryContext
    from penstock.brokers.mqtt.deliver.window import InFlight, Window
    from penstock.brokers.mqtt.sessions.rows import PositionRow
    from penstock.brokers.mqtt.sessions.sink import ClientSink
    from penstock.brokers.mqtt.wire.packets import Will

MQTT_5: Final = 5
_PUBREL: Final = b"\x62\x02"
_NOT_STORED: Final = None


class WillRecord:
    """The will of a connection. It is published once, with `token` as the packet id of its receipt,
    when `delay_s` has passed since the connection ended, or when the session ends."""

    __slots__ = ("delay_s", "token", "will")

    def __init__(self, will: Will, delay_s: int, token: int = 0) -> None:
        self.will: Final = will
        self.delay_s: Final = delay_s
        self.token = token
        """Set by `SessionRegistry.open`; above 65,535, so that it equals no packet id."""


class Session(Outgoing):
    __slots__ = (
        "client_id",
        "connects",
        "disconnected_at_ms",
        "due_ms",
        "expiry_s",
        "is_ended",
        "is_unloaded",
        "owner",
        "partition",
        "publishing_will",
        "receipts_are_dirty",
        "received",
        "received_ends",
        "row_is_dirty",
        "version",
        "will",
        "will_due_ms",
        "written_position",
        "written_receipts",
    )

    def __init__(
        self, number: int, client_id: str, context: DeliveryContext, *, version: int = MQTT_5
    ) -> None:
        super().__init__(number, context)
        self.client_id: Final = client_id
        self.version = version
        self.expiry_s = 0
        """How long the session outlives its connection; 0: it does not."""
        self.connects = 0
        """How many connections the session has had."""
        self.will: WillRecord | None = None
        self.will_due_ms = 0
        """When the will is published; 0: not while the connection lasts."""
        self.publishing_will: WillRecord | None = None
        """The last will while it is being published: the row has it until it is stored."""
        self.disconnected_at_ms = 0
        """0: a client is connected."""
        self.due_ms = 0
        """The time at which the session is in the heap of due times; 0: it is not there."""
        self.is_ended = False
        self.is_unloaded = False
        """Whether another node runs the session now."""
        self.partition = -1
        """In a cluster: that of its rows, whose leader runs the session."""
        self.owner: ClientSink | None = None
        """The connection that opened the session last, from before its CONNACK until it ends."""
        self.received: dict[int, tuple[str, int] | None] | None = None
        """Inbound QoS 2: shard and offset of the messages that the client has not released, by
        packet id; None: not stored yet."""
        self.received_ends: dict[str, int] | None = None
        """By shard, the offset after the last inbound QoS 2 message, since the last mark."""
        self.receipts_are_dirty = False
        self.row_is_dirty = False
        """Whether the session's own row is to be written before the next mark."""
        self.written_position: PositionRow | None = None
        """The row of positions; None: there is none."""
        self.written_receipts = False
        """Whether the row of receipts has any."""

    def __repr__(self) -> str:
        return f"Session({self.client_id!r}, {self.number})"

    @property
    def expires_at_ms(self) -> int:
        """When the session ends if its client stays away; 0: a client is connected."""
        if not self.disconnected_at_ms:
            return 0
        return self.disconnected_at_ms + self.expiry_s * 1000

    def mark_row_dirty(self) -> None:
        """Write the session's own row before the next mark."""
        if self.is_persistent and not self.is_ended:
            self.row_is_dirty = True
            if not self.position_is_dirty:
                self.context.position_changed(self)

    # Acknowledgements of the client

    def acknowledged(self, packet_id: int, kind: PacketType, reason_code: int = 0) -> bytes:
        """Take PUBACK, PUBREC or PUBCOMP; return what is sent back now. The PUBREL of a session
        that outlives the node is sent when its row is stored. Packet ids that are not in flight are
        answered as MQTT says: they may have been in flight before the node started."""
        window = self.window
        if kind == PacketType.PUBREC:
            return self._received(packet_id, reason_code)
        if window is None:
            return b""
        if kind == PacketType.PUBACK:
            entry = window.in_flight.get(packet_id)
            if entry is None or entry[2] != 1:
                self._check_unknown(packet_id, kind, entry)
                return b""
            del window.in_flight[packet_id]
            if window.probe is not None and window.probe[0] == packet_id:
                self._end_probe(window)
            if self.shares is not None:
                self.shares.acknowledged(packet_id)
        elif window.released.pop(packet_id, self) is self:
            self._check_unknown(packet_id, kind, window.in_flight.get(packet_id))
            return b""
        if self.is_persistent and not self.position_is_dirty:
            self.context.position_changed(self)
        self._continue()
        return b""

    def acknowledged_all(self, kind: PacketType, packet_ids: list[int]) -> bytes:
        """Take many acknowledgements that report success, as `acknowledged` takes each."""
        window = self.window
        is_held = kind == PacketType.PUBREC and self.is_persistent
        if window is None or is_held or self.shares is not None:
            return b"".join([self.acknowledged(packet_id, kind) for packet_id in packet_ids])
        in_flight, released = window.in_flight, window.released
        qos = 1 if kind == PacketType.PUBACK else 2
        for packet_id in packet_ids:
            if kind == PacketType.PUBCOMP:
                if released.pop(packet_id, self) is self:
                    self._check_unknown(packet_id, kind, in_flight.get(packet_id))
                continue
            entry = in_flight.get(packet_id)
            if entry is None or entry[2] != qos:
                self._check_unknown(packet_id, kind, entry)
                continue
            del in_flight[packet_id]
            if qos == 2:
                released[packet_id] = None
        if window.probe is not None and window.probe[0] not in in_flight:
            self._end_probe(window)
        if self.is_persistent and not self.position_is_dirty:
            self.context.position_changed(self)
        if kind == PacketType.PUBREC:
            return encode_acks(PacketType.PUBREL, packet_ids)
        self._continue()
        return b""

    def _end_probe(self, window: Window) -> None:
        """Record how long the client took to acknowledge the message that is timed."""
        assert window.probe is not None, "the caller has compared it"
        _, topic, sent_ms = window.probe
        window.probe = None
        context = self.context
        context.record_latency(self.client_id, topic, context.now_ms() - sent_ms)

    def _continue(self) -> None:
        """The window has room again."""
        if not self.pump_is_requested and self.has_waiting():
            self.context.request_pump(self)
        if self.shares is not None:
            self.shares.room_grew()

    def _check_unknown(self, packet_id: int, kind: PacketType, entry: InFlight | None) -> None:
        """Raise `ProtocolError` if an acknowledgement is not the one that a message in flight waits
        for."""
        window = self.window
        is_released = window is not None and packet_id in window.released
        if entry is not None or (is_released and kind == PacketType.PUBACK):
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR,
                f"{kind.name} for packet id {packet_id}, which waits for another packet",
            )

    def _received(self, packet_id: int, reason_code: int) -> bytes:
        """Take PUBREC: from now on the message counts as delivered."""
        window = self.window
        release = _PUBREL + ID_BYTES[packet_id]
        entry = None if window is None else window.in_flight.get(packet_id)
        if window is None or entry is None or entry[2] != 2:
            self._check_unknown(packet_id, PacketType.PUBREC, entry)
            return b"" if reason_code >= FAILURE else release
        del window.in_flight[packet_id]
        if window.probe is not None and window.probe[0] == packet_id:
            self._end_probe(window)
        if self.shares is not None:
            self.shares.acknowledged(packet_id)
        if self.is_persistent and not self.position_is_dirty:
            self.context.position_changed(self)
        if reason_code >= FAILURE:
            self._continue()
            return b""
        window.released[packet_id] = None
        if not self.is_persistent:
            return release
        self.hold(release)
        return b""

    # QoS 2 messages of the client

    def is_received(self, packet_id: int) -> bool:
        """Say whether a QoS 2 PUBLISH repeats one that the client has not released."""
        return self.received is not None and packet_id in self.received

    @property
    def received_count(self) -> int:
        return 0 if self.received is None else len(self.received)

    def mark_received(self, packet_id: int) -> None:
        """A QoS 2 PUBLISH is about to be stored."""
        if self.received is None:
            self.received = {}
        self.received[packet_id] = _NOT_STORED

    def mark_stored(self, packet_id: int, shard_name: str, offset: int) -> None:
        """The record of a QoS 2 PUBLISH is stored; call it before PUBREC leaves."""
        if self.received is None:
            self.received = {}
        self.received[packet_id] = (shard_name, offset)
        if self.received_ends is None:
            self.received_ends = {}
        ends = self.received_ends
        ends[shard_name] = max(offset + 1, ends.get(shard_name, 0))
        if self.is_persistent and not self.receipts_are_dirty:
            self.receipts_are_dirty = True
            self.context.position_changed(self)

    def unmark_received(self, packet_id: int) -> tuple[str, int] | None:
        """The append of a QoS 2 PUBLISH failed, or the client has released it; return where the
        message is."""
        if self.received is None:
            return None
        place = self.received.pop(packet_id, None)
        if not self.received:
            self.received = None
        return place

    def restore_received(self, packet_id: int, place: tuple[str, int] | None) -> None:
        """The release of a message could not be stored: it is not released."""
        if self.received is None:
            self.received = {}
        self.received[packet_id] = place
        if not self.receipts_are_dirty:
            self.receipts_are_dirty = True
            self.mark_position_dirty()
