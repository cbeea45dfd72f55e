"""Encoding classes: clients of one class get the same packets, but for packet ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.brokers.mqtt.deliver.message import Message, ReceivedMessages
from penstock.brokers.mqtt.wire.codec import EncodedRun

MQTT_5: Final = 5


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


def encode_run(messages: Sequence[Message], encoding: EncodingClass, now_ms: int) -> EncodedRun:
    """Return the packets of messages in one class."""
    if isinstance(messages, ReceivedMessages):
        return messages.source.encode(
            encoding.is_5,
            encoding.qos,
            encoding.retain_as_published,
            encoding.identifiers,
            now_ms,
        )
    return EncodedRun(
        messages,
        encoding.is_5,
        encoding.qos,
        encoding.retain_as_published,
        encoding.identifiers,
        now_ms,
    )
