"""What transactions of Kafka's keep from readers of a node's files (`engine.transaction_limits`).

Only a node's metadata tells which of them are open, or were aborted in batch shards. It is asked
behind the ends of the shards: what ends before that, it knows. What was aborted in other shards is
deleted before the metadata says that the transaction is over: deletions are looked at behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.engine.segment.readonly.store_view import StoreView
from penstock.engine.transactions.stable_offsets import Ranges, TransactionLimits
from penstock.pipeline.store.node_directory import meta_of
from penstock.record import ShardId


def read_transaction_limits(meta: Path) -> tuple[TransactionLimits, bool]:
    """Return what a node's metadata in this directory says now, and whether there are transactions
    at all."""
    # Here, so that a store alone is read without RocksDB.
    from penstock.meta.offline.read_transactions import read_transactions

    found = read_transactions(str(meta))
    limits = TransactionLimits()
    limits.load_aborted(found.aborted)
    for state in found.open:
        for partition in state.partitions:
            limits.hold_written(partition.shard, state.producer_id, partition.first_offset)
    return limits, found.is_used


class Transactions:
    """The limits of readers of a view, as of `refresh`; none for the uncommitted."""

    def __init__(self, view: StoreView, root: str, *, committed: bool = True) -> None:
        self._view: Final = view
        self._meta: Final = meta_of(root) if committed else None
        self._limits = TransactionLimits()
        self._ends: dict[ShardId, int] | None = None
        """Where shards ended before the metadata was asked; None: nobody had a transaction."""
        self.refresh()

    def refresh(self) -> None:
        """See what is known now; call it behind every refresh of the view, which it may refresh
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
