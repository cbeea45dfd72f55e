"""Encoding of deliveries: the packets of a run of messages, once for each class of subscribers.

The packets of a class differ between subscribers by their packet ids alone (and DUP), which are
patched into a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Final, Protocol

from penstock.brokers.mqtt.wire.properties import Properties
from penstock.brokers.mqtt.wire.pure.fields import encode_text, encode_varint
from penstock.brokers.mqtt.wire.pure.properties import encode_properties

_PUBLISH: Final = 0x30
_DUP: Final = 0x08
_IDS: Final = 65_535
_SECONDS_MAX: Final = 0xFFFF_FFFF


class Outgoing(Protocol):
    """What is read of a message."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def retain(self) -> bool: ...
    @property
    def properties(self) -> Properties | None: ...
    @property
    def expires_at_ms(self) -> int | None: ...


class EncodedRun:
    """The packets of a run of messages for one class of subscribers.

    `qos` is the one of delivery. A message that has expired has no packet.
    """

    def __init__(
        self,
        messages: Sequence[Outgoing],
        is_5: bool,
        qos: int,
        retain_as_published: bool,
        identifiers: Sequence[int],
        now_ms: int,
    ) -> None:
        self._has_ids: Final = qos > 0
        self._parts: list[tuple[bytes, bytes]] = []
        for message in messages:
            if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
                self._parts.append((b"", b""))
                continue
            flags = _PUBLISH | qos << 1 | (retain_as_published and message.retain)
            head = encode_text(message.topic)
            tail = message.payload
            if is_5:
                tail = encode_properties(_properties(message, identifiers, now_ms)) + tail
            size = len(head) + len(tail) + (2 if qos else 0)
            self._parts.append((bytes((flags,)) + encode_varint(size) + head, tail))

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def largest(self) -> int:
        """Bytes of the largest packet."""
        added = 2 if self._has_ids else 0
        return max((len(head) + added + len(tail) for head, tail in self._parts if head), default=0)

    @property
    def has_expired(self) -> bool:
        """Whether some message has expired."""
        return any(not head for head, _ in self._parts)

    @cached_property
    def joined(self) -> bytes:
        """All packets; their packet ids are 0."""
        return b"".join([self._with_id(index, 0) for index in range(len(self._parts))])

    def is_expired(self, index: int) -> bool:
        """Say whether a message has expired."""
        return not self._parts[self._checked(index)][0]

    def packet(self, index: int, packet_id: int, dup: bool = False) -> bytes:
        """Return one packet with its packet id; empty: the message has expired."""
        packet = self._with_id(self._checked(index), packet_id)
        return bytes((packet[0] | _DUP,)) + packet[1:] if dup and packet else packet

    def stamped(self, start: int, stop: int, sequence: int) -> bytes:
        """Return the packets of the messages from `start` until `stop`. Message `start` has the
        packet id `sequence mod 65,535 + 1`, and so on: an expired message uses its id up."""
        if not 0 <= start <= stop <= len(self._parts):
            raise IndexError("the run has fewer messages")
        first = sequence - start
        return b"".join(
            [self._with_id(index, (first + index) % _IDS + 1) for index in range(start, stop)]
        )

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self._parts):
            raise IndexError("the run has fewer messages")
        return index

    def _with_id(self, index: int, packet_id: int) -> bytes:
        head, tail = self._parts[index]
        if not self._has_ids or not head:
            return head + tail
        return head + packet_id.to_bytes(2) + tail


def _properties(message: Outgoing, identifiers: Sequence[int], now_ms: int) -> Properties | None:
    """Return the properties of a delivery. Topic alias and expiry interval are the delivery's, not
    those of the message: the interval is what is left of it."""
    if message.properties is None and not identifiers and message.expires_at_ms is None:
        return None
    properties = Properties() if message.properties is None else copy(message.properties)
    properties.topic_alias = None
    properties.message_expiry_interval = None
    properties.subscription_identifiers = list(identifiers) or None
    if message.expires_at_ms is not None:
        left_ms = message.expires_at_ms - now_ms
        properties.message_expiry_interval = min(-(-left_ms // 1000), _SECONDS_MAX)
    return properties
