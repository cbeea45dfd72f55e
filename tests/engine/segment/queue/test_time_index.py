"""Time blocks: whatever happens to the file, a lookup never leaves out a block that may match."""

from __future__ import annotations

import errno
import random
import threading
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.segment.queue.time_index import UNKNOWN, TimeIndex
from penstock.errors import NotSupportedError
from penstock.record import ShardId
from penstock.testing import FaultyDisk

ROOT = "penstock/times"
SHARD = ShardId("orders", 0)
PATH = f"{ROOT}/orders/0"
timestamps = st.integers(-5, 50)


class AgainstAList(RuleBasedStateMachine):
    """The model knows the true maximum of every finished block. The table may know less, after
    power cuts and gaps, and must then say so; it must never know anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk(page_size=64)
        self.times = TimeIndex(self.disk, ROOT, SHARD)
        self.truth: dict[int, int] = {}
        self.first = 0
        self.end = 0

    @rule(maxima=st.lists(timestamps, min_size=1, max_size=8), skip=st.sampled_from([0, 0, 0, 2]))
    def append(self, maxima: list[int], skip: int) -> None:
        for n in range(skip):
            self.truth[self.end + n] = 25
        start = self.end + skip
        blocks = list(enumerate(maxima, start))
        self.times.append(blocks)
        self.truth.update(blocks)
        self.end = start + len(maxima)

    @rule(data=st.data(), maxima=st.lists(timestamps, min_size=1, max_size=3))
    def replace_a_tail(self, data: st.DataObject, maxima: list[int]) -> None:
        start = data.draw(st.integers(self.first, self.end))
        self.times.append(enumerate(maxima, start))
        self.forget(start)
        self.truth.update(enumerate(maxima, start))
        self.end = start + len(maxima)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(self.first, self.end))
        self.times.truncate_from(block)
        self.forget(block)
        self.end = block

    def forget(self, block: int) -> None:
        self.truth = {each: value for each, value in self.truth.items() if each < block}

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.first = data.draw(st.integers(self.first, self.end))
        self.times.drop_before(self.first)
        self.truth = {each: value for each, value in self.truth.items() if each >= self.first}

    @rule()
    def sync(self) -> None:
        self.times.sync()

    @rule()
    def unload(self) -> None:
        self.times.unload()

    @rule(seed=st.integers(0, 1000))
    def cut_power(self, seed: int) -> None:
        self.disk.crash(random.Random(seed))
        self.times = TimeIndex(self.disk, ROOT, SHARD)

    @rule()
    def mend(self) -> None:
        unknown = self.times.unknown(self.first, self.end)
        if any(not self.times.first_block <= b < self.times.end_block for b in unknown):
            self.times.clear()
            self.times.append(sorted(self.truth.items()))
        else:
            for block in unknown:
                self.times.put(block, self.truth[block])
        assert TimeIndex(self.disk, ROOT, SHARD).unknown(self.first, self.end) == []

    @invariant()
    def every_block_that_may_match_is_a_candidate_and_few_others(self) -> None:
        unknown = set(self.times.unknown(self.first, self.end))
        for timestamp_ms in (-6, 0, 10, 25, 49, 51):
            found = list(self.times.candidates(timestamp_ms, self.first, self.end))
            matching = {b for b, value in self.truth.items() if value >= timestamp_ms}
            assert found == sorted(matching | unknown)


TestAgainstAList = AgainstAList.TestCase


def written(count: int = 6) -> FaultyDisk:
    disk = FaultyDisk()
    times = TimeIndex(disk, ROOT, SHARD)
    times.append((block, 100 + block * 7 % 5) for block in range(3, 3 + count))
    times.sync()
    return disk


def test_every_flipped_bit_is_found_and_hides_no_block() -> None:
    disk = written()
    true_blocks = list(TimeIndex(disk, ROOT, SHARD).candidates(103, 3, 9))
    for bit in range(len(disk.files()[PATH]) * 8):
        other = disk.copy()
        other.flip_bit(PATH, bit)
        times = TimeIndex(other, ROOT, SHARD)
        assert times.damaged, bit
        assert times.unknown(3, 9), bit
        assert set(times.candidates(103, 3, 9)) >= set(true_blocks), bit


def test_every_cut_is_found_and_hides_no_block() -> None:
    disk = written()
    for size in range(len(disk.files()[PATH])):
        other = disk.copy()
        other.open(PATH).truncate(size)
        times = TimeIndex(other, ROOT, SHARD)
        assert times.unknown(3, 9), size
        assert set(times.candidates(103, 3, 9)) >= set(TimeIndex(disk, ROOT, SHARD).candidates(103))


def test_blocks_that_a_file_system_zeroed_are_unknown() -> None:
    disk = written()
    size = len(disk.files()[PATH])
    disk.open(PATH).write_at(24, bytes(size - 24))
    times = TimeIndex(disk, ROOT, SHARD)
    assert times.unknown(3, 9) == [3, 4, 5, 6, 7, 8]


def test_a_damaged_entry_is_mended_in_place() -> None:
    disk = written()
    disk.flip_bit(PATH, (24 + 2 * 12) * 8)
    times = TimeIndex(disk, ROOT, SHARD)
    assert times.unknown(3, 9) == [5]
    times.put(5, 135)
    again = TimeIndex(disk, ROOT, SHARD)
    assert (times.damaged, again.damaged) == (False, False)
    assert list(again.candidates(130)) == [5]


def test_a_file_with_a_damaged_header_is_begun_anew() -> None:
    disk = written()
    disk.flip_bit(PATH, 100)
    times = TimeIndex(disk, ROOT, SHARD)
    times.append([(3, 1), (4, 2)])
    again = TimeIndex(disk, ROOT, SHARD)
    assert not again.damaged
    assert (again.first_block, again.end_block) == (3, 5)


def test_a_file_of_a_newer_release_is_refused_as_such() -> None:
    disk = FaultyDisk()
    head = b"PSTKTIME" + (2).to_bytes(4, "big") + bytes(8)
    disk.replace(PATH, head + zlib.crc32(head).to_bytes(4, "big"))
    with pytest.raises(NotSupportedError, match="newer release"):
        list(TimeIndex(disk, ROOT, SHARD).candidates(0))


def test_an_entry_that_was_cut_does_not_come_back_after_a_power_cut() -> None:
    for seed in range(200):
        disk = FaultyDisk(page_size=32)
        times = TimeIndex(disk, ROOT, SHARD)
        times.append((block, 900) for block in range(20))
        times.sync()
        times.truncate_from(5)
        times.append((block, 100) for block in range(5, 20))
        disk.crash(random.Random(seed))
        again = TimeIndex(disk, ROOT, SHARD)
        assert set(again.candidates(500, 5, 20)) == set(again.unknown(5, 20)), seed


def test_an_entry_that_was_cleared_does_not_come_back_after_a_power_cut() -> None:
    for seed in range(100):
        disk = FaultyDisk(page_size=32)
        times = TimeIndex(disk, ROOT, SHARD)
        times.append((block, 900) for block in range(20))
        times.sync()
        times.clear()
        times.append((block, 100) for block in range(20))
        disk.crash(random.Random(seed))
        again = TimeIndex(disk, ROOT, SHARD)
        assert set(again.candidates(500, 0, 20)) == set(again.unknown(0, 20)), seed


def test_what_was_synced_survives_a_power_cut() -> None:
    for seed in range(50):
        disk = FaultyDisk()
        times = TimeIndex(disk, ROOT, SHARD)
        times.append((block, block) for block in range(20))
        times.sync()
        disk.crash(random.Random(seed))
        assert TimeIndex(disk, ROOT, SHARD).unknown(0, 20) == [], seed


def test_a_cut_that_fails_is_done_before_the_next_write() -> None:
    for operation in ("open", "truncate", "sync"):
        disk = FaultyDisk()
        times = TimeIndex(disk, ROOT, SHARD)
        times.append((block, 900) for block in range(20))
        disk.fail(operation, error_number=errno.EIO)
        with pytest.raises(OSError, match=PATH):
            times.truncate_from(5)
        assert list(times.candidates(0)) == [0, 1, 2, 3, 4]
        times.append([(5, 100)])
        assert list(TimeIndex(disk, ROOT, SHARD).candidates(0)) == [0, 1, 2, 3, 4, 5]


def test_an_append_that_fails_leaves_the_table_as_it_was() -> None:
    disk = FaultyDisk()
    times = TimeIndex(disk, ROOT, SHARD)
    times.append([(0, 10), (1, 20)])
    disk.fail("write", error_number=errno.ENOSPC, landed=5)
    with pytest.raises(OSError, match=PATH):
        times.append([(2, 30)])
    assert (times.end_block, times.unknown(0, 3)) == (2, [2])
    times.append([(3, 40)])
    assert list(TimeIndex(disk, ROOT, SHARD).candidates(25, 0, 4)) == [2, 3]
    assert times.unknown(0, 4) == [2]


def test_the_file_shrinks_when_half_of_it_is_of_no_use() -> None:
    disk = FaultyDisk()
    times = TimeIndex(disk, ROOT, SHARD)
    times.append((block, block) for block in range(4000))
    size = len(disk.files()[PATH])
    times.drop_before(1500)
    assert len(disk.files()[PATH]) == size
    assert times.first_block == 1500
    times.drop_before(2500)
    assert len(disk.files()[PATH]) < size / 2
    assert list(TimeIndex(disk, ROOT, SHARD).candidates(0)) == list(range(2500, 4000))
    times.drop_before(9000)
    assert (times.first_block, times.end_block) == (9000, 9000)
    times.append([(9000, 1)])
    assert list(TimeIndex(disk, ROOT, SHARD).candidates(0)) == [9000]


def test_a_shard_without_a_file_has_no_known_blocks() -> None:
    times = TimeIndex(FaultyDisk(), ROOT, SHARD)
    assert list(times.candidates(0)) == []
    assert times.unknown(4, 7) == [4, 5, 6]
    assert not times.damaged
    times.append([])
    times.truncate_from(0)
    times.sync()


def test_a_block_that_is_unknown_matches_every_time() -> None:
    times = TimeIndex(FaultyDisk(), ROOT, SHARD)
    times.append([(0, 1), (2, 1)])
    assert list(times.candidates(UNKNOWN - 1)) == [1]


@given(st.lists(timestamps, max_size=1500), timestamps)
def test_candidates_are_exactly_the_blocks_that_reach_the_time(
    maxima: list[int], timestamp_ms: int
) -> None:
    times = TimeIndex(FaultyDisk(), ROOT, SHARD)
    times.append(enumerate(maxima))
    found = list(times.candidates(timestamp_ms))
    assert found == [block for block, value in enumerate(maxima) if value >= timestamp_ms]


def test_a_time_is_found_among_a_hundred_million_records_within_milliseconds() -> None:
    times = TimeIndex(FaultyDisk(), ROOT, SHARD)
    times.append((block, block) for block in range(100_000))
    times.unload()
    started = time.thread_time()
    assert next(times.candidates(99_990)) == 99_990
    loaded = time.thread_time() - started
    took = []
    for _ in range(5):
        started = time.thread_time()
        assert next(times.candidates(99_990)) == 99_990
        took.append(time.thread_time() - started)
    assert loaded < 10
    assert min(took) < 0.2, took


def test_lookups_beside_a_writer_find_all_that_was_there_before() -> None:
    disk = FaultyDisk()
    writer = TimeIndex(disk, ROOT, SHARD)
    writer.append((block, 1000) for block in range(700))
    writer.unload()
    stop = threading.Event()
    missed: list[int] = []

    def look() -> None:
        while not stop.is_set():
            missed.extend({*range(600, 700)} - set(writer.candidates(1000, 600, 700)))

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for block in range(700, 2500):
        writer.append([(block, 0)])
        if block % 100 == 0:
            writer.unload()
    writer.drop_before(600)
    stop.set()
    for reader in readers:
        reader.join()
    assert missed == []
    assert writer.end_block == 2500
