"""Plans: every offset in exactly one task, tasks of even size, the log read once where it pays."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.codec.golden_store import GoldenStore

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.pipeline.read import task_planning
from penstock.pipeline.read.planning import TaskPartition, plan, without_old
from penstock.pipeline.read.ranges import ShardRange
from penstock.pipeline.read.task_planning import task_count
from penstock.record import QueueKind, Record, ShardId

SHARDS = [ShardId("busy", n) for n in range(8)] + [ShardId("batches", 0)]
COUNT = 400


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> ReadOnlyStore:
    """Nine shards whose records lie mixed in the log."""
    path = tmp_path_factory.mktemp("mixed") / "store"
    with SegmentStore.open(str(path)) as store:
        for shard in SHARDS:
            kind = QueueKind.BATCH if shard.topic == "batches" else QueueKind.SIMPLE
            store.create_shard(shard, kind)
        for number in range(COUNT):
            for shard in SHARDS:
                store.append(shard, Record(b"x" * (100 + number % 50)))
    return ReadOnlyStore.open(str(path))


def ranges_of(view: ReadOnlyStore, shards: Sequence[ShardId] | None = None) -> list[ShardRange]:
    return [
        ShardRange(shard, view.bounds(shard).earliest, view.bounds(shard).commit)
        for shard in (view.shards() if shards is None else shards)
    ]


def merged_range(tasks: Sequence[TaskPartition]) -> list[ShardRange]:
    """Return the ranges of all tasks, those that adjoin put together; fail where two overlap."""
    pieces = sorted(piece for task in tasks for piece in task.ranges)
    found: list[ShardRange] = []
    for piece in pieces:
        if found and found[-1].shard == piece.shard:
            assert found[-1].end <= piece.start
            if found[-1].end == piece.start:
                found[-1] = ShardRange(piece.shard, found[-1].start, piece.end)
                continue
        found.append(piece)
    return found


# Plans of a task for each record take seconds: one of them is enough.
@example(partition_bytes=200, partitions_min=1)
@given(partition_bytes=st.integers(4_000, 1 << 20), partitions_min=st.integers(1, 40))
def test_every_offset_is_in_exactly_one_task(
    mixed: ReadOnlyStore, partition_bytes: int, partitions_min: int
) -> None:
    for shards in (None, SHARDS[:1], SHARDS[7:]):
        wanted = ranges_of(mixed, shards)
        tasks = plan(mixed, wanted, partition_bytes, partitions_min)
        assert merged_range(tasks) == [each for each in sorted(wanted) if each.start < each.end]
        assert all(piece.start < piece.end for task in tasks for piece in task.ranges)


def test_a_read_of_all_shards_is_cut_by_the_log(mixed: ReadOnlyStore) -> None:
    tasks = plan(mixed, ranges_of(mixed), 1 << 30, 5)
    assert len(tasks) == 5
    stretches = []
    for task in tasks:
        assert {piece.shard for piece in task.ranges} == set(SHARDS)
        logs = mixed.snapshot()
        firsts = [logs.get(piece.shard).position_of(piece.start) for piece in task.ranges]
        lasts = [logs.get(piece.shard).position_of(piece.end - 1) for piece in task.ranges]
        stretches.append((min(n or 0 for n in firsts), max(n or 0 for n in lasts)))
    for (_, last), (first, _) in pairwise(stretches):
        assert last < first  # no task reads where another does


def test_a_read_of_one_shard_is_cut_by_its_offsets(mixed: ReadOnlyStore) -> None:
    tasks = plan(mixed, ranges_of(mixed, SHARDS[:1]), 1 << 30, 4)
    sizes = [piece.end - piece.start for task in tasks for piece in task.ranges]
    assert sizes == [COUNT // 4] * 4


def test_small_shards_share_a_task(mixed: ReadOnlyStore) -> None:
    tasks = plan(mixed, ranges_of(mixed, SHARDS[:3]), 1 << 30, 1)
    assert [len(task.ranges) for task in tasks] == [3]


def test_a_plan_of_a_store_that_rocketmq_wrote_is_whole(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    wanted = ranges_of(view)
    tasks = plan(view, wanted, 20_000, 1)
    assert len(tasks) > 10
    assert merged_range(tasks) == [each for each in sorted(wanted) if each.start < each.end]


def test_a_task_is_small_on_the_wire() -> None:
    task = TaskPartition([ShardRange(ShardId("orders", n), 0, 1 << 40) for n in range(10)])
    data = pickle.dumps(task)
    assert len(data) < 1_000
    assert pickle.loads(data).ranges == task.ranges


def test_nothing_to_read_makes_no_task(mixed: ReadOnlyStore, tmp_path: Path) -> None:
    assert plan(mixed, [ShardRange(SHARDS[0], 5, 5)], 1, 1) == []


def test_what_is_too_old_is_not_planned(spark_store: Path) -> None:
    # The time of each record is its offset.
    view = ReadOnlyStore.open(str(spark_store))
    wanted = ranges_of(view)
    assert without_old(view, wanted, 0) == wanted
    (found,) = without_old(view, wanted, 5_000)
    assert 3_900 < found.start <= 5_000
    assert found.end == wanted[0].end


def test_rows_decide_where_bytes_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CORES", "4")
    bytes_of_a_task = 64 << 20
    # As many tasks as two for each core, where there is work for them; else fewer.
    assert task_count(20 << 20, 1_260_000, bytes_of_a_task, 1) == 8
    assert task_count(1 << 20, 120_000, bytes_of_a_task, 1) == 2
    assert task_count(1 << 20, 40_000, bytes_of_a_task, 1) == 1
    # No task has more rows than another could take over, nor more bytes.
    assert task_count(20 << 20, 50_000_000, bytes_of_a_task, 1) == 100
    assert task_count(64 << 30, 1_000, bytes_of_a_task, 1) == 1_024
    assert task_count(0, 0, bytes_of_a_task, 5) == 5


def test_one_large_shard_is_cut_for_all_cores(
    mixed: ReadOnlyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CORES", "4")
    monkeypatch.setattr(task_planning, "ROWS_MIN", 10)
    for shard in (SHARDS[0], SHARDS[-1]):  # a queue of records, and one of batches
        wanted = ranges_of(mixed, [shard])
        tasks = plan(mixed, wanted, 64 << 20, 1)
        assert len(tasks) == 8
        assert merged_range(tasks) == wanted


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=8), most=st.integers(1, 60))
def test_no_task_has_more_rows_than_allowed(lengths: list[int], most: int) -> None:
    ranges = [ShardRange(ShardId("a", number), 5, 5 + n) for number, n in enumerate(lengths)]
    tasks = TaskPartition(ranges).cut(most)
    assert merged_range(tasks) == ranges
    counts = [sum(each.end - each.start for each in task.ranges) for task in tasks]
    assert max(counts) <= most
    assert counts[:-1] == [most] * (len(counts) - 1)
