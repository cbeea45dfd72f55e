"""`Run`: messages of one shard that have the same QoS and the same route.

The run encodes each message once for each encoding class, when the first subscriber asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.encoding import EncodingClass, encode_parts
from penstock.brokers.mqtt.deliver.message import Message

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail


class Encoded:
    """The packets of a run in one class. `parts` has None for each message that has expired."""

    __slots__ = ("has_expired", "joined", "largest", "parts")

    def __init__(self, messages: list[Message], encoding: EncodingClass, now_ms: int) -> None:
        parts: list[tuple[bytes, bytes] | None] = []
        largest = 0
        self.has_expired = False
        for message in messages:
            if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
                parts.append(None)
                self.has_expired = True
                continue
            head, tail = part = encode_parts(message, encoding, now_ms)
            parts.append(part)
            size = len(head) + len(tail)
            if size > largest:  # noqa: PLR1730 - faster than `max` here
                largest = size
        self.parts: Final = parts
        self.largest: Final = largest + 2
        """Bytes of the largest packet, with its packet id."""
        self.joined: Final = (
            b"" if encoding.qos else b"".join([b"".join(part) for part in parts if part])
        )
        """QoS 0: all packets."""


class Run:
    __slots__ = ("_encoded", "messages", "now_ms", "qos", "tail")

    def __init__(
        self, tail: ShardTail | None, messages: list[Message], qos: int, now_ms: int
    ) -> None:
        """`tail` None: the messages are not stored."""
        self.tail: Final = tail
        self.messages: Final = messages
        self.qos: Final = qos
        """The QoS with which they were published."""
        self.now_ms: Final = now_ms
        self._encoded: dict[EncodingClass, Encoded] = {}

    def encoded(self, encoding: EncodingClass) -> Encoded:
        """Return the packets of all messages in one class."""
        found = self._encoded.get(encoding)
        if found is None:
            found = self._encoded[encoding] = Encoded(self.messages, encoding, self.now_ms)
        return found
