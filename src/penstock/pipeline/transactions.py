"""Last stable offsets and aborted ranges for readers of a node's files (`engine.transactions`).

Open transactions, and aborted ones in batch shards, are recorded only in the node's metadata. It is
read after the ends of the shards, so it covers every transaction before those ends. In other
shards, aborted records are deleted before the metadata closes the transaction; deletions are read
after the metadata.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.engine.segment import ReadOnlyStore
from penstock.engine.transactions import Ranges, StableOffsets
from penstock.pipeline.store.node_directory import meta_of
from penstock.record import ShardId


def read_transaction_limits(meta: Path) -> tuple[StableOffsets, bool]:
    """Return the transaction limits of a node's metadata directory, and whether any transaction was
    ever used."""
    # Imported here: a plain store is read without RocksDB.
    from penstock.meta.offline import read_transactions

    transactions = read_transactions(str(meta))
    limits = StableOffsets()
    limits.load_aborted(transactions.aborted)
    for state in transactions.open:
        for partition in state.partitions:
            limits.hold_written(partition.shard, state.producer_id, partition.first_offset)
    return limits, transactions.is_used


class Transactions:
    """The limits of readers of a view, as of `refresh`; none for the uncommitted."""

    def __init__(self, view: ReadOnlyStore, root: str, *, committed: bool = True) -> None:
        self._view: Final = view
        self._meta: Final = meta_of(root) if committed else None
        self._limits = StableOffsets()
        self._ends: dict[ShardId, int] | None = None
        """Ends of the shards before the metadata was read; None without transactions."""
        self.refresh()

    def refresh(self) -> None:
        """Read the metadata again. Call it after every refresh of the view; it may refresh the view
        once more."""
        if self._meta is None:
            return
        if self._ends is None:
            self._limits, is_used = read_transaction_limits(self._meta)
            if not is_used:
                return  # by now, and so before the ends that the view has
        view = self._view
        self._ends = {shard: int(view.bounds(shard).commit) for shard in view.shards()}
        self._limits, _ = read_transaction_limits(self._meta)
        view.refresh()

    def end(self, shard: ShardId, commit: int) -> int:
        """Return where readers of a stored shard stop: before the oldest open transaction."""
        if self._ends is not None:
            commit = min(commit, self._ends.get(shard, 0))
        stable = self._limits.stable_until(shard.name)
        return commit if stable is None else min(commit, stable)

    def hidden(self, shard: ShardId, start: int, end: int) -> Ranges:
        """Return the offsets in [start, end) of a stored shard that were aborted, as ranges."""
        if not self._limits.touches(shard.name):
            return ()
        return self._limits.hidden(shard, start, end, self._view)
