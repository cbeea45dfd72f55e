"""Sources of records: a store directory, a running node, a tier, or one of the first two merged
with its tier.

The planner asks a source for its shards and their offset ranges, and lets it split ranges into
tasks. Sources use topic names. A node stores a topic under its id; the name is looked up in the
node's metadata, if that is next to the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.engine.segment import ReadOnlyStore
from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import SourceOptions
from penstock.pipeline.read.planning import TaskPartition, plan, plan_by_key, without_old
from penstock.pipeline.read.ranges import ShardRange
from penstock.pipeline.store.node_directory import StoreDirectory, directory_ids, find_store
from penstock.pipeline.store.node_tiers import Tiers
from penstock.pipeline.transactions import Transactions
from penstock.record import QueueKind, ShardId

if TYPE_CHECKING:
    from penstock.pipeline.read.merged_source import HotSource


class OffsetRange(NamedTuple):
    """The readable offsets [earliest, commit)."""

    earliest: int
    commit: int


class RecordSource(Protocol):
    """Used on the driver while a query is planned."""

    def shards(self) -> list[ShardId]: ...

    def bounds(self, shard: ShardId) -> OffsetRange: ...

    def ids(self) -> dict[str, str]:
        """Return the ids of topics, by name; a topic whose id is unknown is missing."""
        ...

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        """Return the offset of the first record that is not older; None when all are."""
        ...

    def refresh(self) -> None:
        """Read the present state."""
        ...

    def tasks(
        self, ranges: Sequence[ShardRange], options: SourceOptions, filters: Filters
    ) -> list[TaskPartition]:
        """Split ranges into tasks, without parts that the filters exclude."""
        ...

    def close(self) -> None: ...


class DirectorySource:
    """A read-only store directory. With `committed`, records of open and aborted transactions are
    hidden."""

    def __init__(self, path: str, *, committed: bool = True) -> None:
        self._place: StoreDirectory = find_store(path)
        self._view: Final = ReadOnlyStore.open(self._place.root)
        self._transactions: Final = Transactions(self._view, self._place.root, committed=committed)

    def shards(self) -> list[ShardId]:
        return sorted(self._place.shown(shard) for shard in self._view.shards())

    def bounds(self, shard: ShardId) -> OffsetRange:
        stored = self._place.stored(shard)
        bounds = self._view.bounds(stored)
        end = self._transactions.end(stored, int(bounds.commit))
        return OffsetRange(bounds.earliest, max(int(bounds.earliest), end))

    def ids(self) -> dict[str, str]:
        return directory_ids(self._place, self._view)

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        return self._view.offset_by_timestamp(self._place.stored(shard), timestamp_ms)

    def stored(self, shard: ShardId) -> ShardId:
        return self._place.stored(shard)

    def log_start(self, shard: ShardId) -> int:
        return self.bounds(shard).earliest

    def tiers(self) -> Tiers:
        """Return the tiers with the records that the log no longer holds."""
        return Tiers(self._view, self._place.root)

    def refresh(self) -> None:
        self._view.refresh()
        self._transactions.refresh()
        if not self._place.knows(self._view.shards()):
            self._place = find_store(self._place.given)

    def tasks(
        self, ranges: Sequence[ShardRange], options: SourceOptions, filters: Filters
    ) -> list[TaskPartition]:
        view = self._view
        stored = [
            shard_range._replace(shard=self._place.stored(shard_range.shard))
            for shard_range in ranges
        ]
        if filters.first_ms is not None:
            stored = without_old(view, stored, filters.first_ms)
        planned: list[TaskPartition] = []
        if filters.keys is not None:
            planned = plan_by_key(view, stored)
            stored = [
                shard_range
                for shard_range in stored
                if view.kind(shard_range.shard) is QueueKind.BATCH
            ]
        planned += plan(view, stored, options.partition_bytes, options.partitions_min)
        return [
            task.named(
                self._place.names_of({shard_range.shard.topic for shard_range in task.ranges})
            ).without(
                {
                    shard_range.shard: self._transactions.hidden(*shard_range)
                    for shard_range in task.ranges
                }
            )
            for task in planned
        ]

    def close(self) -> None:
        self._view.close()


def open_source(options: SourceOptions) -> RecordSource:
    """Open the source that the options select; raise if it does not exist."""
    # Imported here: a directory is read without gRPC and the tier modules.
    from penstock.pipeline.read.merged_source import MergedSource, SingleTier

    if options.tier is None and options.endpoint is not None:
        return _open_hot(options)  # the node reads its tiers itself
    if options.tier is None:
        hot = DirectorySource(options.path, committed=options.committed)
        return MergedSource(hot, hot.tiers())
    from penstock.pipeline.read.tier_source import TierSource

    named = options.topics if options.assigned is None else tuple(options.assigned)
    cold = TierSource(options.tier, named)
    if not options.path and not options.endpoint:
        return cold
    return MergedSource(_open_hot(options), SingleTier(cold))


def _open_hot(options: SourceOptions) -> HotSource:
    if options.endpoint is None:
        return DirectorySource(options.path, committed=options.committed)
    from penstock.pipeline.read.node_source import NodeSource

    return NodeSource(options.endpoint, options.namespace)
