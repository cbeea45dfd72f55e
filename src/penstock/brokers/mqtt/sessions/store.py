"""`SessionStore`: writes the rows of sessions; see `rows` for what each has and when it is written.

Marks: each second, the rows of sessions that changed, and then, for each stored topic, up to where
its messages were delivered. What a start finds after the mark it routes again (`recovery`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.brokers.mqtt.deliver.window import Window
from penstock.brokers.mqtt.sessions import rows
from penstock.brokers.mqtt.sessions.row_writer import Row, RowWriter
from penstock.brokers.mqtt.sessions.session import Session, WillRecord
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import StoreError
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.delivery import Delivery
    from penstock.brokers.mqtt.deliver.outgoing import Outgoing
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.sink import ClientSink

MARK_INTERVAL_S: Final = 1.0
UNREMOVED_MAX: Final = 100_000
"""Ended sessions whose rows wait to be removed; those beyond are found by the next start."""
UNKNOWN: Final = rows.PositionRow(0, {"": 0}, {}, [])
"""In place of a row of which it is not known whether it was written."""

_log: Final = get_logger(__name__)


class SharedRows(Protocol):
    """The rows of groups of shared subscriptions, which belong to marks."""

    def collect_rows(self) -> list[Row]:
        """Return the rows that changed since the last mark."""
        ...

    def rows_written(self) -> None:
        """The mark with the collected rows is stored."""
        ...

    def rows_not_written(self) -> None:
        """The mark failed: the next one writes the rows."""
        ...


class SessionStore:
    def __init__(self, delivery: Delivery, writer: RowWriter) -> None:
        self._delivery: Final = delivery
        self.writer: Final = writer
        self._changed: list[Session] = []
        """Sessions whose position, receipts or own row a mark has to look at."""
        self._out: list[Session] = []
        """Sessions with QoS 2 packets that wait for their row."""
        self._unremoved: dict[str, Session] = {}
        self.has_session: Callable[[str], bool] = lambda _: False
        """Set by the registry."""
        self.with_starts: Final[list[Session]] = []
        """Sessions that have subscribed since the last mark."""
        delivery.position_changed = self._position_changed
        delivery.write_out = self._write_out
        writer.before_write = self._add_out_rows
        self.marked_partitions: Callable[[], Iterable[int]] = writer.all_partitions
        """Where marks are written: in each partition whose sessions this node has."""
        self.may_write: Callable[[Session], bool] = lambda _: True
        """Whether the rows of a session may be written already."""
        self.marks = 0
        self.shared: SharedRows | None = None
        """The groups of shared subscriptions."""

    # A session's own row

    async def put(self, session: Session) -> None:
        """Write the row of a session."""
        await self.writer.write([session_row(session)])

    async def put_with_position(self, session: Session) -> None:
        """Write the row of a session whose connection has ended, and where it is."""
        written = self._changed_rows(session)
        try:
            await self.writer.write([session_row(session), *written])
        except StoreError:
            self._repeat([session])
            raise

    async def remove(self, session: Session) -> None:
        """Remove all rows of a session."""
        await self.writer.write(_removal(session))

    def remove_soon(self, session: Session) -> None:
        """Remove all rows of a session that has ended; again with later marks while that fails."""
        self.writer.put(_removal(session), partial(self._removed, session))

    def _removed(self, session: Session, error: StoreError | None) -> None:
        if error is not None and len(self._unremoved) < UNREMOVED_MAX:
            self._unremoved[session.client_id] = session

    def _remove_again(self) -> None:
        """Remove rows that could not be removed before. A client that has a session again has
        replaced its row; its other rows have the number of their session."""
        unremoved, self._unremoved = self._unremoved, {}
        for client_id, session in unremoved.items():
            if not self.has_session(client_id):
                self.remove_soon(session)

    # Inbound QoS 2

    async def put_receipts(self, session: Session) -> None:
        try:
            await self.writer.write([_receipt_row(session)])
        except StoreError:
            self._repeat([session])
            raise

    def put_receipts_then(
        self, session: Session, then: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """Write the row of receipts; then call `then`, or `otherwise` when that fails."""
        sink = session.sink

        def done(error: StoreError | None) -> None:
            if error is not None:
                self._repeat([session])
            _continue(session, sink, then, otherwise, error)

        self.writer.put([_receipt_row(session)], done)

    # Outgoing QoS 2

    def _write_out(self, subscriber: Outgoing) -> None:
        self._out.append(cast("Session", subscriber))
        self.writer.schedule()

    def _add_out_rows(self) -> None:
        """Add the rows of all sessions whose QoS 2 packets wait; one row covers a whole turn."""
        out, self._out = self._out, []
        for session in out:
            held = session.held
            session.held = None
            if held is None or session.is_ended:
                continue
            done = partial(_send_held, session, session.sink, b"".join(held))
            self.writer.put_now([_out_row(session)], done)

    # Marks

    def _position_changed(self, subscriber: Outgoing) -> None:
        subscriber.position_is_dirty = True
        self._changed.append(cast("Session", subscriber))

    async def mark(self) -> None:
        """Write the rows of sessions that changed, and then how far each shard was delivered. When
        one cannot be written, the next mark covers more."""
        self._remove_again()
        changed, self._changed = self._changed, []
        with_starts = self.with_starts[:]
        ends = {
            tail: tail.safe_end
            for tail in self._delivery.tails
            if tail.known_end != tail.marked_end
        }
        written: list[Row] = [] if self.shared is None else self.shared.collect_rows()
        if not changed and not written and (not ends or not self.writer.has_topic()):
            return  # a node that has had no sessions keeps no marks
        written += self._rows_of(changed)
        try:
            await self._write_mark(written, self._mark_rows(ends))
        except StoreError:
            self._repeat(changed)
            raise
        del self.with_starts[: len(with_starts)]
        self._marked(ends, changed, with_starts)

    def _marked(
        self, ends: dict[ShardTail, int], changed: list[Session], with_starts: list[Session]
    ) -> None:
        """A mark is stored: drop what only mattered before it."""
        self.marks += 1
        for tail, end in ends.items():
            tail.marked_end = end
        for session in changed:
            _prune_receipts(session, ends)
        for session in (*with_starts, *changed):
            if session.has_starts:
                _drop_starts(session)

    async def _write_mark(self, changed: list[Row], marks: list[Row]) -> None:
        try:
            if changed:
                await self.writer.write(changed)
            if marks:
                await self.writer.write(marks)
        except StoreError:
            if self.shared is not None:
                self.shared.rows_not_written()
            raise
        if self.shared is not None:
            self.shared.rows_written()

    def _rows_of(self, changed: list[Session]) -> list[Row]:
        written: list[Row] = []
        for session in changed:
            session.position_is_dirty = False
            if session.is_ended or not session.is_persistent:
                continue
            if self.may_write(session):
                written += self._changed_rows(session)
            else:
                self._position_changed(session)
        return written

    def _repeat(self, changed: list[Session]) -> None:
        """Let the next mark write what this one could not."""
        for session in changed:
            session.written_position = UNKNOWN
            session.row_is_dirty = session.receipts_are_dirty = True
            if not session.position_is_dirty:
                self._position_changed(session)

    def _changed_rows(self, session: Session) -> list[Row]:
        client_id = session.client_id.encode()
        found: list[Row] = []
        row = rows.PositionRow(
            session.number,
            {tail.name: offset for tail, offset in session.positions().items()},
            {tail.name: end for tail, end in session.sent().items()},
            session.retained_in_flight(),
        )
        if row != session.written_position:
            is_needed = row.positions or row.retained
            value = rows.encode(row) if is_needed else None
            if is_needed or session.written_position is not None:
                found.append((client_id, client_id + rows.POSITION, value))
            session.written_position = row if is_needed else None
        if session.receipts_are_dirty:
            found.append(_receipt_row(session))
        if session.row_is_dirty:
            session.row_is_dirty = False
            found.append(session_row(session))
        return found

    async def mark_partition(self, partition: int, sessions: Iterable[Session]) -> None:
        """Write what the recovery of a partition has found, and then a whole mark for it."""
        tails = self._delivery.tails
        ends = {tail: tail.safe_end for tail in tails}
        found: list[Row] = []
        for session in sessions:
            found += self._changed_rows(session)
        if found:
            await self.writer.write(found)
        await self.writer.write(self._mark_rows(ends, [partition]))

    def _mark_rows(
        self, ends: dict[ShardTail, int], partitions: Iterable[int] | None = None
    ) -> list[Row]:
        now_ms = self._delivery.now_ms()
        places = list(self.marked_partitions() if partitions is None else partitions)
        by_topic: dict[str, list[ShardTail]] = {}
        for topic_id in {tail.topic_id for tail in ends}:
            by_topic[topic_id] = []
        for tail in self._delivery.tails:
            if tail.topic_id in by_topic:
                by_topic[tail.topic_id].append(tail)
        found: list[Row] = []
        for topic_id, tails in by_topic.items():
            size = max((tail.partition for tail in tails), default=-1) + 1
            values = [-1] * size
            for tail in tails:
                values[tail.partition] = ends.get(tail, tail.marked_end)
            key = rows.MARK + topic_id.encode()
            value = rows.encode(rows.MarkRow(now_ms, values))
            found += [(partition, key, value) for partition in places]
        return found

    async def run(self) -> None:
        """Write marks until cancelled."""
        while True:
            await asyncio.sleep(MARK_INTERVAL_S)
            try:
                await self.mark()
            except StoreError as error:
                _log.warning("mqtt_mark_not_written", reason=str(error))


def session_row(session: Session) -> Row:
    client_id = session.client_id.encode()
    will = session.will or session.publishing_will
    row = rows.SessionRow(
        session.number,
        session.version,
        session.expiry_s,
        session.connects,
        session.disconnected_at_ms,
        [_subscription_row(item) for item in session.subscriptions.values()],
        None if will is None else _will_row(will),
    )
    return client_id, client_id, rows.encode(row)


def _subscription_row(item: Subscription) -> rows.SubscriptionRow:
    since = None
    if item.since:
        since = {tail.name: offset for tail, offset in item.since.items()}
    return rows.SubscriptionRow(
        item.filter,
        item.qos,
        item.no_local * rows.NO_LOCAL | item.retain_as_published * rows.RETAIN_AS_PUBLISHED,
        item.retain_handling,
        item.identifier,
        since,
        item.inner if item.inner != item.filter else "",
    )


def _will_row(record: WillRecord) -> rows.WillRow:
    will = record.will
    return rows.WillRow(
        will.topic,
        bytes(will.payload),
        will.qos,
        will.retain,
        will.properties,
        record.delay_s,
        record.token,
    )


def _receipt_row(session: Session) -> Row:
    client_id = session.client_id.encode()
    session.receipts_are_dirty = False
    received = session.received or {}
    unreleased = [packet_id for packet_id, place in received.items() if place is not None]
    ends = session.received_ends or {}
    row = rows.ReceiptRow(session.number, unreleased, ends)
    value = rows.encode(row) if unreleased or ends else None
    return client_id, client_id + rows.RECEIPTS, value


def _prune_receipts(session: Session, marked: dict[ShardTail, int]) -> None:
    """Drop the ends that a mark covers."""
    if session.received_ends is None:
        return
    for tail, end in marked.items():
        if session.received_ends.get(tail.name, end + 1) <= end:
            del session.received_ends[tail.name]
    if not session.received_ends:
        session.received_ends = None


def _drop_starts(session: Session) -> None:
    """Drop the starts of subscriptions where nothing from before the mark is read any more."""
    session.has_starts = False
    needed = (session.lagging or {}).keys() | (session.hints or {}).keys()
    saved = {} if session.written_position is None else session.written_position.positions
    for subscription in session.subscriptions.values():
        if subscription.since is not None:
            since = {
                tail: at
                for tail, at in subscription.since.items()
                if tail in needed or tail.name in saved or at > tail.marked_end
            }
            subscription.since = since or None
            session.has_starts = session.has_starts or bool(since)


def _out_row(session: Session) -> Row:
    client_id = session.client_id.encode()
    window = session.window or Window()
    in_flight: list[tuple[int, str, int]] = []
    for packet_id, (tail, offset, qos, message) in window.in_flight.items():
        if qos == 2 and tail is not None:
            in_flight.append((packet_id, tail.name, offset))
        elif qos == 2 and message is not None:
            in_flight.append((packet_id, message.topic, -1))
    ends = {tail.name: end for tail, end in window.sent_ends.items()}
    shares = session.shares
    row = rows.OutRow(
        session.number,
        ends,
        in_flight,
        list(window.released),
        [] if shares is None else shares.owners(),
        {} if shares is None else shares.delivered(),
    )
    return client_id, client_id + rows.OUT, rows.encode(row)


def _removal(session: Session) -> list[Row]:
    client_id = session.client_id.encode()
    return [(client_id, client_id + kind, None) for kind in rows.KINDS]


def _send_held(
    session: Session, sink: ClientSink | None, data: bytes, error: StoreError | None
) -> None:
    if error is None:
        session.out_written(data, sink)
        return
    session.out_failed()
    if sink is not None and session.sink is sink:
        # The packets have not left: they are sent when the client is back.
        sink.disconnect(ReasonCode.UNSPECIFIED_ERROR)


def _continue(
    session: Session,
    sink: ClientSink | None,
    then: Callable[[], None],
    otherwise: Callable[[], None],
    error: StoreError | None,
) -> None:
    if error is None:
        then()
        return
    otherwise()
    if sink is not None and session.sink is sink:
        sink.disconnect(ReasonCode.UNSPECIFIED_ERROR)
