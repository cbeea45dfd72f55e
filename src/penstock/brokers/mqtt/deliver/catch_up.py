"""What a connected subscriber is sent besides live messages, in this order:

    PUBREL of QoS 2 messages, PUBLISH of messages in flight     once after it has reconnected
    retained messages of new subscriptions
    messages of shards in which it is behind

Each stops where the window is full, the output is too long, or the log must be read first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.encoding import encode_parts, with_dup
from penstock.brokers.mqtt.deliver.window import ID_BYTES, NOT_LOADED, Window
from penstock.brokers.mqtt.subscriptions.filters import matches
from penstock.brokers.mqtt.subscriptions.interface import Match, match_of

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.cursor import Cursor
    from penstock.brokers.mqtt.deliver.message import Message
    from penstock.brokers.mqtt.deliver.outgoing import Outgoing
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.sink import ClientSink

MESSAGES_PER_PUMP: Final = 500
"""Messages that one subscriber is sent before others have their turn."""
_PUBREL: Final = b"\x62\x02"


class Pump:
    """One call of `pump`: collects packets, and knows how much room is left."""

    __slots__ = ("left", "now_ms", "room", "sink", "to", "window")

    def __init__(self, to: Outgoing, sink: ClientSink) -> None:
        self.to: Final = to
        self.sink: Final = sink
        if to.window is None:
            to.window = Window()
        self.window: Final[Window] = to.window
        self.room = sink.receive_maximum - to.window.size
        self.left = MESSAGES_PER_PUMP
        self.now_ms: Final = to.context.now_ms()

    def can_send(self, qos: int) -> bool:
        if self.left <= 0:
            return False
        return qos == 0 or self.room > 0

    def is_blocked(self) -> bool:
        """Say whether the output is too long."""
        return self.sink.unsent > self.to.context.unsent_max

    def send(
        self,
        message: Message,
        match: Match,
        qos: int,
        *,
        packet_id: int = 0,
        is_dup: bool = False,
        is_retained: bool = False,
    ) -> None:
        """Send one message; with `packet_id`: again. It may be dropped."""
        to, sink = self.to, self.sink
        self.left -= 1
        is_expired = message.expires_at_ms is not None and message.expires_at_ms <= self.now_ms
        if is_expired and not packet_id:
            to.context.counts.dropped_expired += 1
            return
        encoding = match.encoding(sink.version, qos)
        head, rest = encode_parts(message, encoding, self.now_ms, is_retained=is_retained)
        if len(head) + len(rest) + (2 if qos else 0) > sink.maximum_packet_size:
            to.context.counts.dropped_large += 1
            if packet_id:
                self.window.in_flight.pop(packet_id, None)
            return
        if qos == 0:
            to.context.counts.sent_qos0 += 1
            sink.send(head + rest)
            return
        self.room -= 1
        if not packet_id:
            packet_id = self.window.next_id()
            tail = None if is_retained else message.shard
            kept = message if is_retained else None
            self.window.in_flight[packet_id] = (tail, message.offset, qos, kept)
        if is_dup:
            head = with_dup(head)
            to.context.counts.resent += 1
        to.send_packets([head, ID_BYTES[packet_id], rest], qos, message)


def pump(to: Outgoing, sink: ClientSink) -> None:
    """Send what waits for one subscriber."""
    turn = Pump(to, sink)
    if turn.is_blocked():
        to.context.pump_later(to)
        return
    if to.sends_releases:
        to.sends_releases = False
        for packet_id in turn.window.released:
            sink.send(_PUBREL + ID_BYTES[packet_id])
    if turn.window.resend and not _resend(turn):
        return
    if to.retained is not None:
        _send_retained(turn)
    if to.behind:
        for tail, cursor in list(to.behind.items()):
            _catch_up(turn, tail, cursor)
        if not to.behind:
            to.behind = None
    if turn.left <= 0:
        to.context.request_pump(to)


def _resend(turn: Pump) -> bool:
    """Send what is in flight again; return whether all of it was."""
    to, window = turn.to, turn.window
    while window.resend:
        packet_id = window.resend[-1]
        tail, offset, qos, message = window.in_flight[packet_id]
        if turn.room <= 0 or turn.left <= 0:
            if turn.left <= 0:
                to.context.request_pump(to)
            return False
        if tail is not None:
            page = to.context.find_page(tail, offset)
            if page is None and not tail.is_gone:
                to.context.read_page(tail, offset, to)
                return False
            message = None if page is None else page.message_at(offset)
        elif message is not None and message.offset == NOT_LOADED:
            if not to.context.has_retained():
                to.context.pump_later(to)
                return False
            message = to.context.find_retained(message.topic)
            if message is not None:
                window.in_flight[packet_id] = (None, message.offset, qos, message)
        window.resend.pop()
        if message is None:
            del window.in_flight[packet_id]
            to.context.counts.dropped_gone += 1
            continue
        match = match_at(to, message) or Match(qos)
        turn.send(message, match, qos, packet_id=packet_id, is_dup=True, is_retained=tail is None)
    return True


def _send_retained(turn: Pump) -> None:
    to = turn.to
    queue = to.retained
    assert queue is not None
    while queue.messages:
        message, match = queue.messages[0]
        qos = min(message.qos, match.qos)
        if not turn.can_send(qos):
            return
        queue.messages.popleft()
        turn.send(message, match, qos, is_retained=True)
    if queue.is_complete:
        to.retained = None
    else:
        to.context.load_retained(to)


def _catch_up(turn: Pump, tail: ShardTail, cursor: Cursor) -> None:
    to = turn.to
    context = to.context
    behind = to.behind
    assert behind is not None
    while cursor.next < tail.known_end and not tail.is_gone:
        if turn.left <= 0 or turn.room <= 0:
            return
        page = context.find_page(tail, cursor.next)
        if page is None:
            if not cursor.is_waiting:
                cursor.is_waiting = True
                context.read_page(tail, cursor.next, to)
            return
        cursor.is_waiting = False
        if not _send_page(turn, tail, cursor, page.messages, page.index_of(cursor.next)):
            return
        cursor.next = max(cursor.next, min(page.end, tail.known_end))
    del behind[tail]
    _drop_starts(to, tail)


def _send_page(
    turn: Pump, tail: ShardTail, cursor: Cursor, messages: list[Message], index: int
) -> bool:
    """Send messages of a page; return whether the cursor has passed all of them."""
    to = turn.to
    window = turn.window
    end = tail.known_end
    for position in range(index, len(messages)):
        message = messages[position]
        offset = message.offset
        if offset >= end:
            cursor.next = end
            return True
        if offset < cursor.next:
            continue  # not wanted
        match = match_at(to, message)
        if match is not None and not (match.no_local and message.publisher == to.number):
            qos = min(message.qos, match.qos)
            is_wanted = cursor.has_qos0 if qos == 0 else True
            if qos == 2 and offset < window.sent_ends.get(tail, 0):
                is_wanted = False  # was sent: it is in flight, or acknowledged
            if is_wanted:
                if not turn.can_send(qos):
                    cursor.next = offset
                    return False
                turn.send(message, match, qos, is_dup=qos == 1 and offset < cursor.dup_until)
        cursor.move_past(offset)
    return True


def match_at(to: Outgoing, message: Message) -> Match | None:
    """Return what the subscriptions that were there before the message ask for."""
    tail = message.shard
    starts = to.has_starts and tail is not None
    if not starts:
        return to.context.route(message.topic).match_of(to)
    found = [
        subscription
        for subscription in to.subscriptions.values()
        if (
            subscription.since is None
            or tail is None
            or message.offset >= subscription.since.get(tail, 0)
        )
        and matches(subscription.inner, message.topic)
    ]
    return match_of(found) if found else None


def _drop_starts(to: Outgoing, tail: ShardTail) -> None:
    """The subscriber is live in a shard: the starts of its subscriptions there are of no use."""
    if not to.has_starts:
        return
    to.has_starts = False
    for subscription in to.subscriptions.values():
        if subscription.since is not None:
            subscription.since.pop(tail, None)
            if subscription.since:
                to.has_starts = True
            else:
                subscription.since = None
