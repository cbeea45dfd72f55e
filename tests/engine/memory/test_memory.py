"""What only the memory engine promises: its bounds."""

from __future__ import annotations

import pytest

from penstock.engine.contract import ShardConfig
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.memory.records import RECORD_OVERHEAD
from penstock.errors import BadRequestError, BusyError, RecordTooLargeError
from penstock.record import Offset, Producer, Record, ShardId
from penstock.testing.manual_clock import ManualClock

SHARD = ShardId("orders", 0)


def engine_of(
    *,
    records_max: int = 1_000,
    bytes_max: int = 1 << 30,
    evict: bool = True,
    clock: ManualClock | None = None,
) -> MemoryStorageEngine:
    engine = MemoryStorageEngine(clock, records_max=records_max, bytes_max=bytes_max, evict=evict)
    engine.create_shard(SHARD, ShardConfig())
    return engine


def held(engine: MemoryStorageEngine) -> list[int]:
    found = engine.read_by_offset(SHARD, Offset(0), max_records=1 << 30)
    return [record.offset for record in found]


def test_a_full_shard_drops_its_oldest_fifth() -> None:
    engine = engine_of(records_max=100)
    for _ in range(100):
        engine.write(SHARD, Record(value=b"v"))
    assert held(engine) == list(range(100))
    engine.write(SHARD, Record(value=b"v"))
    assert held(engine) == list(range(20, 101))
    assert engine.shard_info(SHARD).earliest == 20


def test_a_batch_makes_as_much_room_as_it_needs() -> None:
    engine = engine_of(records_max=100)
    engine.batch_write(SHARD, [Record(value=b"v")] * 100)
    engine.batch_write(SHARD, [Record(value=b"v")] * 50)
    assert held(engine) == list(range(50, 150))
    engine.batch_write(SHARD, [Record(value=b"v")] * 100)
    assert held(engine) == list(range(150, 250))


def test_bytes_are_bounded_too() -> None:
    each = 1_000 + RECORD_OVERHEAD
    engine = engine_of(bytes_max=10 * each)
    for number in range(30):
        engine.write(SHARD, Record(value=bytes(1_000)))
        assert engine.shard_info(SHARD).size <= 10 * each
        assert len(held(engine)) >= min(number + 1, 8)


def test_the_shards_own_bounds_win_over_the_engines() -> None:
    engine = engine_of(records_max=10)
    engine.alter_shard(SHARD, ShardConfig(memory_records_max=20, memory_bytes_max=1 << 20))
    engine.batch_write(SHARD, [Record(value=b"v")] * 20)
    assert len(held(engine)) == 20
    engine.alter_shard(SHARD, ShardConfig(memory_records_max=5))
    engine.write(SHARD, Record(value=b"v"))
    assert held(engine) == [16, 17, 18, 19, 20]


def test_deleted_records_make_room() -> None:
    engine = engine_of(records_max=10, evict=False)
    engine.batch_write(SHARD, [Record(value=b"v", key=b"k")] * 10)
    engine.delete_by_offset(SHARD, Offset(3))
    engine.write(SHARD, Record(value=b"v"))
    with pytest.raises(BusyError):
        engine.write(SHARD, Record(value=b"v"))
    engine.delete_by_key(SHARD, b"k")
    engine.batch_write(SHARD, [Record(value=b"v")] * 9)


def test_an_engine_that_does_not_evict_refuses_at_the_limit_and_changes_nothing() -> None:
    engine = engine_of(records_max=10, evict=False)
    assert not engine.capabilities.evicts
    engine.batch_write(SHARD, [Record(value=b"v")] * 9)
    with pytest.raises(BusyError):
        engine.batch_write(SHARD, [Record(value=b"v")] * 2, producer=Producer(1, 0, 0))
    assert held(engine) == list(range(9))
    assert not engine.write(SHARD, Record(value=b"v"), producer=Producer(1, 0, 0)).repeated


def test_expired_records_go_before_others_are_dropped_or_refused() -> None:
    for evict in (True, False):
        clock = ManualClock()
        engine = engine_of(records_max=10, evict=evict, clock=clock)
        fleeting = Record(value=b"v", expires_at_ms=clock.now_ms() + 10)
        engine.batch_write(SHARD, [Record(value=b"v"), fleeting] * 5)
        clock.advance(1)
        engine.batch_write(SHARD, [Record(value=b"v")] * 5)
        assert held(engine) == [0, 2, 4, 6, 8, 10, 11, 12, 13, 14]


def test_a_batch_that_can_never_fit_is_refused_for_good() -> None:
    engine = engine_of(records_max=10, bytes_max=10_000)
    engine.write(SHARD, Record(value=b"kept"))
    with pytest.raises(BadRequestError):
        engine.batch_write(SHARD, [Record(value=b"v")] * 11)
    with pytest.raises(RecordTooLargeError):
        engine.write(SHARD, Record(value=bytes(10_000)))
    assert held(engine) == [0]


def test_eviction_keeps_every_index_whole() -> None:
    engine = engine_of(records_max=50)
    for number in range(500):
        key, tags = b"%d" % (number % 7), (f"t{number % 3}", "all")
        engine.write(SHARD, Record(value=b"v", key=key, tags=tags, timestamp_ms=number))
    present = held(engine)
    assert [r.offset for r in engine.read_by_tag(SHARD, "all")] == present
    by_tag = [r.offset for n in range(3) for r in engine.read_by_tag(SHARD, f"t{n}")]
    assert sorted(by_tag) == present
    by_key = [r.offset for n in range(7) for r in engine.query_by_key(SHARD, b"%d" % n)]
    assert sorted(by_key) == present


@pytest.mark.parametrize("every", [1, 7, 5_000])
def test_thousands_of_records_are_dropped_to_the_byte(every: int) -> None:
    """Keyed records among plain ones, over more than one block, with holes."""
    sizes = [number % 90 + (1 if number % every == 0 else 0) for number in range(9_000)]
    engine = engine_of(records_max=1 << 20, bytes_max=4_000 * (45 + RECORD_OVERHEAD))
    offsets: list[int] = []
    for first in range(0, 9_000, 100):
        batch = [
            Record(bytes(n % 90), key=b"k" if n % every == 0 else None)
            for n in range(first, first + 100)
        ]
        engine.batch_write(SHARD, batch)
        engine.delete_by_offset(SHARD, Offset(first + 50))
        info, offsets = engine.shard_info(SHARD), held(engine)
        assert offsets == [n for n in range(info.earliest, first + 100) if n % 100 != 50]
        assert info.size == sum(sizes[n] + RECORD_OVERHEAD for n in offsets)
    keyed = [n for n in offsets if n % every == 0]
    assert len(engine.query_by_key(SHARD, b"k", limit=1 << 20)) == len(keyed)
    assert offsets[0] > 4_000
