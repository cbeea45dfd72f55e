"""The tail of a shard is cut off, and its offsets are given out again: the dead stay dead."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import EVENTS, ORDERS, Rig, create, fill, record
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.engine.segment.inspect import VerifyReport, verify
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, DiskFullError, SequenceGapError
from penstock.record import Producer, QueueKind, Record
from penstock.testing import PowerCut

LOST = (
    "penstock/checkpoint",
    "consumequeue",
    "index",
    "penstock/times",
    "penstock/sums",
    "penstock",
)


class Shard:
    def __init__(self, count: int = 30) -> None:
        self.rig = Rig()
        create(self.rig.store)
        self.model = ShardModel()
        self.model.append(fill(self.rig.store, ORDERS, count))

    def cut(self, offset: int) -> None:
        assert self.rig.store.truncate(ORDERS, offset) == offset
        self.model.truncate(offset)

    def write(self, count: int, *, first: int) -> None:
        self.model.append(fill(self.rig.store, ORDERS, count, first=first))

    def check_always(self) -> None:
        """It is the same now, after each kind of restart, and when all is built again."""
        for store in self.rig.lives():
            check_shard(store, ORDERS, self.model)
        self.rig.close()
        for lost in LOST:
            copy = self.rig.copy()
            copy.disk.remove_tree(f"store/{lost}")
            check_shard(copy.store, ORDERS, self.model)


@pytest.mark.parametrize("upkeep", [False, True], ids=["in memory", "in files"])
@pytest.mark.parametrize("offset", [0, 1, 19, 20, 21, 29, 30])
def test_what_was_cut_off_stays_dead(offset: int, upkeep: bool) -> None:
    shard = Shard()
    if upkeep:
        shard.rig.store.run_upkeep()
    shard.cut(offset)
    shard.check_always()


@pytest.mark.parametrize("offset", [0, 12, 20])
def test_the_offsets_are_given_out_again(offset: int) -> None:
    shard = Shard()
    shard.cut(offset)
    shard.write(5, first=100)
    shard.check_always()


def test_cut_and_written_again_several_times() -> None:
    shard = Shard()
    for number, offset in enumerate((25, 10, 14, 3, 3)):
        shard.cut(offset)
        shard.write(6, first=100 * (number + 1))
        if number == 2:
            shard.rig.store.run_upkeep()
    shard.cut(5)
    shard.check_always()


def test_cutting_at_or_past_the_end_changes_nothing() -> None:
    shard = Shard(5)
    assert shard.rig.store.truncate(ORDERS, 5) == 5
    assert shard.rig.store.truncate(ORDERS, 99) == 5
    shard.check_always()


def test_a_shard_cannot_be_cut_below_its_begin() -> None:
    shard = Shard(10)
    shard.rig.store.delete_before(ORDERS, 4)
    with pytest.raises(BadRequestError, match="begins at 4"):
        shard.rig.store.truncate(ORDERS, 3)


def test_a_batch_that_reaches_past_the_cut_goes_whole() -> None:
    rig = Rig()
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    model = ShardModel()
    for start in range(0, 90, 3):
        batch = [Record(b"%d" % (start + n), key=b"k", timestamp_ms=5) for n in range(3)]
        rig.store.append_batch(EVENTS, inner_batch(batch), 3, born_ms=5)
        model.append(batch)
    for offset, end in ((80, 78), (75, 75), (1, 0)):
        assert rig.store.truncate(EVENTS, offset) == end
        model.truncate(end)
        for store in rig.lives():
            check_shard(store, EVENTS, model)
        more = [Record(b"again %d" % n, timestamp_ms=6) for n in range(2)]
        rig.store.append_batch(EVENTS, inner_batch(more), 2, born_ms=6)
        model.append(more)
    rig.close()
    for lost in (
        "penstock/checkpoint",
        "batchconsumequeue",
        "penstock/index",
        "penstock/sums",
        "penstock",
    ):
        copy = rig.copy()
        copy.disk.remove_tree(f"store/{lost}")
        check_shard(copy.store, EVENTS, model)


def test_producers_and_epochs_are_cut_with_the_queue() -> None:
    rig = Rig()
    create(rig.store)
    for number in range(4):
        rig.store.set_epoch(ORDERS, number + 1)
        rig.store.append_many(
            ORDERS, [record(number * 2), record(number * 2 + 1)], Producer(1, 0, number * 2)
        )
    rig.store.truncate(ORDERS, 4)
    for store in rig.lives():
        assert store.state(ORDERS).epochs.to_list() == [(1, 0), (2, 2)]
        with pytest.raises(SequenceGapError):
            store.append_many(ORDERS, [record(9)], Producer(1, 0, 6))
    rig.store.append_many(ORDERS, [record(8)], Producer(1, 0, 4))
    assert rig.store.read(ORDERS, 4)[0].leader_epoch == 4
    rig.close()
    rig.disk.remove("store/penstock/checkpoint")
    assert rig.store.append_once(ORDERS, [record(8)], Producer(1, 0, 4)) == (4, True)


def refuses(store: SegmentStore, epoch: int) -> bool:
    try:
        store.set_epoch(ORDERS, epoch)
    except BadRequestError:
        return True
    return False


def test_the_leaders_epoch_does_not_go_back_with_a_cut() -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 10)
    rig.store.set_epoch(ORDERS, 5)
    fill(rig.store, ORDERS, 10, first=10)
    rig.store.truncate(ORDERS, 5)
    for store in rig.lives():
        assert store.state(ORDERS).epochs.to_list() == []
        assert refuses(store, 4)
    rig.close()
    copy = rig.copy()
    copy.disk.remove_tree("store/penstock")
    for each in (copy, rig):
        assert refuses(each.store, 4)
        assert [each.store.append(ORDERS, record(n)) for n in (5, 6)] == [5, 6]
        for store in each.lives():
            assert [found.leader_epoch for found in store.read(ORDERS, 4)] == [0, 5, 5]
            assert store.state(ORDERS).epochs.to_list() == [(5, 5)]
            assert refuses(store, 4)
        assert not refuses(each.store, 5)


def test_behind_a_cut_a_replica_takes_what_older_leaders_wrote() -> None:
    """Its own leader, of a newer epoch, has it from them."""
    leader = Rig()
    create(leader.store)
    fill(leader.store, ORDERS, 6)
    leader.store.set_epoch(ORDERS, 3)
    fill(leader.store, ORDERS, 6, first=6)
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 8)
    rig.store.set_epoch(ORDERS, 5)
    rig.store.truncate(ORDERS, 4)
    rig.store.append_encoded(ORDERS, b"".join(leader.store.read_raw(ORDERS, 4)))
    for store in rig.lives():
        assert store.state(ORDERS).epochs.to_list() == [(3, 6)]
        assert [found.leader_epoch for found in store.read(ORDERS, 5)] == [0] + 6 * [3]
        assert refuses(store, 4)
    rig.store.set_epoch(ORDERS, 6)
    rig.store.append(ORDERS, record(12))
    for store in rig.lives():
        assert store.state(ORDERS).epochs.to_list() == [(3, 6), (6, 12)]
    rig.close()
    rig.disk.remove_tree("store/penstock")
    assert rig.store.state(ORDERS).epochs.to_list() == [(3, 6), (6, 12)]


def test_an_epoch_that_wrote_nothing_gives_way_to_what_is_copied() -> None:
    leader = Rig()
    create(leader.store)
    fill(leader.store, ORDERS, 3)
    rig = Rig()
    create(rig.store)
    rig.store.set_epoch(ORDERS, 2)
    rig.store.append_encoded(ORDERS, b"".join(leader.store.read_raw(ORDERS, 0)))
    rig.store.checkpoint()
    for store in rig.lives():
        assert store.state(ORDERS).epochs.to_list() == []
        assert refuses(store, 1)


@pytest.mark.parametrize("kind", QueueKind)
def test_what_was_cut_off_stays_dead_when_the_states_are_lost(kind: QueueKind) -> None:
    """Also where no record came behind the cut, and where cuts and records come by turns."""
    rig = Rig()
    create(rig.store, kind=kind)
    model = ShardModel()
    model.append(fill(rig.store, ORDERS, 30))
    for number, (offset, more) in enumerate([(25, 0), (20, 9), (24, 0), (7, 4), (11, 30), (9, 0)]):
        assert rig.store.truncate(ORDERS, offset) == offset
        model.truncate(offset)
        model.append(fill(rig.store, ORDERS, more, first=100 * (number + 1)))
        copy = rig.copy()
        copy.disk.kill()
        for lost in ("shards", "copies"):
            copy.disk.remove_tree(f"store/penstock/{lost}")
        for store in copy.lives():
            check_shard(store, ORDERS, model)
            assert store.report.damaged == []
        report = verify_closed(copy)
        assert report.findings == []


def test_a_shard_is_cut_also_when_the_disk_has_no_room_for_a_line_about_it() -> None:
    shard = Shard()

    def refuse(*_: object) -> int:
        raise DiskFullError("no room")

    with pytest.MonkeyPatch.context() as patch:
        # The journal's line alone: where it would begin a new file of the log.
        patch.setattr(shard.rig.store._commands._writer, "run", refuse)
        shard.cut(12)
    for store in shard.rig.lives():
        check_shard(store, ORDERS, shard.model)
    shard.write(3, first=50)
    shard.check_always()


def verify_closed(rig: Rig) -> VerifyReport:
    rig.close()
    return verify(rig.root, disk=rig.disk, clock=rig.clock, settings=rig.settings)


def test_deletions_hold_for_what_is_written_at_their_offsets_again() -> None:
    """A replica may learn of a deletion while it has another record at that offset."""
    shard = Shard(10)
    shard.rig.store.delete_offsets(ORDERS, [7])
    shard.cut(5)
    shard.write(4, first=50)
    shard.model.deleted.add(7)
    shard.check_always()


def test_a_dead_record_with_the_key_is_not_found() -> None:
    rig = Rig()
    create(rig.store)
    rig.store.append(ORDERS, record(0, key=b"k"))
    rig.store.append(ORDERS, record(1, key=b"k"))
    rig.store.truncate(ORDERS, 1)
    rig.store.append(ORDERS, record(2))
    for store in rig.lives():
        assert [each.value for each in store.by_key(ORDERS, b"k")] == [record(0).value]


def test_a_power_cut_during_a_cut_leaves_the_shard_before_or_after_it() -> None:
    for call in range(0, 60, 2):
        shard = Shard(25)
        shard.rig.store.flush()
        shard.rig.disk.stop_at_call(call)
        with suppress(PowerCut):
            shard.rig.store.truncate(ORDERS, 11)
        store = shard.rig.crash(call)
        assert store.bounds(ORDERS).next in (11, 25)
        shard.model.truncate(store.bounds(ORDERS).next)
        check_shard(store, ORDERS, shard.model)
        shard.write(3, first=200)
        check_shard(shard.rig.kill(), ORDERS, shard.model)


def test_a_look_up_beside_a_cut_does_not_mislead_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the cut, batches of other sizes have other units for the same offsets."""
    rig = Rig()
    store = rig.store
    create(store, kind=QueueKind.BATCH)
    for first in range(10):
        assert store.append_batch(ORDERS, inner_batch([record(first)]), 1) == first
    log = store._table.get(ORDERS)
    batch_end = type(log).batch_end
    cuts = iter([lambda: store.truncate(ORDERS, 1)])

    def cut_first(self: ShardLog, unit: int) -> int:
        end = batch_end(self, unit)
        if unit == 7:  # it has been found, and is about to be remembered
            next(cuts, int)()
        return end

    with monkeypatch.context() as patched:
        patched.setattr(ShardLog, "batch_end", cut_first)
        log.unit_of(7)
    for first, count in [(1, 20), *((n, 1) for n in range(21, 31))]:
        batch = [record(n) for n in range(first, first + count)]
        assert store.append_batch(ORDERS, inner_batch(batch), count) == first
    assert log.unit_of(8) == 1  # else a read finds a hole, and has the queue rebuilt
    assert [each.offset for each in store.read(ORDERS, 8)] == list(range(8, 31))
