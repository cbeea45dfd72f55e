"""`Outgoing`: deliveries to one client.

For each shard a connected subscriber is in one of two modes:

    live      gets each run as `Delivery` hands it over; nothing is kept for that
    lagging   `lagging` has a cursor, from which `pump` reads the log when the window has room; at
              the end that delivery knows, the cursor is removed: live

A subscriber falls behind when its window is full, its output is too long, or it has just resumed.
QoS 0 deliveries are live in both modes, or dropped. An offline subscriber keeps hints only: which
offsets wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.brokers.mqtt.deliver.cursor import Cursor, Hint
from penstock.brokers.mqtt.deliver.message import in_flight_of, offset_at
from penstock.brokers.mqtt.deliver.window import PACKET_IDS, Window

if TYPE_CHECKING:
    from collections.abc import Container

    from penstock.brokers.mqtt.deliver.context import DeliveryContext
    from penstock.brokers.mqtt.deliver.message import Message
    from penstock.brokers.mqtt.deliver.retained_queue import RetainedQueue
    from penstock.brokers.mqtt.deliver.run import Run
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.sink import ClientSink
    from penstock.brokers.mqtt.subscriptions.interface import Match, Shares, Subscription
    from penstock.brokers.mqtt.wire.codec import EncodedRun


class Outgoing:
    __slots__ = (
        "context",
        "has_starts",
        "held",
        "hints",
        "is_persistent",
        "lagging",
        "number",
        "position_is_dirty",
        "pump_is_requested",
        "retained",
        "row_failed",
        "rows_on_way",
        "sends_releases",
        "shares",
        "sink",
        "subscriptions",
        "window",
    )

    def __init__(self, number: int, context: DeliveryContext) -> None:
        self.number = number
        self.context: Final = context
        self.sink: ClientSink | None = None
        self.is_persistent = False
        """Whether the session outlives its connection and the node."""
        self.subscriptions: Final[dict[str, Subscription]] = {}
        """By the filter that the client named."""
        self.window: Window | None = None
        self.lagging: dict[ShardTail, Cursor] | None = None
        self.hints: dict[ShardTail, Hint] | None = None
        self.retained: RetainedQueue | None = None
        self.shares: Shares | None = None
        self.held: list[bytes] | None = None
        """QoS 2 packets that wait until their row is stored."""
        self.rows_on_way = 0
        """Rows of QoS 2 deliveries that are not stored yet."""
        self.row_failed = False
        self.has_starts = False
        """Whether a subscription has `since`."""
        self.sends_releases = False
        """Whether PUBREL must be sent again."""
        self.pump_is_requested = False
        self.position_is_dirty = False

    # Live

    def deliver(self, run: Run, match: Match) -> None:
        """See `Subscriber`."""
        sink = self.sink
        qos = min(match.qos, run.qos)
        if sink is None:
            if self.is_persistent:
                self._keep_hint(run, match, qos)
        elif qos == 0:
            self._deliver_qos0(run, match, sink)
        else:
            self._deliver_acknowledged(run, match, qos, sink)

    def _deliver_qos0(self, run: Run, match: Match, sink: ClientSink) -> None:
        context = self.context
        if self.lagging is not None and run.tail is not None:
            cursor = self.lagging.get(run.tail)
            if cursor is not None and cursor.has_qos0:
                return
        if sink.unsent > context.unsent_max:
            context.counts.dropped_slow += len(run.messages)
            return
        encoded = run.encoded(match.encoding(sink.version, 0))
        self.send_qos0(sink, run.messages, encoded, match)

    def send_qos0(
        self, sink: ClientSink, messages: Sequence[Message], encoded: EncodedRun, match: Match
    ) -> None:
        """Send all messages of a run."""
        counts = self.context.counts
        if not match.no_local and encoded.largest <= sink.maximum_packet_size:
            packets = encoded.joined
            if packets:
                sink.send(packets)
            counts.sent_qos0 += len(messages)
            return
        for index, message in enumerate(messages):
            if match.no_local and message.publisher == self.number:
                continue
            packet = encoded.packet(index, 0)
            if len(packet) > sink.maximum_packet_size:
                counts.dropped_large += 1
            elif packet:
                sink.send(packet)
                counts.sent_qos0 += 1

    def _deliver_acknowledged(self, run: Run, match: Match, qos: int, sink: ClientSink) -> None:
        tail = run.tail
        assert tail is not None, "messages that are not stored have QoS 0"
        if self.lagging is not None and tail in self.lagging:
            return
        window = self.window
        if window is None:
            window = self.window = Window()
        in_flight = window.in_flight
        room = sink.receive_maximum - len(in_flight) - len(window.released)
        if window.resend or sink.unsent > self.context.unsent_max:
            room = 0
        messages = run.messages
        encoded = run.encoded(match.encoding(sink.version, qos))
        is_simple = qos == 1 and run.is_single and not (self.is_persistent or match.no_local)
        if is_simple and room > 0 and self._deliver_one(run, encoded, window, sink):
            return
        sent = self.send_acknowledged(sink, messages, encoded, match, qos, room)
        if sent < len(messages):
            self._fall_behind(tail, offset_at(messages, sent))

    def _deliver_one(self, run: Run, encoded: EncodedRun, window: Window, sink: ClientSink) -> bool:
        """Deliver one message with QoS 1, the shortest way: there may be thousands of subscribers.
        Return False where that needs a closer look."""
        packet_id = window.last_id + 1
        in_flight = window.in_flight
        if packet_id in in_flight or packet_id > PACKET_IDS or window.released:
            return False
        if encoded.has_expired or encoded.largest > sink.maximum_packet_size:
            return False
        window.last_id = packet_id
        in_flight[packet_id] = run.in_flight
        if window.probe is None:
            window.probe = (packet_id, run.messages[0].topic, run.now_ms)
        self.context.counts.sent_qos1 += 1
        sink.send(encoded.packet(0, packet_id))
        return True

    def send_acknowledged(
        self,
        sink: ClientSink,
        messages: Sequence[Message],
        encoded: EncodedRun,
        match: Match,
        qos: int,
        room: int,
        *,
        is_dup: bool = False,
    ) -> int:
        """Send messages of QoS 1 or 2 of one shard, as far as the window has room; return how many
        need not be sent again: they were sent, or dropped for good."""
        window = self.window
        assert window is not None, "the caller has made it"
        count = min(room, len(messages))
        if count <= 0:
            return 0
        is_plain = not (is_dup or match.no_local or encoded.has_expired)
        ids = range(window.last_id + 1, window.last_id + 1 + count)
        if not is_plain or encoded.largest > sink.maximum_packet_size or not window.are_free(ids):
            return self._send_singly(sink, messages, encoded, match, qos, room, is_dup=is_dup)
        window.in_flight.update(zip(ids, in_flight_of(messages, qos), strict=False))
        packets = encoded.stamped(0, count, window.last_id)
        window.last_id += count
        if window.probe is None:
            window.probe = (ids[0], messages[0].topic, self.context.now_ms())
        last = messages[count - 1] if qos == 2 and self.is_persistent else None
        self._send(packets, qos, count, last)
        return count

    def _send_singly(
        self,
        sink: ClientSink,
        messages: Sequence[Message],
        encoded: EncodedRun,
        match: Match,
        qos: int,
        room: int,
        *,
        is_dup: bool,
    ) -> int:
        window = self.window
        assert window is not None, "the caller has made it"
        counts = self.context.counts
        packets: list[bytes] = []
        last: Message | None = None
        done = 0
        for index, message in enumerate(messages):
            if match.no_local and message.publisher == self.number:
                done += 1
                continue
            if room <= len(packets):
                break
            done += 1
            packet = encoded.packet(index, window.peek_id(), is_dup)
            if not packet:
                counts.dropped_expired += 1
            elif len(packet) > sink.maximum_packet_size:
                counts.dropped_large += 1
            else:
                window.in_flight[window.next_id()] = (message.shard, message.offset, qos, None)
                packets.append(packet)
                last = message
        if last is not None:
            counts.resent += len(packets) * is_dup
            self._send(b"".join(packets), qos, len(packets), last)
        return done

    def _send(self, packets: bytes, qos: int, count: int, last: Message | None) -> None:
        """Send packets of QoS 1 or 2. Those of QoS 2 that must be delivered exactly once wait until
        their row is stored."""
        context = self.context
        sink = self.sink
        assert sink is not None, "only connected subscribers are sent packets"
        if qos == 1:
            context.counts.sent_qos1 += count
            sink.send(packets)
        else:
            context.counts.sent_qos2 += count
            if not self.is_persistent:
                sink.send(packets)
            else:
                tail = None if last is None else last.shard
                if last is not None and tail is not None and self.window is not None:
                    ends = self.window.sent_ends
                    ends[tail] = max(last.offset + 1, ends.get(tail, 0))
                self.hold(packets)
        if self.is_persistent and not self.position_is_dirty:
            context.position_changed(self)

    def send_one(
        self, packet: bytes, qos: int, message: Message, packet_id: int, *, is_retained: bool
    ) -> None:
        """Send one packet of QoS 1 or 2 that has its packet id, and keep it in flight. A retained
        message is kept itself."""
        window = self.window
        assert window is not None, "the caller has made it"
        if is_retained:
            window.in_flight[packet_id] = (None, message.offset, qos, message)
        else:
            window.in_flight[packet_id] = (message.shard, message.offset, qos, None)
        has_place = not is_retained and packet_id not in self.shared_ids()
        self._send(packet, qos, 1, message if has_place else None)

    def send_shared(self, packets: list[bytes], qos: int) -> None:
        """Send packets of a group's messages, which are in flight. Their positions are the
        group's."""
        self._send(b"".join(packets), qos, len(packets), None)

    def shared_match(self, packet_id: int) -> Match | None:
        """Return how a group's message in flight was delivered."""
        return None if self.shares is None else self.shares.match_of(packet_id)

    def remove_in_flight(self, packet_id: int) -> None:
        """A message in flight is not sent again: it is gone, or too large."""
        if self.window is not None:
            self.window.in_flight.pop(packet_id, None)
        if self.shares is not None:
            self.shares.acknowledged(packet_id)

    def hold(self, data: bytes) -> None:
        """Send packets when the row of QoS 2 deliveries is stored."""
        if self.held is None:
            self.held = []
            self.rows_on_way += 1
            self.context.write_out(self)
        self.held.append(data)

    def is_row_stored(self) -> bool:
        """Return whether what is in flight, and what is released, may be sent again: its row is
        stored. The last connection may have ended before. If not, `pump` follows."""
        if self.row_failed:
            self.row_failed = False
            self.hold(b"")
        return self.rows_on_way == 0

    def out_failed(self) -> None:
        """The row of QoS 2 deliveries was not stored."""
        self.rows_on_way -= 1
        self.row_failed = True

    def out_written(self, data: bytes, sink: ClientSink | None) -> None:
        """The row of QoS 2 deliveries is stored: send what waited for it, on the connection that
        it was meant for."""
        self.rows_on_way -= 1
        waits = self.sends_releases or (self.window is not None and self.window.resend)
        if waits and self.sink is not None:
            self.context.request_pump(self)
        if sink is not None and self.sink is sink and data:
            sink.send(data)

    # Lagging

    def _fall_behind(self, tail: ShardTail, offset: int) -> None:
        if self.lagging is None:
            self.lagging = {}
        self.lagging[tail] = Cursor(offset)
        self.context.counts.fell_behind += 1
        self.mark_position_dirty()
        if self.window is None or self.window.is_empty():
            # Nothing is in flight, so that no acknowledgement would continue the subscriber.
            self.context.request_pump(self)

    def pump(self) -> None:
        """Send what waits, as far as window and output have room. Called after acknowledgements and
        reads; `catch_up` has the work."""
        from penstock.brokers.mqtt.deliver.catch_up import pump

        self.pump_is_requested = False
        if self.sink is not None:
            pump(self, self.sink)

    def page_was_read(self, tail: ShardTail) -> None:
        """A read of the log that the subscriber waited for has ended."""
        cursor = None if self.lagging is None else self.lagging.get(tail)
        if cursor is not None:
            cursor.is_waiting = False

    def writable(self) -> None:
        """The output of the connection fell below its bound."""
        if self.has_waiting():
            self.context.request_pump(self)
        if self.shares is not None:
            self.shares.room_grew()

    def has_waiting(self) -> bool:
        """Say whether something waits for room in the window or the output."""
        return bool(
            self.lagging
            or self.retained is not None
            or (self.window is not None and self.window.resend)
        )

    # Offline

    def _keep_hint(self, run: Run, match: Match, qos: int) -> None:
        tail = run.tail
        if tail is None or (qos == 0 and not self.context.queues_qos0):
            return
        for message in run.messages:
            if match.no_local and message.publisher == self.number:
                continue
            self.add_hint(tail, message.offset)

    def add_hint(self, tail: ShardTail, offset: int) -> None:
        """Keep for later that a message waits for the subscriber."""
        if self.hints is None:
            self.hints = {}
        hint = self.hints.get(tail)
        if hint is None:
            self.hints[tail] = Hint(offset, offset, [offset])
            if not self.position_is_dirty:
                self.context.position_changed(self)
        else:
            hint.add(offset)

    def attach(self, sink: ClientSink) -> None:
        """Begin to deliver to a connection. Nothing is sent before the next turn of the loop."""
        self.sink = sink
        window = self.window
        if window is not None:
            window.resend[:] = reversed(window.in_flight)
            window.probe = None
            self.sends_releases = bool(window.released)
        if self.hints is not None:
            hints, self.hints = self.hints, None
            self.lagging = {}
            for tail, hint in hints.items():
                cursor = self.lagging[tail] = Cursor.of_hint(hint, tail.known_end)
                cursor.has_qos0 = self.context.queues_qos0
        if self.has_waiting() or self.sends_releases:
            self.context.request_pump(self)

    def detach(self) -> None:
        """The connection has ended."""
        self.sink = None
        if self.held is not None:
            self.held = []  # the row is written nevertheless
        self.retained = None
        window = self.window
        if window is not None:
            window.resend.clear()
            if window.is_empty() and not window.sent_ends:
                self.window = None
        if self.lagging:
            self.hints = {
                tail: cursor.as_hint(tail.known_end) for tail, cursor in self.lagging.items()
            }
        self.lagging = None

    def mark_position_dirty(self) -> None:
        """Write the position of the session at the next mark."""
        if self.is_persistent and not self.position_is_dirty:
            self.context.position_changed(self)

    def shared_ids(self) -> Container[int]:
        """Return the packet ids of groups' messages that are in flight."""
        return () if self.shares is None else self.shares.in_flight

    def positions(self) -> dict[ShardTail, int]:
        """Return, by shard, the lowest offset that the session still needs; without those where it
        needs nothing before the next mark."""
        positions = {} if self.window is None else self.window.lowest(self.shared_ids())
        for tail, cursor in (self.lagging or {}).items():
            positions[tail] = min(cursor.position, positions.get(tail, cursor.position))
        for tail, hint in (self.hints or {}).items():
            positions[tail] = min(hint.first, positions.get(tail, hint.first))
        return positions

    def sent(self) -> dict[ShardTail, int]:
        """Return, by shard, the offset up to which messages that the session needs may have been
        sent."""
        ends = {} if self.window is None else self.window.sent(self.shared_ids())
        for places in (self.lagging, self.hints):
            for tail, place in (places or {}).items():
                if place.dup_until > ends.get(tail, 0):
                    ends[tail] = place.dup_until
        return ends

    def retained_in_flight(self) -> list[tuple[str, int]]:
        """Return topics and QoS of the retained messages of QoS 1 that are in flight."""
        if self.window is None:
            return []
        return [
            (message.topic, qos)
            for _, _, qos, message in self.window.in_flight.values()
            if message is not None and qos == 1
        ]
