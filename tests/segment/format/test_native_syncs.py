"""A log whose file has a descriptor is synced by native code: what Python hears of it, and when."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.segment.format.test_intake import ORDERS, Bench

from penstock.engine.segment.store import SegmentStore
from penstock.engine.segment.twin import IS_NATIVE, Core
from penstock.errors import DiskFailedError
from penstock.record import Flush, Record, ShardId


class SyncedBench(Bench):
    """A bench whose log claims to lie in the file of a descriptor."""

    def __init__(self, core: Core, descriptor: int) -> None:
        super().__init__(core)
        self.heard: list[tuple[int, int]] = []
        self.failures: list[str] = []
        self.open(sync=True)
        self.appender.attach_device(descriptor)
        self.turns.sync_natively(self.appender, self.hear, self.fail)

    def hear(self, position: int, timestamp_ms: int, seconds: float) -> None:
        assert seconds >= 0
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
    assert bench.intake.put(ORDERS, Record(b"a")) == 0
    assert bench.synced == []
    assert [position for position, _ in bench.heard] == [bench.appender.end]
    assert bench.turns.durable == bench.appender.durable == bench.appender.end
    assert bench.shown == 1


def test_writers_share_native_syncs_and_lose_nothing(both: tuple[Core, Core], file: int) -> None:
    bench = SyncedBench(both[1], file)

    def write(writer: int) -> list[int]:
        return [bench.intake.put(ORDERS, Record(b"%d" % writer)) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        offsets = [offset for found in pool.map(write, range(8)) for offset in found]
    assert sorted(offsets) == list(range(160))
    assert max(position for position, _ in bench.heard) == bench.appender.end
    assert bench.turns.durable == bench.appender.end
    assert bench.shown == 160


def test_after_a_failed_native_sync_there_is_no_other(both: tuple[Core, Core], broken: int) -> None:
    bench = SyncedBench(both[1], broken)
    with pytest.raises(DiskFailedError):
        bench.intake.put(ORDERS, Record(b"a"))
    assert len(bench.failures) == 1
    assert (bench.heard, bench.turns.durable, bench.shown) == ([], 0, 0)
    # What follows is for `sync` to decide.
    bench.intake.put(ORDERS, Record(b"b"))
    assert len(bench.failures) == 1
    assert bench.synced == [bench.appender.end]


@pytest.mark.skipif(not IS_NATIVE, reason="the pure twin syncs through Disk")
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
