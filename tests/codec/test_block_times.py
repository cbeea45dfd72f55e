"""Time blocks: the greatest producer's timestamp of every 1024 offsets."""

from __future__ import annotations

from tests.codec.workbench import NOW, Workbench

from penstock.codec.format import (
    BLOCK_MAX_NONE,
    BLOCK_MAX_UNKNOWN,
    KIND_BATCH,
    TIME_BLOCK,
)
from penstock.codec.select import Core
from penstock.record import Record


def at(timestamp_ms: int) -> Record:
    return Record(value=b"", timestamp_ms=timestamp_ms)


def filled(core: Core, count: int, first_offset: int = 0) -> Workbench:
    bench = Workbench(core, size=1 << 20, first_offset=first_offset)
    bench.append(*[at(1000 + n) for n in range(count)])
    return bench


def test_a_block_is_complete_with_its_last_offset(core: Core) -> None:
    bench = filled(core, TIME_BLOCK - 1)
    assert bench.appender.drain_times(bench.handle) == []
    assert bench.appender.block_max(bench.handle) == 1000 + TIME_BLOCK - 2
    bench.append(at(7))
    assert bench.appender.drain_times(bench.handle) == [(0, 1000 + TIME_BLOCK - 2)]
    assert bench.appender.drain_times(bench.handle) == []
    assert bench.appender.block_max(bench.handle) == BLOCK_MAX_NONE
    bench.append(at(7))
    assert bench.appender.block_max(bench.handle) == 7


def test_a_queue_that_begins_inside_a_block_has_part_of_it(core: Core) -> None:
    bench = filled(core, 3, first_offset=TIME_BLOCK - 2)
    assert bench.appender.drain_times(bench.handle) == [(0, 1001)]
    assert bench.appender.block_max(bench.handle) == 1002


def test_what_was_known_before_a_restart_counts(core: Core) -> None:
    bench = Workbench(core, first_offset=TIME_BLOCK - 1)
    bench.appender.set_block_max(bench.handle, 5000)
    bench.append(at(1))
    assert bench.appender.drain_times(bench.handle) == [(0, 5000)]


def test_a_batch_counts_for_every_block_it_lies_in(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH, first_offset=1000)
    appender = bench.appender
    appender.append_batch(bench.handle, b"", 3 * TIME_BLOCK, NOW, 0, 77, None, False)
    assert appender.drain_times(bench.handle) == [(0, 77), (1, 77), (2, 77)]
    assert appender.block_max(bench.handle) == 77
    appender.append_batch(bench.handle, b"", 4096 - 4072, NOW, 0, 99, None, False)
    assert appender.drain_times(bench.handle) == [(3, 99)]
    assert appender.block_max(bench.handle) == BLOCK_MAX_NONE


def test_a_cut_inside_the_open_block_keeps_a_bound(core: Core) -> None:
    bench = filled(core, 10)
    bench.appender.truncate_queue(bench.handle, 4, 4)
    assert bench.appender.block_max(bench.handle) == 1009
    bench.appender.truncate_queue(bench.handle, 0, 0)
    assert bench.appender.block_max(bench.handle) == BLOCK_MAX_NONE


def test_a_cut_into_a_block_not_yet_taken_reopens_it(core: Core) -> None:
    bench = filled(core, 2 * TIME_BLOCK + 5)
    bench.appender.truncate_queue(bench.handle, TIME_BLOCK + 3, TIME_BLOCK + 3)
    assert bench.appender.block_max(bench.handle) == 1000 + 2 * TIME_BLOCK - 1
    assert bench.appender.drain_times(bench.handle) == [(0, 1000 + TIME_BLOCK - 1)]


def test_a_cut_into_a_block_that_was_taken_leaves_it_unknown(core: Core) -> None:
    bench = filled(core, TIME_BLOCK + 5)
    bench.appender.drain_times(bench.handle)
    bench.appender.truncate_queue(bench.handle, 3, 3)
    assert bench.appender.block_max(bench.handle) == BLOCK_MAX_UNKNOWN
    bench.appender.set_block_max(bench.handle, 12)
    assert bench.appender.block_max(bench.handle) == 12


def test_a_cut_at_the_border_of_a_block_empties_the_open_one(core: Core) -> None:
    bench = filled(core, 2 * TIME_BLOCK + 5)
    bench.appender.truncate_queue(bench.handle, TIME_BLOCK, TIME_BLOCK)
    assert bench.appender.block_max(bench.handle) == BLOCK_MAX_NONE
    assert bench.appender.drain_times(bench.handle) == [(0, 1000 + TIME_BLOCK - 1)]


def test_blocks_inside_a_gap_are_empty(core: Core) -> None:
    bench = filled(core, 1, first_offset=3 * TIME_BLOCK)
    other = Workbench(core)
    other.append(at(5))
    other.appender.replay(bench.log, 0, 0, bench.end, False, "")
    assert other.appender.drain_times(other.handle) == [(0, 5), (1, -1), (2, -1)]
    assert other.appender.block_max(other.handle) == 1000
