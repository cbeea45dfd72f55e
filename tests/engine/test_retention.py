"""Retention and expiry, the same in the engines that keep each shard by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine.contract import Cleanup, ShardConfig
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


def held(engine: Engine) -> list[int]:
    return [record.offset for record in engine.read_by_offset(SHARD, Offset(0))]


def fill(engine: Engine, count: int = 20) -> None:
    """Write one record of a kilobyte a second."""
    for _ in range(count):
        engine.write(SHARD, Record(value=bytes(1_000), key=b"k", tags=("t",)))
        clock = engine._clock
        assert isinstance(clock, ManualClock)
        clock.advance(1)


def test_without_retention_everything_stays(engine: Engine) -> None:
    fill(engine)
    assert engine.apply_retention(SHARD) == 0
    assert held(engine) == list(range(20))


def test_records_older_than_the_retention_time_go(engine: Engine) -> None:
    fill(engine)
    engine.alter_shard(SHARD, ShardConfig(retention_ms=5_000))
    assert engine.apply_retention(SHARD) == 15
    assert held(engine) == [15, 16, 17, 18, 19]


def test_a_shard_whose_records_are_all_too_old_is_emptied(
    engine: Engine, clock: ManualClock
) -> None:
    fill(engine)
    engine.alter_shard(SHARD, ShardConfig(retention_ms=5_000))
    clock.advance(100)
    assert engine.apply_retention(SHARD) == 20
    assert held(engine) == []


def test_more_records_than_the_retention_count_go(engine: Engine) -> None:
    fill(engine)
    engine.alter_shard(SHARD, ShardConfig(retention_records=3))
    assert engine.apply_retention(SHARD) == 17
    assert engine.apply_retention(SHARD) == 17
    assert held(engine) == [17, 18, 19]


def test_more_bytes_than_the_retention_size_go(engine: Engine) -> None:
    fill(engine)
    engine.alter_shard(SHARD, ShardConfig(retention_bytes=6_500))
    engine.apply_retention(SHARD)
    assert engine.shard_info(SHARD).size <= 6_500
    assert held(engine) in (list(range(14, 20)), list(range(15, 20)))
    engine.alter_shard(SHARD, ShardConfig(retention_bytes=1))
    engine.apply_retention(SHARD)
    assert held(engine) == []


def test_retention_leaves_compacted_shards_alone(engine: Engine, clock: ManualClock) -> None:
    fill(engine)
    clock.advance(1_000)
    engine.alter_shard(SHARD, ShardConfig(cleanup=Cleanup.COMPACT, retention_ms=1))
    assert engine.apply_retention(SHARD) == 0
    assert len(held(engine)) == 20


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
    assert held(engine) == list(range(1, 800, 2))
    assert engine.remove_expired(SHARD).records == 0
