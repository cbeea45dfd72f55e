"""Segments roll by size and age, are forgotten when their records are gone, and nobody notices."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.adapter.bench import Bench
from tests.engine.quick_directory import quick_directory

import penstock
from penstock.adapter.requests import DeleteBefore, ReadByKey
from penstock.engine.contract import Capabilities
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.engine.routing.shard_upkeep import ShardUpkeep, UpkeepLimits
from penstock.engine.segment.engine import SegmentEngine
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BusyError
from penstock.meta.client import Segment
from penstock.record import Offset, Record, ShardId

HOUR_S = 3600


class DurableMemory(MemoryStorageEngine):
    """A memory engine that claims to last, so that its segments roll."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, evicts=False, power_safe=False)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench({"EngineMemory": DurableMemory}) as bench:
        yield bench


def segments(bench: Bench, name: str = "orders", partition: int = 0) -> list[Segment]:
    topic_id = bench.broker_cache.get_topic(name).topic_id
    return bench.meta.list_segments(ShardId(topic_id, partition))


def check_dense(found: list[Segment]) -> None:
    """Segments follow one another without a gap, and only the last takes writes."""
    for one, following in pairwise(found):
        assert one.end_offset == following.start_offset
        assert one.number + 1 == following.number
    assert [one.status for one in found] == ["sealed"] * (len(found) - 1) + ["write"]
    assert found[-1].end_offset is None


def write(bench: Bench, count: int, size: int = 100, name: str = "orders") -> None:
    bench.manager.batch_write(name, [Record(bytes(size))] * count, partition=0)


def test_a_segment_rolls_when_it_is_large(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_size=10_000))
    bench.create("orders")
    for _ in range(50):
        write(bench, 10)
        upkeep.run_once()
    found = segments(bench)
    check_dense(found)
    sizes = [300 * ((one.end_offset or 500) - one.start_offset) for one in found]
    assert all(10_000 <= size <= 13_000 for size in sizes[:-1])
    assert 12 <= len(found) <= 16


def test_a_segment_rolls_when_it_is_old(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_age_ms=24 * HOUR_S * 1000))
    bench.create("orders")
    write(bench, 1)
    bench.clock.advance(23 * HOUR_S)
    assert upkeep.run_once().rolled == 0
    bench.clock.advance(1 * HOUR_S)
    assert upkeep.run_once().rolled == 1
    assert [(one.start_offset, one.end_offset) for one in segments(bench)] == [(0, 1), (1, None)]


def test_an_empty_segment_never_rolls(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_size=1, roll_age_ms=1))
    bench.create("orders")
    write(bench, 1)
    for _ in range(5):
        bench.clock.advance(HOUR_S)
        upkeep.run_once()
    assert len(segments(bench)) == 2


def test_what_a_start_loses_has_no_segments() -> None:
    with Bench() as bench:
        upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_size=1))
        bench.create("orders")
        write(bench, 10)
        assert upkeep.run_once().rolled == 0
        assert len(segments(bench)) == 1


def test_growing_records_are_noticed_by_the_next_round(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_size=1 << 20))
    bench.create("orders")
    write(bench, 10, size=1)
    upkeep.run_once()
    assert bench.handler.find(bench.routes.find("orders").shards[0]).quota_left > 1_000
    write(bench, 10, size=1 << 20)
    assert upkeep.run_once().rolled == 1


def test_segments_of_removed_records_are_forgotten(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_size=3_000))
    bench.create("orders")
    for _ in range(6):
        write(bench, 10)
        upkeep.run_once()
    before = segments(bench)
    bench.manager.execute(DeleteBefore("orders", 0, Offset(before[3].start_offset + 1)))
    report = upkeep.run_once()
    assert report.trimmed == 3
    after = segments(bench)
    assert [one.number for one in after] == [one.number for one in before[3:]]
    check_dense(after)
    entry = bench.handler.find(bench.routes.find("orders").shards[0])
    assert [one.number for one in entry.segments] == [one.number for one in after]


def test_retention_is_applied_for_engines_that_wait_to_be_told(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta)
    bench.create("orders", retention_records=5)
    bench.create("timed", retention_ms=1_000)
    write(bench, 20)
    write(bench, 20, name="timed")
    upkeep.run_once()
    assert bench.manager.shard_info("orders", 0).earliest == 15
    assert bench.manager.shard_info("timed", 0).earliest == 0
    bench.clock.advance(2)
    upkeep.run_once()
    assert bench.manager.shard_info("timed", 0).earliest == 20


def test_compacted_topics_are_compacted_when_something_was_written(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta)
    bench.create("table", cleanup="compact")
    for number in range(5):
        bench.manager.write("table", Record(b"%d" % number, key=b"k"))
    assert upkeep.run_once(thorough=True).compacted == 4
    assert upkeep.run_once(thorough=True).compacted == 0
    bench.manager.write("table", Record(b"5", key=b"k"))
    assert upkeep.run_once(thorough=True).compacted == 1


def test_a_topic_with_a_short_largest_lag_is_compacted_in_every_round(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta)
    bench.create("soon", cleanup="compact", kafka_settings=(("max.compaction.lag.ms", "100"),))
    bench.create("later", cleanup="compact")
    upkeep.run_once(thorough=True)
    for topic in ("soon", "later"):
        for number in range(5):
            bench.manager.write(topic, Record(b"%d" % number, key=b"k"))
    bench.clock.advance(1)
    assert upkeep.run_once().compacted == 4
    assert upkeep.run_once(thorough=True).compacted == 4


def test_a_round_leaves_nothing_to_the_next(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_size=300))
    bench.create("table", cleanup="compact,delete", retention_ms=100_000)
    for number in range(5):
        bench.manager.write("table", Record(b"%d" % number, key=b"k"))
        upkeep.run_once(thorough=True)
        assert bench.manager.shard_info("table", 0).earliest == number


@pytest.mark.parametrize("storage", ["memory", "rocksdb", "segment"])
def test_topics_of_every_engine_begin_alike_after_one_round(tmp_path: Path, storage: str) -> None:
    with penstock.open(str(tmp_path / "data")) as store:
        windowed = store.create_topic(
            "windowed", storage=storage, retention_ms=100_000_000, retention_records=3
        )
        windowed.write_many([b"v"] * 5)
        windowed.delete_by_offset(0, 2)
        both = store.create_topic(
            "both", storage=storage, cleanup="compact,delete", retention_ms=100_000_000
        )
        both.write_many([penstock.Record(b"v", key=b"k")] * 5)
        store.run_upkeep()
        begins = [topic.describe().partitions[0].earliest for topic in (windowed, both)]
        assert begins == [3, 4]


def test_an_idle_compacted_topic_loses_its_tombstones_in_time(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta)
    bench.create("table", cleanup="compact", tombstone_retention_ms=5_000)
    bench.manager.write("table", Record(b"1", key=b"k"))
    bench.manager.write("table", Record(None, key=b"k"))
    assert upkeep.run_once(thorough=True).compacted == 1
    bench.clock.advance(4)
    assert upkeep.run_once(thorough=True).compacted == 0
    bench.clock.advance(1)
    assert upkeep.run_once(thorough=True).compacted == 1
    assert bench.manager.execute(ReadByKey("table", b"k")) is None


def test_a_topic_that_becomes_compacted_is_compacted_without_a_write(bench: Bench) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta)
    bench.create("table")
    for _ in range(3):
        bench.manager.write("table", Record(b"v", key=b"k"))
    assert upkeep.run_once(thorough=True).compacted == 0
    bench.admin.alter_topic("table", options={"cleanup": "compact,delete"})
    assert upkeep.run_once(thorough=True).compacted == 2


def test_one_shards_trouble_does_not_keep_the_others_from_rolling(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chores: list[int] = []
    upkeep = ShardUpkeep(
        bench.handler, bench.meta, UpkeepLimits(roll_size=1), chores=[lambda: chores.append(1)]
    )
    bench.create("bad")
    bench.create("orders")
    bad = bench.broker_cache.get_topic("bad").topic_id
    roll = bench.meta.next_segment

    def next_segment(shard: ShardId, number: int, end: int, *, epoch: int | None = None) -> Segment:
        if shard.topic == bad:
            raise BusyError("try again")
        return roll(shard, number, end, epoch=epoch)

    monkeypatch.setattr(bench.meta, "next_segment", next_segment)
    write(bench, 1, name="bad")
    write(bench, 1)
    report = upkeep.run_once(thorough=True)
    assert (report.rolled, report.failed) == (1, 1)
    assert chores == [1]
    monkeypatch.undo()
    write(bench, 1, name="bad")
    assert upkeep.run_once().rolled == 1


def test_a_chores_mistake_keeps_nobody_from_the_next_chore(bench: Bench) -> None:
    done: list[int] = []
    chores = [[].pop, lambda: done.append(1)]
    upkeep = ShardUpkeep(bench.handler, bench.meta, chores=chores)
    assert upkeep.run_once(thorough=True).failed == 1
    assert done == [1]


def test_an_engines_mistake_does_not_end_the_upkeep(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_size=1))
    bench.create("orders")
    write(bench, 1)
    with monkeypatch.context() as patch:
        patch.setattr(bench.engines.get("EngineMemory"), "shard_info", [].pop)
        assert upkeep.run_once().failed == 1
    write(bench, 1)
    assert upkeep.run_once().rolled == 1


SMALL = FileSizes(
    commit_log_file_size=1 << 20,
    consume_queue_file_size=4_000,
    index_slots=100,
    index_entries_max=1_000,
)


def open_durable(kind: str, directory: Path) -> Bench:
    if kind == "rocksdb":
        return Bench({"EngineRocksDB": lambda _: RocksDBStorageEngine.open(str(directory / "r"))})
    store = SegmentStore.open(str(directory / "s"), SegmentSettings(sizes=SMALL))
    return Bench({"EngineSegment": lambda _: SegmentEngine(store)})


class Load:
    """Writers and readers on one shard, each reader from random starts."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.acknowledged = 0
        self.failures: list[str] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.write) for _ in range(3)]
        self.threads += [threading.Thread(target=self.read, args=(n,)) for n in range(3)]

    def write(self) -> None:
        while not self.stop.is_set():
            batch = [Record(bytes(50))] * 7
            found = self.bench.manager.batch_write("orders", batch, partition=0)
            self.acknowledged = max(self.acknowledged, found.offsets[-1] + 1)

    def read(self, seed: int) -> None:
        choose = random.Random(seed)
        while not self.stop.is_set():
            end = self.acknowledged
            start = choose.randrange(end + 1)
            page = self.bench.manager.read_by_offset("orders", 0, Offset(start), max_records=50)
            wanted = list(range(start, min(end, start + 50)))
            if [one.offset for one in page][: len(wanted)] != wanted:
                self.failures.append(f"from {start} to {end}: {[r.offset for r in page][:5]}")

    def run_until_rolled(self, times: int) -> None:
        for thread in self.threads:
            thread.start()
        pause = threading.Event()
        for _ in range(300):
            if len(segments(self.bench)) > times:
                break
            pause.wait(0.05)
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("kind", ["segment", "rocksdb"])
def test_every_offset_stays_readable_from_every_start_while_writers_run_and_segments_roll(
    kind: str,
) -> None:
    with quick_directory() as directory, open_durable(kind, Path(directory)) as bench:
        bench.admin.create_topic_full("orders", 1, {"storage": kind})
        upkeep = ShardUpkeep(bench.handler, bench.meta, UpkeepLimits(roll_size=8_000))
        upkeep.start()
        load = Load(bench)
        load.run_until_rolled(10)
        upkeep.stop()
        assert load.failures == []
        found = segments(bench)
        assert len(found) > 5
        check_dense(found)
        for one in found:
            page = bench.manager.read_by_offset(
                "orders", 0, Offset(one.start_offset), max_records=1
            )
            assert [record.offset for record in page] in ([one.start_offset], [])
