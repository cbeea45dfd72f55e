"""What all connections of a server have in common."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable
from typing import Final

from penstock.brokers.network.counters import NetworkCounters
from penstock.brokers.network.hangups import HangupWatch
from penstock.brokers.network.limits import NetworkLimits
from penstock.brokers.network.receive_buffer import SHARED_SIZE

LINGER_S: Final = 2.0
"""How long a connection waits for the end of a client that it has ended."""


class Member(typing.Protocol):
    """A connection, as its server sees it."""

    @property
    def descriptor(self) -> int: ...

    def flush(self) -> None: ...


class ConnectionContext:
    """The loop, the limits, the shared buffer, and the connections that send in this turn."""

    __slots__ = (
        "_unflushed",
        "counters",
        "establish",
        "hangups",
        "limits",
        "linger_s",
        "loop",
        "name",
        "remove",
        "shared",
        "unsent_total",
    )

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        limits: NetworkLimits,
        counters: NetworkCounters,
        remove: Callable[[Member], None],
        establish: Callable[[Member], None],
        hung_up: Callable[[int], None],
    ) -> None:
        self.name: Final = name
        self.loop: Final = loop
        self.limits: Final = limits
        self.counters: Final = counters
        self.remove: Final = remove
        self.establish: Final = establish
        self.hangups: Final = HangupWatch(loop, hung_up)
        self.linger_s = LINGER_S
        self.shared: Final = memoryview(bytearray(SHARED_SIZE))
        self.unsent_total = 0
        """Bytes that wait for clients that do not read fast enough."""
        self._unflushed: list[Member] = []

    @property
    def is_over_unsent_total(self) -> bool:
        return 0 < self.limits.unsent_total_max < self.unsent_total

    def flush_later(self, member: Member) -> None:
        """Flush `member` at the end of this turn: before the loop looks for further input."""
        if not self._unflushed:
            self.loop.call_soon(self._flush_all)
        self._unflushed.append(member)

    def _flush_all(self) -> None:
        members, self._unflushed = self._unflushed, []
        for member in members:
            member.flush()
