"""Which member gets a message, as far as it has room."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Final, Literal, Protocol

StrategyName = Literal["round_robin", "random", "sticky", "hash_client", "hash_topic", "local"]


class Routed(Protocol):
    """What strategies look at of a message."""

    topic: str
    publisher: int


class Strategy(Protocol):
    def index(self, message: Routed, count: int) -> int:
        """Return which of `count` connected members should get a message."""
        ...

    def used(self, index: int) -> None:
        """This member got it; another one if the one that should had no room."""
        ...


class RoundRobin:
    """Members in turn."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def index(self, message: Routed, count: int) -> int:  # noqa: ARG002 - of the interface
        index = self._next % count
        self._next = index + 1
        return index

    def used(self, index: int) -> None:
        """The turn is the same, even if another member had room."""


class Sticky:
    """The same member as long as it has room."""

    __slots__ = ("_current",)

    def __init__(self) -> None:
        self._current = 0

    def index(self, message: Routed, count: int) -> int:  # noqa: ARG002 - of the interface
        return self._current % count

    def used(self, index: int) -> None:
        self._current = index


class ByKey:
    """The same member for messages with the same key, while members stay the same."""

    __slots__ = ("_key",)

    def __init__(self, key: Callable[[Routed], int]) -> None:
        self._key: Final = key

    def index(self, message: Routed, count: int) -> int:
        return self._key(message) % count

    def used(self, index: int) -> None:
        """The key alone decides."""


def strategy_of(name: StrategyName) -> Strategy:
    """Return a new strategy for one group. On one node all members are local."""
    match name:
        case "round_robin" | "local":
            return RoundRobin()
        case "sticky":
            return Sticky()
        case "random":
            return ByKey(lambda _: random.getrandbits(32))
        case "hash_client":
            return ByKey(lambda message: zlib.crc32(b"%d" % message.publisher))
        case "hash_topic":
            return ByKey(lambda message: zlib.crc32(message.topic.encode()))
