"""What a connected subscriber is sent besides live messages, in this order:

    PUBREL of QoS 2 messages, PUBLISH of messages in flight     once after it has reconnected
    retained messages of new subscriptions
    messages of shards in which it reads from the log

Each stops where the window is full, the output is too long, or the log must be read first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.encoding import MQTT_5, encode_run, encoding_class
from penstock.brokers.mqtt.deliver.window import ID_BYTES, NOT_LOADED, Window
from penstock.brokers.mqtt.subscriptions.filters import matches
from penstock.brokers.mqtt.subscriptions.interface import Match, match_of

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.cursor import Cursor
    from penstock.brokers.mqtt.deliver.message import Message
    from penstock.brokers.mqtt.deliver.outgoing import Outgoing
    from penstock.brokers.mqtt.deliver.pages import Page
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.sink import ClientSink

MESSAGES_PER_PUMP: Final = 500
"""Messages that one subscriber is sent before others have their turn."""
_PUBREL: Final = b"\x62\x02"


class Pump:
    """One call of `pump`, and how much it may still send."""

    __slots__ = ("left", "now_ms", "sink", "size_left", "to", "window")

    def __init__(self, to: Outgoing, sink: ClientSink) -> None:
        self.to: Final = to
        self.sink: Final = sink
        if to.window is None:
            to.window = Window()
        self.window: Final[Window] = to.window
        self.left = MESSAGES_PER_PUMP
        self.size_left = to.context.unsent_max - sink.unsent
        """Bytes until the output is too long."""
        self.now_ms: Final = to.context.now_ms()

    @property
    def room(self) -> int:
        """How many messages of QoS 1 and 2 may be sent."""
        if self.size_left <= 0:
            return 0
        return min(self.left, self.sink.receive_maximum - self.window.size)

    def has_room(self, qos: int) -> bool:
        return self.left > 0 and self.size_left > 0 and (qos == 0 or self.room > 0)

    def send_kept(
        self, message: Message, match: Match, qos: int, *, again_with: int = 0, is_retained: bool
    ) -> bool:
        """Send one retained message, or one in flight again with its packet id. Return False when
        it is too large for the client."""
        to, sink = self.to, self.sink
        self.left -= 1
        is_5 = sink.version == MQTT_5
        encoding = encoding_class(
            qos,
            match.identifiers if is_5 else (),
            is_5=is_5,
            retain_as_published=is_retained or match.retain_as_published,
        )
        # A message in flight is sent again even if it has expired meanwhile.
        now_ms = self.now_ms
        if again_with and message.expires_at_ms is not None:
            now_ms = min(now_ms, message.expires_at_ms - 1)
        encoded = encode_run([message], encoding, now_ms)
        packet_id = again_with or (self.window.peek_id() if qos else 0)
        packet = encoded.packet(0, packet_id, bool(again_with))
        self.size_left -= len(packet)
        if len(packet) > sink.maximum_packet_size:
            to.context.counts.dropped_large += 1
            return False
        if not packet:
            to.context.counts.dropped_expired += 1
        elif qos == 0:
            to.context.counts.sent_qos0 += 1
            sink.send(packet)
        elif not again_with:
            to.send_one(packet, qos, message, self.window.next_id(), is_retained=is_retained)
        else:
            to.context.counts.resent += 1
            if is_retained:
                self.window.in_flight[packet_id] = (None, message.offset, qos, message)
            sink.send(packet)  # of QoS 2, its row is stored
        return True


def pump(to: Outgoing, sink: ClientSink) -> None:
    """Send what waits for one subscriber."""
    turn = Pump(to, sink)
    if sink.unsent > to.context.unsent_max:
        to.context.pump_later(to)
        return
    if (to.sends_releases or turn.window.resend) and not to.is_row_stored():
        return
    if to.sends_releases:
        to.sends_releases = False
        releases = b"".join([_PUBREL + ID_BYTES[packet_id] for packet_id in turn.window.released])
        sink.send(releases)
    if turn.window.resend:
        _resend(turn)
        if not turn.window.resend and to.shares is not None:
            to.shares.room_grew()
    if not turn.window.resend:
        _send_retained(turn)
        _catch_up_all(turn)
    if turn.size_left <= 0:
        to.context.pump_later(to)
    elif turn.left <= 0:
        to.context.request_pump(to)


def _resend(turn: Pump) -> None:
    """Send what is in flight again, as far as that is possible now."""
    to, window = turn.to, turn.window
    while window.resend and turn.room > 0:
        packet_id = window.resend[-1]
        tail, offset, qos, message = window.in_flight[packet_id]
        if tail is not None:
            page = to.context.find_page(tail, offset)
            if page is None and not tail.is_gone:
                to.context.read_page(tail, offset, to)
                return
            message = None if page is None else page.message_at(offset)
        elif message is not None and message.offset == NOT_LOADED:
            if not to.context.has_retained():
                to.context.pump_later(to)
                return
            message = to.context.find_retained(message.topic)
        window.resend.pop()
        if message is None:
            to.remove_in_flight(packet_id)
            to.context.counts.dropped_gone += 1
            continue
        match = to.shared_match(packet_id) or match_at(to, message) or Match(qos)
        is_retained = tail is None
        if not turn.send_kept(message, match, qos, again_with=packet_id, is_retained=is_retained):
            to.remove_in_flight(packet_id)


def _send_retained(turn: Pump) -> None:
    to = turn.to
    queue = to.retained
    if queue is None:
        return
    while queue.messages:
        message, match = queue.messages[0]
        qos = min(message.qos, match.qos)
        if not turn.has_room(qos):
            return
        queue.messages.popleft()
        turn.send_kept(message, match, qos, is_retained=True)
    if queue.is_complete:
        to.retained = None
    else:
        to.context.load_retained(to)


def _catch_up_all(turn: Pump) -> None:
    lagging = turn.to.lagging
    if lagging is None:
        return
    for tail, cursor in list(lagging.items()):
        _catch_up(turn, tail, cursor)
    if not lagging:
        turn.to.lagging = None


def _catch_up(turn: Pump, tail: ShardTail, cursor: Cursor) -> None:
    """Send messages from the log until the subscriber is live in the shard, or has to wait."""
    to = turn.to
    context = to.context
    lagging = to.lagging
    assert lagging is not None, "the caller has looked"
    while cursor.next < tail.known_end and not tail.is_gone:
        if turn.room <= 0:
            return
        page = context.find_page(tail, cursor.next)
        if page is None:
            if not cursor.is_waiting:
                cursor.is_waiting = True
                context.read_page(tail, cursor.next, to)
            return
        cursor.is_waiting = False
        if _send_page(turn, tail, cursor, page):
            cursor.next = max(cursor.next, min(page.end, tail.known_end))
    del lagging[tail]
    to.mark_position_dirty()
    _drop_starts(to, tail)


def _send_page(turn: Pump, tail: ShardTail, cursor: Cursor, page: Page) -> bool:
    """Send messages of a page; return whether the cursor has passed all of them."""
    to = turn.to
    end = tail.known_end
    batch: list[Message] = []
    batch_match: Match | None = None
    batch_qos = 0
    messages = page.messages
    for position in range(page.index_of(cursor.next), len(messages)):
        message = messages[position]
        if message.offset >= end:
            break
        if message.offset < cursor.next:
            continue  # not wanted
        match = match_at(to, message)
        qos = _wanted_qos(turn, cursor, message, match)
        if match is not None and qos >= 0:
            if batch and (match is not batch_match or qos != batch_qos):
                _send_batch(turn, cursor, batch, batch_match, batch_qos)
                batch = []
            limit = turn.room if qos else turn.left * (turn.size_left > 0)
            if len(batch) >= limit:
                _send_batch(turn, cursor, batch, batch_match, batch_qos)
                cursor.next = message.offset
                return False
            batch.append(message)
            batch_match, batch_qos = match, qos
        cursor.move_past(message.offset)
    _send_batch(turn, cursor, batch, batch_match, batch_qos)
    return True


def _wanted_qos(turn: Pump, cursor: Cursor, message: Message, match: Match | None) -> int:
    """Return with which QoS a message is sent; -1: it is not."""
    if match is None or (match.no_local and message.publisher == turn.to.number):
        return -1
    qos = min(message.qos, match.qos)
    if qos == 0 and not cursor.has_qos0:
        return -1  # was delivered live, or missed
    tail = message.shard
    if qos == 2 and tail is not None and message.offset < turn.window.sent_ends.get(tail, 0):
        return -1  # was sent: it is in flight, or acknowledged
    return qos


def _send_batch(
    turn: Pump, cursor: Cursor, batch: list[Message], match: Match | None, qos: int
) -> None:
    """Send messages that the window has room for."""
    if not batch or match is None:
        return
    to, sink = turn.to, turn.sink
    encoded = encode_run(batch, match.encoding(sink.version, qos), turn.now_ms)
    if qos == 0:
        to.send_qos0(sink, batch, encoded, match)
    else:
        is_dup = qos == 1 and batch[0].offset < cursor.dup_until
        to.send_acknowledged(sink, batch, encoded, match, qos, len(batch), is_dup=is_dup)
    turn.left -= len(batch)
    turn.size_left -= sum(len(message.payload) for message in batch)


def match_at(to: Outgoing, message: Message) -> Match | None:
    """Return what the subscriptions that were there before the message ask for."""
    tail = message.shard
    if tail is None or not to.has_starts:
        return to.context.route(message.topic).match_of(to)
    found = [
        subscription
        for subscription in to.subscriptions.values()
        if (subscription.since is None or message.offset >= subscription.since.get(tail, 0))
        and matches(subscription.inner, message.topic)
    ]
    return match_of(found) if found else None


def _drop_starts(to: Outgoing, tail: ShardTail) -> None:
    """The subscriber is live in a shard: the starts of its subscriptions there are of no use. Those
    of a session with rows are, until the next mark has its position."""
    if not to.has_starts or to.is_persistent:
        return
    to.has_starts = False
    for subscription in to.subscriptions.values():
        if subscription.since is not None:
            subscription.since.pop(tail, None)
            if subscription.since:
                to.has_starts = True
            else:
                subscription.since = None
