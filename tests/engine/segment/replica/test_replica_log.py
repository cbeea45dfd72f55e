"""The logs of a replicated shard: what clients may do, what is copied, what survives."""

from __future__ import annotations

import threading
import time

import pytest
from tests.engine.segment.replica.replica_pair import SHARD, Pair, commit_all, copy_all, logs_of
from tests.engine.segment.rig import Rig, create, everything, fill, record, values

from penstock.engine.replication.log import countable
from penstock.engine.segment.replica.holes import Hole, decode_hole, encode_hole
from penstock.engine.segment.replica.replica_log import SegmentReplicaLog
from penstock.engine.segment.store import SegmentStore
from penstock.errors import (
    BadRequestError,
    CorruptionError,
    DeadlineError,
    NotLeaderError,
    ShardSealedError,
    UnknownShardError,
)
from penstock.record import Flush, Producer, QueueKind, Record, ShardId


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_shard_takes_no_writes_before_its_epoch_begins(rig: Rig) -> None:
    store = rig.store
    create(store, SHARD)
    data, companion = logs_of(store)
    for write in (
        lambda: store.append(SHARD, record(1)),
        lambda: store.append_many(SHARD, [record(1), record(2)]),
        lambda: store.append_once(SHARD, [record(1)], Producer(1, 0, 0)),
        lambda: store.seal(SHARD),
    ):
        with pytest.raises(NotLeaderError):
            write()
    assert store.try_append(SHARD, record(1), 1000) is None
    data.begin_epoch(1)
    companion.begin_epoch(1)
    assert store.append(SHARD, record(1)) == 0
    data.follow()
    with pytest.raises(NotLeaderError):
        store.append(SHARD, record(2))
    assert store.try_append(SHARD, record(2), 1000) is None
    assert data.end == 1


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_readers_see_nothing_past_the_commit_offset(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 5)
    data = logs_of(store)[0]
    assert values(store, SHARD) == []
    assert store.bounds(SHARD).commit == 0
    assert store.newest_by_key(SHARD, b"key-1") is None
    assert store.offset_by_timestamp(SHARD, 0) is None
    data.set_commit(3)
    assert len(values(store, SHARD)) == 3
    assert store.newest_by_key(SHARD, b"key-1") is not None
    assert store.newest_by_key(SHARD, b"key-4") is None


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_the_commit_offset_outlasts_the_process_and_never_grows_by_that(how: str) -> None:
    pair = Pair()
    store = pair.leader.store
    fill(store, SHARD, 5)
    logs_of(store)[0].set_commit(3)
    store.checkpoint()
    fill(store, SHARD, 5, first=5)
    store = pair.leader.restart() if how == "restart" else pair.leader.kill()
    # Before replication has said anything, too.
    assert len(values(store, SHARD)) == 3
    with pytest.raises(NotLeaderError):
        store.append(SHARD, record(1))
    data = logs_of(store)[0]
    assert (data.commit, data.end) == (3, 10)


def test_the_log_of_a_deleted_shard_says_that_it_is_gone(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 2)
    data = logs_of(store)[0]
    store.delete_shard(SHARD)
    with pytest.raises(UnknownShardError):
        _ = data.commit


def test_a_shard_with_one_copy_is_committed_when_it_becomes_replicated(rig: Rig) -> None:
    store = rig.store
    create(store, SHARD)
    fill(store, SHARD, 4)
    store.delete_offsets(SHARD, [1])
    data, companion = logs_of(store)
    assert (data.commit, data.end, data.last_epoch) == (4, 4, 0)
    assert (companion.commit, companion.end) == (1, 1)
    assert data.epoch_end(7) == (0, 4)


def test_without_its_states_a_replicated_shard_shows_nothing() -> None:
    pair = Pair()
    store = pair.leader.store
    fill(store, SHARD, 4)
    for log in logs_of(store):
        log.set_commit(log.end)
    store.checkpoint()
    pair.leader.abandon()
    pair.leader.disk.kill()
    disk = pair.leader.disk
    for directory in ("penstock/shards", "penstock/shards-copies", "penstock/copies"):
        disk.remove_tree(f"{pair.leader.root}/{directory}")
    store = pair.leader.store
    data = logs_of(store)[0]
    assert (data.end, data.commit) == (4, 0)
    assert values(store, SHARD) == []


@pytest.mark.parametrize("kind", list(QueueKind))
def test_a_follower_gets_what_the_leader_has(pair: Pair, kind: QueueKind) -> None:
    pair = Pair(kind)
    store, other = pair.leader.store, pair.follower.store
    fill(store, SHARD, 30)
    store.append_many(SHARD, [record(n, size=200) for n in range(100, 120)], Producer(7, 1, 0))
    copy_all(pair)
    ours, theirs = logs_of(store)[0], logs_of(other)[0]
    assert (theirs.end, theirs.last_epoch) == (ours.end, ours.last_epoch)
    assert values(other, SHARD) == []
    commit_all(pair)
    assert values(other, SHARD) == values(store, SHARD)
    assert other.state(SHARD).producers.writes_of(7)[0][:4] == (1, 0, 20, 30)
    assert pair.follower.kill().state(SHARD).producers.writes_of(7)[0][:4] == (1, 0, 20, 30)


def test_a_group_is_never_split(pair: Pair) -> None:
    store = pair.leader.store
    store.append(SHARD, record(0))
    store.append_many(SHARD, [record(n, size=100) for n in range(1, 9)])
    store.append(SHARD, record(9))
    data = logs_of(store)[0]
    ends = []
    offset = 0
    while offset < data.end:
        read, offset = data.read_range(offset, 300)
        logs_of(pair.follower.store)[0].append_range(read)
        ends.append(offset)
    assert ends == [1, 9, 10]


def test_deleted_records_are_copied(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 6)
    commit_all(pair)
    pair.do(lambda: store.delete_offsets(SHARD, [1, 4]))
    copy_all(pair)
    commit_all(pair)
    assert logs_of(pair.follower.store)[0].end == 6
    assert [int(r.offset) for r in pair.follower.store.read(SHARD, 0)] == [0, 2, 3, 5]


def test_a_damaged_range_appends_nothing(pair: Pair) -> None:
    fill(pair.leader.store, SHARD, 3)
    read, _ = logs_of(pair.leader.store)[0].read_range(0, 1000)
    theirs = logs_of(pair.follower.store)[0]
    for damaged in (read[:-9] + b"x" + read[-8:], read[100:], b"", encode_hole(Hole(5, 7))):
        with pytest.raises(CorruptionError):
            theirs.append_range(damaged)
    assert theirs.end == 0
    theirs.append_range(read)
    with pytest.raises(CorruptionError):
        theirs.append_range(read)


def test_a_sealed_shard_takes_the_records_of_its_leader(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 6)
    commit_all(pair, data=True)
    pair.do(lambda: store.seal(SHARD))
    with pytest.raises(ShardSealedError):
        store.append(SHARD, record(9))
    ours, theirs = logs_of(store), logs_of(pair.follower.store)
    theirs[1].append_range(ours[1].read_range(0, 1000)[0])
    theirs[1].set_commit(1)
    assert pair.follower.store.state(SHARD).sealed
    copy_all(pair)
    assert theirs[0].end == 6


def test_safe_waits_for_the_device_where_the_topic_syncs() -> None:
    pair = Pair(flush=Flush.SYNC)
    fill(pair.leader.store, SHARD, 3)
    ours, theirs = logs_of(pair.leader.store)[0], logs_of(pair.follower.store)[0]
    assert ours.safe == 3
    theirs.append_range(ours.read_range(0, 10_000)[0])
    assert (theirs.end, theirs.safe) == (3, 0)
    pair.follower.store.flush()
    assert theirs.safe == 3


def test_epochs_are_those_of_the_records(pair: Pair) -> None:
    store = pair.leader.store
    data = logs_of(store)[0]
    assert (data.last_epoch, data.epoch_end(4)) == (-1, (4, 0))
    fill(store, SHARD, 3)
    data.begin_epoch(5)
    assert (data.last_epoch, data.epoch_end(9)) == (1, (5, 3))
    fill(store, SHARD, 2)
    assert (data.last_epoch, data.epoch_end(4), data.epoch_end(0)) == (5, (1, 3), (0, 0))
    copy_all(pair)
    theirs = logs_of(pair.follower.store)[0]
    assert (theirs.last_epoch, theirs.epoch_end(4)) == (5, (1, 3))
    theirs.cut(3)
    assert (theirs.last_epoch, theirs.epoch_end(9)) == (1, (1, 3))
    with pytest.raises(BadRequestError):
        data.begin_epoch(4)


def test_records_from_before_replication_have_epoch_zero(rig: Rig) -> None:
    store = rig.store
    create(store, SHARD)
    fill(store, SHARD, 4)
    data = logs_of(store)[0]
    data.begin_epoch(9)
    fill(store, SHARD, 2)
    assert (data.epoch_end(3), data.epoch_end(0), data.epoch_end(9)) == ((0, 4), (0, 4), (9, 6))


@pytest.mark.parametrize("how", ["kill", "restart", "crash"])
def test_a_cut_outlasts_the_loss_of_queues_and_states(how: str) -> None:
    pair = Pair()
    fill(pair.leader.store, SHARD, 9)
    copy_all(pair)
    theirs = logs_of(pair.follower.store)[0]
    pair.follower.store.checkpoint()
    theirs.cut(4)
    if how == "crash":
        pair.follower.store.flush()
        pair.follower.crash(1)
    elif how == "kill":
        pair.follower.kill()
    else:
        pair.follower.restart()
    assert logs_of(pair.follower.store)[0].end == 4
    pair.follower.abandon()
    disk, root = pair.follower.disk, pair.follower.root
    disk.kill()
    for directory in ("consumequeue", "penstock"):
        disk.remove_tree(f"{root}/{directory}")
    assert logs_of(pair.follower.store)[0].end == 4


@pytest.mark.parametrize("how", ["restart", "kill", "without states", "without a checkpoint"])
def test_a_wrong_clock_of_the_leader_stays_in_its_shard_after_a_restart(how: str) -> None:
    pair = Pair()
    other = ShardId("other", 0)
    create(pair.follower.store, other)
    pair.follower.store.append(other, record(0))
    if how == "kill":
        pair.follower.store.checkpoint()
    pair.leader.clock.advance(milliseconds=1_000_000_000)
    fill(pair.leader.store, SHARD, 3)
    copy_all(pair)
    if how == "restart":
        pair.follower.restart()
    elif how != "without states":
        pair.follower.kill()
    else:
        pair.follower.abandon()
        pair.follower.disk.kill()
        pair.follower.disk.remove_tree(f"{pair.follower.root}/penstock/shards")
    store = pair.follower.store
    store.append(other, record(1))
    now_ms = pair.follower.clock.now_ms()
    assert [found.store_timestamp_ms for found in everything(store, other)] == [now_ms] * 2
    ahead_ms = pair.leader.clock.now_ms()
    for log in logs_of(store):
        log.set_commit(log.end)
    assert [found.store_timestamp_ms for found in everything(store, SHARD)] == [ahead_ms] * 3


def test_many_cuts_make_no_checkpoint(pair: Pair) -> None:
    fill(pair.leader.store, SHARD, 20)
    copy_all(pair)
    store = pair.follower.store
    store.checkpoint()
    position = store._parts.checkpointer.position
    for offset in range(15, 5, -1):
        logs_of(store)[0].cut(offset)
    assert store._parts.checkpointer.position == position
    assert store.bounds(SHARD).next == 6
    fill(pair.leader.store, SHARD, 3)
    copy_all(pair)
    store.checkpoint()
    commit_all(pair)
    assert values(store, SHARD) == values(pair.leader.store, SHARD)
    pair.follower.kill()
    commit_all(pair)
    assert values(pair.follower.store, SHARD) == values(pair.leader.store, SHARD)


def test_a_cut_leaves_producers_as_if_it_had_not_been_written(pair: Pair) -> None:
    store = pair.leader.store
    for sequence in range(12):
        store.append_once(SHARD, [record(sequence)], Producer(3, 0, sequence))
    copy_all(pair)
    theirs = logs_of(pair.follower.store)[0]
    theirs.cut(6)
    # A repeat of a write that is still there, none of whose followers is.
    expected = [(0, sequence, 1, sequence) for sequence in range(1, 6)]
    for _ in range(2):
        found = pair.follower.store.state(SHARD).producers.writes_of(3)
        assert [write[:4] for write in found] == expected
        pair.follower.kill()


@pytest.mark.parametrize("kind", list(QueueKind))
@pytest.mark.parametrize("start", [100, 5_000_000])
@pytest.mark.parametrize("lost", [(), ("consumequeue", "batchconsumequeue"), ("penstock",)])
def test_a_log_begins_anew_where_its_leader_does(
    kind: QueueKind, start: int, lost: tuple[str, ...]
) -> None:
    follower = Rig()
    create(follower.store, SHARD, kind=kind)
    for log in logs_of(follower.store):
        log.begin_epoch(1)
    fill(follower.store, SHARD, 3)
    follower.store.checkpoint()
    leader = Rig()
    leader.store.create_shard(SHARD, kind, start_offset=start)
    data = logs_of(leader.store)[0]
    data.begin_epoch(2)
    fill(leader.store, SHARD, 30)
    theirs = logs_of(follower.store)[0]
    theirs.follow()
    theirs.restart_at(start)
    assert (theirs.start, theirs.end, theirs.commit, theirs.last_epoch) == (start, start, start, -1)
    follower.kill()
    theirs = logs_of(follower.store)[0]
    assert (theirs.start, theirs.end, theirs.commit) == (start, start, start)
    theirs.append_range(data.read_range(start, 2000)[0])
    theirs.set_commit(theirs.end)
    end = theirs.end
    follower.abandon()
    follower.disk.kill()
    for directory in lost:
        follower.disk.remove_tree(f"{follower.root}/{directory}")
    theirs = logs_of(follower.store)[0]
    assert (theirs.start, theirs.end) == (start, end)
    while theirs.end < data.end:
        theirs.append_range(data.read_range(theirs.end, 2000)[0])
    for log in (theirs, data):
        log.set_commit(log.end)
    assert values(follower.store, SHARD) == values(leader.store, SHARD)
    assert theirs.damaged_at is None


def test_a_command_acts_when_it_is_committed(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 6)
    commit_all(pair)
    with_delete = threading.Thread(target=lambda: store.delete_before(SHARD, 4))
    with_delete.start()
    companion = logs_of(store)[1]
    while companion.end == 0:
        time.sleep(0.001)
    assert store.bounds(SHARD).earliest == 0
    assert pair.leader.copy().store.bounds(SHARD).earliest == 0
    companion.set_commit(1)
    with_delete.join(60)
    assert store.bounds(SHARD).earliest == 4


def test_a_command_that_is_cut_never_acts(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 6)
    commit_all(pair)
    store.checkpoint()
    errors: list[DeadlineError] = []

    def delete() -> None:
        try:
            store.delete_offsets(SHARD, [1])
        except DeadlineError as error:
            errors.append(error)

    deleter = threading.Thread(target=delete)
    deleter.start()
    companion = logs_of(store)[1]
    while companion.end == 0:
        time.sleep(0.001)
    companion.follow()
    deleter.join(60)
    assert "outcome is unknown" in str(errors[0])
    companion.cut(0)
    store = pair.leader.kill()
    assert len(values(store, SHARD)) == 6
    assert logs_of(store)[1].end == 0


def test_of_two_deleters_one_counts_a_record(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 6)
    commit_all(pair)
    counts: list[int] = []

    def delete(offsets: list[int]) -> None:
        counts.append(store.delete_offsets(SHARD, offsets))

    deleters = [threading.Thread(target=delete, args=([1, 2, 3],)) for _ in range(3)]
    for deleter in deleters:
        deleter.start()
    companion = logs_of(store)[1]
    while any(deleter.is_alive() for deleter in deleters):
        companion.set_commit(companion.end)
        time.sleep(0.001)
    assert sum(counts) == 3
    assert store.delete_offsets(SHARD, [1, 2]) == 0


def test_a_flipped_bit_is_found_when_it_is_copied(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 6)
    data = logs_of(store)[0]
    position = store._table.get(SHARD).position_of(3)
    assert position is not None
    flip(store, position + 100)
    _, after = data.read_range(0, 100_000)
    assert after == 3
    assert bounds_of(data)[0] is None
    with pytest.raises(CorruptionError):
        data.read_range(3, 1000)
    assert bounds_of(data) == (3, 3, 6)
    data.cut(3)
    assert bounds_of(data) == (None, 3, 3)


def test_records_lost_at_the_start_are_not_claimed() -> None:
    pair = Pair()
    store = pair.leader.store
    fill(store, SHARD, 6)
    commit_all(pair)
    position = store._table.get(SHARD).position_of(3)
    assert position is not None
    store.flush()
    flip(store, position + 100)
    pair.leader.abandon()
    pair.leader.disk.kill()
    pair.leader.disk.remove_tree(f"{pair.leader.root}/consumequeue")
    pair.leader.disk.remove(f"{pair.leader.root}/penstock/checkpoint")
    data = logs_of(pair.leader.store)[0]
    assert bounds_of(data) == (3, 3, 6)


def test_given_up_records_are_holes_on_every_replica(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 3)
    store.append_many(SHARD, [record(n) for n in range(10, 14)])
    fill(store, SHARD, 3)
    data = logs_of(store)[0]
    position = store._table.get(SHARD).position_of(5)
    assert position is not None
    flip(store, position + 100)
    with pytest.raises(CorruptionError):
        data.read_range(3, 1000)
    assert bounds_of(data)[0] == 3
    data.give_up_damaged(0)
    assert bounds_of(data) == (None, 10, 10)
    copy_all(pair)
    theirs = logs_of(pair.follower.store)[0]
    assert (theirs.end, theirs.damaged_at) == (10, None)
    commit_all(pair)
    for rig in (pair.leader, pair.follower):
        assert [int(r.offset) for r in rig.store.read(SHARD, 7)] == [7, 8, 9]
        with pytest.raises(CorruptionError):
            rig.store.read(SHARD, 5)
        rig.store.checkpoint()
        rig.kill()
        data = logs_of(rig.store)[0]
        assert (data.damaged_at, data.end) == (None, 10)


def test_holes_keep_the_epochs_of_the_records_that_they_replace(pair: Pair) -> None:
    store = pair.leader.store
    fill(store, SHARD, 3)
    data = logs_of(store)[0]
    for epoch in (5, 6):
        data.begin_epoch(epoch)
        fill(store, SHARD, 2)
    for offset in range(2, 6):
        position = store._table.get(SHARD).position_of(offset)
        assert position is not None
        flip(store, position + 100)
        with pytest.raises(CorruptionError):
            data.read_range(offset, 1000)
        data.give_up_damaged(0)
    copy_all(pair)
    theirs = logs_of(pair.follower.store)[0]
    assert theirs.end == data.end == 7
    for rig in (pair.leader, pair.follower):
        for _ in range(2):
            log = logs_of(rig.store)[0]
            assert [log.epoch_end(epoch)[1] for epoch in (4, 5, 6)] == [3, 5, 7]
            rig.store.checkpoint()
            rig.kill()


@pytest.mark.parametrize("hole", [Hole(3, 9), Hole(3, 9, 4)])
def test_a_damaged_hole_is_refused(hole: Hole) -> None:
    data = encode_hole(hole)
    assert decode_hole(data) == hole
    for position in (0, 10, 20, len(data) - 6):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(ValueError, match="checksum"):
            decode_hole(bytes(damaged))


def bounds_of(log: SegmentReplicaLog) -> tuple[int | None, int, int]:
    return log.damaged_at, countable(log), log.end


def flip(store: SegmentStore, position: int) -> None:
    """Damage a byte of the log, as a device may."""
    files = store._parts.log.files
    base = files.base_of(position)
    files.buffer(base, writable=True)[position - base] ^= 0x40


def test_a_cut_before_the_commit_offset_holds_after_a_crash(pair: Pair) -> None:
    """A replay that takes the records after the cut before it folds the line of the journal."""
    fill(pair.leader.store, SHARD, 9)
    copy_all(pair)
    commit_all(pair)
    rig = pair.follower
    rig.store.checkpoint()
    theirs = logs_of(rig.store)[0]
    assert theirs.commit == 9
    theirs.cut(2)  # a repair
    theirs.append_range(logs_of(pair.leader.store)[0].read_range(2, 700)[0])
    rig.kill()
    theirs = logs_of(rig.store)[0]
    assert theirs.commit == 2 < theirs.end < 9


def test_a_write_of_another_kind_is_not_confused_with_a_hole(pair: Pair) -> None:
    store = pair.leader.store
    store.append(SHARD, Record(encode_hole(Hole(0, 5))))
    copy_all(pair)
    assert logs_of(pair.follower.store)[0].end == 1


def test_older_writes_are_found_in_files_and_in_memory(pair: Pair) -> None:
    store = pair.leader.store
    for sequence in range(4):
        store.append_once(SHARD, [record(sequence)], Producer(3, 0, sequence))
    store.checkpoint()
    for sequence in range(4, 14):
        store.append_once(SHARD, [record(sequence)], Producer(3, 0, sequence))
    logs_of(store)[0].follow()
    logs_of(store)[0].cut(6)
    assert [write.sequence for write in store.state(SHARD).producers.writes_of(3)] == [
        1,
        2,
        3,
        4,
        5,
    ]
