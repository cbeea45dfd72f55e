"""Decoding of the bodies of all packets but CONNECT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.brokers.mqtt.wire.errors import MalformedPacketError, ProtocolError
from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    PINGREQ,
    PINGRESP,
    Ack,
    Auth,
    Connack,
    Disconnect,
    Packet,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from penstock.brokers.mqtt.wire.pure.fields import FieldReader
from penstock.brokers.mqtt.wire.pure.properties import read_properties
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode, reason_of
from penstock.brokers.mqtt.wire.validation import DecodeLimits, check_filter, check_topic_name

_RECEIPT_CODES: Final = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
_RELEASE_CODES: Final = {0x00, 0x92}
_AUTH_CODES: Final = {0x00, 0x18, 0x19}
_OPTION_QOS: Final = 0x03
_OPTION_NO_LOCAL: Final = 0x04
_OPTION_AS_PUBLISHED: Final = 0x08
_OPTION_RESERVED: Final = 0xC0


def read_body(
    kind: PacketType,
    flags: int,
    body: bytes,
    version: int,
    limits: DecodeLimits,
    *,
    from_client: bool,
) -> Packet:
    """Decode the body of a packet; `flags` are those of its first byte."""
    reader = BodyReader(body, kind, version, limits, from_client=from_client)
    reader.flags = flags
    packet = _READERS[kind](reader)
    if reader.left:
        raise MalformedPacketError(f"{kind.name} has {reader.left} bytes after its last field")
    return packet


class BodyReader(FieldReader):
    """Reads the body of one packet."""

    __slots__ = ("flags", "from_client", "kind", "limits", "version")

    def __init__(
        self,
        body: bytes,
        kind: PacketType,
        version: int,
        limits: DecodeLimits,
        *,
        from_client: bool,
    ) -> None:
        super().__init__(body)
        self.flags = 0
        """Those of the packet's first byte."""
        self.kind = kind
        self.version = version
        self.limits = limits
        self.from_client = from_client

    def packet_id(self, reason: ReasonCode) -> int:
        """Read a packet id; `reason` is the code of the error if it is 0."""
        packet_id = self.uint16()
        if packet_id == 0:
            raise ProtocolError(reason, f"{self.kind.name} with packet id 0")
        return packet_id

    def properties(self) -> Properties | None:
        """Read the properties; None before MQTT 5.0."""
        if self.version != MQTT_5:
            return None
        return read_properties(
            self, self.kind, self.limits.user_properties_max, from_client=self.from_client
        )

    def filter(self) -> str:
        """Read a topic filter."""
        text = self.name()
        check_filter(
            text,
            bytes_max=self.limits.topic_bytes_max,
            levels_max=self.limits.topic_levels_max,
        )
        return text

    def check_count(self, count: int) -> None:
        """Raise if a request has too many filters."""
        if count > self.limits.filters_max:
            raise ProtocolError(
                ReasonCode.QUOTA_EXCEEDED,
                f"{self.kind.name} has more than {self.limits.filters_max} filters",
            )


def _read_publish(reader: BodyReader) -> Publish:
    flags = reader.flags
    qos, dup = flags >> 1 & 3, bool(flags & 8)
    if qos == 3 or (dup and qos == 0):
        raise MalformedPacketError(f"PUBLISH with flags {flags:#x}")
    topic = reader.name()
    packet_id = reader.packet_id(ReasonCode.PROTOCOL_ERROR) if qos else 0
    properties = reader.properties()
    alias = None if properties is None else properties.topic_alias
    if alias == 0:
        raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, "topic alias 0")
    if topic or alias is None:
        check_topic_name(
            topic,
            bytes_max=reader.limits.topic_bytes_max,
            levels_max=reader.limits.topic_levels_max,
        )
    payload = reader.bytes_of(reader.left)
    return Publish(topic, payload, qos, bool(flags & 1), dup, packet_id, properties)


def _read_ack(reader: BodyReader) -> Ack:
    kind = reader.kind
    ack = Ack(kind, reader.packet_id(ReasonCode.PROTOCOL_ERROR))
    if reader.version == MQTT_5 and reader.left:
        ack.reason_code = reader.uint8()
        is_receipt = kind in {PacketType.PUBACK, PacketType.PUBREC}
        if ack.reason_code not in (_RECEIPT_CODES if is_receipt else _RELEASE_CODES):
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR, f"{kind.name} with reason code {ack.reason_code:#x}"
            )
        if reader.left:
            ack.properties = reader.properties()
    return ack


def _read_subscribe(reader: BodyReader) -> Subscribe:
    packet_id = reader.packet_id(ReasonCode.MALFORMED_PACKET)
    properties = reader.properties()
    identifiers = None if properties is None else properties.subscription_identifiers
    if identifiers is not None and len(identifiers) > 1:
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR, "SUBSCRIBE with more than one subscription identifier"
        )
    requests: list[SubscriptionRequest] = []
    while reader.left or not requests:
        topic_filter = reader.filter()
        requests.append(_subscription(topic_filter, reader.uint8(), reader.version))
        reader.check_count(len(requests))
    return Subscribe(packet_id, requests, properties)


def _subscription(topic_filter: str, options: int, version: int) -> SubscriptionRequest:
    qos, handling = options & _OPTION_QOS, options >> 4 & 3
    reserved = options & _OPTION_RESERVED or handling == 3
    if version != MQTT_5:
        reserved = options & ~_OPTION_QOS
    if qos == 3 or reserved:
        raise MalformedPacketError(f"subscription options {options:#x}")
    no_local = bool(options & _OPTION_NO_LOCAL)
    if no_local and topic_filter.startswith("$share/"):
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR, f"shared subscription {topic_filter!r} with No Local"
        )
    return SubscriptionRequest(
        topic_filter, qos, no_local, bool(options & _OPTION_AS_PUBLISHED), handling
    )


def _read_unsubscribe(reader: BodyReader) -> Unsubscribe:
    packet_id = reader.packet_id(ReasonCode.MALFORMED_PACKET)
    properties = reader.properties()
    filters: list[str] = []
    while reader.left or not filters:
        filters.append(reader.filter())
        reader.check_count(len(filters))
    return Unsubscribe(packet_id, filters, properties)


def _read_disconnect(reader: BodyReader) -> Disconnect:
    packet = Disconnect()
    if reader.version == MQTT_5 and reader.left:
        packet.reason_code = reader.uint8()
        if reader.left:
            packet.properties = reader.properties()
    return packet


def _read_auth(reader: BodyReader) -> Auth:
    packet = Auth()
    if reader.left:
        packet.reason_code = reader.uint8()
        if packet.reason_code not in _AUTH_CODES:
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR, f"AUTH with reason code {packet.reason_code:#x}"
            )
        if reader.left:
            packet.properties = reader.properties()
    return packet


def _read_connack(reader: BodyReader) -> Connack:
    flags = reader.uint8()
    if flags > 1:
        raise MalformedPacketError(f"CONNACK with flags {flags:#x}")
    code = reader.uint8()
    if reader.version != MQTT_5:
        code = reason_of(code)
    return Connack(bool(flags), code, reader.properties())


def _read_suback(reader: BodyReader) -> Suback:
    packet_id = reader.packet_id(ReasonCode.PROTOCOL_ERROR)
    properties = reader.properties()
    return Suback(packet_id, list(reader.bytes_of(reader.left)), properties)


def _read_unsuback(reader: BodyReader) -> Unsuback:
    packet_id = reader.packet_id(ReasonCode.PROTOCOL_ERROR)
    properties = reader.properties()
    codes = list(reader.bytes_of(reader.left)) if reader.version == MQTT_5 else []
    return Unsuback(packet_id, codes, properties)


def _read_pingreq(_: BodyReader) -> Packet:
    return PINGREQ


def _read_pingresp(_: BodyReader) -> Packet:
    return PINGRESP


_READERS: Final[dict[PacketType, Callable[[BodyReader], Packet]]] = {
    PacketType.PUBLISH: _read_publish,
    PacketType.PUBACK: _read_ack,
    PacketType.PUBREC: _read_ack,
    PacketType.PUBREL: _read_ack,
    PacketType.PUBCOMP: _read_ack,
    PacketType.SUBSCRIBE: _read_subscribe,
    PacketType.UNSUBSCRIBE: _read_unsubscribe,
    PacketType.PINGREQ: _read_pingreq,
    PacketType.PINGRESP: _read_pingresp,
    PacketType.DISCONNECT: _read_disconnect,
    PacketType.AUTH: _read_auth,
    PacketType.CONNACK: _read_connack,
    PacketType.SUBACK: _read_suback,
    PacketType.UNSUBACK: _read_unsuback,
}
