"""Which engine and which segment of a shard serves a request, and the upkeep of all shards.

The handler, the adapter and the node each use some of the modules of `__all__`; the others are
internal to `penstock.engine`.
"""

__all__ = [
    "append_notifications",
    "metadata_waiters",
    "quarantine",
    "reconcile",
    "scrub",
    "shard_alterations",
    "shard_metrics",
    "shard_routing",
    "shard_upkeep",
    "storage_cache",
]
