"""Many threads on one store: each gets exactly its own offsets, and waits have bounds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from tests.engine.segment.rig import EVENTS, ORDERS, QUIET, Rig, create, everything, record

from penstock.engine.segment.log import write_manager
from penstock.engine.segment.settings import FileSizes
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BusyError, ClosedError, DiskFailedError, StoreError
from penstock.platform.clock import SystemClock
from penstock.record import Flush, Producer, Record
from penstock.testing import FOREVER, FaultyDisk

THREADS = 6
EACH = 25


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


@pytest.mark.parametrize("flush", list(Flush))
def test_every_writer_gets_its_own_offsets(flush: Flush) -> None:
    rig = Rig()
    create(rig.store, flush=flush)
    got: dict[int, bytes] = {}

    def write(thread: int) -> None:
        for number in range(EACH):
            value = b"%d.%d" % (thread, number)
            if number % 5 == 0:
                group = [Record(value + b"a"), Record(value + b"b"), Record(value + b"c")]
                first = rig.store.append_many(ORDERS, group)
                got.update({first + n: each.value or b"" for n, each in enumerate(group)})
            else:
                got[rig.store.append(ORDERS, Record(value, key=value))] = value

    in_threads(write)
    total = THREADS * (EACH + 2 * EACH // 5)
    assert sorted(got) == list(range(total))
    store = rig.crash(3) if flush is Flush.SYNC else rig.kill()
    assert {int(each.offset): each.value for each in everything(store, ORDERS)} == got


def test_a_producer_that_sends_everything_twice_from_two_threads_writes_it_once() -> None:
    rig = Rig()
    create(rig.store)
    got: list[list[int]] = [[] for _ in range(2)]
    turns = [threading.Barrier(2) for _ in range(20)]

    def write(thread: int) -> None:
        for sequence, turn in enumerate(turns):
            turn.wait(60)
            offset = rig.store.append_many(ORDERS, [record(sequence)], Producer(1, 0, sequence))
            got[thread].append(offset)

    in_threads(write, 2)
    assert got[0] == got[1] == list(range(20))
    assert rig.store.bounds(ORDERS).next == 20


def test_readers_see_whole_prefixes_while_others_write_and_the_background_works() -> None:
    settings = msgspec.structs.replace(
        QUIET,
        background=True,
        flush_interval_ms=5,
        derived_interval_ms=20,
        publish_interval_ms=10,
        sizes=FileSizes(1 << 16, 2_000, 920, 100, 2_000),
    )
    disk = FaultyDisk(clock=SystemClock())
    store = SegmentStore.open("store", settings, disk=disk)
    create(store)
    done = threading.Event()

    def write() -> None:
        for number in range(1_500):
            store.append(ORDERS, Record(b"%d" % number, key=b"k%d" % (number % 7), tags=("t",)))
            if number % 200 == 0:
                store.delete_offsets(ORDERS, [number])
        done.set()

    def read(_: int) -> None:
        while not done.is_set():
            found = [int(each.offset) for each in store.read(ORDERS, 0, max_records=10_000)]
            assert found == [n for n in range(found[-1] + 1 if found else 0) if n in set(found)]
            missing = set(range(len(found))) - set(found)
            assert all(offset % 200 == 0 for offset in missing)
            newest = store.newest_by_key(ORDERS, b"k3")
            assert newest is None or newest.offset % 7 == 3
            store.offset_by_timestamp(ORDERS, 1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        in_threads(read, 3)
    finally:
        writer.join()
    store.close()
    with SegmentStore.open(
        "store", msgspec.structs.replace(settings, background=False), disk=disk
    ) as again:
        assert again.report.records_scanned == 0
        assert len(again.read(ORDERS, 0, max_records=10_000)) == 1_500 - 8
        assert len(list(again.by_key(ORDERS, b"k1"))) == len(
            [n for n in range(1_500) if n % 7 == 1 and n % 200]
        )


def test_a_writer_that_is_far_ahead_of_the_device_flushes_itself() -> None:
    rig = Rig(msgspec.structs.replace(QUIET, unflushed_bytes_max=10_000))
    create(rig.store)
    for number in range(100):
        rig.store.append(ORDERS, record(number, size=800))
    end = rig.store.bounds(ORDERS).end_position
    assert end - rig.crash(1).report.end_position <= 10_000 + 2 * 8192


def test_writers_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_manager, "DEADLINE_S", 0.05)
    rig = Rig()
    create(rig.store)
    refused: list[BusyError] = []

    def write(number: int) -> None:
        try:
            rig.store.append(ORDERS, record(number))
        except BusyError as error:
            refused.append(error)

    with rig.store._log.lock:
        in_threads(write)
    assert len(refused) == THREADS
    assert rig.store.bounds(ORDERS).next == 0
    assert rig.store.append(ORDERS, record(0)) == 0


def test_a_failed_sync_reaches_every_waiter_and_stops_the_log() -> None:
    rig = Rig()
    create(rig.store, flush=Flush.SYNC)
    create(rig.store, EVENTS)
    rig.store.append(ORDERS, record(0))
    rig.disk.fail("sync", "*/commitlog/*", times=FOREVER)
    outcomes: list[object] = []

    def write(number: int) -> None:
        try:
            outcomes.append(rig.store.append(ORDERS, record(number + 1)))
        except StoreError as error:
            outcomes.append(type(error))

    in_threads(write)
    assert outcomes == [DiskFailedError] * THREADS
    rig.disk.heal()
    for shard in (ORDERS, EVENTS):
        with pytest.raises(DiskFailedError, match="no more writes"):
            rig.store.append(shard, record(9))
    with pytest.raises(DiskFailedError):
        rig.store.flush()
    assert [each.offset for each in rig.store.read(ORDERS, 0)] == [0], "reads go on"
    rig.close()
    store = rig.crash(5)
    assert [each.value for each in store.read(ORDERS, 0)][:1] == [record(0).value]
    store.set_flush(ORDERS, Flush.SYNC)
    assert store.append(ORDERS, record(1)) == store.bounds(ORDERS).next - 1


def test_what_was_acknowledged_before_a_close_is_there_afterwards() -> None:
    rig = Rig()
    create(rig.store)
    store = rig.store
    written: list[bytes] = []

    def write(thread: int) -> None:
        for number in range(10_000):
            value = b"%d.%d" % (thread, number)
            try:
                store.append(ORDERS, Record(value))
            except ClosedError:
                return
            written.append(value)

    with ThreadPoolExecutor(3) as pool:
        for thread in range(3):
            pool.submit(write, thread)
        time.sleep(0.05)
        rig.close()
    found = [each.value for each in everything(rig.store, ORDERS, per_page=1_000)]
    assert Counter(found) == Counter(written)


def test_a_large_group_and_small_appends_do_not_mix() -> None:
    rig = Rig()
    create(rig.store)

    def write(thread: int) -> None:
        for number in range(10):
            if thread % 2:
                rig.store.append(ORDERS, Record(b"s"))
            else:
                rig.store.append_many(ORDERS, [Record(b"%d.%d" % (thread, number))] * 15)

    in_threads(write, 4)
    runs: list[tuple[bytes | None, int]] = []
    for each in everything(rig.store, ORDERS):
        if runs and runs[-1][0] == each.value and each.value != b"s":
            runs[-1] = (each.value, runs[-1][1] + 1)
        else:
            runs.append((each.value, 1))
    assert {count for value, count in runs if value != b"s"} == {15}
