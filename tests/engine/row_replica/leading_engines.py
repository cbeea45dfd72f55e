"""Engines whose shards are replicated, and led by this node alone.

What is appended is committed right after the write or the operation, by the thread that made it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from penstock.engine.contract import ShardConfig, StorageEngine, Written
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.errors import NotLeaderError
from penstock.platform.clock import Clock
from penstock.record import Producer, Record, ShardId
from penstock.testing.conformance.engines import (
    MemoryHarness,
    RocksDBHarness,
    SynchronousRocksDBHarness,
)
from penstock.testing.conformance.harness import EngineHarness

PATIENCE_S = 60.0


class ReplicatedShards(Protocol):
    def list_shard(self, topic: str | None = None) -> list[ShardId]: ...

    def replica_logs(self, shard: ShardId) -> Sequence[ReplicaLog]: ...


def when_led(write: Callable[[], Written]) -> Written:
    """Write when a shard is led that another thread has just created."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return write()
        except NotLeaderError:
            assert time.monotonic() < until, "the shard is not led"
            time.sleep(0.001)


class Leader:
    """Leads the shards of an engine, under one epoch."""

    def __init__(self, engine: ReplicatedShards, epoch: int = 1) -> None:
        self._engine = engine
        self._epoch = epoch
        self._lock = threading.Lock()

    def lead(self, shard: ShardId) -> None:
        for log in self._engine.replica_logs(shard):
            log.begin_epoch(self._epoch)

    def lead_all(self) -> None:
        for shard in self._engine.list_shard():
            self.lead(shard)
            self.commit(shard)

    def commit(self, shard: ShardId) -> None:
        with self._lock:
            for log in self._engine.replica_logs(shard):
                if log.safe > log.commit:
                    log.set_commit(log.safe)


class LeadingMemoryEngine(MemoryStorageEngine):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.leader = Leader(self)
        self.on_operation = self.leader.commit

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        super().create_shard(shard, config)
        self.leader.lead(shard)

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        written = when_led(partial(super().batch_write, shard, records, producer=producer))
        self.leader.commit(shard)
        return written


class LeadingRocksDBEngine(RocksDBStorageEngine):
    leader: Leader

    def lead(self, epoch: int) -> None:
        self.leader = Leader(self, epoch)
        self.on_operation = self.leader.commit
        self.leader.lead_all()

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        super().create_shard(shard, config)
        self.leader.lead(shard)

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        written = when_led(partial(super().batch_write, shard, records, producer=producer))
        self.leader.commit(shard)
        return written


class LeadingMemoryHarness(MemoryHarness):
    def make(self) -> StorageEngine:
        self._engine = LeadingMemoryEngine(self.clock)
        return self._engine


class LeadingRocksDBHarness(RocksDBHarness):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._epoch = 0

    def make(self) -> StorageEngine:
        engine = LeadingRocksDBEngine.open(str(self._directory), self.clock)
        self._epoch += 1
        engine.lead(self._epoch)
        self._engine = engine
        return engine


class LeadingSynchronousHarness(LeadingRocksDBHarness, SynchronousRocksDBHarness):
    pass


HARNESSES: dict[str, Callable[[Path], EngineHarness]] = {
    "memory": LeadingMemoryHarness,
    "rocksdb": LeadingRocksDBHarness,
    "rocksdb-sync": LeadingSynchronousHarness,
}
