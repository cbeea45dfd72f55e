"""A log whose file has a descriptor is synced by native code: what Python hears of it, and when."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.codec.test_append_path import ORDERS, Bench

from penstock.codec.select import IS_NATIVE, Core
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import DiskFailedError
from penstock.record import Flush, Record, ShardId


class SyncedBench(Bench):
    """A bench whose log claims to lie in the file of a descriptor."""

    def __init__(self, core: Core, descriptor: int, *, size: int = 1 << 16) -> None:
        super().__init__(core, size=size)
        self.heard: list[tuple[int, int]] = []
        self.failures: list[str] = []
        self.open(sync=True)
        self.appender.attach_device(descriptor)
        self.group_commit.sync_natively(self.appender, self.hear, self.fail)

    def hear(self, position: int, timestamp_ms: int, seconds: list[float]) -> None:
        assert seconds
        assert min(seconds) >= 0
        self.heard.append((position, timestamp_ms))

    def fail(self, reason: str) -> None:
        self.failures.append(reason)
        raise DiskFailedError("the log", reason)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def broken() -> Iterator[int]:
    """A pipe: nothing of it can be put on a device."""
    reading, writing = os.pipe()
    yield writing
    os.close(reading)
    os.close(writing)


def test_a_record_is_acknowledged_and_shown_after_a_native_sync(
    both: tuple[Core, Core], file: int
) -> None:
    bench = SyncedBench(both[1], file)
    assert bench.append_path.append(ORDERS, Record(b"a")) == 0
    assert bench.synced == []
    assert [position for position, _ in bench.heard] == [bench.appender.end]
    assert bench.group_commit.durable == bench.appender.durable == bench.appender.end
    assert bench.shown == 1


def test_writers_share_native_syncs_and_lose_nothing(both: tuple[Core, Core], file: int) -> None:
    bench = SyncedBench(both[1], file)

    def write(writer: int) -> list[int]:
        return [bench.append_path.append(ORDERS, Record(b"%d" % writer)) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        offsets = [offset for found in pool.map(write, range(8)) for offset in found]
    assert sorted(offsets) == list(range(160))
    assert max(position for position, _ in bench.heard) == bench.appender.end
    assert bench.group_commit.durable == bench.appender.end
    assert bench.shown == 160


def test_after_a_failed_native_sync_there_is_no_other(both: tuple[Core, Core], broken: int) -> None:
    bench = SyncedBench(both[1], broken)
    with pytest.raises(DiskFailedError):
        bench.append_path.append(ORDERS, Record(b"a"))
    assert len(bench.failures) == 1
    assert (bench.heard, bench.group_commit.durable, bench.shown) == ([], 0, 0)
    # What follows is for `sync` to decide.
    bench.append_path.append(ORDERS, Record(b"b"))
    assert len(bench.failures) == 1
    assert bench.synced == [bench.appender.end]


@pytest.mark.parametrize("attempt", range(10))
def test_a_failed_sync_for_several_writers_is_told_to_one_and_left_to_python_by_the_others(
    both: tuple[Core, Core], file: int, broken: int, attempt: int
) -> None:
    bench = SyncedBench(both[1], file, size=1 << 22)
    started = threading.Barrier(9)
    stopped = threading.Event()

    def write(writer: int) -> tuple[int, int]:
        written = refused = 0
        started.wait(60)
        while not stopped.is_set():
            try:
                bench.append_path.append(ORDERS, Record(b"%d" % writer))
                written += 1
            except DiskFailedError:
                refused += 1
        return written, refused

    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write, number) for number in range(8)]
        started.wait(60)
        while not bench.heard:
            assert not any(each.done() for each in writers)
        bench.appender.attach_device(broken)
        while len(bench.synced) < 5:
            assert not any(each.done() for each in writers)
        stopped.set()
        counts = [each.result(60) for each in writers]
    assert len(bench.failures) == 1
    assert sum(refused for _, refused in counts) == 1
    assert max(position for position, _ in bench.heard) < min(bench.synced)
    written = sum(written for written, _ in counts)
    assert bench.shown == bench.appender.next_offset(bench.work.handle) == written + 1


def threads_that_sync() -> set[str]:
    """The system's numbers of such threads. Those of stores of other tests may end at any time."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().strip() == "penstock-syncs":
                found.add(task.name)
        except OSError:
            continue  # it has just ended
    return found


def threads_while_eight_write(path: str, before: set[str]) -> set[str]:
    """Let eight threads write until some of them wait at the same time, so that a thread begins."""
    orders = ShardId("orders", 0)
    until = time.monotonic() + 20
    with SegmentStore.open(path) as store:
        store.create_shard(orders, flush=Flush.SYNC)

        def write(writer: int) -> None:
            while time.monotonic() < until:
                for _ in range(20):
                    store.append(orders, Record(b"%d" % writer))
                if threads_that_sync() - before:
                    return

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        return threads_that_sync() - before


@pytest.mark.skipif(not IS_NATIVE or sys.platform != "linux", reason="the system's own threads")
def test_one_thread_syncs_for_all_who_wait_and_ends_with_the_store(tmp_path: Path) -> None:
    begun = threads_while_eight_write(str(tmp_path / "data"), threads_that_sync())
    assert len(begun) == 1
    until = time.monotonic() + 20
    while threads_that_sync() & begun:
        assert time.monotonic() < until, "the thread outlives its store"
        gc.collect()
        time.sleep(0.01)


@pytest.mark.skipif(not IS_NATIVE, reason="the Python backend syncs through Disk")
def test_writers_that_wait_go_on_while_the_log_rolls_from_file_to_file(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    shards = [ShardId("orders", queue) for queue in range(4)]
    settings = SegmentSettings(sizes=FileSizes(commit_log_file_size=1 << 16))
    with SegmentStore.open(path, settings) as store:
        for shard in shards:
            store.create_shard(shard, flush=Flush.SYNC)

        def write(writer: int) -> list[int]:
            record = Record(b"%3d" % writer * 150)
            return [store.append(shards[writer % 4], record) for _ in range(60)]

        with ThreadPoolExecutor(16) as pool:
            offsets = list(pool.map(write, range(16)))
        assert store._log.durable == store._log.end
        assert store._log._durable.position == store._log.end, "all syncs were noted"
        assert store._log.end > 5 << 16
    for queue in range(4):
        mine = [offset for found in offsets[queue::4] for offset in found]
        assert sorted(mine) == list(range(240))
    with SegmentStore.open(path) as store:
        for writer, found in enumerate(offsets):
            for offset in found[::20]:
                assert store.read(shards[writer % 4], offset)[0].value == b"%3d" % writer * 150


@pytest.mark.skipif(not IS_NATIVE, reason="the Python backend syncs through Disk")
def test_a_failed_native_sync_stops_the_store(tmp_path: Path, broken: int) -> None:
    orders = ShardId("orders", 0)
    with SegmentStore.open(str(tmp_path / "data")) as store:
        store.create_shard(orders, flush=Flush.SYNC)
        assert store.append(orders, Record(b"kept")) == 0
        store._log.appender.attach_device(broken)
        for _ in range(2):
            with pytest.raises(DiskFailedError):
                store.append(orders, Record(b"lost"))
        assert [each.value for each in store.read(orders, 0)] == [b"kept"]
    with SegmentStore.open(str(tmp_path / "data")) as store:
        assert store.read(orders, 0)[0].value == b"kept"
