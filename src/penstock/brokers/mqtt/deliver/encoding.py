"""PUBLISH packets of deliveries, as two parts between which the packet id of each client goes.

    head: fixed header, topic     packet id (QoS 1 and 2)     tail: properties (MQTT 5), payload

Clients of one encoding class (version, QoS, retain flag, identifiers) share the parts.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.wire.properties import Properties
from penstock.brokers.mqtt.wire.pure.fields import encode_varint
from penstock.brokers.mqtt.wire.pure.properties import encode_properties

MQTT_5: Final = 5
DUP: Final = 0x08
_NO_PROPERTIES: Final = b"\0"
_PUBLISH: Final = 0x30
_ONE_BYTE: Final = 0x80
_SECONDS_MAX: Final = 0xFFFF_FFFF


class EncodingClass:
    """What deliveries have in common whose packets differ by the packet id alone."""

    __slots__ = ("identifiers", "is_5", "qos", "retain_as_published")

    def __init__(
        self,
        qos: int,
        identifiers: tuple[int, ...] = (),
        *,
        is_5: bool = True,
        retain_as_published: bool = False,
    ) -> None:
        self.is_5: Final = is_5
        self.qos: Final = qos
        self.retain_as_published: Final = retain_as_published
        self.identifiers: Final = identifiers


_classes: Final[dict[tuple[object, ...], EncodingClass]] = {}
_CLASSES_MAX: Final = 4_096


def encoding_class(
    qos: int, identifiers: tuple[int, ...], *, is_5: bool, retain_as_published: bool
) -> EncodingClass:
    """Return a class; mostly the same object for the same values, so that it is a fast key."""
    key = (qos, identifiers, is_5, retain_as_published)
    found = _classes.get(key)
    if found is None:
        if len(_classes) >= _CLASSES_MAX:
            _classes.clear()
        found = _classes[key] = EncodingClass(
            qos, identifiers, is_5=is_5, retain_as_published=retain_as_published
        )
    return found


def encode_parts(
    message: Message, encoding: EncodingClass, now_ms: int, *, is_retained: bool = False
) -> tuple[bytes, bytes]:
    """Return the parts of the packet of one message. `is_retained`: it is sent because of a new
    subscription, so that its retain flag is set in any case."""
    qos, identifiers = encoding.qos, encoding.identifiers
    topic = message.topic.encode()
    payload = message.payload
    properties = b""
    if encoding.is_5:
        properties = _NO_PROPERTIES
        if message.properties is not None or identifiers or message.expires_at_ms is not None:
            properties = _properties(message, identifiers, now_ms)
    size = 2 + len(topic) + len(properties) + len(payload)
    if qos:
        size += 2
    retain = is_retained or (encoding.retain_as_published and message.retain)
    first = _PUBLISH | qos << 1 | retain
    length = bytes((first, size)) if size < _ONE_BYTE else bytes((first,)) + encode_varint(size)
    return length + len(topic).to_bytes(2, "big") + topic, properties + payload


def _properties(message: Message, identifiers: tuple[int, ...], now_ms: int) -> bytes:
    """Return the properties of one delivery. The expiry interval is what is left of it."""
    given = message.properties
    properties = Properties() if given is None else copy(given)
    if message.expires_at_ms is not None:
        left_ms = max(message.expires_at_ms - now_ms, 0)
        properties.message_expiry_interval = min(-(-left_ms // 1000), _SECONDS_MAX)
    if identifiers:
        properties.subscription_identifiers = list(identifiers)
    return encode_properties(properties)


def with_dup(head: bytes) -> bytes:
    """Return the head of a packet that is sent again."""
    return bytes((head[0] | DUP,)) + head[1:]
