"""The bytes that consumers of a group exchange: subscriptions and assignments, as Kafka's clients
write them, so that members of both kinds share one group.

    subscription   version, topics, user data [, since version 1: owned partitions]
    assignment     version, partitions by topic, user data
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

CONSUMER: Final = "consumer"
"""The protocol type of groups that read topics."""
NO_GENERATION: Final = -1
_ASSIGNMENTS_KEPT: Final = 4_096
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">i")

TopicPartition = tuple[str, int]


class Subscription(Struct, frozen=True):
    topics: tuple[str, ...]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    """Of the assignment that the owned partitions come from."""


def encode_subscription(subscription: Subscription, *, version: int) -> bytes:
    """Version 0 names topics only; version 1 has the owned partitions, and their generation in the
    user data, where the sticky assignors of Kafka's clients look for it."""
    data = bytearray(_SHORT.pack(version))
    data += _LONG.pack(len(subscription.topics))
    for topic in subscription.topics:
        _put_text(data, topic)
    if version == 0:
        return bytes(data + _LONG.pack(-1))
    data += _LONG.pack(_LONG.size) + _LONG.pack(subscription.generation)
    _put_partitions(data, subscription.owned)
    return bytes(data)


def decode_subscription(data: bytes) -> Subscription:
    """Clients own the bytes, so they may be anything: what cannot be decoded subscribes to
    nothing."""
    reader = _Reader(data)
    topics: list[str] = []
    try:
        version = reader.short()
        topics += [reader.text() for _ in range(reader.count())]
        user_data = reader.blob()
        owned = reader.partitions() if version >= 1 else frozenset()
        generation = NO_GENERATION
        if version >= 2:
            generation = reader.long()
        elif len(user_data) == _LONG.size:
            (generation,) = _LONG.unpack(user_data)
    except (struct.error, UnicodeDecodeError):
        return Subscription(tuple(topics))
    return Subscription(tuple(topics), owned, generation)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    data = bytearray(_SHORT.pack(0))
    _put_partitions(data, partitions)
    return bytes(data + _LONG.pack(-1))


@lru_cache(_ASSIGNMENTS_KEPT)
def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Return the assigned partitions; none for bytes that cannot be decoded."""
    reader = _Reader(data)
    try:
        reader.short()
        return reader.partitions()
    except (struct.error, UnicodeDecodeError):
        return frozenset()


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


def _put_text(data: bytearray, text: str) -> None:
    encoded = text.encode()
    data += _SHORT.pack(len(encoded)) + encoded


def _put_partitions(data: bytearray, partitions: Iterable[TopicPartition]) -> None:
    topics = by_topic(partitions)
    data += _LONG.pack(len(topics))
    for topic, numbers in topics.items():
        _put_text(data, topic)
        data += _LONG.pack(len(numbers))
        for number in numbers:
            data += _LONG.pack(number)


class _Reader:
    """Raises `struct.error` where the bytes end too early or a count makes no sense."""

    def __init__(self, data: bytes) -> None:
        self._data: Final = data
        self._at = 0

    def short(self) -> int:
        return self._number(_SHORT)

    def long(self) -> int:
        return self._number(_LONG)

    def count(self) -> int:
        """Every counted thing takes two bytes at least."""
        count = self.long()
        if count > (len(self._data) - self._at) // 2:
            raise struct.error(f"{count} parts in {len(self._data)} bytes")
        return count

    def text(self) -> str:
        return self._read(self.short()).decode()

    def blob(self) -> bytes:
        size = self.long()
        return b"" if size < 0 else self._read(size)

    def partitions(self) -> frozenset[TopicPartition]:
        partitions: set[TopicPartition] = set()
        for _ in range(self.count()):
            topic = self.text()
            partitions.update((topic, self.long()) for _ in range(self.count()))
        return frozenset(partitions)

    def _number(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return int(number)

    def _read(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise struct.error(f"{size} bytes do not follow at {self._at}")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken
