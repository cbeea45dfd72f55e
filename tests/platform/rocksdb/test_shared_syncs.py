"""Writes to several shards wait for the device once: what each part gets, what a failure costs."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from tests.adapter.bench import Bench
from tests.engine.quick_directory import quick_directory
from tests.engine.segment.rig import QUIET, Rig

from penstock.engine.contract import ShardConfig, ShardPart, Written
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.engine.segment.engine import SegmentEngine
from penstock.errors import (
    BadRequestError,
    DiskFailedError,
    RecordTooLargeError,
    ShardSealedError,
    UnknownShardError,
)
from penstock.record import Flush, Offset, Record, ShardId

SYNCED = [ShardId("synced", number) for number in range(3)]
ASYNC = ShardId("async", 0)
NOWHERE = ShardId("nowhere", 0)
Engine = SegmentEngine | RocksDBStorageEngine


class Measured:
    """An engine, and how often it has had the device put everything on it."""

    def __init__(self, engine: Engine, syncs: Callable[[], int]) -> None:
        self.engine = engine
        self.syncs = syncs
        for shard in SYNCED:
            engine.create_shard(shard, ShardConfig(flush=Flush.SYNC, record_size_max=100))
        engine.create_shard(ASYNC, ShardConfig())

    def values(self, shard: ShardId) -> list[bytes | None]:
        return [record.value for record in self.engine.read_by_offset(shard, Offset(0))]


@contextmanager
def segment() -> Iterator[Measured]:
    rig = Rig()
    engine = SegmentEngine(rig.store)
    try:
        yield Measured(engine, lambda: _flushes(engine))
    finally:
        rig.close()


def _flushes(engine: SegmentEngine) -> int:
    [metric] = engine.store.metrics.flush_seconds.collect()
    return int(next(one.value for one in metric.samples if one.name.endswith("_count")))


@contextmanager
def rocksdb() -> Iterator[Measured]:
    with quick_directory() as root, closing(RocksDBStorageEngine.open(f"{root}/db")) as engine:
        database = engine._database
        syncs = 0
        sync = database.sync

        def counted() -> None:
            nonlocal syncs
            syncs += 1
            sync()

        database.sync = counted  # type: ignore[method-assign]  # to count it
        yield Measured(engine, lambda: syncs)


@pytest.fixture(params=[segment, rocksdb], ids=["segment", "rocksdb"])
def measured(request: pytest.FixtureRequest) -> Iterator[Measured]:
    with request.param() as made:
        yield made


def part(shard: ShardId, *values: bytes) -> ShardPart:
    return ShardPart(shard, [Record(value) for value in values])


def test_parts_of_several_shards_wait_for_the_device_once(measured: Measured) -> None:
    before = measured.syncs()
    parts = [part(shard, b"a", b"b") for shard in SYNCED]
    for turn in range(3):
        written = measured.engine.batch_write_parts(parts)
        assert written == [Written(Offset(2 * turn), 2)] * 3
    assert measured.syncs() == before + 3
    assert all(measured.values(shard) == [b"a", b"b"] * 3 for shard in SYNCED)


def test_parts_of_shards_that_wait_for_nothing_need_no_device(measured: Measured) -> None:
    before = measured.syncs()
    written = measured.engine.batch_write_parts([part(ASYNC, b"a"), part(ASYNC, b"b")])
    assert written == [Written(Offset(0), 1), Written(Offset(1), 1)]
    assert measured.syncs() == before
    assert measured.values(ASYNC) == [b"a", b"b"]


def test_each_part_is_answered_for_itself(measured: Measured) -> None:
    measured.engine.seal_shard(SYNCED[2])
    parts = [
        part(SYNCED[0], b"first"),
        part(NOWHERE, b"x"),
        part(SYNCED[1], b"fits", b"y" * 101),
        part(ASYNC, b"also"),
        part(SYNCED[2], b"late"),
        part(SYNCED[1]),
        part(SYNCED[1], b"last"),
    ]
    results = measured.engine.batch_write_parts(parts)
    kinds = [type(result) for result in results]
    assert kinds == [
        Written,
        UnknownShardError,
        RecordTooLargeError,
        Written,
        ShardSealedError,
        BadRequestError,
        Written,
    ]
    assert [measured.values(shard) for shard in SYNCED] == [[b"first"], [b"last"], []]
    assert measured.values(ASYNC) == [b"also"]


def test_no_parts_are_no_writes(measured: Measured) -> None:
    assert measured.engine.batch_write_parts([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_parts_that_were_acknowledged_survive_a_power_cut(seed: int) -> None:
    rig = Rig()
    measured = Measured(SegmentEngine(rig.store), lambda: 0)
    parts = [part(shard, *(b"%d" % number for number in range(9))) for shard in SYNCED]
    measured.engine.batch_write_parts(parts)
    store = rig.crash(seed)
    for shard in SYNCED:
        assert [record.value for record in store.read(shard, 0)] == [b"%d" % n for n in range(9)]
    rig.close()


def test_a_failed_sync_fails_every_part_that_waited_for_it_and_shows_none() -> None:
    rig = Rig(QUIET)
    engine = SegmentEngine(rig.store)
    measured = Measured(engine, lambda: 0)
    rig.disk.fail("sync", "*commitlog*", errno.EIO)
    results = engine.batch_write_parts([part(ASYNC, b"a"), *(part(one, b"b") for one in SYNCED)])
    assert isinstance(results[0], Written)
    assert [type(result) for result in results[1:]] == [DiskFailedError] * 3
    assert measured.values(ASYNC) == [b"a"]
    assert all(measured.values(shard) == [] for shard in SYNCED)
    rig.abandon()


@pytest.mark.parametrize("partitioner", ["round_robin", "key"])
def test_a_batch_over_all_partitions_of_a_topic_waits_once(partitioner: str) -> None:
    rig = Rig()
    engine = SegmentEngine(rig.store)
    with Bench({"EngineSegment": lambda _: engine}) as bench:
        bench.create("t", 4, storage="segment", flush="sync", partitioner=partitioner)
        before = _flushes(engine)
        batch = [Record(b"%d" % number, key=b"%d" % number) for number in range(40)]
        locations = bench.manager.batch_write("t", batch)
        assert _flushes(engine) == before + 1
        for record, (partition, offset) in zip(batch, locations, strict=True):
            [found] = bench.manager.read_by_offset("t", partition, offset, max_records=1)
            assert found.value == record.value
        assert {location.partition for location in locations} == {0, 1, 2, 3}
