"""A directory or a node with its tier beside it: one shard, read from where each part of it lies.

    offsets    tier start … log start … commit
               └ executors read ┘└ files of the log, or the node ┘
                 the objects

What the log still holds is read from the log, also where the tier has it: deletions reach the
tier's manifest only when the log lets go of the records concerned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.pipeline.filters import Filters
from penstock.pipeline.origins import Edges, Origin
from penstock.pipeline.planning import TaskPartition
from penstock.pipeline.ranges import ShardRange
from penstock.pipeline.source_options import SourceOptions
from penstock.pipeline.tier_origin import TierOrigin
from penstock.record import ShardId


class HotOrigin(Origin, Protocol):
    """An origin that a tier may stand behind."""

    def stored(self, shard: ShardId) -> ShardId:
        """Return a shard as its store, and so its tier, names it."""
        ...

    def log_start(self, shard: ShardId) -> int:
        """Return the first offset that the log holds; what is older only the tier may have."""
        ...


class MergedOrigin:
    """Implements `Origin`."""

    def __init__(self, hot: HotOrigin, cold: TierOrigin) -> None:
        self._hot: Final = hot
        self._cold: Final = cold

    def shards(self) -> list[ShardId]:
        return self._hot.shards()

    def ids(self) -> dict[str, str]:
        return self._hot.ids()

    def bounds(self, shard: ShardId) -> Edges:
        hot = self._hot.bounds(shard)
        cold = self._cold.find(self._hot.stored(shard))
        if cold is None or not cold.earliest < hot.earliest <= cold.commit:
            return hot
        return Edges(cold.earliest, hot.commit)

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        stored = self._hot.stored(shard)
        if self._cold.find(stored) is not None:
            until = self._hot.log_start(shard)
            found = self._cold.offset_by_timestamp(stored, timestamp_ms, until)
            if found is not None:
                return found
        return self._hot.offset_by_timestamp(shard, timestamp_ms)

    def refresh(self) -> None:
        # The log lets go of what the tier has: seen in this order, nothing lies between them.
        self._hot.refresh()
        self._cold.refresh()

    def tasks(
        self, ranges: Sequence[ShardRange], options: SourceOptions, filters: Filters
    ) -> list[TaskPartition]:
        old, new, names = [], [], {}
        for shard, start, end in ranges:
            stored, split = self._hot.stored(shard), self._hot.log_start(shard)
            middle = start
            if start < split and self._cold.find(stored) is not None:
                middle = min(end, split)
                names[stored.topic] = shard.topic
                old.append(ShardRange(stored, start, middle))
            if middle < end:
                new.append(ShardRange(shard, middle, end))
        cold = self._cold.tasks(old, options, filters)
        return [*(each.named(names) for each in cold), *self._hot.tasks(new, options, filters)]

    def close(self) -> None:
        self._hot.close()
        self._cold.close()
