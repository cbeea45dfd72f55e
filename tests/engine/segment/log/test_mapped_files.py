"""Files are mapped when needed, within a bound, released when idle, and prefaulted in between."""

from __future__ import annotations

import mmap
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.platform.clock import SystemClock
from penstock.platform.local_disk import LocalDisk
from penstock.record import Record, ShardId

SIZE = 4096
PAGE = mmap.PAGESIZE


def file_set(tmp_path: Path, mapped_bytes_max: int) -> FileSet:
    files = FileSet(LocalDisk(), str(tmp_path), SIZE, mapped_bytes_max)
    for number in range(8):
        files.create(number * SIZE)
    return files


def test_no_more_than_the_bound_is_mapped(tmp_path: Path) -> None:
    files = file_set(tmp_path, 3 * SIZE)
    for base in files.bases:
        files.buffer(base)
        assert files.mapped_bytes <= 3 * SIZE
    files.close()


def test_idle_files_are_unmapped_and_used_ones_stay(tmp_path: Path) -> None:
    files = file_set(tmp_path, 8 * SIZE)
    for base in files.bases:
        files.buffer(base)
    files.unmap_idle()
    assert files.mapped_bytes == 8 * SIZE
    files.buffer(0)
    files.unmap_idle()
    assert files.mapped_bytes == SIZE
    files.unmap_idle()
    assert files.mapped_bytes == 0
    files.close()


def test_a_file_in_use_is_not_unmapped_under_its_reader(tmp_path: Path) -> None:
    files = file_set(tmp_path, 8 * SIZE)
    view = files.buffer(SIZE)
    for _ in range(3):
        files.unmap_idle()
    assert files.mapped_bytes == SIZE
    assert bytes(view[:4]) == bytes(4)
    del view
    files.unmap_idle()
    assert files.mapped_bytes == 0
    files.close()


def test_warming_ahead_changes_nothing_that_is_read(tmp_path: Path) -> None:
    orders = ShardId("orders", 0)
    sizes = FileSizes(commit_log_file_size=1 << 16, index_slots=500, index_entries_max=1_000)
    settings = SegmentSettings(sizes=sizes, background=False)
    for _ in range(2):
        with SegmentStore.open(str(tmp_path / "data"), settings) as store:
            store.create_shard(orders)
            for number in range(1_200):
                store.append(orders, Record(b"%d" % number, b"k%d" % number))
                if number % 100 == 0:
                    store._upkeep._prefault()
            store.run_upkeep()
            store._upkeep._prefault()
            for number in range(0, 1_200, 7):
                found = store.newest_by_key(orders, b"k%d" % number)
                assert found is not None
                assert found.value == b"%d" % number
    assert verify(str(tmp_path / "data")).findings == []


class Turns(SystemClock):
    """The prefaulter's clock: each wait takes no time, and ends with what happens then."""

    def __init__(self, happens: Callable[[float], None]) -> None:
        self.waits: list[float] = []
        self._happens = happens

    def monotonic(self) -> float:
        return sum(self.waits)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        self._happens(self.monotonic())
        return self.monotonic() > 10


@pytest.mark.parametrize("early", [False, True])
def test_pages_are_warmed_soon_for_who_writes_at_once_and_seldom_looked_after_when_idle(
    tmp_path: Path, early: bool
) -> None:
    orders = ShardId("orders", 0)
    prefaulted: list[float] = []

    def happens(now: float) -> None:
        if store._log._prefaulted > store._log.end:
            prefaulted.append(now)
        if (early and len(clock.waits) == 1) or (not early and 5 < now < 5.3):
            store.append(orders, Record(bytes(100_000)))

    clock = Turns(happens)
    settings = SegmentSettings(background=False, prefault_size=1 << 20)
    with SegmentStore.open(str(tmp_path / "data"), settings, clock=clock) as store:
        store.create_shard(orders)
        clock.waits.clear()
        store._upkeep._run_prefaulter()
    assert prefaulted[0] < (0.05 if early else 0.3)
    quiet = [wait for wait in clock.waits if wait > 0.1]
    assert quiet, "a store where nothing happens is left alone"
    often = sum(wait for wait in clock.waits if wait < 0.1)
    assert 1.9 < often < (2.1 if early else 4.5)


def pages_alone(path: str) -> list[tuple[int, int]]:
    """Where in a mapped file a look at a page brings no others, as the kernel says."""
    found: list[tuple[int, int]] = []
    place = (0, 0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            span, _, offset = line.split()[:3]
            first, last = (int(part, 16) for part in span.split("-"))
            start = int(offset, 16)
            place = (start, start + last - first) if line.endswith(path) else (0, 0)
        elif line.startswith("VmFlags:") and "rr" in line.split() and place[1]:
            found.append(place)
    return sorted(found)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is told so on Linux only")
def test_pages_ahead_are_small_until_much_is_written_between_two_syncs(tmp_path: Path) -> None:
    orders = ShardId("orders", 0)
    size, ahead = 64 << 20, 1 << 20
    settings = SegmentSettings(
        sizes=FileSizes(commit_log_file_size=size), background=False, prefault_size=ahead
    )
    with SegmentStore.open(str(tmp_path / "data"), settings) as store:
        store.create_shard(orders)
        log = store._log
        path = log.files.path_of(0)

        def write(volume: int) -> int:
            end = log.end + volume
            while log.end < end:
                store.append_many(orders, [Record(bytes(60_000))] * 10)
            log.prefault()
            return log.end

        log.prefault()
        assert pages_alone(path) == [(0, size)]
        # Little between two syncs: what is written is read with its neighbours, what follows alone.
        ends = []
        for _ in range(3):
            ends.append(write(2 << 20))
            store.flush()
        [(start, stop)] = pages_alone(path)
        assert abs(start - ends[-1]) < PAGE
        assert stop == size
        # Much: what is prefaulted ahead may have large pages; only what lies behind it is alone.
        end = write(10 << 20)
        [(start, stop)] = pages_alone(path)
        assert abs(start - end - ahead) < PAGE
        assert stop == size
        assert [record.offset for record in store.read(orders, 0, max_records=3)] == [0, 1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is told so on Linux only")
def test_a_file_that_is_full_is_read_with_its_neighbours(tmp_path: Path) -> None:
    orders = ShardId("orders", 0)
    size = 1 << 20
    settings = SegmentSettings(sizes=FileSizes(commit_log_file_size=size), background=False)
    with SegmentStore.open(str(tmp_path / "data"), settings) as store:
        store.create_shard(orders)
        for _ in range(50):
            store.append(orders, Record(bytes(60_000)))
        log = store._log
        assert log.end > 2 * size
        for position in (0, size):
            assert pages_alone(log.files.path_of(position)) == []
        assert pages_alone(log.files.path_of(log.end)) != []


@pytest.mark.parametrize("leaves", ["unmap_idle", "remove_first", "close"])
def test_a_file_that_is_synced_stays_open_until_it_is_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    files = file_set(tmp_path, 8 * SIZE)
    files.buffer(0, writable=True)
    wanted = (tmp_path / f"{0:020d}").stat().st_ino
    synced: list[int] = []

    def sync_late(descriptor: int) -> None:
        for _ in range(2):
            getattr(files, leaves)()
        with (tmp_path / "other").open("wb"):  # it gets the number of a file that was closed
            synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr("penstock.platform.local_file.sync_descriptor", sync_late)
    files.sync(0, SIZE)
    assert synced == [wanted]
    files.unmap_idle()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert not any(each.resolve().parent == tmp_path for each in open_files())
    files.close()


def open_files() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())
