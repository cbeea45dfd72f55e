"""History for a new subscription: its session reads the log from the start that the client named,
and becomes live at the end, as a session does that reads the log.

The session's other subscriptions on these shards get a start, too: the history is not theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.deliver.cursor import Cursor
from penstock.brokers.mqtt.deliver.outgoing import Outgoing
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.subscriptions.interface import Subscription
from penstock.brokers.mqtt.subscriptions.replay import Start
from penstock.engine.contract import AdapterOffsetStrategy
from penstock.record import Offset


class Replay:
    def __init__(self, drivers: StorageDriverManager) -> None:
        self._drivers: Final = drivers

    async def find_starts(self, tails: Iterable[ShardTail], start: Start) -> dict[ShardTail, int]:
        """Return, by shard, the offset at which the history begins. Raises what the storage
        raises."""
        return await self._drivers.run_blocking(partial(self._find_starts, list(tails), start))

    def _find_starts(self, tails: list[ShardTail], start: Start) -> dict[ShardTail, int]:
        starts: dict[ShardTail, int] = {}
        for tail in tails:
            driver = self._drivers.open_shard(tail.name).driver
            earliest = driver.stable_info(tail.name).earliest
            if start.time_ms is None:
                offset = Offset(start.offset or 0)
            else:
                offset = driver.get_offset_by_timestamp(
                    tail.name, start.time_ms, AdapterOffsetStrategy.LATEST
                )
            starts[tail] = max(earliest, offset)
        return starts


def begin_replay(to: Outgoing, subscription: Subscription, starts: dict[ShardTail, int]) -> None:
    """Let a connected subscriber read the history for one subscription, which it has already."""
    for tail, start in starts.items():
        if start >= tail.known_end:
            continue
        if subscription.since is None:
            subscription.since = {}
        subscription.since[tail] = start
        cursor = None if to.lagging is None else to.lagging.get(tail)
        position = tail.known_end if cursor is None else cursor.position
        for other in to.subscriptions.values():
            if other is not subscription:
                if other.since is None:
                    other.since = {}
                other.since[tail] = max(position, other.since.get(tail, 0))
        if to.lagging is None:
            to.lagging = {}
        to.lagging[tail] = Cursor(min(start, position))
        to.lagging[tail].has_qos0 = True
        if to.window is not None and to.window.sent_ends.get(tail, 0) > start:
            to.window.sent_ends[tail] = start
    to.has_starts = True
    to.context.request_pump(to)
