"""`ReplicationCounts`: what the replication of a node has done, for its metrics."""

from __future__ import annotations

from msgspec import Struct


class ReplicationCounts(Struct):
    """What the replication of a node has done; its thread counts."""

    copied_bytes: int = 0
    copied_records: int = 0
    elections: int = 0
    shrinks: int = 0
    expands: int = 0

    def count_sets(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Count a change of an in-sync set that this node leads."""
        self.shrinks += len(set(before) - set(after))
        self.expands += len(set(after) - set(before))
