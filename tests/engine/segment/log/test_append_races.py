"""Appends beside everything that must keep them out: each caller gets exactly its own offsets."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from tests.engine.segment.rig import EVENTS, ORDERS, Rig, create, everything

from penstock.engine.segment.store import SegmentStore
from penstock.errors import DiskFullError, ShardSealedError, UnknownShardError
from penstock.record import Flush, Producer, Record

WRITERS = 3
ROUNDS = 12
AHEAD_MAX = 40
"""How many appends may be done beyond those that a test waits for."""


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Let threads lose the interpreter after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Writers:
    """Threads that append to ORDERS in every way until told to stop, and what they were told."""

    def __init__(self, rig: Rig) -> None:
        self._store = rig.store
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(WRITERS)
        self.told: defaultdict[int, set[bytes]] = defaultdict(set)
        """The values that were acknowledged with an offset; several where a cut gave it again."""
        self.count = 0
        self._numbers = itertools.count()
        self._allowed = AHEAD_MAX
        self._running: list[Future[None]] = []

    def start(self, expected: type[Exception] | None = None) -> None:
        self._stop.clear()
        self._allowed = self.count + AHEAD_MAX
        self._running = [
            self._pool.submit(self._write, thread, expected) for thread in range(WRITERS)
        ]

    def stop(self) -> None:
        self._stop.set()
        self.join()

    def join(self) -> None:
        self._allowed = sys.maxsize
        for each in self._running:
            each.result(30)

    def close(self) -> None:
        self.stop()
        self._pool.shutdown()

    def wait_for(self, count: int) -> None:
        """Return when so many more appends were acknowledged."""
        target = self.count + count
        self._allowed = target + AHEAD_MAX
        while self.count < target and not any(each.done() for each in self._running):
            self._stop.wait(0.0005)

    def _write(self, thread: int, expected: type[Exception] | None) -> None:
        number = 0
        while not self._stop.is_set():
            if self.count > self._allowed:
                self._stop.wait(0.0005)
                continue
            number += 1
            try:
                self._append(next(self._numbers), number % 8 if thread else number % 9)
            except UnknownShardError:
                if expected is not UnknownShardError:
                    raise
            except Exception as error:
                if expected is not None and isinstance(error, expected):
                    return
                raise

    def _append(self, number: int, kind: int) -> None:
        value = b"%d" % number
        if kind == 3:
            group = [Record(value + b"a", key=b"k"), Record(value + b"b")]
            first = self._store.append_many(ORDERS, group)
            self._note(first, value + b"a")
            self._note(first + 1, value + b"b")
        elif kind == 5:
            long = value + b"." * 4_500
            self._note(self._store.append(ORDERS, Record(long)), long)
        elif kind == 8:
            producer = Producer(number, 0, 0)
            self._note(self._store.append_many(ORDERS, [Record(value)], producer), value)
        else:
            self._note(self._store.append(ORDERS, Record(value, key=b"k")), value)

    def _note(self, offset: int, value: bytes) -> None:
        self.told[offset].add(value)
        self.count += 1


@contextmanager
def writers(rig: Rig, expected: type[Exception] | None = None) -> Iterator[Writers]:
    found = Writers(rig)
    found.start(expected)
    try:
        yield found
    finally:
        found.close()


def check(rig: Rig, told: dict[int, set[bytes]]) -> None:
    """Every record is there, and is what its writer was told; also after a kill."""
    for store in rig.lives():
        found = everything(store, ORDERS, per_page=500)
        assert [int(each.offset) for each in found] == list(range(len(found)))
        assert store.bounds(ORDERS).next == len(found)
        for each in found:
            assert each.value in told[int(each.offset)]


def whole(told: dict[int, set[bytes]]) -> bool:
    """Whether every offset was given once, without a gap."""
    return sorted(told) == list(range(len(told))) and all(len(each) == 1 for each in told.values())


@pytest.mark.parametrize("flush", list(Flush))
@pytest.mark.parametrize("what", ["checkpoint", "flush", "run_upkeep", "command", "epoch"])
def test_upkeep_and_commands_beside_appends(flush: Flush, what: str) -> None:
    rig = Rig()
    create(rig.store, flush=flush)
    create(rig.store, EVENTS)
    store = rig.store
    epochs = iter(range(1, 1_000))
    run: Callable[[], object] = {
        "checkpoint": store.checkpoint,
        "flush": store.flush,
        "run_upkeep": store.run_upkeep,
        "command": lambda: store.delete_before(EVENTS, store.append(EVENTS, Record(b"e")) + 1),
        "epoch": lambda: store.set_epoch(ORDERS, next(epochs)),
    }[what]
    with writers(rig) as busy:
        for _ in range(ROUNDS):
            busy.wait_for(5)
            run()
    assert whole(busy.told)
    if what == "epoch":
        table = store.state(ORDERS).epochs
        for each in everything(store, ORDERS, per_page=500):
            assert max(0, table.epoch_at(each.offset)) == each.leader_epoch
    check(rig, busy.told)


@pytest.mark.parametrize("flush", list(Flush))
def test_nothing_gets_in_behind_a_seal(flush: Flush) -> None:
    for _ in range(4):
        rig = Rig()
        create(rig.store, flush=flush)
        with writers(rig, ShardSealedError) as busy:
            busy.wait_for(20)
            rig.store.seal(ORDERS)
            sealed_at = rig.store.bounds(ORDERS).next
            busy.join()
        assert whole(busy.told)
        assert len(busy.told) == sealed_at
        check(rig, busy.told)


@pytest.mark.parametrize("flush", list(Flush))
def test_offsets_that_a_cut_took_back_are_given_again_without_a_gap(flush: Flush) -> None:
    rig = Rig()
    create(rig.store, flush=flush)
    with writers(rig) as busy:
        for _ in range(ROUNDS):
            busy.wait_for(12)
            bounds = rig.store.bounds(ORDERS)
            assert rig.store.truncate(ORDERS, max(0, bounds.next - 6)) <= bounds.next
    check(rig, busy.told)


def test_a_deleted_shard_takes_nothing_until_it_is_created_again() -> None:
    rig = Rig()
    create(rig.store)
    with writers(rig, UnknownShardError) as busy:
        for _ in range(ROUNDS):
            busy.wait_for(8)
            rig.store.delete_shard(ORDERS)
            with pytest.raises(UnknownShardError):
                rig.store.append(ORDERS, Record(b"x"))
            create(rig.store)
    check(rig, busy.told)


def test_a_refusing_log_takes_nothing() -> None:
    rig = Rig()
    create(rig.store)
    log = rig.store._log
    with writers(rig, DiskFullError) as busy:
        busy.wait_for(20)
        with log.lock:
            log.refuse(DiskFullError("the disk is full"))
            end = log.end
        busy.join()
        assert log.end == end
        log.accept()
        busy.start()
        busy.wait_for(20)
    assert whole(busy.told)
    check(rig, busy.told)


WAYS: dict[str, Callable[[SegmentStore], int]] = {
    "one": lambda store: store.append(ORDERS, Record(b"new")),
    "long": lambda store: store.append(ORDERS, Record(b"n" * 4_500)),
    "group": lambda store: store.append_many(ORDERS, [Record(b"new"), Record(b"new")]),
    "producer": lambda store: store.append_many(ORDERS, [Record(b"new")], Producer(1, 0, 0)),
    "roll": lambda store: store.append(ORDERS, Record(b"n" * 7_500)),
}


@pytest.mark.parametrize("way", WAYS)
def test_synced_records_are_seen_only_when_they_are_on_the_device(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    create(rig.store, flush=Flush.SYNC)
    store = rig.store
    assert store.append(ORDERS, Record(b"old")) == 0
    files = store._log.files
    sync, asked, go = files.sync, threading.Event(), threading.Event()

    def late_sync(start: int, end: int) -> None:
        asked.set()
        assert go.wait(60)
        sync(start, end)

    monkeypatch.setattr(files, "sync", late_sync)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(WAYS[way], store)
        try:
            assert asked.wait(60)
            assert store.bounds(ORDERS).next > 1, "it is in the log"
            assert store.bounds(ORDERS).commit == 1
            assert [each.value for each in store.read(ORDERS, 0)] == [b"old"]
            assert not writing.done()
        finally:
            go.set()
        assert writing.result(60) == 1
    assert len(store.read(ORDERS, 0)) == store.bounds(ORDERS).next > 1
    assert len(everything(rig.crash(1), ORDERS)) > 1
