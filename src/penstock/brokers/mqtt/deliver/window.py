"""`Window`: the QoS 1 and 2 messages that are in flight to one client."""

from __future__ import annotations

from collections.abc import Container
from typing import Final, TypeAlias

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail

PACKET_IDS: Final = 65_535
ID_BYTES: Final = tuple(number.to_bytes(2, "big") for number in range(PACKET_IDS + 1))
"""Packet ids as packets have them."""

NOT_LOADED: Final = -2
"""The offset of a retained message that was in flight before the node started: only its topic is
known yet."""

InFlight: TypeAlias = tuple[ShardTail | None, int, int, Message | None]
"""Shard, offset, QoS. A retained message is not read from the log again: it is kept here."""


class Window:
    """Packet ids count up, and those in flight are left out. `in_flight` has the messages that wait
    for PUBACK or PUBREC, in the order in which they were first sent; `released` the packet ids that
    wait for PUBCOMP. `resend` are packet ids that the present connection was not sent yet."""

    __slots__ = ("in_flight", "last_id", "probe", "released", "resend", "sent_ends")

    def __init__(self) -> None:
        self.in_flight: Final[dict[int, InFlight]] = {}
        self.released: Final[dict[int, None]] = {}
        self.resend: list[int] = []
        """The next one is the last."""
        self.last_id = 0
        self.probe: tuple[int, str, int] | None = None
        """Packet id, topic and time of a message whose acknowledgement is timed."""
        self.sent_ends: Final[dict[ShardTail, int]] = {}
        """By shard, the offset after the last QoS 2 message that was sent."""

    @property
    def size(self) -> int:
        """How many packet ids the present connection uses."""
        return len(self.in_flight) + len(self.released) - len(self.resend)

    def is_empty(self) -> bool:
        return not (self.in_flight or self.released)

    def are_free(self, ids: range) -> bool:
        """Say whether packet ids are valid and not in use."""
        if ids[-1] > PACKET_IDS:
            return False
        return self.in_flight.keys().isdisjoint(ids) and (
            not self.released or self.released.keys().isdisjoint(ids)
        )

    def peek_id(self) -> int:
        """Return what `next_id` will."""
        packet_id = self.last_id % PACKET_IDS + 1
        while packet_id in self.in_flight or packet_id in self.released:
            packet_id = packet_id % PACKET_IDS + 1
        return packet_id

    def next_id(self) -> int:
        """Return a packet id that is not in use."""
        self.last_id = self.peek_id()
        return self.last_id

    def sent(self, shared: Container[int] = ()) -> dict[ShardTail, int]:
        """Return the offset after the newest unacknowledged message of each shard."""
        ends: dict[ShardTail, int] = {}
        for packet_id, (tail, offset, _, _) in self.in_flight.items():
            if tail is not None and packet_id not in shared and offset >= ends.get(tail, 0):
                ends[tail] = offset + 1
        return ends

    def lowest(self, shared: Container[int] = ()) -> dict[ShardTail, int]:
        """Return the offset of the oldest unacknowledged message of each shard. `shared` are the
        packet ids of the groups' messages, whose positions are the groups'."""
        lowest: dict[ShardTail, int] = {}
        for packet_id, (tail, offset, _, _) in self.in_flight.items():
            if packet_id in shared:
                continue
            if tail is not None and offset < lowest.get(tail, offset + 1):
                lowest[tail] = offset
        return lowest
