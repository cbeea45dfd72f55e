"""The acknowledgements that one connection owes, in the order of its publishes (MQTT 4.6).

A publish may wait for several writes: its own, and that of its retained message. What is complete
leaves when everything before it has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from penstock.brokers.mqtt.wire.packet_types import PacketType


class PendingAck:
    """A QoS 1 or 2 publish that was received and not acknowledged."""

    __slots__ = ("kind", "packet_id", "reason_code", "waits_for")

    def __init__(self, kind: PacketType, packet_id: int, waits_for: int = 1) -> None:
        self.kind: Final = kind
        """PUBACK or PUBREC."""
        self.packet_id: Final = packet_id
        self.reason_code = 0
        self.waits_for = waits_for
        """How many writes have not ended."""

    def done(self, reason_code: int = 0) -> None:
        """One of the writes has ended."""
        self.waits_for -= 1
        if reason_code and self.reason_code < reason_code:
            self.reason_code = reason_code


class AckQueue:
    """First in, first out."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[PendingAck] | None = None
        """None: nothing was added since all were removed; idle connections are many."""

    def __len__(self) -> int:
        return 0 if self._waiting is None else len(self._waiting)

    def add(self, ack: PendingAck) -> None:
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(ack)

    def waiting(self) -> Iterator[PendingAck]:
        return iter(self._waiting or ())

    def pop_complete(self) -> Iterator[PendingAck]:
        """Remove and yield what can leave now."""
        waiting = self._waiting
        if waiting is None:
            return
        while waiting and waiting[0].waits_for <= 0:
            yield waiting.popleft()
        if not waiting and self._waiting is waiting:
            self._waiting = None

    def clear(self) -> None:
        self._waiting = None
