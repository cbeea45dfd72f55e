"""From rows to the positions of groups, when the node starts.

The row of a group is as old as the last mark. What came after it is known for QoS 2 alone: the rows
of sessions have what is in flight to them, and what they were delivered since the mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from penstock.brokers.mqtt.sessions import rows
from penstock.brokers.mqtt.share_groups.membership import SessionShares, SharedDelivery

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.row_reader import SavedRows
    from penstock.brokers.mqtt.sessions.session import Session
    from penstock.brokers.mqtt.share_groups.group import ShareGroup
    from penstock.brokers.mqtt.share_groups.share_queue import ShareQueue

_NO_ROW = rows.GroupRow({})


def restore_groups(
    groups: Mapping[str, ShareGroup],
    saved: SavedRows,
    sessions: Sequence[Session],
    shards: Sequence[tuple[ShardTail, int]],
) -> None:
    ended_suddenly = any(not row.disconnected_at_ms for row in saved.sessions.values())
    for group in groups.values():
        row = saved.groups.get(group.name)
        group.has_row = row is not None
        for tail, end in shards:
            position = (row or _NO_ROW).shards.get(tail.name)
            _restore_position(group, tail, end, position)
    for session in sessions:
        out = saved.out.get(session.client_id)
        if out is not None and isinstance(session.shares, SessionShares):
            _exclude_delivered(groups, session.shares, out, [tail for tail, _ in shards])
            _restore_owned(groups, session, session.shares, out)
    for group in groups.values():
        for tail, queue in list(group.queues.items()):
            if ended_suddenly:
                queue.dup_until = max(end for opened, end in shards if opened is tail)
            if queue.is_idle:
                del group.queues[tail]
        group.mark_dirty()


def _restore_position(
    group: ShareGroup, tail: ShardTail, end: int, position: rows.GroupShardRow | None
) -> None:
    first = tail.known_end
    if position is None:
        first = max(first, _start_of(group, tail))
    elif position.is_live:
        first = max(first, position.next)
    else:
        first = position.next
    if position is None and first >= end:
        return
    queue = group.queue_of(tail)
    if first < end:
        queue.fall_behind(first)
    if position is not None:
        pending = accumulate(position.pending)
        queue.released.extend(offset for offset in pending if offset < min(first, end))
        queue.excluded.update(offset for offset in position.excluded if offset >= first)


def _start_of(group: ShareGroup, tail: ShardTail) -> int:
    """Return the first offset that a group without a row is about: its members have what was stored
    before they joined, and the first of them made the group."""
    starts = [
        0 if member.subscription.since is None else member.subscription.since.get(tail, 0)
        for member in group.members.values()
    ]
    return min(starts, default=0)


def _exclude_delivered(
    groups: Mapping[str, ShareGroup],
    shares: SessionShares,
    out: rows.OutRow,
    tails: Sequence[ShardTail],
) -> None:
    by_name = {tail.name: tail for tail in tails}
    for name, by_shard in out.delivered.items():
        group = groups.get(name)
        for shard_name, offsets in by_shard.items():
            tail = by_name.get(shard_name)
            if group is None or tail is None:
                continue
            queue = group.queue_of(tail)
            for offset in offsets:
                _exclude(queue, offset)
                shares.record_delivered(group, tail, offset)


def _exclude(queue: ShareQueue, offset: int) -> None:
    """No other member gets a message."""
    if queue.is_behind and offset >= queue.next:
        queue.excluded.add(offset)
    elif offset in queue.released:
        queue.released.remove(offset)


def _restore_owned(
    groups: Mapping[str, ShareGroup], session: Session, shares: SessionShares, out: rows.OutRow
) -> None:
    """Messages of QoS 2 that are in flight to a session stay with it."""
    for packet_id, name in out.owners:
        group = groups.get(name)
        window = session.window
        entry = None if window is None else window.in_flight.get(packet_id)
        member = None if group is None else group.members.get(session.number)
        if group is None or member is None or entry is None or entry[0] is None:
            continue
        tail, offset = entry[0], entry[1]
        queue = group.queue_of(tail)
        _exclude(queue, offset)
        queue.acquire(offset, session.number)
        shares.in_flight[packet_id] = SharedDelivery(group, tail, queue, offset, 2, member.match)
