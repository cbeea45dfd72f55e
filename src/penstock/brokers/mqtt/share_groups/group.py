"""`ShareGroup`: the subscriber that gives each message to one member.

In each shard it is live (gets runs as `Delivery` hands them over), or it fell behind: then it has a
cursor, from which `pump` reads the log, as sessions do. Messages with QoS 0 go to connected members
live, or are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.share_groups.membership import Membership
from penstock.brokers.mqtt.share_groups.share_queue import ShareQueue
from penstock.brokers.mqtt.share_groups.strategies import Strategy
from penstock.brokers.mqtt.share_groups.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.brokers.mqtt.deliver.context import DeliveryContext
    from penstock.brokers.mqtt.deliver.run import Run
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.session import Session
    from penstock.brokers.mqtt.subscriptions.interface import Match, Subscription


class ShareGroup:
    """`name` is the filter that clients name, prefix included; `subscription` is the group's own,
    which the tree has."""

    __slots__ = (
        "connected",
        "context",
        "has_row",
        "is_dirty",
        "members",
        "name",
        "number",
        "position_changed",
        "pump_is_requested",
        "queues",
        "ready",
        "strategy",
        "subscription",
    )

    def __init__(
        self,
        number: int,
        name: str,
        subscription: Subscription,
        strategy: Strategy,
        context: DeliveryContext,
        position_changed: Callable[[ShareGroup], None],
    ) -> None:
        self.number = number
        self.name: Final = name
        self.subscription: Final = subscription
        self.strategy: Final = strategy
        self.context: Final = context
        self.position_changed: Final = position_changed
        self.members: Final[dict[int, Membership]] = {}
        """By the numbers of their sessions."""
        self.connected: Final[list[Membership]] = []
        self.ready: Final[list[Membership]] = []
        """Connected members that may have room."""
        self.queues: Final[dict[ShardTail, ShareQueue]] = {}
        self.pump_is_requested = False
        self.is_dirty = False
        """Whether the next mark has to look at the group."""
        self.has_row = False

    def __repr__(self) -> str:
        return f"ShareGroup({self.name!r}, {len(self.connected)} of {len(self.members)} connected)"

    @property
    def is_persistent(self) -> bool:
        return any(member.session.is_persistent for member in self.members.values())

    # Members

    def add(self, session: Session, subscription: Subscription) -> None:
        member = self.members.get(session.number)
        if member is not None:
            member.replace(subscription)
            return
        self.members[session.number] = member = Membership(session, subscription)
        if session.sink is not None:
            self._connect(member)

    def remove(self, session: Session) -> None:
        """The session has unsubscribed, or has ended. What is in flight to it stays so."""
        member = self.members.pop(session.number, None)
        if member is not None:
            self._disconnect(member)

    def attach(self, session: Session) -> None:
        member = self.members.get(session.number)
        if member is not None and member not in self.connected:
            self._connect(member)

    def detach(self, session: Session) -> None:
        member = self.members.get(session.number)
        if member is not None:
            self._disconnect(member)

    def _connect(self, member: Membership) -> None:
        self.connected.append(member)
        member.is_blocked = False
        self._set_ready(member)
        if self.queues:
            self.context.request_pump(self)

    def _disconnect(self, member: Membership) -> None:
        if member in self.connected:
            self.connected.remove(member)
        self.unready(member)

    def _set_ready(self, member: Membership) -> None:
        if member.place < 0:
            member.place = len(self.ready)
            self.ready.append(member)

    def unready(self, member: Membership) -> None:
        """The member has no room."""
        place = member.place
        if place >= 0:
            member.place = -1
            last = self.ready.pop()
            if last is not member:
                self.ready[place] = last
                last.place = place

    def room_grew(self, session: Session) -> None:
        """The client has acknowledged something, or its output has become shorter."""
        member = self.members.get(session.number)
        if member is None or session.sink is None:
            return
        member.is_blocked = False
        self._set_ready(member)
        if not self.pump_is_requested and self.has_waiting():
            self.context.request_pump(self)

    def unblock(self) -> None:
        """Look again at the members whose output was too long."""
        for member in self.connected:
            if member.is_blocked:
                member.is_blocked = False
                self._set_ready(member)

    def has_waiting(self) -> bool:
        return any(queue.is_behind or queue.released for queue in self.queues.values())

    # Live

    def deliver(self, run: Run, match: Match) -> None:  # noqa: ARG002 - each member has its own
        """See `Subscriber`."""
        tail = run.tail
        if tail is None or run.qos == 0:
            Turn(self, run.now_ms).deliver_qos0(run)
            return
        queue = self.queues.get(tail)
        if queue is not None and queue.is_behind:
            return
        turn = Turn(self, run.now_ms)
        for index, message in enumerate(run.messages):
            if turn.is_expired(message):
                continue
            if not turn.give(tail, message, run, index):
                self._fall_behind(tail, message.offset)
                break
        turn.flush()

    def queue_of(self, tail: ShardTail) -> ShareQueue:
        queue = self.queues.get(tail)
        if queue is None:
            queue = self.queues[tail] = ShareQueue()
        return queue

    def _fall_behind(self, tail: ShardTail, offset: int) -> None:
        self.queue_of(tail).fall_behind(offset)
        self.context.counts.fell_behind += 1
        self.mark_dirty()

    def changed(self, tail: ShardTail, queue: ShareQueue) -> None:
        """A message was acknowledged, or given back."""
        self.mark_dirty()
        if queue.is_idle and self.queues.get(tail) is queue:
            del self.queues[tail]

    def release(self, queue: ShareQueue, offset: int) -> None:
        """The connection of a member has ended: another one gets its message."""
        queue.release(offset)
        if self.connected and not self.pump_is_requested and self.members:
            self.context.request_pump(self)

    def mark_dirty(self) -> None:
        if not self.is_dirty:
            self.is_dirty = True
            self.position_changed(self)

    # Reading the log: see `Delivery`

    def pump(self) -> None:
        """Give what waits to members that have room."""
        from penstock.brokers.mqtt.share_groups.catch_up import pump

        self.pump_is_requested = False
        if self.connected:
            self.unblock()
            pump(self)

    def page_was_read(self, tail: ShardTail) -> None:
        queue = self.queues.get(tail)
        if queue is not None:
            queue.is_waiting = False
