"""A damaged record that names another shard than its own costs that shard nothing, and its own
shard never an offset that is given out twice."""

from __future__ import annotations

import pytest
from tests.engine.segment.rig import Rig, create, fill, offsets

from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError
from penstock.record import ShardId

FIRST = ShardId("orders", 0)
SECOND = ShardId("orders", 1)
THIRD = ShardId("orderr", 1)  # one bit from the second
QUEUE_ID_AT = 12
BODY_AT = 88


def write(rig: Rig, shards: list[ShardId]) -> dict[ShardId, int]:
    """Append a record to each shard behind a checkpoint, in that order; return their positions."""
    for shard in (FIRST, SECOND, THIRD):
        create(rig.store, shard)
        fill(rig.store, shard, 2)
    rig.store.checkpoint()
    positions = {}
    for shard in shards:
        positions[shard] = int(rig.store.bounds(shard).end_position)
        fill(rig.store, shard, 1, first=2)
    rig.store.flush()
    rig.abandon()
    rig.disk.kill()
    return positions


def assert_lost(store: SegmentStore, shard: ShardId, offset: int) -> None:
    assert store.report.damaged
    assert store.bounds(shard).next > offset
    with pytest.raises(CorruptionError):
        store.read(shard, offset)


@pytest.mark.parametrize(
    "written",
    [[SECOND, FIRST, THIRD], [SECOND], [FIRST, SECOND]],
    ids=["the other has its record", "the other has none", "the other had its record"],
)
def test_a_wrong_bit_in_the_number_of_a_queue(written: list[ShardId]) -> None:
    rig = Rig()
    at = write(rig, written)[SECOND]
    rig.disk.flip_bit("store/commitlog/" + "0" * 20, (at + QUEUE_ID_AT + 3) * 8)
    assert rig.store.report.damaged
    for store in rig.lives():
        for shard in written:
            if shard != SECOND:
                assert offsets(store, shard) == [0, 1, 2]
        assert store.bounds(FIRST).next == (3 if FIRST in written else 2)
        assert store.bounds(SECOND).next == 3
        with pytest.raises(CorruptionError):
            store.read(SECOND, 2)


def test_a_wrong_bit_in_the_name_of_a_topic() -> None:
    rig = Rig()
    at = write(rig, [SECOND])[SECOND]
    log = rig.disk.files()["store/commitlog/" + "0" * 20]
    name_end = log.index(b"orders", at + BODY_AT) + len(b"orders")
    rig.disk.flip_bit("store/commitlog/" + "0" * 20, (name_end - 1) * 8)
    assert_lost(rig.store, SECOND, 2)
    assert offsets(rig.store, THIRD) == [0, 1]
    assert rig.store.bounds(THIRD).next == 2


def test_more_wrong_bits_name_a_shard_that_has_its_record() -> None:
    """Nobody can tell whose record it was: every shard without a later record may have lost one."""
    rig = Rig()
    at = write(rig, [SECOND, FIRST])[SECOND]
    rig.disk.flip_bit("store/commitlog/" + "0" * 20, (at + QUEUE_ID_AT + 3) * 8)
    rig.disk.flip_bit("store/commitlog/" + "0" * 20, (at + BODY_AT + 2) * 8)
    assert_lost(rig.store, SECOND, 2)
    assert_lost(rig.store, THIRD, 2)
    assert offsets(rig.store, FIRST) == [0, 1, 2]
    assert rig.store.bounds(FIRST).next == 3
