"""Commands on replicated shards: written by the leader, done by every replica when committed."""

from __future__ import annotations

from tests.engine.segment.replica.replica_pair import SHARD, Pair, commit_all, copy_all, logs_of
from tests.engine.segment.rig import Rig, create, fill, offsets, record

from penstock.engine.contract import Cleanup, Compacted, ShardConfig
from penstock.engine.segment import SegmentEngine
from penstock.engine.segment.retention import RetentionPolicy
from penstock.record import Record


def test_retention_runs_where_the_shard_is_led() -> None:
    pair = Pair()
    fill(pair.leader.store, SHARD, 10)
    copy_all(pair)
    commit_all(pair)
    for rig in (pair.leader, pair.follower):
        rig.store.retention.set_policy(SHARD, RetentionPolicy(records=3))
        rig.store.run_upkeep()
        rig.store.run_upkeep()
        rig.store.retention.apply(SHARD)
    ours, theirs = logs_of(pair.leader.store)[1], logs_of(pair.follower.store)[1]
    assert (ours.end, theirs.end) == (1, 0)
    # It is not committed yet.
    assert len(offsets(pair.leader.store, SHARD)) == 10
    copy_all(pair)
    commit_all(pair)
    for rig in (pair.leader, pair.follower):
        assert offsets(rig.store, SHARD) == [7, 8, 9]
        assert logs_of(rig.store)[0].start == 7


def test_a_new_leader_asks_again_for_what_the_old_one_could_not_commit() -> None:
    pair = Pair()
    fill(pair.leader.store, SHARD, 10)
    copy_all(pair)
    commit_all(pair)
    store = pair.leader.store
    store.retention.set_policy(SHARD, RetentionPolicy(records=3))
    store.run_upkeep()
    for log in logs_of(store):
        log.follow()
    logs_of(store)[1].cut(0)
    for log in logs_of(store):
        log.begin_epoch(3)
    store.run_upkeep()
    assert logs_of(store)[1].end == 1


def test_compaction_runs_where_the_shard_is_led() -> None:
    rigs = Rig(), Rig()
    engines = [SegmentEngine(rig.store) for rig in rigs]
    for engine in engines:
        engine.create_shard(SHARD, ShardConfig(cleanup=Cleanup.COMPACT))
        engine.replica_logs(SHARD)
    pair = Pair.of(*rigs)
    for n in range(6):
        engines[0].write(SHARD, Record(b"%d" % n, key=b"k%d" % (n % 2)))
    copy_all(pair)
    commit_all(pair)
    assert engines[1].compact(SHARD) == Compacted(0, 0)
    assert pair.do(lambda: engines[0].compact(SHARD)).records == 4
    copy_all(pair)
    commit_all(pair)
    for rig in rigs:
        assert offsets(rig.store, SHARD) == [4, 5]


def test_latest_is_the_commit_offset() -> None:
    rig = Rig()
    engine = SegmentEngine(rig.store)
    engine.create_shard(SHARD, ShardConfig())
    for log in engine.replica_logs(SHARD):
        log.begin_epoch(1)
    fill(rig.store, SHARD, 5)
    engine.replica_logs(SHARD)[0].set_commit(2)
    info = engine.shard_info(SHARD)
    assert (info.commit, info.latest) == (2, 2)
    assert engine.bounds(SHARD) == (0, 2)
    assert engine.epoch_end(SHARD, 9) == (9, 2)


def test_log_files_stay_until_their_commands_are_written_again() -> None:
    """A new replica gets every delete, however long ago it was."""
    pair = Pair()
    store = pair.leader.store
    fill(store, SHARD, 8)
    commit_all(pair, data=True)
    pair.do(lambda: store.delete_offsets(SHARD, [5, 7]))
    pair.do(lambda: store.delete_before(SHARD, 2))
    create(store, other := SHARD._replace(topic="other"))
    store.append(other, record(0, size=7000))
    store.append_many(SHARD, [record(n, size=20) for n in range(8, 12)])
    logs_of(store)[0].set_commit(12)
    pair.do(lambda: store.delete_before(SHARD, 4))
    start = store.bounds(other).start_position
    for n in range(3):
        store.append(other, record(n, size=7000))
    store.delete_before(other, 4)
    # What is deleted is in the first file, and so is what is not.
    store.run_upkeep()
    assert store.bounds(other).start_position == start
    pair.do(lambda: store.delete_before(SHARD, 8))
    assert logs_of(store)[1].end == 4
    store.run_upkeep()
    ours = logs_of(store)[1]
    assert (ours.end, store.bounds(other).start_position) == (5, start)
    store.run_upkeep()
    assert ours.end == 5, "it is written once"
    ours.set_commit(5)
    store.run_upkeep()
    assert store.bounds(other).start_position > start
    assert ours.start > 0
    theirs = logs_of(pair.follower.store)
    for log, own in zip(logs_of(store), theirs, strict=True):
        own.restart_at(log.start)
    copy_all(pair)
    commit_all(pair)
    assert offsets(pair.follower.store, SHARD) == offsets(store, SHARD) == [8, 9, 10, 11]
    assert pair.follower.store.bounds(SHARD).earliest == 8


def test_restated_commands_say_everything() -> None:
    pair = Pair()
    store = pair.leader.store
    fill(store, SHARD, 20)
    commit_all(pair, data=True)
    pair.do(lambda: store.delete_offsets(SHARD, [5, 7, 8, 15]))
    pair.do(lambda: store.delete_before(SHARD, 2))
    pair.do(lambda: store.seal(SHARD))
    store.replicas.restate(store._table.get(SHARD))
    ours = logs_of(store)[1]
    ours.set_commit(ours.end)
    theirs = logs_of(pair.follower.store)
    theirs[1].restart_at(store.state(SHARD).restated_from)
    copy_all(pair)
    commit_all(pair)
    other = pair.follower.store
    assert offsets(other, SHARD) == offsets(store, SHARD)
    assert other.state(SHARD).sealed
    assert other.state(SHARD).restated_from == store.state(SHARD).restated_from == 3
    for rig in (pair.leader, pair.follower):
        rig.store.checkpoint()
        assert rig.kill().state(SHARD).restated_from == 3


def test_a_follower_on_a_full_disk_removes_no_records() -> None:
    pair = Pair()
    fill(pair.leader.store, SHARD, 200)
    copy_all(pair)
    commit_all(pair)
    for rig in (pair.follower, pair.leader):
        rig.store.checkpoint()
        assert not rig.store.retention.remove_oldest_file()
        assert rig.store.bounds(SHARD).earliest == 0
    assert logs_of(pair.follower.store)[1].end == 0
    copy_all(pair)
    commit_all(pair)
    starts = [rig.store.bounds(SHARD).earliest for rig in (pair.leader, pair.follower)]
    assert starts[0] == starts[1] > 0
