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

    def counts_on(self, node: int) -> bool:
        """Say whether a node is trusted to have every committed record."""
        return node in self.in_sync or node in self.eligible

    def is_newer_than(self, other: Assignment) -> bool:
        return (self.leader_epoch, self.partition_epoch) > (
            other.leader_epoch,
            other.partition_epoch,
        )
