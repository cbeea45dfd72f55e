"""What a compaction or an expiry did."""

from __future__ import annotations

from msgspec import Struct


class ShardUpkeep(Struct, frozen=True):
    """One shard before and after a job: its offsets [earliest, commit), and records removed."""

    shard: str
    earliest_before: int
    earliest: int
    commit: int
    removed: int


class UpkeepResult(Struct, frozen=True):
    """What a compaction or an expiry removed."""

    path: str
    shards: list[ShardUpkeep]
    rows_removed: int
    bytes_removed: int
    files_removed: int
    seconds: float
    left_to_node: list[str] = []
    """Shards of a directory that have a tier: their node keeps them up."""
