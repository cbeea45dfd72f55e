"""Damage takes the records that it hit, and never those that retention would have kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.codec.kafka_builder import kafka_batch
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import EVENTS, ORDERS, QUIET, SIZES, Rig, create, fill, record
from tests.engine.segment.test_retention import HOUR_S

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.retention import RetentionPolicy
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError
from penstock.record import QueueKind, ShardId

Stop = Callable[[Rig], None]
COUNT = 30
HURT = 20
LOG = "store/commitlog/"
STORE_TIME_AT = 56


def close_and_rebuild(rig: Rig) -> None:
    """Close the store; without its checkpoint, everything is built again from the log."""
    rig.close()
    rig.disk.remove("store/penstock/checkpoint")


def kill(rig: Rig) -> None:
    rig.store.flush()
    rig.abandon()
    rig.disk.kill()


def damaged(stop: Stop, hurt: int = HURT) -> Rig:
    """Return a store of `COUNT` records of which one was damaged after it was stored."""
    rig = Rig()
    create(rig.store)
    starts = []
    for number in range(COUNT):
        starts.append(int(rig.store.bounds(ORDERS).end_position))
        rig.store.append(ORDERS, record(number, key=b"k%d" % number, size=300))
    stop(rig)
    flip(rig, starts[hurt] + 150)
    return rig


def flip(rig: Rig, position: int) -> None:
    base = position - position % SIZES.commit_log_file_size
    rig.disk.flip_bit(f"{LOG}{base:020}", 8 * (position - base))


def readable(store: SegmentStore, shard: ShardId) -> list[int]:
    found = []
    for offset in range(store.bounds(shard).earliest, store.bounds(shard).next):
        try:
            found += [each.offset for each in store.read(shard, offset, max_records=1)]
        except CorruptionError:
            continue
    return sorted(set(found))


@pytest.fixture(params=[close_and_rebuild, kill], ids=["rebuilt", "killed"])
def stop(request: pytest.FixtureRequest) -> Stop:
    chosen: Stop = request.param
    return chosen


@pytest.mark.parametrize("hurt", [0, HURT, COUNT - 1], ids=["first", "middle", "last"])
def test_a_lost_record_takes_none_of_the_bytes_that_a_shard_may_keep(stop: Stop, hurt: int) -> None:
    rig = damaged(stop, hurt)
    store = rig.store
    assert store.report.damaged
    store.retention.set_policy(ORDERS, RetentionPolicy(size=1 << 20))
    rest = [n for n in range(COUNT) if n != hurt]
    for _ in range(2):
        store.run_upkeep()
        assert store.bounds(ORDERS).earliest == 0
        assert readable(store, ORDERS) == rest
    assert store.live_size(ORDERS) < COUNT * 700


def test_a_size_that_is_reached_is_that_of_the_records_that_are_left(stop: Stop) -> None:
    rig = damaged(stop)
    whole = Rig()
    create(whole.store)
    for number in range(COUNT):
        whole.store.append(ORDERS, record(number, key=b"k%d" % number, size=300))
    for each in (rig, whole):
        each.store.retention.set_policy(ORDERS, RetentionPolicy(size=6_000))
        each.store.run_upkeep()
    assert rig.store.bounds(ORDERS).earliest == whole.store.bounds(ORDERS).earliest - 1
    assert len(readable(rig.store, ORDERS)) == len(readable(whole.store, ORDERS))


def test_a_number_of_records_counts_those_that_can_be_read(stop: Stop) -> None:
    store = damaged(stop).store
    store.retention.set_policy(ORDERS, RetentionPolicy(records=15))
    store.run_upkeep()
    assert readable(store, ORDERS) == [n for n in range(14, COUNT) if n != HURT]


def test_time_keeps_what_comes_after_a_lost_record(stop: Stop) -> None:
    rig = damaged(stop)
    store = rig.store
    store.retention.set_policy(ORDERS, RetentionPolicy(time_ms=HOUR_S * 1000))
    rig.clock.advance(10 * HOUR_S)
    store.run_upkeep()
    assert store.bounds(ORDERS).earliest <= HURT
    assert set(range(HURT + 1, COUNT)) <= set(readable(store, ORDERS))


@pytest.mark.parametrize("moment", [0, 5, HURT, HURT + 3])
def test_the_time_of_a_record_finds_it_beside_a_lost_one(stop: Stop, moment: int) -> None:
    store = damaged(stop).store
    wanted = 1_000_000 + moment
    if moment < HURT:
        assert store.offset_by_timestamp(ORDERS, wanted) == moment
        return
    with pytest.raises(CorruptionError):
        store.offset_by_timestamp(ORDERS, wanted)
    store.delete_offsets(ORDERS, [HURT])
    assert store.offset_by_timestamp(ORDERS, wanted) == max(moment, HURT + 1)


def test_a_wrong_time_in_a_damaged_record_does_not_make_a_file_old() -> None:
    rig = Rig()
    create(rig.store)
    while rig.store.bounds(ORDERS).end_position < 3 * SIZES.commit_log_file_size:
        fill(rig.store, ORDERS, 1)
    rig.close()
    second = f"{LOG}{SIZES.commit_log_file_size:020}"
    assert rig.disk.files()[second][STORE_TIME_AT + 2] == 1
    rig.disk.flip_bit(second, 8 * (STORE_TIME_AT + 2))  # of its first record: 35 years earlier
    rig.store.run_upkeep()
    assert rig.store.bounds(ORDERS).earliest == 0


def test_a_readonly_store_finds_records_around_blank_units(stop: Stop) -> None:
    rig = damaged(stop)
    end = int(rig.store.bounds(ORDERS).end_position)
    rig.close()
    view = ReadOnlyStore.open("store", disk=rig.disk, clock=rig.clock, settings=QUIET)
    log = view.snapshot().get(ORDERS)
    for offset in range(COUNT):
        position = log.position_of(offset)
        if position is None:
            assert offset == HURT
            continue
        found = log.offset_at(position)
        assert found == offset or (offset == HURT + 1 and found == HURT)
    assert view.snapshot().end_for(log) == end
    view.close()


# Batches


def filled(*, kafka: bool, sizes: tuple[int, ...]) -> tuple[Rig, list[int]]:
    """Return a store with batches of these many messages, and where each is stored."""
    rig = Rig()
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    starts = []
    for number, count in enumerate(sizes):
        starts.append(int(rig.store.bounds(EVENTS).end_position))
        records = [record(100 * number + n) for n in range(count)]
        body = kafka_batch(records) if kafka else inner_batch(records)
        rig.store.append_batch(EVENTS, body, count, kafka=kafka)
    starts.append(int(rig.store.bounds(EVENTS).end_position))
    return rig, starts


@pytest.mark.parametrize("kafka", [True, False], ids=["kafka", "rocketmq"])
@pytest.mark.parametrize("hurt", [1, 3], ids=["middle", "last"])
def test_a_lost_batch_takes_exactly_its_offsets(stop: Stop, hurt: int, *, kafka: bool) -> None:
    sizes = (5, 3, 7, 4)
    plain, starts = filled(kafka=kafka, sizes=sizes)
    stop(plain)
    size = starts[hurt + 1] - starts[hurt]
    first = sum(sizes[:hurt])
    for at in range(0, size, 5):
        rig = plain.copy()
        flip(rig, starts[hurt] + at)
        store = rig.store
        assert store.report.damaged, at
        assert store.bounds(EVENTS).next == sum(sizes), at
        lost = set(range(first, first + sizes[hurt]))
        assert readable(store, EVENTS) == sorted(set(range(sum(sizes))) - lost), at
        store.retention.set_policy(EVENTS, RetentionPolicy(size=1 << 20, records=sum(sizes)))
        store.run_upkeep()
        assert store.bounds(EVENTS).earliest == 0, at
        assert store.append_batch(EVENTS, inner_batch([record(900)]), 1) == sum(sizes), at


def test_several_wrong_bytes_of_the_last_batch_take_exactly_its_offsets(stop: Stop) -> None:
    sizes = (5, 3, 7)
    plain, starts = filled(kafka=True, sizes=sizes)
    stop(plain)
    places = (
        [0, 1, 2],  # the size of the record
        [4, 5],  # the magic number
        [100, 101, 120],  # the head of the Kafka batch
        [starts[3] - starts[2] - n for n in (1, 3)],  # the checksum in the properties
    )
    for place in places:
        rig = plain.copy()
        for at in place:
            flip(rig, starts[2] + at)
        assert rig.store.report.damaged, place
        assert rig.store.bounds(EVENTS).next == sum(sizes), place
