"""Records that come while a checkpoint or a publication is under way are in the next one.

The moment that matters lies between the look at the queues' ends and the move of their units to
files: units of later records go along, and nothing in memory tells of them afterwards.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import (
    EVENTS,
    LOGS,
    ORDERS,
    QUIET,
    Rig,
    create,
    fill,
    offsets,
    record,
    values,
)

from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import ClosedError
from penstock.record import QueueKind, ShardId


def behind_the_ends(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]
) -> None:
    """Do something when the next checkpoint or publication has looked at the ends, and has not
    moved any unit yet."""
    table = store._parts.table
    drain = table.drain_dirty
    done = threading.Event()

    def act_and_drain(note: Callable[[ShardLog], object]) -> None:
        if not done.is_set():
            done.set()
            action()
        drain(note)

    monkeypatch.setattr(table, "drain_dirty", act_and_drain)


def append_batch(store: SegmentStore, first: int, count: int) -> None:
    messages = [record(n, key=b"key-%d" % n) for n in range(first, first + count)]
    assert store.append_batch(ORDERS, inner_batch(messages), count) == first


def close_and_open(rig: Rig) -> SegmentStore:
    return rig.restart()


def checkpoint_and_kill(rig: Rig) -> SegmentStore:
    rig.store.checkpoint()
    return rig.kill()


def checkpoint_and_cut_the_power(rig: Rig) -> SegmentStore:
    rig.store.checkpoint()
    return rig.crash(3)


def kill(rig: Rig) -> SegmentStore:
    return rig.kill()


ENDS = [close_and_open, checkpoint_and_kill, checkpoint_and_cut_the_power, kill]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("step", ["checkpoint", "publish"])
def test_records_that_come_behind_the_ends_are_there_after_a_start(
    end: Callable[[Rig], SegmentStore], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 3)
    with monkeypatch.context() as patch:
        behind_the_ends(rig.store, patch, lambda: fill(rig.store, ORDERS, 2, first=3))
        getattr(rig.store._parts.checkpointer, step)()
    store = end(rig)
    assert offsets(store, ORDERS) == list(range(5))
    fill(store, ORDERS, 1, first=5)
    assert values(rig.restart(), ORDERS) == [record(n).value for n in range(6)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("before", [1, 19, 20, 21])
def test_batches_that_come_behind_the_ends_are_there_once_after_a_start(
    end: Callable[[Rig], SegmentStore], before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the queue holds 20 units."""
    rig = Rig()
    create(rig.store, kind=QueueKind.BATCH)
    for n in range(before):
        append_batch(rig.store, 2 * n, 2)

    def append_more() -> None:
        for n in range(before, before + 3):
            append_batch(rig.store, 2 * n, 2)

    with monkeypatch.context() as patch:
        behind_the_ends(rig.store, patch, append_more)
        rig.store.checkpoint()
    assert offsets(end(rig), ORDERS) == list(range(2 * before + 6))
    log = rig.store._table.get(ORDERS)
    rows = log.rows(0, log.next_unit)
    assert [row.first_offset for row in rows] == list(range(0, 2 * before + 6, 2))
    append_batch(rig.store, 2 * before + 6, 2)
    assert offsets(rig.restart(), ORDERS) == list(range(2 * before + 8))
    assert [each.offset for each in rig.store.by_key(ORDERS, b"key-1")] == [1]


def test_a_shard_whose_units_were_moved_before_another_failed_is_saved() -> None:
    rig = Rig()
    for shard in (ORDERS, EVENTS, LOGS):
        create(rig.store, shard)
    rig.store.checkpoint()
    for shard in (ORDERS, EVENTS, LOGS):
        fill(rig.store, shard, 3)
    rig.disk.fail("write", "*/consumequeue/events/*", errno.ENOSPC)
    with pytest.raises(OSError, match="events"):
        rig.store._parts.checkpointer.publish()
    store = rig.restart()
    for shard in (ORDERS, EVENTS, LOGS):
        assert offsets(store, shard) == [0, 1, 2]


@pytest.mark.parametrize("clean", [True, False])
def test_states_that_are_behind_their_checkpoint_cost_time_and_no_record(clean: bool) -> None:
    """Whatever may put old files of states in the place of the new: a fault of ours, a backup."""
    rig = Rig()
    for shard in (ORDERS, EVENTS):
        create(rig.store, shard)
        fill(rig.store, shard, 3)
    rig.store.checkpoint()
    old = {path: data for path, data in rig.disk.files().items() if is_state(path)}
    fill(rig.store, ORDERS, 2, first=3)
    if clean:
        rig.close()
    else:
        rig.store.checkpoint()
        rig.abandon()
        rig.disk.kill()
    for path, data in old.items():
        rig.disk.replace(path, bytes(data))
    assert offsets(rig.store, ORDERS) == list(range(5))
    assert rig.store.report.rebuilt
    fill(rig.store, EVENTS, 1, first=3)
    assert offsets(rig.restart(), EVENTS) == list(range(4))
    assert not rig.store.report.rebuilt


def is_state(path: str) -> bool:
    return "/penstock/shards/" in path or "/penstock/copies/" in path


def test_a_crash_before_the_last_step_of_a_checkpoint_rebuilds_nothing() -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 3)
    rig.store.checkpoint()
    fill(rig.store, ORDERS, 2, first=3)
    rig.disk.fail("replace", "*/penstock/checkpoint", errno.EIO)
    with pytest.raises(OSError, match="checkpoint"):
        rig.store._parts.checkpointer.checkpoint()
    assert offsets(rig.kill(), ORDERS) == list(range(5))
    assert not rig.store.report.rebuilt


def test_what_comes_late_to_a_closed_store_saves_nothing() -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 3)
    late = rig.store._parts.checkpointer
    log = rig.store._table.get(ORDERS)
    rig.close()
    late.touch(log)
    for step in (late.checkpoint, late.publish):
        with pytest.raises(ClosedError):
            step()
    assert offsets(rig.store, ORDERS) == [0, 1, 2]


def test_a_reader_beside_a_writer_gets_what_came_behind_the_ends_of_a_publication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 3)
    publish = rig.store._parts.checkpointer.publish
    with monkeypatch.context() as patch:
        behind_the_ends(rig.store, patch, lambda: fill(rig.store, ORDERS, 2, first=3))
        publish()
    assert shown_outside(rig, ORDERS) == [0, 1, 2]
    publish()
    assert shown_outside(rig, ORDERS) == [0, 1, 2, 3, 4]


def shown_outside(rig: Rig, shard: ShardId) -> list[int]:
    """What a reader in another process sees: all that it is told of, and nothing beyond."""
    view = ReadOnlyStore.open(rig.root, disk=rig.disk, clock=rig.clock, settings=QUIET)
    found = [int(each.offset) for each in view.read(shard, 0)]
    assert found == list(range(view.bounds(shard).commit))
    return found
