"""The limits of `ReplicaCore`."""

from __future__ import annotations

from msgspec import Struct


class CoreOptions(Struct, frozen=True):
    lag_s: float = 5.0
    """How long a replica may lack records of the leader before it leaves the in-sync set."""
    wait_s: float = 0.5
    """How long a leader keeps a fetch that has nothing to report."""
    reply_s: float = 2.0
    """How long a follower waits for a reply before it begins another session."""
    retry_s: float = 1.0
    """How long a leader waits for the metadata before it sends a proposal again."""
    reply_size: int = 16 << 20
    shard_size: int = 1 << 20
    """Bytes of one log in one reply."""
    catch_up_rate: int = 0
    """Bytes per second that a node copies of shards of which it is not in sync; 0: no limit."""
