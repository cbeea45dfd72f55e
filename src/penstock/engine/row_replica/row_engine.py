"""`RowEngine`: what engines of row shards have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.engine.contract import ReplicatedEngine
from penstock.engine.per_shard_engine import ShardedEngine, ShardStore
from penstock.platform.clock import Clock
from penstock.record import ShardId

if TYPE_CHECKING:
    from penstock.engine.replication.log import ReplicaLog


class ReplicatedStore(ShardStore, Protocol):
    """A `RowShard` that is a `ShardStore`."""

    def replica_logs(self) -> Sequence[ReplicaLog]: ...

    def end_replication(self) -> None: ...


R = TypeVar("R", bound=ReplicatedStore)


class RowEngine(ShardedEngine[R], ReplicatedEngine):
    def __init__(self, clock: Clock | None) -> None:
        super().__init__(clock)
        self.on_operation: Callable[[ShardId], None] = _ignore

    def replica_logs(self, shard: ShardId) -> Sequence[ReplicaLog]:
        """See `ReplicatedEngine`."""
        return self._find(shard).replica_logs()

    def end_replication(self, shard: ShardId) -> None:
        """Keep a replicated shard as one without replicas: its topic has only this one left, which
        led last. What is in its log counts as committed."""
        self._find(shard).end_replication()

    def _announce(self, shard: ShardId) -> None:
        self.on_operation(shard)


def _ignore(_shard: ShardId) -> None:
    """Until a node replicates."""
