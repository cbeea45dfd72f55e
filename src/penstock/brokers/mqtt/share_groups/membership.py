"""`Membership`: a session in one group. `SessionShares`: all groups of one session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.brokers.mqtt.share_groups.share_queue import ShareQueue
from penstock.brokers.mqtt.subscriptions.interface import Match, Subscription, match_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.session import Session
    from penstock.brokers.mqtt.share_groups.group import ShareGroup

ALWAYS_ROOM: Final = 1 << 30
"""Room of a member whose deliveries need no packet id."""


class Membership:
    """`room` and `packets` belong to the turn of the group that is `turn`."""

    __slots__ = (
        "is_blocked",
        "match",
        "packets",
        "place",
        "room",
        "session",
        "size_left",
        "subscription",
        "turn",
    )

    def __init__(self, session: Session, subscription: Subscription) -> None:
        self.session: Final = session
        self.subscription = subscription
        self.match = match_of([subscription])
        self.place = -1
        """Index in the group's list of members that may have room; -1: it has none."""
        self.is_blocked = False
        """Whether the output was too long."""
        self.turn: object = None
        self.room = 0
        self.size_left = 0
        """Bytes until the output is too long."""
        self.packets: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
        """By QoS."""

    def replace(self, subscription: Subscription) -> None:
        """The client has subscribed again, with other options."""
        self.subscription = subscription
        self.match = match_of([subscription])

    def look(self, unsent_max: int) -> None:
        """Find out how many messages the member may get."""
        session = self.session
        sink = session.sink
        self.room = 0
        if sink is None:
            return
        self.size_left = unsent_max - sink.unsent
        if self.size_left < 0:
            self.is_blocked = True
        elif self.match.qos == 0:
            self.room = ALWAYS_ROOM
        elif session.window is None:
            self.room = sink.receive_maximum
        elif not session.window.resend:
            self.room = sink.receive_maximum - session.window.size


class SharedDelivery(NamedTuple):
    """A message of a group that is in flight to one session."""

    group: ShareGroup
    tail: ShardTail
    queue: ShareQueue
    offset: int
    qos: int
    match: Match


class SessionShares:
    """See `Shares` of `subscriptions.interface`."""

    __slots__ = ("_delivered", "done", "groups", "in_flight", "session", "written_done")

    def __init__(self, session: Session, delivered: Callable[[SessionShares], None]) -> None:
        """`delivered` is called when `done` has its first entry."""
        self.session: Final = session
        self._delivered: Final = delivered
        self.groups: Final[dict[str, ShareGroup]] = {}
        """By the filter that the client named."""
        self.in_flight: Final[dict[int, SharedDelivery]] = {}
        """By packet id."""
        self.done: list[tuple[ShareGroup, ShardTail, int]] = []
        """QoS 2 messages that are delivered, since the last mark. The row of QoS 2 deliveries has
        them, so that no other member gets them after a crash."""
        self.written_done: list[tuple[ShareGroup, ShardTail, int]] = []
        """Those that the mark has which is being written."""

    def acknowledged(self, packet_id: int) -> None:
        delivery = self.in_flight.pop(packet_id, None)
        if delivery is None:
            return
        delivery.queue.acknowledge(delivery.offset)
        if delivery.qos == 2 and self.session.is_persistent:
            self.record_delivered(delivery.group, delivery.tail, delivery.offset)
        delivery.group.changed(delivery.tail, delivery.queue)

    def record_delivered(self, group: ShareGroup, tail: ShardTail, offset: int) -> None:
        if not self.done:
            self._delivered(self)
        self.done.append((group, tail, offset))

    def room_grew(self) -> None:
        for group in self.groups.values():
            group.room_grew(self.session)

    def match_of(self, packet_id: int) -> Match | None:
        delivery = self.in_flight.get(packet_id)
        return None if delivery is None else delivery.match

    def owners(self) -> list[tuple[int, str]]:
        """Return packet ids and groups of the QoS 2 messages that are in flight."""
        return [
            (packet_id, delivery.group.name)
            for packet_id, delivery in self.in_flight.items()
            if delivery.qos == 2
        ]

    def delivered(self) -> dict[str, dict[str, list[int]]]:
        """Return offsets of `done`, by group and shard."""
        found: dict[str, dict[str, list[int]]] = {}
        for group, tail, offset in self.written_done + self.done:
            found.setdefault(group.name, {}).setdefault(tail.name, []).append(offset)
        return found
