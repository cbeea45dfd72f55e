"""What transactions of Kafka's keep from readers of a node's files (`engine.transaction_limits`).

Only batch shards hold records of transactions, and only a node's metadata tells which of them are
open or were aborted. It is asked behind the ends of the shards: what ends before that, it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.engine.segment.view import StoreView
from penstock.engine.transaction_limits import Ranges, TransactionLimits
from penstock.pipeline.node_directory import meta_of
from penstock.record import QueueKind, ShardId


def limits_beside(meta: Path) -> TransactionLimits:
    """Return what a node's metadata in this directory says now."""
    # Here, so that a store alone is read without RocksDB.
    from penstock.meta.transactions_beside import read_transactions

    found = read_transactions(str(meta))
    limits = TransactionLimits()
    limits.load_aborted(found.aborted)
    for state in found.open:
        for one in state.partitions:
            limits.hold_written(one.shard, state.producer_id, one.first_offset)
    return limits


class Transactions:
    """The limits of readers of a view, as of `look`; none for the uncommitted."""

    def __init__(self, view: StoreView, root: str, *, committed: bool = True) -> None:
        self._view: Final = view
        self._meta: Final = meta_of(root) if committed else None
        self._limits = TransactionLimits()
        self.look()

    def look(self) -> None:
        """See what is known now; call it behind every refresh of the view."""
        if self._meta is None or not self._may_matter(self._view.shards()):
            return
        self._limits = limits_beside(self._meta)

    def _may_matter(self, shards: Iterable[ShardId]) -> bool:
        return any(self._view.kind(shard) is QueueKind.BATCH for shard in shards)

    def end(self, shard: ShardId, commit: int) -> int:
        """Return where readers of a stored shard stop: before the oldest open transaction."""
        stable = self._limits.stable_until(shard.name)
        return commit if stable is None else min(commit, stable)

    def hidden(self, shard: ShardId, start: int, end: int) -> Ranges:
        """Return the offsets in [start, end) of a stored shard that were aborted, as ranges."""
        if not self._limits.touches(shard.name):
            return ()
        return self._limits.hidden(shard, start, end, self._view)
