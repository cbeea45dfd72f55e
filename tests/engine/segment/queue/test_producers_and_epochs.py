"""Who wrote: repeats are recognised, old instances fenced, leaders' epochs kept; all of it over
restarts and crashes, and the same when everything is built again from the log."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import EVENTS, ORDERS, Rig, create, fill, record

from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, ProducerFencedError, SequenceGapError
from penstock.record import Flush, Producer, QueueKind, Record
from penstock.testing import FaultyDisk
from penstock.testing.memory_tree import MemoryFile


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    create(rig.store)
    return rig


def group(first: int, count: int) -> list[Record]:
    return [record(first + n) for n in range(count)]


def test_a_repeat_returns_the_first_offsets_and_writes_nothing(rig: Rig) -> None:
    for sequence in range(0, 9, 3):
        rig.store.append_many(ORDERS, group(sequence, 3), Producer(1, 0, sequence))
    for store in rig.lives():
        for sequence in range(0, 9, 3):
            again = store.append_once(ORDERS, group(sequence, 3), Producer(1, 0, sequence))
            assert again == (sequence, True)
        assert store.bounds(ORDERS).next == 9


def test_a_gap_and_a_piece_of_a_write_are_refused(rig: Rig) -> None:
    rig.store.append_many(ORDERS, group(0, 3), Producer(1, 0, 0))
    for store in rig.lives():
        for sequence, count in ((4, 1), (1, 2), (0, 2), (0, 4)):
            with pytest.raises(SequenceGapError):
                store.append_many(ORDERS, group(0, count), Producer(1, 0, sequence))
        assert store.bounds(ORDERS).next == 3


def test_a_newer_instance_fences_the_older_one(rig: Rig) -> None:
    rig.store.append_many(ORDERS, group(0, 1), Producer(1, 0, 0))
    rig.store.append_many(ORDERS, group(1, 1), Producer(1, 1, 0))
    for store in rig.lives():
        with pytest.raises(ProducerFencedError):
            store.append_many(ORDERS, group(1, 1), Producer(1, 0, 1))
        with pytest.raises(SequenceGapError):
            store.append_many(ORDERS, group(1, 1), Producer(1, 2, 5))


def test_every_way_to_append_knows_producers(rig: Rig) -> None:
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    body = inner_batch(group(0, 4))
    values = pa.array([b"a", b"b"])
    assert rig.store.append_columns(ORDERS, values, producer=Producer(1, 0, 0)) == 0
    assert rig.store.append_batch(EVENTS, body, 4, producer=Producer(1, 0, 0)) == 0
    for store in rig.lives():
        assert store.append_columns(ORDERS, values, producer=Producer(1, 0, 0)) == 0
        assert store.append_batch(EVENTS, body, 4, producer=Producer(1, 0, 0)) == 0
        assert (store.bounds(ORDERS).next, store.bounds(EVENTS).next) == (2, 4)


def test_a_write_that_a_power_cut_took_is_not_remembered() -> None:
    for seed in range(12):
        rig = Rig()
        create(rig.store)
        rig.store.append_many(ORDERS, group(0, 2), Producer(1, 0, 0))
        rig.store.checkpoint()
        rig.store.append_many(ORDERS, group(2, 2), Producer(1, 0, 2))
        store = rig.crash(seed)
        kept = store.bounds(ORDERS).next
        assert kept in (2, 4)
        assert store.append_once(ORDERS, group(2, 2), Producer(1, 0, 2)) == (2, kept == 4)
        assert [each.value for each in store.read(ORDERS, 0)] == [
            each.value for each in group(0, 4)
        ]


def test_a_synced_write_is_remembered_over_a_power_cut() -> None:
    for seed in range(6):
        rig = Rig()
        create(rig.store, flush=Flush.SYNC)
        rig.store.append_many(ORDERS, group(0, 2), Producer(1, 0, 0))
        store = rig.crash(seed)
        assert store.append_once(ORDERS, group(0, 2), Producer(1, 0, 0)) == (0, True)


def test_producers_are_the_same_when_the_state_is_built_from_the_log(rig: Rig) -> None:
    for number in range(8):
        rig.store.append_many(ORDERS, group(number, 1), Producer(number % 3, 0, number // 3))
    before = rig.store.state(ORDERS).producers.to_list()
    rig.close()
    rig.disk.remove_tree("store/penstock")
    after = rig.store.state(ORDERS).producers.to_list()
    assert [(who, [write[:4] for write in writes]) for who, writes in after] == [
        (who, [write[:4] for write in writes]) for who, writes in before
    ]


# Epochs


def test_records_carry_the_leaders_epoch(rig: Rig) -> None:
    fill(rig.store, ORDERS, 2)
    rig.store.set_epoch(ORDERS, 3)
    fill(rig.store, ORDERS, 2, first=2)
    rig.store.set_epoch(ORDERS, 7)
    fill(rig.store, ORDERS, 1, first=4)
    for store in rig.lives():
        assert [each.leader_epoch for each in store.read(ORDERS, 0)] == [0, 0, 3, 3, 7]
        epochs = store.state(ORDERS).epochs
        assert (epochs.end_of(3, 5), epochs.end_of(7, 5)) == ((3, 4), (7, 5))
        with pytest.raises(BadRequestError, match="epoch 6"):
            store.set_epoch(ORDERS, 6)


def test_the_epoch_goes_on_after_a_restart(rig: Rig) -> None:
    rig.store.set_epoch(ORDERS, 4)
    fill(rig.store, ORDERS, 1)
    rig.kill().append(ORDERS, record(1))
    rig.restart().append(ORDERS, record(2))
    assert [each.leader_epoch for each in rig.store.read(ORDERS, 0)] == [4, 4, 4]


def test_epochs_are_the_same_when_the_state_is_built_from_the_log(rig: Rig) -> None:
    for epoch in (2, 5, 9):
        rig.store.set_epoch(ORDERS, epoch)
        fill(rig.store, ORDERS, 3, first=epoch * 10)
    before = rig.store.state(ORDERS).epochs.to_list()
    rig.close()
    rig.disk.remove_tree("store/penstock")
    assert rig.store.state(ORDERS).epochs.to_list() == before


def test_a_copy_of_the_records_knows_the_same_producers_and_epochs(rig: Rig) -> None:
    source = Rig()
    create(source.store)
    source.store.append_many(ORDERS, group(0, 2), Producer(1, 0, 0))
    source.store.set_epoch(ORDERS, 3)
    source.store.append_many(ORDERS, group(2, 2), Producer(2, 0, 0))
    rig.store.append_encoded(ORDERS, b"".join(source.store.read_raw(ORDERS, 0)))
    wanted = source.store.state(ORDERS)
    for store in rig.lives():
        state = store.state(ORDERS)
        assert state.epochs.to_list() == wanted.epochs.to_list()
        assert [who for who, _ in state.producers.to_list()] == [1, 2]
        assert store.append_once(ORDERS, group(2, 2), Producer(2, 0, 0)) == (2, True)
    rig.store.append(ORDERS, record(9))
    assert rig.store.read(ORDERS, 4)[0].leader_epoch == 3


class BusyDisk(FaultyDisk):
    """Lets something happen while the log is being synced."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def check_holes(self, file: MemoryFile, path: str) -> None:
        super().check_holes(file, path)
        if "/commitlog/" in path and self.meanwhile is not None:
            happen, self.meanwhile = self.meanwhile, None
            happen()


def test_a_checkpoint_does_not_know_of_writes_that_a_power_cut_can_take() -> None:
    """A producer writes while the checkpoint syncs the log: too late to be synced with it."""
    for seed in range(8):
        disk = BusyDisk()
        rig = Rig(disk=disk)
        create(rig.store)
        store = rig.store
        store.append_many(ORDERS, group(0, 1), Producer(1, 0, 0))

        def write(store: SegmentStore = store) -> None:
            store.append_many(ORDERS, group(1, 1), Producer(1, 0, 1))
            store.delete_offsets(ORDERS, [1])

        disk.meanwhile = write
        store.checkpoint()
        again = rig.crash(seed)
        kept = again.bounds(ORDERS).next
        assert again.append_once(ORDERS, group(1, 1), Producer(1, 0, 1)) == (1, kept == 2)
        if kept == 1:
            assert [each.offset for each in again.read(ORDERS, 0)] == [0, 1]
