"""The end of a log after a crash: whole records and whole groups stay, nothing else does.

Behind the durable point the kernel may have kept any part of what was written. So the log is cut at
every byte; behind the cut are zeros, garbage, or whole records that must not come back.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import QUIET, Rig, record
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.record import Producer, QueueKind, Record, ShardId

ORDERS = ShardId("orders", 0)
BATCHED = ShardId("batched", 0)
LOG = "store/commitlog/00000000000000000000"
Models = dict[ShardId, ShardModel]


class Tail:
    """A store whose newest records are not known to be on the device."""

    def __init__(self) -> None:
        self.rig = Rig(QUIET)
        store = self.rig.store
        self.models: Models = {ORDERS: ShardModel(), BATCHED: ShardModel()}
        store.create_shard(ORDERS)
        store.create_shard(BATCHED, QueueKind.BATCH)
        self._append(record(0, key=b"a", tag="x"))
        store.checkpoint()
        self.start = self.end = int(store.bounds(ORDERS).end_position)
        self.steps: list[tuple[int, Models]] = [(self.start, self._copy())]
        """The log's end after each step, and what the shards hold then."""
        self._write()
        self.log = self.rig.disk.files()[LOG]
        assert self.log[self.end :].count(0) == len(self.log) - self.end

    def _write(self) -> None:
        store, models = self.rig.store, self.models
        for number in range(1, 4):
            self._append(record(number, key=b"a", tag="x"))
            self._note()
        group = [record(10 + n, key=b"b", tag="y") for n in range(3)]
        store.append_many(ORDERS, group, Producer(1, 0, 0))
        models[ORDERS].append(group)
        self._note()
        batch = [Record(b"m%d" % n, key=b"a", timestamp_ms=5) for n in range(3)]
        store.append_batch(BATCHED, inner_batch(batch), 3, born_ms=5)
        models[BATCHED].append(batch)
        self._note()
        store.delete_offsets(ORDERS, [1])
        models[ORDERS].deleted.add(1)
        self._note()
        self._append(record(20, key=b"a"))
        self._note()

    def _append(self, each: Record) -> None:
        self.rig.store.append(ORDERS, each)
        self.models[ORDERS].append([each])

    def _note(self) -> None:
        self.end = int(self.rig.store.bounds(ORDERS).end_position)
        self.steps.append((self.end, self._copy()))

    def _copy(self) -> Models:
        return {shard: model.copy() for shard, model in self.models.items()}

    def up_to(self, position: int) -> tuple[int, Models]:
        """Return the last step that ended at or before `position`."""
        return [step for step in self.steps if step[0] <= position][-1]

    def some_cuts(self, stride: int) -> list[int]:
        ends = [end + near for end, _ in self.steps for near in (-1, 0, 1)]
        cuts = {*range(self.start, self.end + 1, stride), *ends}
        return sorted(cut for cut in cuts if self.start <= cut <= self.end)

    def with_log(self, log: bytes) -> Rig:
        """Return the disk of a killed process, with other bytes in its log."""
        rig = self.rig.copy()
        rig.disk.open(LOG).write_at(0, log)
        return rig


@pytest.fixture(scope="module")
def tail() -> Tail:
    return Tail()


def check_cut(rig: Rig, tail: Tail, position: int, cut: int) -> None:
    """The store has what was whole before `cut`, and goes on as if nothing else had been."""
    end, models = tail.up_to(cut)
    report = rig.store.report
    assert report.end_position == end == position
    assert report.damaged == []
    for shard, model in models.items():
        check_shard(rig.store, shard, model)
    more = record(99, key=b"a")
    assert rig.store.append(ORDERS, more) == models[ORDERS].next_offset
    after = models[ORDERS].copy()
    after.append([more])
    check_shard(rig.kill(), ORDERS, after)


def try_cuts(tail: Tail, cuts: Iterable[int]) -> None:
    for cut in cuts:
        rig = tail.with_log(tail.log[:cut] + bytes(len(tail.log) - cut))
        end, _ = tail.up_to(cut)
        check_cut(rig, tail, end, cut)


def test_a_cut_keeps_exactly_the_whole_records_and_groups(tail: Tail) -> None:
    try_cuts(tail, tail.some_cuts(23))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_cut_keeps_exactly_the_whole_records_and_groups(tail: Tail) -> None:
    try_cuts(tail, range(tail.start, tail.end + 1))


def test_the_report_counts_the_bytes_that_were_cut(tail: Tail) -> None:
    for cut in tail.some_cuts(97):
        report = tail.with_log(tail.log[:cut] + bytes(len(tail.log) - cut)).store.report
        end, _ = tail.up_to(cut)
        assert report.bytes_cut == len(tail.log[end:cut].rstrip(b"\0"))
        assert (report.cut_reason is not None) == (report.bytes_cut > 0)
        assert report.records_scanned == _records_between(tail, tail.start, end)


def _records_between(tail: Tail, start: int, end: int) -> int:
    sizes = {step_end: 3 if n == 4 else 1 for n, (step_end, _) in enumerate(tail.steps)}
    return sum(count for at, count in sizes.items() if start < at <= end)


def test_garbage_behind_the_end_is_cut_off(tail: Tail) -> None:
    for cut in tail.some_cuts(151):
        garbage = bytes((cut * 7 + n * 31) % 255 + 1 for n in range(len(tail.log) - cut))
        rig = tail.with_log(tail.log[:cut] + garbage)
        end, _ = tail.up_to(cut)
        check_cut(rig, tail, end, cut)
        left = rig.disk.files()[LOG]
        assert left[-100:] == bytes(100), "what was cut is zeros on the device"


def test_whole_records_behind_a_bad_one_do_not_come_back(tail: Tail) -> None:
    for number, (end, _) in enumerate(tail.steps[:-1]):
        log = bytearray(tail.log)
        log[end + 20] ^= 0xFF
        rig = tail.with_log(bytes(log))
        behind = _records_between(tail, end, tail.end) - 1
        assert rig.store.report.records_behind_cut == behind, number
        check_cut(rig, tail, end, end)


def test_a_page_of_zeros_inside_the_tail_ends_the_log_there(tail: Tail) -> None:
    for page in range(tail.start // 512 + 1, tail.end // 512 + 1):
        log = bytearray(tail.log)
        log[page * 512 : page * 512 + 512] = bytes(512)
        end, _ = tail.up_to(page * 512)
        check_cut(tail.with_log(bytes(log)), tail, end, page * 512)


def test_what_was_cut_off_does_not_return_behind_new_records(tail: Tail) -> None:
    """Old records lie where new ones of the same size end: they must be gone from the device."""
    end, models = tail.steps[1]
    log = bytearray(tail.log)
    log[end + 20] ^= 0xFF
    rig = tail.with_log(bytes(log))
    model = models[ORDERS].copy()
    replaced = record(2, key=b"a", tag="z")
    rig.store.append(ORDERS, replaced)
    model.append([replaced])
    assert rig.store.bounds(ORDERS).end_position == tail.steps[2][0]
    for seed in range(5):
        again = Rig(QUIET, disk=rig.disk.copy(), clock=rig.clock)
        check_shard(again.crash(seed), ORDERS, model)
