"""From the position of a group to its row."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.brokers.mqtt.sessions import rows

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.sessions.row_writer import Row
    from penstock.brokers.mqtt.share_groups.group import ShareGroup
    from penstock.brokers.mqtt.share_groups.share_queue import ShareQueue


def group_row(group: ShareGroup) -> Row | None:
    """Return the row of a group; None: it has none, and needs none. A shard is not in it where the
    group is live and everything is acknowledged: there the mark is the position."""
    shards = {
        tail.name: _shard_row(tail, queue)
        for tail, queue in group.queues.items()
        if not queue.is_idle and not tail.is_gone
    }
    if not shards or not group.is_persistent:
        if not group.has_row:
            return None
        group.has_row = False
        return removed_row(group.name)
    group.has_row = True
    key = rows.GROUP + group.name.encode()
    return key, key, rows.encode(rows.GroupRow(shards))


def removed_row(name: str) -> Row:
    key = rows.GROUP + name.encode()
    return key, key, None


def _shard_row(tail: ShardTail, queue: ShareQueue) -> rows.GroupShardRow:
    return rows.GroupShardRow(
        queue.next if queue.is_behind else tail.known_end,
        not queue.is_behind,
        _differences(queue.pending()),
        sorted(queue.excluded - queue.in_flight.keys()),
    )


def _differences(offsets: list[int]) -> list[int]:
    return offsets[:1] + [after - before for before, after in pairwise(offsets)]
