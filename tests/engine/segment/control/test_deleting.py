"""Deletions, floors, seals, and shards that go and come again."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import EVENTS, LOGS, ORDERS, Rig, create, fill, record
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.engine.segment.inspect import verify
from penstock.errors import (
    DiskFullError,
    NotSupportedError,
    ShardSealedError,
    UnknownShardError,
)
from penstock.record import Producer, QueueKind, Record
from penstock.testing import PowerCut


class Shard:
    """A shard with 30 records, and its model."""

    def __init__(self) -> None:
        self.rig = Rig()
        create(self.rig.store)
        self.model = ShardModel()
        self.model.append(fill(self.rig.store, ORDERS, 30))


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_deleted_records_are_gone_from_every_read_for_good(shard: Shard) -> None:
    assert shard.rig.store.delete_offsets(ORDERS, [0, 5, 6, 29]) == 4
    shard.model.deleted |= {0, 5, 6, 29}
    for store in shard.rig.lives():
        check_shard(store, ORDERS, shard.model)
        assert store.bounds(ORDERS).earliest == 0, "the ends of the shard do not move"


def test_a_record_is_deleted_once(shard: Shard) -> None:
    assert shard.rig.store.delete_offsets(ORDERS, [3, 3, 4]) == 2
    assert shard.rig.store.delete_offsets(ORDERS, [4, 5]) == 1
    assert shard.rig.store.delete_offsets(ORDERS, []) == 0
    assert shard.rig.kill().delete_offsets(ORDERS, [3, 4, 5]) == 0


def test_deleting_what_is_not_there_yet_does_not_hide_it_later(shard: Shard) -> None:
    assert shard.rig.store.delete_offsets(ORDERS, [30, 31, 1 << 50, -1]) == 0
    shard.model.append(fill(shard.rig.store, ORDERS, 3, first=30))
    check_shard(shard.rig.store, ORDERS, shard.model)


def test_messages_inside_a_batch_are_deleted_one_by_one() -> None:
    rig = Rig()
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    model = ShardModel()
    for start in range(0, 9, 3):
        batch = [Record(b"%d" % (start + n), key=b"k", timestamp_ms=5) for n in range(3)]
        rig.store.append_batch(EVENTS, inner_batch(batch), 3, born_ms=5)
        model.append(batch)
    rig.store.delete_offsets(EVENTS, [1, 3, 4, 5])
    model.deleted |= {1, 3, 4, 5}
    for store in rig.lives():
        check_shard(store, EVENTS, model)
        assert len(store.read_raw(EVENTS, 0)) == 2, "a batch stays while one message of it lives"


def test_a_floor_moves_up_only_and_not_past_the_end(shard: Shard) -> None:
    store = shard.rig.store
    assert store.delete_before(ORDERS, 7) == 7
    assert store.delete_before(ORDERS, 3) == 7
    shard.model.floor = 7
    for each in shard.rig.lives():
        check_shard(each, ORDERS, shard.model)
    assert shard.rig.store.delete_before(ORDERS, 1_000) == 30
    shard.model.floor = 30
    for each in shard.rig.lives():
        check_shard(each, ORDERS, shard.model)
    shard.model.append(fill(shard.rig.store, ORDERS, 2, first=30))
    check_shard(shard.rig.kill(), ORDERS, shard.model)


def test_a_sealed_shard_takes_no_more_records_and_is_read_on(shard: Shard) -> None:
    shard.rig.store.append_many(ORDERS, [record(30)], Producer(1, 0, 0))
    shard.model.append([record(30)])
    shard.rig.store.seal(ORDERS)
    for store in shard.rig.lives():
        with pytest.raises(ShardSealedError, match="orders_0"):
            store.append(ORDERS, record(31))
        with pytest.raises(ShardSealedError):
            store.append_many(ORDERS, [record(31), record(32)])
        assert store.append_once(ORDERS, [record(30)], Producer(1, 0, 0)) == (30, True)
        store.seal(ORDERS)
        check_shard(store, ORDERS, shard.model)
    shard.rig.store.delete_offsets(ORDERS, [2])
    shard.model.deleted.add(2)
    check_shard(shard.rig.kill(), ORDERS, shard.model)


def test_a_deleted_shard_is_unknown_until_it_is_created_again(shard: Shard) -> None:
    shard.rig.store.delete_offsets(ORDERS, [1])
    shard.rig.store.delete_shard(ORDERS)
    for store in shard.rig.lives():
        assert store.shards() == []
        with pytest.raises(UnknownShardError):
            store.read(ORDERS, 0)
        with pytest.raises(UnknownShardError):
            store.append(ORDERS, record(0))
        store.delete_shard(ORDERS)


def test_a_shard_created_again_begins_at_zero_and_knows_nothing(shard: Shard) -> None:
    store = shard.rig.store
    store.append_many(ORDERS, [record(30)], Producer(5, 3, 0))
    store.set_epoch(ORDERS, 4)
    store.delete_offsets(ORDERS, [0, 1])
    store.delete_before(ORDERS, 4)
    store.delete_shard(ORDERS)
    create(store)
    model = ShardModel()
    model.append(fill(store, ORDERS, 8, first=500))
    for each in shard.rig.lives():
        check_shard(each, ORDERS, model)
    shard.rig.store.append_many(ORDERS, [record(999)], Producer(5, 0, 0))
    assert shard.rig.store.read(ORDERS, 8)[0].leader_epoch == 0
    shard.rig.store.delete_offsets(ORDERS, [2])
    model.append([record(999)])
    model.deleted.add(2)
    for each in shard.rig.lives():
        check_shard(each, ORDERS, model)


def test_the_records_of_a_deleted_shard_stay_dead_when_everything_is_rebuilt(shard: Shard) -> None:
    rig = shard.rig
    rig.store.delete_offsets(ORDERS, [1])
    rig.store.delete_shard(ORDERS)
    create(rig.store)
    model = ShardModel()
    model.append(fill(rig.store, ORDERS, 3, first=500))
    rig.close()
    for lost in ("penstock/checkpoint", "consumequeue", "index"):
        copy = rig.copy()
        copy.disk.remove_tree(f"store/{lost}")
        check_shard(copy.store, ORDERS, model)


@pytest.mark.parametrize(
    "lost", ["nothing", "penstock/checkpoint", "penstock/shards", "penstock", "index"]
)
def test_a_deleted_shard_without_records_never_comes_back(lost: str) -> None:
    rig = Rig()
    create(rig.store, LOGS)
    create(rig.store, EVENTS)
    model = ShardModel()
    model.append(fill(rig.store, EVENTS, 3))
    rig.store.checkpoint()
    rig.store.delete_shard(LOGS)
    for store in rig.lives():
        assert store.shards() == [EVENTS]
    rig.close()
    rig.disk.remove_tree(f"store/{lost}")
    for store in rig.lives():
        assert store.shards() == [EVENTS]
        check_shard(store, EVENTS, model)


@pytest.mark.parametrize("kind", QueueKind)
@pytest.mark.parametrize("count", [0, 1, 5, 90])
@pytest.mark.parametrize("lost", ["nothing", "penstock"])
@pytest.mark.parametrize("idle", [False, True])
def test_a_shard_deleted_and_created_again_between_two_checkpoints(
    kind: QueueKind, count: int, lost: str, idle: bool
) -> None:
    rig = Rig()
    create(rig.store, kind=kind)
    fill(rig.store, ORDERS, 30)
    rig.store.checkpoint()
    if not idle:
        fill(rig.store, ORDERS, 7)
        rig.store.append_many(ORDERS, [record(30)], Producer(5, 3, 0))
        rig.store.delete_offsets(ORDERS, [0, 1])
    rig.store.delete_shard(ORDERS)
    create(rig.store, kind=kind)
    model = ShardModel()
    model.append(fill(rig.store, ORDERS, count, first=500))
    if count:
        rig.store.delete_offsets(ORDERS, [0])
        model.deleted.add(0)
    rig.disk.remove_tree(f"store/{lost}")
    check_shard(rig.kill(), ORDERS, model)
    assert rig.store.append_once(ORDERS, [record(77)], Producer(5, 0, 0)) == (count, False)
    model.append([record(77)])
    for store in rig.lives():
        check_shard(store, ORDERS, model)
    assert verify("store", disk=rig.disk.copy(), settings=rig.settings).findings == []


@pytest.mark.parametrize("kind", QueueKind)
def test_a_shard_deleted_since_the_checkpoint_stays_deleted(kind: QueueKind) -> None:
    rig = Rig()
    create(rig.store, kind=kind)
    fill(rig.store, ORDERS, 100)
    rig.store.checkpoint()
    rig.store.delete_shard(ORDERS)
    for store in rig.lives():
        assert store.shards() == []
        assert store.report.rebuilt == []


def test_a_shard_can_be_deleted_on_a_disk_that_takes_no_writes(shard: Shard) -> None:
    store = shard.rig.store
    store.checkpoint()
    store._log.refuse(DiskFullError("full"))
    store.delete_shard(ORDERS)
    for each in shard.rig.lives():
        assert each.shards() == []


def test_a_shard_keeps_its_kind_beyond_its_life(shard: Shard) -> None:
    shard.rig.store.delete_shard(ORDERS)
    with pytest.raises(NotSupportedError, match="another name"):
        shard.rig.store.create_shard(ORDERS, QueueKind.BATCH)
    assert shard.rig.store.shards() == []
    shard.rig.store.create_shard(ORDERS)


def test_a_power_cut_during_a_deletion_leaves_the_shard_before_or_after_it() -> None:
    for call in range(0, 60, 2):
        rig = Rig()
        create(rig.store)
        model = ShardModel()
        model.append(fill(rig.store, ORDERS, 12))
        rig.store.flush()
        rig.disk.stop_at_call(call)
        with suppress(PowerCut):
            rig.store.delete_shard(ORDERS)
        store = rig.crash(call)
        if store.shards():
            check_shard(store, ORDERS, model)
        create(store)
        if store.bounds(ORDERS).next == 0:
            model = ShardModel()
        model.append(fill(store, ORDERS, 2, first=100))
        check_shard(rig.kill(), ORDERS, model)
