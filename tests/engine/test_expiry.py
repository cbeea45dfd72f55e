"""Room of expired records, in the engines that are told when to give it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine.contract import ShardConfig
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.record import Offset, Record, ShardId
from penstock.testing.manual_clock import ManualClock

SHARD = ShardId("orders", 0)

Engine = MemoryStorageEngine | RocksDBStorageEngine


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "rocksdb"])
def engine(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Engine]:
    engine: Engine
    if request.param == "memory":
        engine = MemoryStorageEngine(clock)
    else:
        engine = RocksDBStorageEngine.open(str(tmp_path / "db"), clock)
    engine.create_shard(SHARD, ShardConfig())
    yield engine
    engine.close()


def test_expired_records_give_their_room_back(engine: Engine, clock: ManualClock) -> None:
    soon = clock.now_ms() + 1_000
    fleeting = Record(value=bytes(1_000), key=b"k", tags=("t", "u"), expires_at_ms=soon)
    engine.batch_write(SHARD, [fleeting, Record(value=b"v")] * 400)
    full = engine.shard_info(SHARD).size
    assert engine.remove_expired(SHARD).records == 0
    clock.advance(1)
    removed = engine.remove_expired(SHARD)
    assert removed.records == 400
    assert engine.shard_info(SHARD).size == full - removed.size
    assert removed.size > 400_000
    assert [each.offset for each in engine.read_by_offset(SHARD, Offset(0))] == list(
        range(1, 800, 2)
    )
    assert engine.remove_expired(SHARD).records == 0
