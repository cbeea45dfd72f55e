"""Random histories of three replicas: writes, operations, cuts, restarts, changes of the leader.

In the end all replicas hold exactly what was committed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Rdict
from tests.engine.quick_directory import quick_directory
from tests.engine.row_replica.replica_cluster import (
    COMPACTED,
    OpenEngine,
    ReplicaCluster,
    RowEngine,
)

from penstock.engine.contract import ShardConfig
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.rocksdb import DB_COLUMN_FAMILY_BROKER, Database, RocksDBStorageEngine
from penstock.record import Flush
from penstock.testing.conformance.engines import copy_at_rest
from penstock.testing.manual_clock import ManualClock

STEPS = 250
CONFIGS = {
    "plain": ShardConfig(),
    "compacted": COMPACTED,
    "sync": ShardConfig(flush=Flush.SYNC),
}


@pytest.fixture
def directory() -> Iterator[Path]:
    with quick_directory() as path:
        yield Path(path)


class MeasuredDatabase(Database):
    """Knows how much of its write-ahead log is on the device."""

    durable: tuple[str, int] = ("", 0)

    def _flush_log(self, database: Rdict) -> None:
        log = newest_log(Path(self.path))
        size = log.stat().st_size
        super()._flush_log(database)
        self.durable = log.name, size


def newest_log(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda log: int(log.stem))


class RocksDBNodes:
    """Opens a copy of a node's files as they are: what a killed process leaves. After a power cut
    the write-ahead log ends anywhere after its last sync."""

    def __init__(self, directory: Path, power_cuts: random.Random | None = None) -> None:
        self._directory = directory
        self._power_cuts = power_cuts
        self._open: dict[int, tuple[RocksDBStorageEngine, MeasuredDatabase]] = {}
        self._number = 0

    def __call__(self, node: int, clock: ManualClock) -> RowEngine:
        self._number += 1
        path = self._directory / str(self._number)
        if node in self._open:
            engine, database = self._open[node]
            name, durable_size = database.durable
            old = Path(database.path)
            copy_at_rest(old, path)
            engine.close()
            shutil.rmtree(old)
            log = newest_log(path)
            if self._power_cuts is not None:
                kept = durable_size if log.name == name else 0
                with log.open("r+b") as file:
                    file.truncate(self._power_cuts.randint(kept, log.stat().st_size))
        path.parent.mkdir(exist_ok=True)
        database = MeasuredDatabase(str(path), [DB_COLUMN_FAMILY_BROKER])
        engine = RocksDBStorageEngine(database, clock, owns_database=True)
        self._open[node] = engine, database
        return engine


def open_memory(_: int, clock: ManualClock) -> RowEngine:
    return MemoryStorageEngine(clock)


def run(seed: int, open_engine: OpenEngine, config: ShardConfig, steps: int = STEPS) -> None:
    cluster = ReplicaCluster(seed, open_engine, config)
    try:
        for _ in range(steps):
            cluster.step()
        cluster.finish()
        assert cluster.acknowledged
    finally:
        cluster.close()


@pytest.mark.parametrize("seed", range(40))
def test_replicas_in_memory_end_with_what_was_committed(seed: int) -> None:
    run(seed, open_memory, COMPACTED if seed % 3 == 0 else ShardConfig())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_replicas_in_rocksdb_end_with_what_was_committed(
    directory: Path, kind: str, seed: int
) -> None:
    run(seed, RocksDBNodes(directory), CONFIGS[kind])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_replicas_in_rocksdb_survive_power_cuts(directory: Path, kind: str, seed: int) -> None:
    run(seed, RocksDBNodes(directory, random.Random(seed)), CONFIGS[kind])


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_replicas_end_with_what_was_committed_for_many_seeds(directory: Path) -> None:
    for seed in range(1_000, 3_000):
        run(seed, open_memory, COMPACTED if seed % 3 == 0 else ShardConfig())
    for seed in range(1_000, 1_200):
        config = CONFIGS[sorted(CONFIGS)[seed % 3]]
        power_cuts = random.Random(seed) if seed % 2 else None
        run(seed, RocksDBNodes(directory / str(seed), power_cuts), config)
