"""Decoding and encoding of properties.

All properties of a packet are decoded before any is judged: a packet that cannot be decoded is
malformed (0x81), whatever else is wrong with it; a value or a property that does not belong there
is a protocol error (0x82).
"""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.wire.errors import MalformedPacketError, ProtocolError
from penstock.brokers.mqtt.wire.packet_types import PacketType
from penstock.brokers.mqtt.wire.properties import FORM_OF, FORMS, Form, Properties, PropertyForm
from penstock.brokers.mqtt.wire.pure.fields import (
    FieldReader,
    encode_binary,
    encode_text,
    encode_varint,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.brokers.mqtt.wire.validation import UNWANTED

_NUMBERS: Final = (Form.BYTE, Form.UINT16, Form.UINT32, Form.VARINT)
_SIZES: Final = {Form.BYTE: 1, Form.UINT16: 2, Form.UINT32: 4}

_Value = int | str | bytes | tuple[str, str]


def read_properties(
    reader: FieldReader, packet: int, user_properties_max: int, *, from_client: bool = True
) -> Properties | None:
    """Decode the properties of a packet (`WILL`: of a will) with their length before them."""
    size = reader.varint()
    if size == 0:
        return None
    if size > reader.left:
        raise MalformedPacketError(f"properties of {size} bytes, {reader.left} bytes are left")
    inner = FieldReader(reader.data, reader.at, reader.at + size)
    found: list[tuple[PropertyForm, _Value]] = []
    while inner.left:
        identifier = inner.varint()
        form = FORM_OF.get(identifier)
        if form is None:
            raise MalformedPacketError(f"property {identifier:#x} is unknown")
        found.append((form, _read_value(inner, form.form)))
    reader.at += size
    properties = Properties()
    for form, value in found:
        _check(form, value, packet, from_client=from_client)
        _set(properties, form, value)
    users = properties.user_properties
    if users is not None and len(users) > user_properties_max:
        raise ProtocolError(
            ReasonCode.QUOTA_EXCEEDED,
            f"a packet has {len(users)} user properties, at most {user_properties_max} are allowed",
        )
    return properties


def _read_value(reader: FieldReader, form: Form) -> _Value:
    if form is Form.BYTE:
        return reader.uint8()
    if form is Form.UINT16:
        return reader.uint16()
    if form is Form.UINT32:
        return reader.uint32()
    if form is Form.VARINT:
        return reader.varint()
    if form is Form.TEXT:
        return reader.text()
    if form is Form.BINARY:
        return reader.binary()
    return reader.text(), reader.text()


def _check(form: PropertyForm, value: _Value, packet: int, *, from_client: bool) -> None:
    allowed = packet in form.packets
    if packet == PacketType.PUBLISH and from_client and form.form is Form.VARINT:
        allowed = False  # only servers send subscription identifiers with messages
    if not allowed:
        is_request = packet in {PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE}
        raise ProtocolError(
            ReasonCode.MALFORMED_PACKET if is_request else ReasonCode.PROTOCOL_ERROR,
            f"property {form.name} does not belong in this packet",
        )
    if form.form in _NUMBERS:
        assert isinstance(value, int)
        if not form.least <= value <= form.most:
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR, f"property {form.name} must not be {value}"
            )
    if form.name == "response_topic":
        assert isinstance(value, str)
        if not value or "+" in value or "#" in value or UNWANTED.search(value):
            raise ProtocolError(
                ReasonCode.PROTOCOL_ERROR, f"response topic {value[:100]!r} is not a topic name"
            )


def _set(properties: Properties, form: PropertyForm, value: _Value) -> None:
    if form.form is Form.PAIR:
        assert isinstance(value, tuple)
        if properties.user_properties is None:
            properties.user_properties = []
        properties.user_properties.append(value)
    elif properties.subscription_identifiers is not None and form.form is Form.VARINT:
        assert isinstance(value, int)
        properties.subscription_identifiers.append(value)
    elif form.form is Form.VARINT:
        assert isinstance(value, int)
        properties.subscription_identifiers = [value]
    elif getattr(properties, form.name) is not None:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"property {form.name} is given twice")
    else:
        setattr(properties, form.name, value)


def encode_properties(properties: Properties | None) -> bytes:
    """Encode the properties with their length before them."""
    if properties is None:
        return b"\0"
    body = b"".join(
        encode_property(form, value)
        for form in FORMS
        if (value := getattr(properties, form.name)) is not None
    )
    return encode_varint(len(body)) + body


def encode_property(form: PropertyForm, value: object) -> bytes:
    """Encode one property; user properties and subscription identifiers may be several."""
    identifier = bytes((form.identifier,))
    if isinstance(value, int):
        return identifier + value.to_bytes(_SIZES[form.form])
    if isinstance(value, str):
        return identifier + encode_text(value)
    if isinstance(value, bytes):
        return identifier + encode_binary(value)
    assert isinstance(value, list)
    if form.form is Form.VARINT:
        return b"".join(identifier + encode_varint(number) for number in value)
    return b"".join(identifier + encode_text(name) + encode_text(text) for name, text in value)
