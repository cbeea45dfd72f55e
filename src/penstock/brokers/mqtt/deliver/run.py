"""`Run`: messages of one shard that have the same QoS and the same route.

The run encodes its messages once for each encoding class, when the first subscriber asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.encoding import EncodingClass, encode_run
from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.wire.codec import EncodedRun

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.deliver.window import InFlight


class Run:
    __slots__ = ("_encoded", "_in_flight", "is_single", "messages", "now_ms", "qos", "tail")

    def __init__(
        self, tail: ShardTail | None, messages: Sequence[Message], qos: int, now_ms: int
    ) -> None:
        """`tail` None: the messages are not stored."""
        self.tail: Final = tail
        self.messages: Final = messages
        self.qos: Final = qos
        """The QoS with which they were published."""
        self.now_ms: Final = now_ms
        self.is_single: Final = len(messages) == 1
        self._encoded: dict[EncodingClass, EncodedRun] = {}
        self._in_flight: InFlight | None = None

    @property
    def in_flight(self) -> InFlight:
        """The entry of a single message in the windows of its subscribers with QoS 1; one for all
        of them."""
        if self._in_flight is None:
            self._in_flight = (self.tail, self.messages[0].offset, 1, None)
        return self._in_flight

    def encoded(self, encoding: EncodingClass) -> EncodedRun:
        """Return the packets of all messages in one class."""
        found = self._encoded.get(encoding)
        if found is None:
            found = self._encoded[encoding] = encode_run(self.messages, encoding, self.now_ms)
        return found
