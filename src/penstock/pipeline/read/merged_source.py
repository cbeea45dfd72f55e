"""A store or node merged with its tier: each part of a shard is read from where it is stored.

    offsets    tier start … log start … commit
               └ executors read ┘└ files of the log, or the node ┘
                 the objects

What the log still holds is read from the log, also where the tier has it: deletions reach the
tier's manifest only when the log deletes the records concerned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import SourceOptions
from penstock.pipeline.read.planning import TaskPartition
from penstock.pipeline.read.ranges import ShardRange
from penstock.pipeline.read.sources import OffsetRange, RecordSource
from penstock.platform.log import get_logger
from penstock.record import ShardId

if TYPE_CHECKING:
    from penstock.pipeline.read.tier_source import TierSource


_log = get_logger(__name__)


class HotSource(RecordSource, Protocol):
    """A source whose older records may be in a tier."""

    def stored(self, shard: ShardId) -> ShardId:
        """Return a shard as its store, and so its tier, names it."""
        ...

    def log_start(self, shard: ShardId) -> int:
        """Return the first offset that the log holds; what is older only the tier may have."""
        ...


class ColdTiers(Protocol):
    """The tiers of shards, by the names that their store gives them."""

    def of(self, stored: ShardId) -> TierSource | None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class SingleTier:
    """The tier that was named, for all shards."""

    def __init__(self, tier: TierSource) -> None:
        self._tier: Final = tier

    def of(self, stored: ShardId) -> TierSource | None:  # noqa: ARG002 - the same for all
        return self._tier

    def refresh(self) -> None:
        self._tier.refresh()

    def close(self) -> None:
        self._tier.close()


class MergedSource:
    """Implements `RecordSource`."""

    def __init__(self, hot: HotSource, colds: ColdTiers) -> None:
        self._hot: Final = hot
        self._cold_tiers: Final = colds

    def shards(self) -> list[ShardId]:
        return self._hot.shards()

    def ids(self) -> dict[str, str]:
        return self._hot.ids()

    def bounds(self, shard: ShardId) -> OffsetRange:
        hot = self._hot.bounds(shard)
        stored = self._hot.stored(shard)
        cold = self._cold_tiers.of(stored)
        return hot if cold is None else merged_range(shard, hot, cold.find(stored))

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        stored = self._hot.stored(shard)
        cold = self._cold_tiers.of(stored)
        if cold is not None and cold.find(stored) is not None:
            until = self._hot.log_start(shard)
            offset = cold.offset_by_timestamp(stored, timestamp_ms, until)
            if offset is not None:
                return offset
        return self._hot.offset_by_timestamp(shard, timestamp_ms)

    def refresh(self) -> None:
        # The log deletes only uploaded records: refreshed in this order, no gap appears.
        self._hot.refresh()
        self._cold_tiers.refresh()

    def tasks(
        self, ranges: Sequence[ShardRange], options: SourceOptions, filters: Filters
    ) -> list[TaskPartition]:
        old: dict[str, tuple[TierSource, list[ShardRange]]] = {}
        new, names = [], {}
        for shard, start, end in ranges:
            stored, split = self._hot.stored(shard), self._hot.log_start(shard)
            middle = start
            cold = self._cold_tiers.of(stored) if start < split else None
            if cold is not None and cold.find(stored) is not None:
                middle = min(end, split)
                names[stored.topic] = shard.topic
                old.setdefault(cold.url, (cold, []))[1].append(ShardRange(stored, start, middle))
            if middle < end:
                new.append(ShardRange(shard, middle, end))
        cold_tasks = [
            task.named(names)
            for cold, cold_ranges in old.values()
            for task in cold.tasks(cold_ranges, options, filters)
        ]
        return [*cold_tasks, *self._hot.tasks(new, options, filters)]

    def close(self) -> None:
        self._hot.close()
        self._cold_tiers.close()


def merged_range(shard: ShardId, hot: OffsetRange, cold: OffsetRange | None) -> OffsetRange:
    """Return where a shard begins and ends that is partly in a tier."""
    if cold is None or cold.earliest >= hot.earliest:
        return hot
    if hot.earliest > cold.commit:
        _log.warning(
            "records_between_tier_and_log",
            shard=shard.name,
            tier_ends=cold.commit,
            log=hot.earliest,
        )
        return hot
    return OffsetRange(cold.earliest, hot.commit)
