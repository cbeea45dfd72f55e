"""The disk cache of a tier on a disk that fails, fills up and loses power."""

from __future__ import annotations

import errno

import pytest

from penstock.testing import FOREVER, FaultyDisk
from penstock.testing.faults import Operation
from penstock.tiered.read.disk_cache import DiskCache

PART = bytes(range(250)) * 40


def open_cache(disk: FaultyDisk, size_max: int = 100_000) -> DiskCache:
    return DiskCache("/cache", size_max, disk)


@pytest.mark.parametrize("seed", range(10))
def test_a_cache_serves_nothing_from_before_a_power_cut(seed: int) -> None:
    disk = FaultyDisk(seed=seed)
    cache = open_cache(disk)
    for number in range(5):
        cache.put(f"chunk-{number}", 0, PART)
    disk.crash()
    again = open_cache(disk)
    assert [again.get(f"chunk-{number}", 0, len(PART)) for number in range(5)] == [None] * 5
    assert disk.files() == {}


@pytest.mark.parametrize("operation", ["replace", "make_directory"])
def test_a_cache_that_cannot_write_is_an_empty_one(operation: Operation) -> None:
    disk = FaultyDisk()
    disk.fail(operation, "*", errno.EACCES, times=FOREVER)
    cache = open_cache(disk)
    cache.put("chunk", 0, PART)
    assert cache.get("chunk", 0, len(PART)) is None
    assert cache.size == 0


def test_a_full_disk_leaves_the_parts_that_are_there() -> None:
    disk = FaultyDisk(capacity=3 * 12_288)
    cache = open_cache(disk)
    for number in range(5):
        cache.put(f"chunk-{number}", 0, PART)
    held = [number for number in range(5) if cache.get(f"chunk-{number}", 0, len(PART)) == PART]
    assert held == [0, 1, 2]
    assert cache.size == 3 * len(PART)


def test_a_part_that_cannot_be_read_or_is_cut_short_is_dropped() -> None:
    disk = FaultyDisk()
    cache = open_cache(disk)
    cache.put("chunk", 0, PART)
    cache.put("chunk", 10_000, PART)
    disk.fail("read", "*", errno.EIO)
    assert cache.get("chunk", 0, len(PART)) is None
    (path,) = disk.files()
    file = disk.open(path)
    file.truncate(100)
    file.close()
    assert cache.get("chunk", 10_000, len(PART)) is None
    assert disk.files() == {}
    assert cache.size == 0


def test_the_least_recently_used_parts_go_first() -> None:
    disk = FaultyDisk()
    cache = open_cache(disk, 2 * len(PART))
    cache.put("a", 0, PART)
    cache.put("b", 0, PART)
    assert cache.get("a", 0, len(PART)) == PART
    cache.put("c", 0, PART)
    assert cache.get("b", 0, len(PART)) is None
    assert cache.get("a", 0, len(PART)) == PART
    assert len(disk.files()) == 2
    cache.close()
    assert disk.files() == {}
