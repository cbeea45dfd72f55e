"""A disk that fails at any one call: typed errors, nothing acknowledged lost, reads go on."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Final

import pytest
from tests.engine.segment.rig import EVENTS, ORDERS, QUIET, Rig

from penstock.engine.segment.store import SegmentStore
from penstock.errors import StoreError
from penstock.record import Flush, Record, ShardId
from penstock.testing import FOREVER, FaultyDisk, ManualClock, PowerCut

ERRORS: Final = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
Step = Callable[[SegmentStore], tuple[ShardId, list[bytes]]]


def append(shard: ShardId, *values: bytes) -> Step:
    def step(store: SegmentStore) -> tuple[ShardId, list[bytes]]:
        store.append_many(shard, [Record(value, key=value, timestamp_ms=5) for value in values])
        return shard, list(values)

    return step


def upkeep(store: SegmentStore) -> tuple[ShardId, list[bytes]]:
    store.run_upkeep()
    return ORDERS, []


STEPS: Final[list[Step]] = [
    step
    for number in range(8)
    for step in (
        append(ORDERS, b"o%d" % number),
        append(EVENTS, b"e%d.0" % number, b"e%d.1" % number + b"." * 900),
        *([upkeep] if number in (3, 6) else []),
    )
]


class Run:
    """The steps on a disk with a fault, and what they acknowledged."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.acknowledged: dict[ShardId, list[bytes]] = {ORDERS: [], EVENTS: []}
        self.attempted: dict[ShardId, list[bytes]] = {ORDERS: [], EVENTS: []}
        self.refused = 0

    def go(self) -> None:
        store = SegmentStore.open("store", QUIET, disk=self.disk, clock=ManualClock())
        store.create_shard(ORDERS, flush=Flush.SYNC)
        store.create_shard(EVENTS)
        for step in STEPS:
            try:
                shard, values = step(store)
            except StoreError:
                self.refused += 1
                self._check_reads(store)
            else:
                self.acknowledged[shard] += values
        try:
            store.close()
        except StoreError:
            self.refused += 1

    def _check_reads(self, store: SegmentStore) -> None:
        """What was acknowledged can be read while the disk takes no writes."""
        for shard, values in self.acknowledged.items():
            found = [record.value for record in store.read(shard, 0)]
            assert [value for value in found if value in values] == values


def prepared() -> FaultyDisk:
    return FaultyDisk(clock=ManualClock())


def call_count() -> int:
    disk = prepared()
    Run(disk).go()
    return disk.call_count()


def check_after(run: Run) -> None:
    """A later start on a healthy disk finds all that was acknowledged, once and in order."""
    store = Rig(QUIET, disk=run.disk).store
    for shard, values in run.acknowledged.items():
        if shard not in store.shards():
            assert values == []
            continue
        found = [record.value for record in store.read(shard, 0)]
        assert [value for value in found if value in values] == values
        assert len(set(found)) == len(found)
        assert [record.offset for record in store.read(shard, 0)] == list(range(len(found)))
    store.close()


def run_with_fault(k: int, error: int, *, times: int) -> Run:
    run = Run(prepared())
    run.disk.fail_at_call(k, error, times=times)
    try:
        run.go()
    except StoreError:
        run.refused += 1  # the store could not even be opened, or its shards created
    run.disk.heal()
    run.disk.kill()
    return run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(ERRORS))
@pytest.mark.parametrize("times", [1, FOREVER], ids=["once", "for-ever"])
def test_a_call_that_fails_loses_nothing_that_was_acknowledged(name: str, times: int) -> None:
    total = call_count()
    assert total > 100
    for k in range(3, total, 7):
        check_after(run_with_fault(k, ERRORS[name], times=times))


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(ERRORS))
@pytest.mark.parametrize("times", [1, FOREVER], ids=["once", "for-ever"])
def test_any_call_that_fails_loses_nothing_that_was_acknowledged(name: str, times: int) -> None:
    for k in range(call_count()):
        check_after(run_with_fault(k, ERRORS[name], times=times))


@pytest.mark.timeout(300)
def test_a_power_cut_at_a_call_keeps_what_was_acknowledged_on_the_device() -> None:
    total = call_count()
    for k in range(5, total, 11):
        run = Run(prepared())
        run.disk.stop_at_call(k)
        try:
            run.go()
        except (PowerCut, StoreError):
            run.refused += 1
        run.disk.heal()
        run.disk.crash(random.Random(k))
        run.acknowledged[EVENTS] = []  # only in the page cache: any part may be gone
        check_after(run)


def test_a_failed_sync_stops_the_log_for_good_and_reads_go_on() -> None:
    rig = Rig(QUIET)
    rig.store.create_shard(ORDERS, flush=Flush.SYNC)
    rig.store.append(ORDERS, Record(b"kept"))
    rig.disk.fail("sync", "*commitlog*", errno.EIO)
    for value in (b"lost", b"refused", b"refused again"):
        with pytest.raises(StoreError, match="sync failed"):
            rig.store.append(ORDERS, Record(value))
    assert [record.value for record in rig.store.read(ORDERS, 0)] == [b"kept"]
