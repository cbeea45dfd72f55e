"""The simulation of replication on the real logs of memory and RocksDB shards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.engine.quick_directory import quick_directory
from tests.engine.replication.simulated_node import Log, MakeLogs, Violation
from tests.engine.replication.simulated_row_logs import RowEngine, RowNode
from tests.engine.replication.simulator import simulate

from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.rocksdb import RocksDBStorageEngine

SEEDS: Final = 200
SECONDS: Final = 12.0
"""For each engine; what is not done then is left to other runs."""


def make_logs_of(kind: str, directory: Path, opened: list[RowNode]) -> MakeLogs:
    def make_logs(node_id: int, *, is_sync: bool) -> Sequence[Log]:
        def open_engine() -> RowEngine:
            if kind == "memory":
                return MemoryStorageEngine()
            return RocksDBStorageEngine.open(str(directory / str(node_id)))

        node = RowNode(open_engine, is_sync=is_sync)
        opened.append(node)
        return node.logs

    return make_logs


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_no_fault_loses_or_changes_a_committed_record_of_row_shards(kind: str) -> None:
    until = time.monotonic() + SECONDS
    for seed in range(SEEDS):
        opened: list[RowNode] = []
        with quick_directory() as directory:
            try:
                simulate(seed, make_logs_of(kind, Path(directory), opened))
            except Violation as violation:
                pytest.fail(f"seed {seed}: {violation}")
            finally:
                for node in opened:
                    node.engine.close()
        if time.monotonic() > until:
            assert seed > 0
            break
