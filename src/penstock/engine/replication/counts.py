"""`ReplicationCounts`: what the replication of a node has done, for its metrics."""

from __future__ import annotations

from msgspec import Struct


class ReplicationCounts(Struct):
    """What the replication of a node has done; its thread counts."""

    copied_bytes: int = 0
    copied_records: int = 0
    catch_up_bytes: int = 0
    """Bytes of shards of which this node was not in sync."""
    throttled_s: float = 0.0
    """For how long the limit held at least one shard back."""
    throttled_shards: int = 0
    """Shards that the limit holds back now."""
    catch_up_limit: int = 0
    """The smallest limit that counts now, in bytes per second; 0: none."""
    elections: int = 0
    shrinks: int = 0
    expands: int = 0

    def count_sets(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Count a change of an in-sync set that this node leads."""
        self.shrinks += len(set(before) - set(after))
        self.expands += len(set(after) - set(before))
