"""Decoding and encoding of CONNECT, whose errors are answered differently by version.

A server must close without CONNACK where it cannot tell that its peer speaks MQTT. MQTT 3.1 and
3.1.1 have CONNACK codes for a version or a client id that is refused, not for malformed packets.
"""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.wire.errors import MalformedPacketError, ProtocolError
from penstock.brokers.mqtt.wire.packet_types import PacketType
from penstock.brokers.mqtt.wire.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5, Connect, Will
from penstock.brokers.mqtt.wire.properties import WILL
from penstock.brokers.mqtt.wire.pure.fields import FieldReader, encode_binary, encode_text
from penstock.brokers.mqtt.wire.pure.properties import encode_properties, read_properties
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.brokers.mqtt.wire.validation import DecodeLimits, check_topic_name

_NAMES: Final = {"MQIsdp": (MQTT_3_1,), "MQTT": (MQTT_3_1_1, MQTT_5)}
_BRIDGE: Final = 0x80  # a bridge of Mosquitto sets this bit of the version
_FLAGS_AND_KEEP_ALIVE: Final = 3  # bytes
_RESERVED: Final = 0x01  # must be 0 from MQTT 3.1.1 on
_CLEAN: Final = 0x02
_WILL: Final = 0x04
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80


def read_connect(flags: int, body: bytes, limits: DecodeLimits) -> Connect:
    """Decode a CONNECT; `flags` are those of the packet's first byte."""
    reader = FieldReader(body)
    try:
        version = _read_version(reader)
    except MalformedPacketError as error:
        error.answered = False
        raise
    if flags and version != MQTT_3_1:
        raise MalformedPacketError(f"CONNECT with flags {flags:#x}", answered=False)
    try:
        return _read_rest(reader, version, limits)
    except ProtocolError as error:
        has_code = error.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        error.answered = error.answered and (version == MQTT_5 or has_code)
        error.version = version if error.answered else None
        raise


def _read_version(reader: FieldReader) -> int:
    name = reader.text()
    versions = _NAMES.get(name)
    if versions is None:
        raise MalformedPacketError(f"protocol {name[:20]!r} is not MQTT")
    version = reader.uint8() & ~_BRIDGE
    if version not in versions:
        known = version in {MQTT_3_1, MQTT_3_1_1, MQTT_5}
        raise ProtocolError(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol {name} of version {version} is unknown",
            version=MQTT_3_1_1 if known else MQTT_5,
        )
    return version


def _read_rest(reader: FieldReader, version: int, limits: DecodeLimits) -> Connect:
    if reader.left < _FLAGS_AND_KEEP_ALIVE:
        raise MalformedPacketError("CONNECT ends before its keep-alive", answered=False)
    flags = reader.uint8()
    _check_flags(flags, version)
    connect = Connect(version, "", bool(flags & _CLEAN), reader.uint16())
    users_max = limits.user_properties_max
    if version == MQTT_5:
        connect.properties = read_properties(reader, PacketType.CONNECT, users_max)
        _check_authentication(connect)
    connect.client_id = _read_client_id(reader, version, connect)
    if flags & _WILL:
        connect.will = _read_will(reader, flags, version, limits)
    if flags & _USERNAME:
        connect.username = _read_username(reader)
    if flags & _PASSWORD:
        connect.password = _read_password(reader)
    if reader.left:
        raise MalformedPacketError(f"CONNECT has {reader.left} bytes after its last field")
    return connect


def _check_flags(flags: int, version: int) -> None:
    qos = flags >> 3 & 3
    without_will = not flags & _WILL and (qos or flags & _WILL_RETAIN)
    alone = version != MQTT_5 and flags & _PASSWORD and not flags & _USERNAME
    reserved = version != MQTT_3_1 and flags & _RESERVED
    if reserved or qos == 3 or without_will or alone:
        raise MalformedPacketError(f"CONNECT with connect flags {flags:#x}", answered=False)


def _check_authentication(connect: Connect) -> None:
    properties = connect.properties
    if (
        properties is not None
        and properties.authentication_data is not None
        and properties.authentication_method is None
    ):
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR, "authentication data without authentication method"
        )


def _read_client_id(reader: FieldReader, version: int, connect: Connect) -> str:
    raw = reader.binary()
    if not raw and (version == MQTT_3_1 or (version == MQTT_3_1_1 and not connect.clean_start)):
        raise ProtocolError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            "the client id is empty; only clean sessions of MQTT 3.1.1 and 5.0 may leave it out",
        )
    try:
        return FieldReader(encode_binary(raw)).name()
    except MalformedPacketError as error:
        raise ProtocolError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            f"client id: {error.text}",
            answered=version == MQTT_5,
        ) from None


def _read_will(reader: FieldReader, flags: int, version: int, limits: DecodeLimits) -> Will:
    properties = None
    if version == MQTT_5:
        properties = read_properties(reader, WILL, limits.user_properties_max)
    topic = reader.name()
    payload = reader.binary()
    check_topic_name(topic, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
    return Will(topic, payload, flags >> 3 & 3, bool(flags & _WILL_RETAIN), properties)


def _read_username(reader: FieldReader) -> str:
    try:
        return reader.name()
    except MalformedPacketError as error:
        error.answered = False
        raise


def _read_password(reader: FieldReader) -> bytes:
    try:
        return reader.binary()
    except MalformedPacketError as error:
        error.answered = False
        raise


def encode_connect(connect: Connect) -> bytes:
    """Return the body of a CONNECT."""
    will = connect.will
    flags = (_CLEAN if connect.clean_start else 0) | (_WILL if will else 0)
    if will is not None:
        flags |= will.qos << 3 | (_WILL_RETAIN if will.retain else 0)
    flags |= _USERNAME if connect.username is not None else 0
    flags |= _PASSWORD if connect.password is not None else 0
    parts = [
        encode_text("MQIsdp" if connect.version == MQTT_3_1 else "MQTT"),
        bytes((connect.version, flags)),
        connect.keep_alive.to_bytes(2),
        encode_properties(connect.properties) if connect.version == MQTT_5 else b"",
        encode_text(connect.client_id),
    ]
    if will is not None:
        if connect.version == MQTT_5:
            parts.append(encode_properties(will.properties))
        parts += [encode_text(will.topic), encode_binary(will.payload)]
    if connect.username is not None:
        parts.append(encode_text(connect.username))
    if connect.password is not None:
        parts.append(encode_binary(connect.password))
    return b"".join(parts)
