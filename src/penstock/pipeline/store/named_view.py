"""A store directory, read only, with the names that people use for its topics."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from penstock.engine.segment import Bounds, ReadOnlyStore, ShardState
from penstock.engine.transactions import Ranges
from penstock.pipeline.store.node_directory import directory_ids, find_store
from penstock.pipeline.store.node_tiers import Tiers
from penstock.pipeline.transactions import Transactions
from penstock.record import Offset, QueueKind, ShardId


class NamedView:
    """What jobs ask of a store before Spark reads it: what is committed of it."""

    def __init__(self, path: str, *, with_tiers: bool = False) -> None:
        """`with_tiers`: shards begin where their tiers do."""
        self._place: Final = find_store(path)
        self._view: Final = ReadOnlyStore.open(self._place.root)
        self._transactions: Final = Transactions(self._view, self._place.root)
        self._tiers: Final = Tiers(self._view, self._place.root) if with_tiers else None

    @property
    def root(self) -> str:
        """Root of the store's files."""
        return self._place.root

    def shards(self) -> list[ShardId]:
        return sorted(self._place.shown(shard) for shard in self._view.shards())

    def ids(self) -> dict[str, str]:
        """Return the ids of topics, by name, as far as the store knows them."""
        return directory_ids(self._place, self._view)

    def stored(self, shard: ShardId) -> ShardId:
        """Return a shard as the store itself names it."""
        return self._place.stored(shard)

    def bounds(self, shard: ShardId) -> Bounds:
        """Return where a shard begins and ends; it ends before the oldest open transaction."""
        stored = self._place.stored(shard)
        bounds = self._view.bounds(stored)
        end = max(int(bounds.earliest), self._transactions.end(stored, int(bounds.commit)))
        return replace(bounds, earliest=self._earliest(shard, bounds), commit=Offset(end))

    def _earliest(self, shard: ShardId, bounds: Bounds) -> Offset:
        stored = self._place.stored(shard)
        cold = None if self._tiers is None else self._tiers.of(stored)
        if cold is None:
            return bounds.earliest
        from penstock.pipeline.read.merged_source import merged_range
        from penstock.pipeline.read.sources import OffsetRange

        hot = OffsetRange(int(bounds.earliest), int(bounds.commit))
        return Offset(merged_range(shard, hot, cold.find(stored)).earliest)

    def aborted(self, shard: ShardId, start: int, end: int) -> Ranges:
        """Return the offsets in [start, end) whose transactions were aborted, as ranges."""
        return self._transactions.hidden(self._place.stored(shard), start, end)

    def state(self, shard: ShardId) -> ShardState:
        return self._view.state(self._place.stored(shard))

    def kind(self, shard: ShardId) -> QueueKind:
        return self._view.kind(self._place.stored(shard))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._view.close()
        if self._tiers is not None:
            self._tiers.close()
