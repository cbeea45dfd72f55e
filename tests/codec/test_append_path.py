"""The append path of both backends: what it answers, what it waits for, and who may write
meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.codec.workbench import NOW, Workbench

from penstock.codec.append_interface import AppendPath
from penstock.codec.codes import (
    BUSY,
    NO_LOG_ROOM,
    NOT_ADMITTED,
    TOO_LARGE,
    UNKNOWN_SHARD,
)
from penstock.codec.select import Core
from penstock.errors import BadRequestError
from penstock.record import Record, ShardId

ORDERS = ShardId("orders", 0)


class Bench:
    """A workbench with a way in; `sync` puts everything on a device that only counts."""

    def __init__(self, core: Core, *, size: int = 1 << 16, patience_s: float = 10.0) -> None:
        self.work = Workbench(core, size=size)
        self.appender = self.work.appender
        self.lock = core.WriteLock()
        self.group_commit = core.GroupCommit(0)
        self.handles = {ORDERS: self.work.handle}
        self.synced: list[int] = []
        self.before_sync: Callable[[], None] = lambda: None
        self.append_path: AppendPath = core.AppendPath(
            self.appender,
            self.lock,
            self.group_commit,
            self.sync,
            self.handles,
            lambda: NOW,
            patience_s,
            lambda *said: int(said[-1]),
        )
        self.open()

    def open(self, *, sync: bool = False, epoch: int = 0) -> None:
        self.appender.set_admission(self.work.handle, True, sync, epoch)

    def sync(self) -> int:
        end = self.appender.end
        self.before_sync()
        self.synced.append(end)
        self.appender.durable = end
        return end

    @property
    def shown(self) -> int:
        return self.appender.shown_offset(self.work.handle)


def test_a_record_larger_than_allowed_is_not_written_nor_is_its_group(core: Core) -> None:
    bench = Bench(core)
    everything = Record(b"value", b"key", ("tag", "\u00e4"), (("name", b"12"), ("none", None)))
    size = 5 + 3 + 3 + 2 + 4 + 2 + 4
    assert bench.append_path.append(ORDERS, everything, size - 1) == TOO_LARGE
    assert (
        bench.append_path.append_many(ORDERS, [Record(b"small"), everything], size - 1) == TOO_LARGE
    )
    assert bench.appender.next_offset(bench.work.handle) == 0
    assert bench.append_path.append(ORDERS, everything, size) == 0
    assert bench.append_path.append_many(ORDERS, [everything, everything], size) == 1
    assert bench.append_path.append(ORDERS, Record(None), 0) == 3


def test_what_is_put_at_once_waits_for_nothing(core: Core) -> None:
    bench = Bench(core, size=150_000)
    put = bench.append_path.try_append
    assert put(ORDERS, Record(b"a"), 1) == 0
    assert put(ORDERS, Record(b"ab"), 1) == TOO_LARGE
    assert put(ORDERS, Record(bytes(64 << 10)), 1 << 20) == 1
    assert put(ORDERS, Record(bytes((64 << 10) + 1)), 1 << 20) == TOO_LARGE
    assert put(ORDERS, Record(bytes(64 << 10)), 1 << 20) == 2
    assert put(ORDERS, Record(bytes(64 << 10)), 1 << 20) == NO_LOG_ROOM
    assert put(ShardId("orders", 1), Record(b"a"), 1) == UNKNOWN_SHARD
    with bench.lock:
        assert put(ORDERS, Record(b"a"), 1) == BUSY
    bench.open(sync=True)
    assert put(ORDERS, Record(b"a"), 1) == NOT_ADMITTED
    bench.appender.set_admission(bench.work.handle, False, False, 0)
    assert put(ORDERS, Record(b"a"), 1) == NOT_ADMITTED
    with pytest.raises(BadRequestError, match="value"):
        put(ORDERS, Record("a"), 1)  # type: ignore[arg-type]  # what is refused
    bench.open()
    assert put(ORDERS, Record(b"a"), 1) == 3
    assert bench.synced == []


def test_records_and_groups_get_the_next_offsets(core: Core) -> None:
    bench = Bench(core)
    assert bench.append_path.append(ORDERS, Record(b"a")) == 0
    assert bench.append_path.append_many(ORDERS, [Record(b"b"), Record(b"c")]) == 1
    assert bench.append_path.append(ShardId("orders", 0), Record(b"d" * 5_000)) == 3
    assert [each.value for each in bench.work.read()[0]] == [b"a", b"b", b"c", b"d" * 5_000]
    assert bench.synced == []


def test_the_gate_says_the_leader_epoch(core: Core) -> None:
    bench = Bench(core)
    bench.append_path.append(ORDERS, Record(b"a"))
    bench.open(epoch=7)
    bench.append_path.append(ORDERS, Record(b"b"))
    assert [each.leader_epoch for each in bench.work.read()[0]] == [0, 7]
    with pytest.raises(BadRequestError, match="epoch"):
        bench.open(epoch=1 << 63)


def test_what_it_cannot_take_is_not_written(core: Core) -> None:
    bench = Bench(core, size=1_000)
    assert bench.append_path.append(ShardId("orders", 1), Record(b"a")) == UNKNOWN_SHARD
    bench.appender.set_admission(bench.work.handle, False, False, 0)
    assert bench.append_path.append(ORDERS, Record(b"a")) == NOT_ADMITTED
    assert bench.append_path.append_many(ORDERS, [Record(b"a")]) == NOT_ADMITTED
    bench.open()
    bench.appender.accepting = False
    assert bench.append_path.append(ORDERS, Record(b"a")) == NOT_ADMITTED
    bench.appender.accepting = True
    assert bench.append_path.append(ORDERS, Record(b"a" * 500)) == 0
    assert bench.append_path.append(ORDERS, Record(b"a" * 500)) == NO_LOG_ROOM
    with pytest.raises(BadRequestError, match="value"):
        bench.append_path.append(ORDERS, Record("a"))  # type: ignore[arg-type]  # what is refused
    assert bench.appender.next_offset(bench.work.handle) == 1
    with bench.lock:
        pass  # None of them kept it.


def test_a_new_queue_is_closed(core: Core) -> None:
    bench = Bench(core)
    other = ShardId("orders", 5)
    bench.handles[other] = bench.appender.add_queue("orders", 5, 0, 0, 0)
    assert bench.append_path.append(other, Record(b"a")) == NOT_ADMITTED


@pytest.mark.parametrize("size", [1, 5_000])
def test_whoever_holds_the_lock_keeps_records_out(core: Core, size: int) -> None:
    bench = Bench(core, patience_s=0.02)
    with bench.lock:
        assert bench.append_path.append(ORDERS, Record(b"a" * size)) == BUSY
        assert bench.append_path.append(ORDERS, Record(b"a" * size)) == BUSY
        assert not bench.lock.acquire(0.01)
    assert bench.append_path.append(ORDERS, Record(b"a" * size)) == 0


def test_the_lock_is_let_go_by_its_holder_only_once(core: Core) -> None:
    lock = core.WriteLock()
    assert lock.acquire(0)
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert lock.acquire(0)


def test_waiting_writers_go_on_when_the_lock_is_free(core: Core) -> None:
    bench = Bench(core)
    with ThreadPoolExecutor(4) as pool:
        with bench.lock:
            waiting = [
                pool.submit(bench.append_path.append, ORDERS, Record(b"a")) for _ in range(4)
            ]
            assert not any(each.done() for each in waiting)
            assert bench.appender.next_offset(bench.work.handle) == 0
        assert sorted(each.result(60) for each in waiting) == [0, 1, 2, 3]


def test_synced_records_are_shown_when_they_are_on_the_device(core: Core) -> None:
    bench = Bench(core)
    bench.append_path.append(ORDERS, Record(b"shown at once"))
    bench.open(sync=True)
    seen: list[int] = []
    bench.before_sync = lambda: seen.append(bench.shown)
    assert bench.append_path.append(ORDERS, Record(b"a")) == 1
    assert bench.append_path.append_many(ORDERS, [Record(b"b"), Record(b"c")]) == 2
    assert seen == [1, 2]
    assert bench.shown == 4
    assert bench.synced == sorted(set(bench.synced))
    assert bench.group_commit.durable == bench.appender.end


def test_every_kind_of_append_hides_its_records_until_they_are_durable(core: Core) -> None:
    bench = Bench(core)
    bench.open(sync=True)
    assert bench.work.append(Record(b"a")) == 0
    assert bench.work.append(Record(b"b"), Record(b"c")) == 1
    middle = bench.appender.end
    assert bench.work.append(Record(b"d")) == 3
    assert bench.shown == 0
    bench.appender.durable = middle
    assert bench.shown == 3
    bench.appender.truncate_queue(bench.work.handle, 2, 2)
    assert bench.shown == 2, "what was cut is not waited for"


def test_one_sync_is_enough_for_all_who_wait(core: Core) -> None:
    bench = Bench(core)
    bench.open(sync=True)
    first, go = threading.Event(), threading.Event()

    def wait() -> None:
        first.set()
        assert go.wait(60)

    bench.before_sync = wait
    with ThreadPoolExecutor(9) as pool:
        leader = pool.submit(bench.append_path.append, ORDERS, Record(b"a"))
        assert first.wait(60)
        others = [pool.submit(bench.append_path.append, ORDERS, Record(b"b")) for _ in range(8)]
        while bench.appender.next_offset(bench.work.handle) < 9:
            assert not any(each.done() for each in others)
        go.set()
        assert leader.result(60) == 0
        assert sorted(each.result(60) for each in others) == list(range(1, 9))
    assert len(bench.synced) == 2


def test_a_failed_sync_is_told_and_the_next_in_line_tries(core: Core) -> None:
    bench = Bench(core)
    bench.open(sync=True)
    barrier = threading.Barrier(5)
    failures = 3

    def fail() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(5, "the device is gone")

    bench.before_sync = fail

    def put(_: int) -> object:
        barrier.wait(60)
        try:
            return bench.append_path.append(ORDERS, Record(b"a"))
        except OSError as error:
            return error.errno

    with ThreadPoolExecutor(5) as pool:
        outcomes = list(pool.map(put, range(5)))
    assert outcomes.count(5) == 3
    assert len(outcomes) == 5
    assert bench.shown == 5
    bench.group_commit.wait(bench.appender.end, bench.sync)


@pytest.mark.parametrize("sync", [False, True])
def test_threads_get_their_own_offsets(core: Core, sync: bool) -> None:
    bench = Bench(core, size=1 << 20)
    bench.open(sync=sync)
    got: dict[int, bytes] = {}

    def write(thread: int) -> None:
        for number in range(60):
            value = b"%d.%d" % (thread, number) + b"." * (5_000 if number % 20 == 7 else 0)
            if number % 10 == 3:
                first = bench.append_path.append_many(ORDERS, [Record(value), Record(value)])
                got.update({first: value, first + 1: value})
            elif number % 10 == 6:
                with bench.lock:
                    got[bench.work.append(Record(value))] = value
            else:
                got[bench.append_path.append(ORDERS, Record(value))] = value

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert sorted(got) == list(range(4 * 66))
    assert {int(each.offset): each.value for each in bench.work.read()[0]} == got
    if sync:
        bench.group_commit.wait(bench.appender.end, bench.sync)
        assert bench.shown == len(got)
