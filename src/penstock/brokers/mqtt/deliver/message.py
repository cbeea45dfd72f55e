"""`Message`: a stored publish on its way to subscribers.

`ReceivedMessages` are those of a run that native code has received and stored. They become objects
where they are looked at, and most are not: their packets are encoded from the received bytes, and
their offsets follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeAlias, cast, overload

if TYPE_CHECKING:
    from penstock._native import MqttReceivedRun, MqttRouteCache
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.deliver.window import InFlight
    from penstock.brokers.mqtt.subscriptions.interface import Route, RoutedTopics
    from penstock.brokers.mqtt.wire.properties import Properties


class Message:
    """One message. Its shard and offset are set by `Delivery.appended`, or by the reader of the
    log; None and -1: it is not stored, and goes to connected clients only.

    `properties` are those that subscribers get: without topic alias, subscription identifiers and
    message expiry interval, which differ between deliveries. They are never changed.
    """

    __slots__ = (
        "expires_at_ms",
        "offset",
        "payload",
        "properties",
        "publisher",
        "qos",
        "retain",
        "shard",
        "topic",
    )

    def __init__(  # noqa: PLR0913,PLR0917 - built once for each message
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        expires_at_ms: int | None = None,
        publisher: int = 0,
        shard: ShardTail | None = None,
        offset: int = -1,
    ) -> None:
        """`publisher` is the number of the publishing session, for No Local; 0: unknown."""
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_at_ms = expires_at_ms
        self.publisher = publisher
        self.shard = shard
        self.offset = offset

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, qos={self.qos}, offset={self.offset})"


_Slice: TypeAlias = "slice[int | None, int | None, int | None]"


class ReceivedMessages(Sequence[Message]):
    """The messages of a received run."""

    __slots__ = ("_count", "_made", "shard", "source")

    def __init__(self, source: MqttReceivedRun, shard: ShardTail) -> None:
        self.source: Final = source
        self.shard: Final = shard
        self._count: Final = len(source)
        self._made: list[Message] | None = None

    def __len__(self) -> int:
        return self._count

    def split(self, routes: RoutedTopics) -> Iterator[tuple[Route, ReceivedMessages]]:
        """Yield the parts whose messages have the same route, in order."""
        native = cast("MqttRouteCache", routes)  # as what has received the messages
        for route, part in self.source.split(native):
            yield route, ReceivedMessages(part, self.shard)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: _Slice) -> list[Message]: ...
    def __getitem__(self, index: int | _Slice) -> Message | list[Message]:
        return self._messages()[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages())

    def _messages(self) -> list[Message]:
        if self._made is None:
            self._made = self.source.messages(self.shard)
        return self._made


def in_flight_of(messages: Sequence[Message], qos: int) -> Iterator[InFlight]:
    """Yield what a window keeps of each message."""
    if isinstance(messages, ReceivedMessages):
        first = messages.source.first
        offsets = range(first, first + len(messages))
        return zip(repeat(messages.shard), offsets, repeat(qos), repeat(None))
    return ((message.shard, message.offset, qos, None) for message in messages)


def offset_at(messages: Sequence[Message], index: int) -> int:
    """Return the offset of one message."""
    if isinstance(messages, ReceivedMessages):
        return messages.source.first + index
    return messages[index].offset
