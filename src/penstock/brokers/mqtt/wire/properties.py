"""The properties of MQTT 5.0: one class for all packets, and the table of their forms."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.brokers.mqtt.wire.packet_types import PacketType


@dataclass(slots=True)
class Properties:
    """The properties of one packet, by their names in MQTT 5.0; None: the packet has none such."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: list[int] | None = None
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: list[tuple[str, str]] | None = None
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None

    def is_empty(self) -> bool:
        """Return whether no property is set."""
        return all(getattr(self, name) is None for name in NAMES)


NAMES: Final = tuple(field.name for field in fields(Properties))


class Form(IntEnum):
    """How the value of a property is encoded."""

    BYTE = 0
    UINT16 = 1
    UINT32 = 2
    VARINT = 3
    TEXT = 4
    BINARY = 5
    PAIR = 6


WILL: Final = 0  # stands for the properties of a will, whose packet type 0 is reserved


class PropertyForm(NamedTuple):
    """One line of table 2-4 of MQTT 5.0."""

    identifier: int
    name: str
    form: Form
    packets: frozenset[int]
    least: int = 0  # smaller numbers are protocol errors
    most: int = 0xFFFFFFFF


_CONNECT: Final = PacketType.CONNECT
_CONNACK: Final = PacketType.CONNACK
_PUBLISH: Final = PacketType.PUBLISH
_SUBSCRIBE: Final = PacketType.SUBSCRIBE
_DISCONNECT: Final = PacketType.DISCONNECT
_AUTH: Final = PacketType.AUTH
_ACKNOWLEDGEMENTS: Final = (
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
)


def _form(
    identifier: int, name: str, form: Form, *packets: int, least: int = 0, most: int = 0xFFFFFFFF
) -> PropertyForm:
    return PropertyForm(identifier, name, form, frozenset(packets), least, most)


# In the order in which they are encoded. Topic alias maximum, maximum packet size and receive
# maximum lead because receivers compare a whole CONNACK byte by byte.
FORMS: Final = (
    _form(0x22, "topic_alias_maximum", Form.UINT16, _CONNECT, _CONNACK),
    _form(0x27, "maximum_packet_size", Form.UINT32, _CONNECT, _CONNACK, least=1),
    _form(0x21, "receive_maximum", Form.UINT16, _CONNECT, _CONNACK, least=1),
    _form(0x01, "payload_format_indicator", Form.BYTE, _PUBLISH, WILL, most=1),
    _form(0x02, "message_expiry_interval", Form.UINT32, _PUBLISH, WILL),
    _form(0x03, "content_type", Form.TEXT, _PUBLISH, WILL),
    _form(0x08, "response_topic", Form.TEXT, _PUBLISH, WILL),
    _form(0x09, "correlation_data", Form.BINARY, _PUBLISH, WILL),
    _form(0x0B, "subscription_identifiers", Form.VARINT, _PUBLISH, _SUBSCRIBE, least=1),
    _form(0x11, "session_expiry_interval", Form.UINT32, _CONNECT, _CONNACK, _DISCONNECT),
    _form(0x12, "assigned_client_identifier", Form.TEXT, _CONNACK),
    _form(0x13, "server_keep_alive", Form.UINT16, _CONNACK),
    _form(0x15, "authentication_method", Form.TEXT, _CONNECT, _CONNACK, _AUTH),
    _form(0x16, "authentication_data", Form.BINARY, _CONNECT, _CONNACK, _AUTH),
    _form(0x17, "request_problem_information", Form.BYTE, _CONNECT, most=1),
    _form(0x18, "will_delay_interval", Form.UINT32, WILL),
    _form(0x19, "request_response_information", Form.BYTE, _CONNECT, most=1),
    _form(0x1A, "response_information", Form.TEXT, _CONNACK),
    _form(0x1C, "server_reference", Form.TEXT, _CONNACK, _DISCONNECT),
    _form(0x1F, "reason_string", Form.TEXT, _CONNACK, _DISCONNECT, _AUTH, *_ACKNOWLEDGEMENTS),
    _form(0x23, "topic_alias", Form.UINT16, _PUBLISH),
    _form(0x24, "maximum_qos", Form.BYTE, _CONNACK, most=1),
    _form(0x25, "retain_available", Form.BYTE, _CONNACK, most=1),
    _form(0x26, "user_properties", Form.PAIR, WILL, *(PacketType)),
    _form(0x28, "wildcard_subscription_available", Form.BYTE, _CONNACK, most=1),
    _form(0x29, "subscription_identifier_available", Form.BYTE, _CONNACK, most=1),
    _form(0x2A, "shared_subscription_available", Form.BYTE, _CONNACK, most=1),
)
FORM_OF: Final = {form.identifier: form for form in FORMS}
