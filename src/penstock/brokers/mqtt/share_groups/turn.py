"""`Turn`: one distribution of messages to members. Packets of one member leave together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.run import Run
from penstock.brokers.mqtt.deliver.window import Window
from penstock.brokers.mqtt.share_groups.membership import Membership, SessionShares, SharedDelivery

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.message import Message
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.share_groups.group import ShareGroup

_DUP: Final = 0x08


class Turn:
    __slots__ = ("_group", "_now_ms", "_used", "left")

    def __init__(self, group: ShareGroup, now_ms: int, left: int = 0) -> None:
        self._group: Final = group
        self._now_ms: Final = now_ms
        self._used: list[Membership] = []
        self.left = left
        """Messages until others have their turn."""

    def is_expired(self, message: Message) -> bool:
        return message.expires_at_ms is not None and message.expires_at_ms <= self._now_ms

    # Choosing

    def _choose(self, message: Message) -> Membership | None:
        """Return a member that has room for a message with QoS 1 or 2."""
        group = self._group
        ready, connected = group.ready, group.connected
        if not ready:
            return None
        index = group.strategy.index(message, len(connected))
        member = connected[index]
        if member.place < 0:
            member = ready[index % len(ready)]
        while True:
            if member.turn is not self:
                self._open(member)
            if member.room > 0:
                group.strategy.used(
                    index if member is connected[index] else connected.index(member)
                )
                return member
            group.unready(member)
            if not ready:
                return None
            member = ready[index % len(ready)]

    def _open(self, member: Membership) -> None:
        member.turn = self
        member.look(self._group.context.unsent_max)
        self._used.append(member)
        if member.is_blocked:
            self._group.context.pump_later(self._group)

    # Giving

    def give(self, tail: ShardTail, message: Message, run: Run | None, index: int) -> bool:
        """Give a message of the cursor to a member; return False if none has room."""
        member = self._choose(message)
        if member is None:
            return False
        found = self._encode(member, message, run, index)
        if found is not None:
            self._send(*found, tail, message)
        return True

    def give_released(self, tail: ShardTail, message: Message) -> bool:
        """Give the first released message of a shard to a member; return False if none has
        room."""
        member = self._choose(message)
        if member is None:
            return False
        queue = self._group.queue_of(tail)
        found = self._encode(member, message, None, 0)
        if found is None:
            queue.drop_released()
            return True
        member, qos, packet = found
        if qos == 0:
            queue.drop_released()
        elif queue.acquire_released(member.session.number) or message.offset < queue.dup_until:
            packet = bytes((packet[0] | _DUP,)) + packet[1:]
            self._group.context.counts.resent += 1
        self._send(member, qos, packet, tail, message)
        return True

    def _encode(
        self, member: Membership, message: Message, run: Run | None, index: int
    ) -> tuple[Membership, int, bytes] | None:
        """Return the packet for a member, or for another one if it is too large for this one.
        None: it is too large for all that have room."""
        qos, packet = _encode_for(member, message, run, index, self._now_ms)
        if packet:
            return member, qos, packet
        for other in list(self._group.ready):
            if other.turn is not self:
                self._open(other)
            if other.room > 0:
                qos, packet = _encode_for(other, message, run, index, self._now_ms)
                if packet:
                    return other, qos, packet
        self._group.context.counts.dropped_large += 1
        return None

    def _send(
        self, member: Membership, qos: int, packet: bytes, tail: ShardTail, message: Message
    ) -> None:
        self.left -= 1
        member.packets[qos].append(packet)
        group = self._group
        member.room -= 1
        member.size_left -= len(packet)
        if member.size_left < 0:
            member.room, member.is_blocked = 0, True
            group.context.pump_later(group)
        if qos == 0:
            return
        session, offset = member.session, message.offset
        window = session.window
        assert window is not None, "made for the packet id"
        packet_id = window.next_id()
        window.in_flight[packet_id] = (tail, offset, qos, None)
        queue = group.queue_of(tail)
        if offset not in queue.in_flight:
            queue.acquire(offset, session.number)
        if qos == 2 and not session.is_persistent:
            queue.mark_final(offset)
        shares = session.shares
        assert isinstance(shares, SessionShares), "a member has its shares"
        shares.in_flight[packet_id] = SharedDelivery(group, tail, queue, offset, qos, member.match)
        group.mark_dirty()

    def deliver_qos0(self, run: Run) -> None:
        """Give messages with QoS 0 to members whose output is not too long."""
        group = self._group
        connected, counts = group.connected, group.context.counts
        for index, message in enumerate(run.messages):
            if not connected or self.is_expired(message):
                continue
            place = group.strategy.index(message, len(connected))
            for step in range(len(connected)):
                member = connected[(place + step) % len(connected)]
                sink = member.session.sink
                if sink is not None and sink.unsent <= group.context.unsent_max:
                    self._send_qos0(member, run, index)
                    group.strategy.used((place + step) % len(connected))
                    break
            else:
                counts.dropped_slow += 1
        self.flush()

    def _send_qos0(self, member: Membership, run: Run, index: int) -> None:
        _, packet = _encode_for(member, run.messages[index], run, index, self._now_ms)
        if not packet:
            self._group.context.counts.dropped_large += 1
            return
        if member.turn is not self:
            member.turn = self
            self._used.append(member)
        member.packets[0].append(packet)

    def flush(self) -> None:
        """Send what was collected."""
        for member in self._used:
            session = member.session
            sink = session.sink
            for qos, packets in enumerate(member.packets):
                if not packets or sink is None:
                    continue
                if qos:
                    session.send_shared(list(packets), qos)
                else:
                    self._group.context.counts.sent_qos0 += len(packets)
                    sink.send(b"".join(packets))
                packets.clear()
            member.turn = None
        self._used.clear()


def _encode_for(
    member: Membership, message: Message, run: Run | None, index: int, now_ms: int
) -> tuple[int, bytes]:
    """Return QoS and packet, with the packet id that the session uses next; an empty packet: it
    would be too large for the client."""
    session, sink = member.session, member.session.sink
    assert sink is not None, "a member that has room is connected"
    qos = min(member.match.qos, message.qos)
    encoding = member.match.encoding(sink.version, qos)
    if run is None:
        run, index = Run(message.shard, [message], message.qos, now_ms), 0
    packet_id = 0
    if qos:
        window = session.window
        if window is None:
            window = session.window = Window()
        packet_id = window.peek_id()
    packet = run.encoded(encoding).packet(index, packet_id)
    return qos, packet if len(packet) <= sink.maximum_packet_size else b""
