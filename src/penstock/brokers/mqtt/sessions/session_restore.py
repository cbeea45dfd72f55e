"""From rows to sessions, all of them offline."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.brokers.mqtt.deliver.context import DeliveryContext
from penstock.brokers.mqtt.deliver.cursor import Hint
from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.deliver.window import NOT_LOADED, Window
from penstock.brokers.mqtt.sessions import rows
from penstock.brokers.mqtt.sessions.row_reader import SavedRows
from penstock.brokers.mqtt.sessions.session import Session, WillRecord
from penstock.brokers.mqtt.subscriptions.interface import Subscription


def restore_session(context: DeliveryContext, client_id: str, row: rows.SessionRow) -> Session:
    """Return a session as its own row has it."""
    session = Session(row.number, client_id, context, version=row.version)
    session.is_persistent = True
    session.expiry_s = row.expiry_s
    session.connects = row.connects
    session.disconnected_at_ms = row.disconnected_at_ms
    if row.will is not None:
        session.will = WillRecord(row.will.as_will(), row.will.delay_s, row.will.token)
    for item in row.subscriptions:
        session.subscriptions[item.filter] = Subscription(
            item.filter,
            item.qos,
            no_local=bool(item.flags & rows.NO_LOCAL),
            retain_as_published=bool(item.flags & rows.RETAIN_AS_PUBLISHED),
            retain_handling=item.retain_handling,
            identifier=item.identifier,
            inner=item.inner,
        )
    return session


def restore_positions(session: Session, saved: SavedRows, tails: Mapping[str, ShardTail]) -> None:
    """Add what the other rows have. Shards of deleted topics are left out."""
    client_id = session.client_id
    _restore_starts(session, saved.sessions[client_id], tails)
    out = saved.out.get(client_id)
    if out is not None:
        _restore_out(session, out, tails)
    receipts = saved.receipts.get(client_id)
    if receipts is not None:
        if receipts.unreleased:
            session.received = dict.fromkeys(receipts.unreleased, ("", -1))
        session.received_ends = dict(receipts.ends) or None
    position = saved.positions.get(client_id)
    if position is not None:
        _restore_position(session, position, tails)


def _restore_starts(session: Session, row: rows.SessionRow, tails: Mapping[str, ShardTail]) -> None:
    for item in row.subscriptions:
        since = {tails[name]: at for name, at in (item.since or {}).items() if name in tails}
        if since:
            session.subscriptions[item.filter].since = since
            session.has_starts = True


def _restore_position(
    session: Session, position: rows.PositionRow, tails: Mapping[str, ShardTail]
) -> None:
    session.written_position = position
    for name, first in position.positions.items():
        tail = tails.get(name)
        if tail is None:
            continue
        hint = Hint(first, max(first, tail.known_end - 1))
        hint.dup_until = position.sent.get(name, 0)
        if session.hints is None:
            session.hints = {}
        session.hints[tail] = hint
    for topic, qos in position.retained:
        window = _window_of(session)
        message = Message(topic, b"", qos, offset=NOT_LOADED)
        window.in_flight[window.next_id()] = (None, NOT_LOADED, qos, message)


def _restore_out(session: Session, out: rows.OutRow, tails: Mapping[str, ShardTail]) -> None:
    window = _window_of(session)
    for name, end in out.sent_ends.items():
        tail = tails.get(name)
        if tail is not None:
            window.sent_ends[tail] = end
    for packet_id, name, offset in out.in_flight:
        tail = tails.get(name)
        if offset < 0:
            message = Message(name, b"", 2, offset=NOT_LOADED)
            window.in_flight[packet_id] = (None, NOT_LOADED, 2, message)
        elif tail is not None:
            window.in_flight[packet_id] = (tail, offset, 2, None)
        window.last_id = packet_id
    window.released.update(dict.fromkeys(out.released))


def _window_of(session: Session) -> Window:
    if session.window is None:
        session.window = Window()
    return session.window
