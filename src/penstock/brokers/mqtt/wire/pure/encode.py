"""Encoding of packets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Never, cast

from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
from penstock.brokers.mqtt.wire.pure.connect import encode_connect
from penstock.brokers.mqtt.wire.pure.fields import encode_text, encode_varint
from penstock.brokers.mqtt.wire.pure.properties import encode_properties
from penstock.brokers.mqtt.wire.reason_codes import return_code_of, suback_code_of

_PINGREQ: Final = b"\xc0\0"
_PINGRESP: Final = b"\xd0\0"
_PUBREL_FLAGS: Final = 2
_REQUEST_FLAGS: Final = 2


def encode(packet: Packet, version: int) -> bytes:
    """Return the bytes of a packet in this version of MQTT."""
    encoder: Callable[[Packet, int], bytes] = cast(
        "Callable[[Packet, int], bytes]", _ENCODERS[type(packet)]
    )
    return encoder(packet, version)


def encode_acks(kind: PacketType, packet_ids: Sequence[int]) -> bytes:
    """Return many acknowledgements that report success."""
    flags = _PUBREL_FLAGS if kind == PacketType.PUBREL else 0
    head = bytes((kind << 4 | flags, 2))
    return b"".join([head + packet_id.to_bytes(2) for packet_id in packet_ids])


def _framed(kind: PacketType, flags: int, body: bytes) -> bytes:
    return bytes((kind << 4 | flags,)) + encode_varint(len(body)) + body


def _is_empty(properties: Properties | None) -> bool:
    return properties is None or properties.is_empty()


def _ack(packet: Ack, version: int) -> bytes:
    body = packet.packet_id.to_bytes(2)
    if version == MQTT_5:
        if not _is_empty(packet.properties):
            body += bytes((packet.reason_code,)) + encode_properties(packet.properties)
        elif packet.reason_code:
            body += bytes((packet.reason_code,))
    return _framed(packet.kind, _PUBREL_FLAGS if packet.kind == PacketType.PUBREL else 0, body)


def _connect(packet: Connect, _: int) -> bytes:
    return _framed(PacketType.CONNECT, 0, encode_connect(packet))


def _publish(packet: Publish, version: int) -> bytes:
    flags = packet.dup << 3 | packet.qos << 1 | packet.retain
    body = encode_text(packet.topic)
    if packet.qos:
        body += packet.packet_id.to_bytes(2)
    if version == MQTT_5:
        body += encode_properties(packet.properties)
    return _framed(PacketType.PUBLISH, flags, body + packet.payload)


def _connack(packet: Connack, version: int) -> bytes:
    if version != MQTT_5:
        body = bytes((packet.session_present, return_code_of(packet.reason_code)))
    else:
        body = bytes((packet.session_present, packet.reason_code))
        body += encode_properties(packet.properties)
    return _framed(PacketType.CONNACK, 0, body)


def _request(packet: Subscribe | Unsubscribe, version: int) -> bytes:
    body = packet.packet_id.to_bytes(2)
    if version == MQTT_5:
        body += encode_properties(packet.properties)
    if isinstance(packet, Subscribe):
        body += b"".join(
            encode_text(request.filter) + bytes((_options(request, version),))
            for request in packet.subscriptions
        )
        return _framed(PacketType.SUBSCRIBE, _REQUEST_FLAGS, body)
    body += b"".join(encode_text(text) for text in packet.filters)
    return _framed(PacketType.UNSUBSCRIBE, _REQUEST_FLAGS, body)


def _options(request: SubscriptionRequest, version: int) -> int:
    if version != MQTT_5:
        return request.qos
    return (
        request.qos
        | request.no_local << 2
        | request.retain_as_published << 3
        | request.retain_handling << 4
    )


def _suback(packet: Suback, version: int) -> bytes:
    codes = packet.reason_codes
    if version != MQTT_5:
        codes = [suback_code_of(code) for code in codes]
    return _answer(PacketType.SUBACK, packet, codes, version)


def _unsuback(packet: Unsuback, version: int) -> bytes:
    codes = packet.reason_codes if version == MQTT_5 else []
    return _answer(PacketType.UNSUBACK, packet, codes, version)


def _answer(
    kind: PacketType, packet: Suback | Unsuback, codes: Sequence[int], version: int
) -> bytes:
    body = packet.packet_id.to_bytes(2)
    if version == MQTT_5:
        body += encode_properties(packet.properties)
    return _framed(kind, 0, body + bytes(codes))


def _disconnect(packet: Disconnect, version: int) -> bytes:
    body = b""
    if version == MQTT_5:
        if not _is_empty(packet.properties):
            body = bytes((packet.reason_code,)) + encode_properties(packet.properties)
        elif packet.reason_code:
            body = bytes((packet.reason_code,))
    return _framed(PacketType.DISCONNECT, 0, body)


def _auth(packet: Auth, _: int) -> bytes:
    body = b""
    if packet.reason_code or not _is_empty(packet.properties):
        body = bytes((packet.reason_code,)) + encode_properties(packet.properties)
    return _framed(PacketType.AUTH, 0, body)


def _pingreq(_: Pingreq, __: int) -> bytes:
    return _PINGREQ


def _pingresp(_: Pingresp, __: int) -> bytes:
    return _PINGRESP


# Each encoder is called with packets of its class alone.
_ENCODERS: Final[dict[type[Packet], Callable[[Never, int], bytes]]] = {
    Ack: _ack,
    Publish: _publish,
    Connect: _connect,
    Connack: _connack,
    Subscribe: _request,
    Unsubscribe: _request,
    Suback: _suback,
    Unsuback: _unsuback,
    Disconnect: _disconnect,
    Auth: _auth,
    Pingreq: _pingreq,
    Pingresp: _pingresp,
}
