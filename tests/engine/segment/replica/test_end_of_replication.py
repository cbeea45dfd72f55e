"""A replicated shard becomes the only copy: it takes writes, shows all, and keeps it so."""

from __future__ import annotations

import pytest
from tests.engine.quick_directory import quick_directory
from tests.engine.segment.replica.replica_pair import SHARD, Pair, commit_all, copy_all, logs_of
from tests.engine.segment.rig import Rig, fill, offsets, record

from penstock.engine.contract import ShardConfig
from penstock.engine.memory.engine import MemoryStorageEngine
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.rocksdb.engine import RocksDBStorageEngine
from penstock.engine.segment import SegmentEngine
from penstock.engine.segment.retention import RetentionPolicy
from penstock.errors import NotLeaderError
from penstock.record import Flush, Offset, Record


@pytest.mark.parametrize("flush", list(Flush))
@pytest.mark.parametrize("is_follower", [False, True])
def test_the_only_copy_shows_all_and_takes_writes_after_every_start(
    flush: Flush, is_follower: bool
) -> None:
    pair = Pair(flush=flush)
    fill(pair.leader.store, SHARD, 5)
    copy_all(pair)
    commit_all(pair)
    fill(pair.leader.store, SHARD, 3, first=5)
    copy_all(pair)
    rig = pair.follower if is_follower else pair.leader
    if not (is_follower and flush is Flush.SYNC):  # that copy is not on its device yet
        assert offsets(rig.store, SHARD) == list(range(5)), "the others are not committed"
    rig.store.replicas.close_to_clients(SHARD)
    with pytest.raises(NotLeaderError):
        rig.store.append(SHARD, record(9))
    rig.store.flush()
    rig.store.replicas.end(SHARD)
    shown = list(range(8))
    for store in rig.lives():
        assert offsets(store, SHARD) == shown
        assert not store.state(SHARD).is_replicated
        shown.append(store.append(SHARD, record(len(shown))))
        assert store.delete_offsets(SHARD, [shown.pop(0)]) == 1
        assert offsets(store, SHARD) == shown


def test_commands_that_were_not_committed_act_at_the_end() -> None:
    pair = Pair()
    fill(pair.leader.store, SHARD, 6)
    commit_all(pair, data=True)
    store = pair.leader.store
    store.retention.set_policy(SHARD, RetentionPolicy(records=2))
    store.run_upkeep()
    assert offsets(store, SHARD) == list(range(6))
    engine_end(pair.leader)
    for each in pair.leader.lives():
        assert offsets(each, SHARD) == [4, 5]


def engine_end(rig: Rig) -> None:
    rig.store.replicas.close_to_clients(SHARD)
    rig.store.flush()
    rig.store.replicas.end(SHARD)


def test_a_shard_that_gets_copies_again_goes_on_with_what_it_showed() -> None:
    pair = Pair()
    fill(pair.leader.store, SHARD, 4)
    commit_all(pair, data=True)
    engine_end(pair.leader)
    fill(pair.leader.store, SHARD, 2, first=4)
    records, _ = logs_of(pair.leader.store)
    assert (records.commit, records.end) == (6, 6)
    records.begin_epoch(7)
    fill(pair.leader.store, SHARD, 1, first=6)
    assert records.epoch_end(7) == (7, 7)
    assert records.commit == 6


@pytest.mark.parametrize("kind", ["memory", "rocksdb", "segment"])
def test_every_engine_ends_and_begins_replication(kind: str) -> None:
    with quick_directory() as directory:
        engine: MemoryStorageEngine | RocksDBStorageEngine | SegmentEngine
        match kind:
            case "memory":
                engine = MemoryStorageEngine()
            case "rocksdb":
                engine = RocksDBStorageEngine.open(directory)
            case _:
                engine = SegmentEngine(Rig().store)
        engine.create_shard(SHARD, ShardConfig())
        engine.write(SHARD, Record(b"0"))
        engine.end_replication(SHARD)  # it is not replicated: nothing happens
        for epoch, count in enumerate((1, 3), start=1):
            logs: list[ReplicaLog] = list(engine.replica_logs(SHARD))
            assert logs[0].commit == count
            with pytest.raises(NotLeaderError):
                engine.write(SHARD, Record(b"refused"))
            for log in logs:
                log.begin_epoch(epoch)
            engine.write(SHARD, Record(b"not committed"))
            assert engine.shard_info(SHARD).commit == count
            engine.end_replication(SHARD)
            assert engine.shard_info(SHARD).commit == count + 1
            assert engine.write(SHARD, Record(b"alone")).first == count + 1
            assert engine.delete_records_before(SHARD, Offset(0)) == 0
        engine.close()
