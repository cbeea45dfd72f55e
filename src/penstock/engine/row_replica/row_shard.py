"""`RowShard`: what the shards of the memory and the RocksDB engine have in common.

A shard without replicas acts immediately: the methods with a leading underscore. One with replicas
(`replica` is not None) hands what changes its records to the replica's operations.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.engine.contract import Compacted, ShardConfig
from penstock.engine.row_replica.logs import OperationsLog, RecordsLog
from penstock.engine.row_replica.replica import Replica
from penstock.errors import UnknownShardError
from penstock.platform.clock import Clock
from penstock.record import Offset, ShardId

if TYPE_CHECKING:
    from penstock.engine.replication.log import ReplicaLog

Announce = Callable[[ShardId], None]


class RowShard(ABC):
    __slots__ = ("_announce", "_clock", "_deleted", "_logs", "lock", "replica", "shard")

    def __init__(self, shard: ShardId, clock: Clock, announce: Announce) -> None:
        self.shard: Final = shard
        self.lock: Final = threading.Lock()
        self.replica: Replica | None = None
        self._clock: Final = clock
        self._announce: Final = announce
        self._deleted = False
        self._logs: tuple[ReplicaLog, ...] = ()

    # Replication

    def replica_logs(self) -> Sequence[ReplicaLog]:
        """Return the records and the operations; the shard is replicated from now on."""
        if not self._logs:
            with self.lock:
                self.check_exists()
                replica = self.replica
                if replica is None:
                    replica = self.replica = self._make_replica()
                self._logs = (RecordsLog(replica), OperationsLog(replica))
        return self._logs

    @abstractmethod
    def _make_replica(self) -> Replica:
        """Make a shard that has no replicas one that has; the lock is held."""

    def end_replication(self) -> None:
        """Be a shard without replicas again: everything that is in the log here is committed. Only
        for the last replica."""
        with self.lock:
            self.check_exists()
            replica = self.replica
            if replica is not None:
                self._drop_replica(replica)
                self.replica, self._logs = None, ()
                replica.epoch = None
                replica.wake()

    @abstractmethod
    def _drop_replica(self, replica: Replica) -> None:
        """Remove what only replicas need; the lock is held."""

    def check_exists(self) -> None:
        if self._deleted:
            raise UnknownShardError(self.shard.name)

    def _mark_deleted(self) -> None:
        self._deleted = True
        if self.replica is not None:
            self.replica.wake()  # clients that wait learn of it

    def announce(self) -> None:
        self._announce(self.shard)

    # Changes

    @property
    @abstractmethod
    def config(self) -> ShardConfig: ...

    def seal(self) -> None:
        if self.replica is not None:
            self.replica.seal()
        else:
            self._seal()

    def delete_key(self, key: bytes) -> int:
        replica = self.replica
        return self._delete_key(key) if replica is None else replica.delete_key(key)

    def delete_offset(self, offset: int) -> bool:
        replica = self.replica
        return self._delete_offset(offset) if replica is None else replica.delete_offset(offset)

    def delete_before(self, offset: int) -> Offset:
        replica = self.replica
        if replica is None:
            return self._delete_before(offset)
        return Offset(replica.delete_before(offset))

    def end_transaction(self, producer_id: int, start: int, *, is_commit: bool) -> int:
        replica = self.replica
        if replica is None:
            return self._end_transaction(producer_id, start, is_commit=is_commit)
        return replica.end_transaction(producer_id, start, is_commit=is_commit)

    def compact(self, stable_until: Callable[[], int | None]) -> Compacted:
        if not self.config.cleanup.compacts:
            if self._deleted:
                raise UnknownShardError(self.shard.name)
            return Compacted(0, 0)
        replica = self.replica
        return self._compact(stable_until) if replica is None else replica.compact(stable_until)

    def remove_expired(self) -> Compacted:
        replica = self.replica
        return self._remove_expired() if replica is None else replica.remove_expired()

    @abstractmethod
    def _seal(self) -> None: ...

    @abstractmethod
    def _delete_key(self, key: bytes) -> int: ...

    @abstractmethod
    def _delete_offset(self, offset: int) -> bool: ...

    @abstractmethod
    def _delete_before(self, offset: int) -> Offset: ...

    @abstractmethod
    def _end_transaction(self, producer_id: int, start: int, *, is_commit: bool) -> int: ...

    @abstractmethod
    def _compact(self, stable_until: Callable[[], int | None]) -> Compacted: ...

    @abstractmethod
    def _remove_expired(self) -> Compacted: ...

    @abstractmethod
    def compactable(
        self, stable_until: Callable[[], int | None]
    ) -> tuple[Iterator[int], int | None]:
        """See `ReplicaStore`."""
