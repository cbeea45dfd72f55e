"""What the metadata say about one shard, as far as replication needs it."""

from __future__ import annotations

from msgspec import Struct


class Assignment(Struct, frozen=True):
    shard: str
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...]
    """Replicas that may lead when no replica in sync can."""
    leader: int | None
    leader_epoch: int
    """Grows with every election; two leaders never have the same one."""
    partition_epoch: int
    """Grows with every change of replicas, in-sync set or leader."""
    min_insync: int
    """The size of the in-sync set below which nothing is committed."""
    throttle: int = 0
    """Bytes per second that this node copies at most, while a reassignment adds it; 0: no limit."""
    may_begin_anew: bool = False
    """Whether this node is to copy the shard, and nothing counts on what it has: a copy from before
    (it was down while it had none), or one with records that an operator has given up. It may drop
    also what was committed once."""
    is_single: bool = False
    """Whether this node has the only copy that is left: when it serves, replication ends."""

    def counts_on(self, node: int) -> bool:
        """Say whether a node is trusted to have every committed record."""
        return node in self.in_sync or node in self.eligible

    def is_newer_than(self, other: Assignment) -> bool:
        return (self.leader_epoch, self.partition_epoch) > (
            other.leader_epoch,
            other.partition_epoch,
        )
