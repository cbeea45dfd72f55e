"""Messages that native code has received and stored: they become objects where they are looked at.

Most runs are not: their packets are encoded from the received bytes, and their offsets follow each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeAlias, overload

from penstock.brokers.mqtt.deliver.message import Message

if TYPE_CHECKING:
    from penstock._native import MqttReceivedRun
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.deliver.window import InFlight


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
