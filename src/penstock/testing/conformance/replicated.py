"""Harnesses that run the suite on replicated shards.

Each shard gets logs for its replicas when it is created, and this node leads it alone: what is
appended is committed when the harness says so, right after the write or the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from penstock.engine.contract import ReplicatedEngine, ShardConfig, StorageEngine, Written
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.record import Producer, Record, ShardId
from penstock.testing.conformance.engines import (
    MemoryHarness,
    RocksDBHarness,
    SynchronousRocksDBHarness,
)
from penstock.testing.conformance.harness import EngineHarness


class _Shards(Protocol):
    def list_shard(self, topic: str | None = None) -> list[ShardId]: ...

    def replica_logs(self, shard: ShardId) -> Sequence[ReplicaLog]: ...


def commit(engine: _Shards, shard: ShardId) -> None:
    """Commit what is safe here, as a leader without followers does."""
    for log in engine.replica_logs(shard):
        # Several threads write, and so several may find that the offset has moved.
        safe = log.safe
        if safe > log.commit:
            log.set_commit(safe)


def lead(engine: _Shards, epoch: int) -> None:
    for shard in engine.list_shard():
        for log in engine.replica_logs(shard):
            log.begin_epoch(epoch)
        commit(engine, shard)
