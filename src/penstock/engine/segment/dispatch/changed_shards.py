"""Tells a dispatcher which shards have something new, at a price that idle shards have no part in.

The appender gives the ends of all queues as one table of numbers; two such tables are compared by
stretches, and only shards whose end differs are looked at. A shard that shows less than it holds
(it waits for the device, or for other nodes) is named again until it shows all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.codec.select import Appender
from penstock.engine.segment.control.control_records import is_control
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_table import ShardTable
from penstock.record import QueueKind, ShardId

_NUMBER_SIZE: Final = 8
_STRETCH: Final = 64 * _NUMBER_SIZE

ShardBounds = tuple[ShardId, int, int]
"""A shard, its earliest and its commit offset."""


class ChangedShards:
    """What one dispatcher has seen of the ends. One thread at a time may call."""

    def __init__(
        self, table: ShardTable, appender: Appender, kind: QueueKind | None = None
    ) -> None:
        """Look at shards of `kind` only, or of all kinds."""
        self._table: Final = table
        self._appender: Final = appender
        self._kind: Final = kind
        self._seen = b""
        self._holding_back: set[int] = set()

    def changed(self, others: Iterable[ShardId]) -> list[ShardBounds]:
        """Return the shards whose ends moved since the last call, all of them at first, and
        `others` as far as they exist."""
        now = self._appender.shown_offsets()
        handles = self._holding_back.union(changed_indexes(self._seen, now))
        logs = {log.shard: log for log in map(self._table.find_handle, handles) if log is not None}
        for shard in others:
            log = self._table.find(shard)
            if log is not None:
                logs[shard] = log
        bounds: list[ShardBounds] = []
        holding_back: set[int] = set()
        for log in filter(self._is_wanted, logs.values()):
            commit = log.commit
            if commit < log.next_offset:
                holding_back.add(log.handle)
            bounds.append((log.shard, log.earliest, commit))
        # After everything that can raise: what was not reported is reported next time.
        self._holding_back, self._seen = holding_back, now
        return bounds

    def _is_wanted(self, log: ShardLog) -> bool:
        if log.state.dropped or is_control(log.shard):
            return False
        return self._kind is None or log.kind is self._kind


def changed_indexes(before: bytes, now: bytes) -> Iterator[int]:
    """Yield the places at which two tables of 64-bit numbers differ, and those that only `now`
    has."""
    for start in range(0, len(now), _STRETCH):
        new = now[start : start + _STRETCH]
        old = before[start : start + _STRETCH]
        if new == old:
            continue
        numbers = memoryview(new).cast("q")
        known = memoryview(old).cast("q")
        for index, number in enumerate(numbers):
            if index >= len(known) or number != known[index]:
                yield start // _NUMBER_SIZE + index
