"""The logs of replicated shards in memory and in RocksDB, method by method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.engine.quick_directory import quick_directory

from penstock.engine.contract import AdapterOffsetStrategy, ShardConfig
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.engine.row_replica import Replica
from penstock.engine.row_replica.operations import (
    OperationEntry,
    Remove,
    Snapshot,
    encode_operation,
)
from penstock.errors import (
    BusyError,
    CorruptionError,
    DeadlineError,
    NotLeaderError,
    RecordTooLargeError,
    ShardSealedError,
)
from penstock.record import Flush, Offset, Producer, Record, ShardId
from penstock.testing.conformance.engines import copy_at_rest
from penstock.testing.manual_clock import ManualClock

SHARD: Final = ShardId("orders", 0)
LATEST: Final = AdapterOffsetStrategy.LATEST
RowEngine = MemoryStorageEngine | RocksDBStorageEngine


class Node:
    """An engine with one replicated shard."""

    def __init__(self, engine: RowEngine, config: ShardConfig | None = None) -> None:
        self.engine = engine
        engine.create_shard(SHARD, config or ShardConfig())
        self.records, self.operations = self.logs = engine.replica_logs(SHARD)
        self.replica.operation_s = 0.0  # nothing else commits while a client waits

    @property
    def replica(self) -> Replica:
        replica = self.engine._shards[SHARD].replica
        assert replica is not None
        return replica

    def lead(self, epoch: int = 1) -> Node:
        for log in self.logs:
            log.begin_epoch(epoch)
        return self

    def commits_at_once(self) -> Node:
        self.engine.on_operation = lambda _: self.commit()
        return self

    def commit(self) -> None:
        for log in self.logs:
            if log.safe > log.commit:
                log.set_commit(log.safe)

    def put(self, *values: bytes, producer: Producer | None = None) -> int:
        records = [Record(value=value, key=value[:1], tags=("t",)) for value in values]
        return self.engine.batch_write(SHARD, records, producer=producer).first

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.engine.read_by_offset(SHARD, Offset(0))]

    def copy_from(self, other: Node) -> None:
        for own, log in zip(self.logs, other.logs, strict=True):
            while own.end < log.end:
                own.append_range(log.read_range(own.end, 200)[0])
            own.set_commit(max(own.commit, min(own.safe, log.commit)))


MakeEngine = Callable[[], RowEngine]


@pytest.fixture
def directory() -> Iterator[Path]:
    with quick_directory() as path:
        yield Path(path)


@pytest.fixture(params=["memory", "rocksdb"])
def make(request: pytest.FixtureRequest, directory: Path) -> Iterator[MakeEngine]:
    engines: list[RowEngine] = []
    clock = ManualClock()

    def make() -> RowEngine:
        if request.param == "memory":
            engine: RowEngine = MemoryStorageEngine(clock)
        else:
            engine = RocksDBStorageEngine.open(str(directory / str(len(engines))), clock)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def test_clients_write_only_between_begin_epoch_and_follow(make: MakeEngine) -> None:
    node = Node(make())
    with pytest.raises(NotLeaderError):
        node.put(b"early")
    node.lead(epoch=3)
    assert node.put(b"a") == 0
    node.records.follow()
    with pytest.raises(NotLeaderError):
        node.put(b"late")
    with pytest.raises(NotLeaderError):
        node.engine.delete_by_offset(SHARD, Offset(0))
    assert (node.records.end, node.records.last_epoch) == (1, 3)
    other = Node(make())
    other.copy_from(node)  # is not affected
    assert (other.records.end, other.records.last_epoch) == (1, 3)


def test_no_reader_passes_the_commit_offset(make: MakeEngine) -> None:
    node = Node(make()).lead()
    engine = node.engine
    node.put(b"a1")
    node.commit()
    node.put(b"a2", b"b")
    assert node.values() == [b"a1"]
    assert [record.offset for record in engine.read_by_tag(SHARD, "t")] == [0]
    newest = engine.read_by_key(SHARD, b"a")
    assert newest is not None
    assert newest.offset == 0
    assert engine.read_by_key(SHARD, b"b") is None
    assert engine.query_by_key(SHARD, b"b") == []
    info = engine.shard_info(SHARD)
    assert (info.commit, info.latest) == (1, 1)
    assert engine.get_offset_by_timestamp(SHARD, 1 << 60, LATEST) == 1
    assert engine.get_offset_by_timestamp(SHARD, newest.timestamp_ms, LATEST) == 0
    assert not engine.delete_by_offset(SHARD, Offset(1))
    node.commit()
    assert node.values() == [b"a1", b"a2", b"b"]


def test_a_damaged_range_is_refused_and_nothing_of_it_is_appended(make: MakeEngine) -> None:
    leader = Node(make()).lead().commits_at_once()
    leader.put(b"a", b"b", producer=Producer(1, 0, 0))
    leader.put(b"c")
    leader.commit()
    leader.engine.delete_by_offset(SHARD, Offset(0))
    other = Node(make())
    for own, log in zip(other.logs, leader.logs, strict=True):
        data, end = log.read_range(0, 1 << 20)
        assert end == log.end
        for position in range(len(data)):
            damaged = bytearray(data)
            damaged[position] ^= 0x10
            with pytest.raises(CorruptionError):
                own.append_range(bytes(damaged))
            assert own.end == 0
        with pytest.raises(CorruptionError):
            own.append_range(data[:-1])
        own.append_range(data)
        with pytest.raises(CorruptionError):
            own.append_range(data)  # it follows nothing here
        assert own.end == log.end


def test_a_delete_acts_when_it_is_committed_and_not_before(make: MakeEngine) -> None:
    leader, follower = Node(make()).lead(), Node(make())
    leader.put(b"a", b"b", b"c")
    leader.commit()
    follower.copy_from(leader)
    with pytest.raises(DeadlineError, match="the outcome is unknown"):
        leader.engine.delete_by_offset(SHARD, Offset(1))
    follower.copy_from(leader)
    assert leader.values() == follower.values() == [b"a", b"b", b"c"]
    leader.commit()
    assert leader.values() == [b"a", b"c"]
    assert follower.values() == [b"a", b"b", b"c"]
    follower.copy_from(leader)
    assert follower.values() == [b"a", b"c"]


def test_a_delete_that_another_leader_cuts_never_acts(make: MakeEngine) -> None:
    old, new = Node(make()).lead(1), Node(make())
    old.put(b"a", b"b")
    old.commit()
    new.copy_from(old)
    with pytest.raises(DeadlineError):
        old.engine.delete_records_before(SHARD, Offset(2))
    old.records.follow()
    new.lead(2).commits_at_once()
    new.engine.delete_by_offset(SHARD, Offset(0))
    assert new.operations.epoch_end(1) == (1, 0)
    old.operations.cut(0)
    old.copy_from(new)
    assert old.values() == new.values() == [b"b"]
    assert old.engine.shard_info(SHARD).earliest == 0


def test_a_client_learns_that_its_leader_has_changed(make: MakeEngine) -> None:
    node = Node(make()).lead()
    node.replica.operation_s = 60.0
    node.put(b"a")
    node.commit()
    node.engine.on_operation = lambda _: node.records.follow()
    with pytest.raises(DeadlineError, match="leads 'orders_0' no more"):
        node.engine.delete_by_offset(SHARD, Offset(0))


def test_a_seal_refuses_writes_but_not_copies(make: MakeEngine) -> None:
    leader, follower = Node(make()).lead().commits_at_once(), Node(make())
    leader.put(b"a")
    leader.engine.seal_shard(SHARD)
    with pytest.raises(ShardSealedError):
        leader.put(b"b")
    follower.operations.append_range(leader.operations.read_range(0, 1_000)[0])
    follower.operations.set_commit(1)
    follower.copy_from(leader)
    assert follower.values() == [b"a"]
    assert follower.engine.shard_info(SHARD).sealed


def test_a_cut_undoes_producers_exactly(make: MakeEngine) -> None:
    node = Node(make()).lead()
    for sequence in range(9):
        node.put(b"v", producer=Producer(1, 0, sequence))
    node.put(b"w", producer=Producer(2, 0, 0))
    node.records.cut(6)
    node.lead(2)
    for sequence in range(1, 6):  # the last five
        written = node.engine.write(SHARD, Record(value=b"v"), producer=Producer(1, 0, sequence))
        assert (written.first, written.repeated) == (sequence, True)
    assert node.put(b"v", producer=Producer(1, 0, 6)) == 6
    assert node.put(b"w", producer=Producer(2, 0, 0)) == 7
    assert node.records.epoch_end(1) == (1, 6)


def test_a_cut_keeps_look_ups_by_key_tag_and_time(make: MakeEngine) -> None:
    cut, never = Node(make()).lead(), Node(make())
    for start in range(0, 3_000, 250):
        records = [
            Record(value=b"%d" % n, key=b"%d" % (n % 7), tags=("t",), timestamp_ms=n * 10)
            for n in range(start, start + 250)
        ]
        cut.engine.batch_write(SHARD, records)
    while never.records.end < 1_250:
        never.records.append_range(cut.records.read_range(never.records.end, 1)[0])
    cut.records.cut(1_250)
    cut.lead(2)
    cut.engine.batch_write(SHARD, [Record(value=b"new", key=b"1", timestamp_ms=5_000)] * 1_500)
    cut.commit()
    never.copy_from(cut)
    for node in (cut, never):
        engine = node.engine
        assert node.records.end == 2_750
        assert len(engine.read_by_tag(SHARD, "t", max_records=9_999)) == 1_250
        assert engine.get_offset_by_timestamp(SHARD, 12_490, LATEST) == 1_249
        assert engine.get_offset_by_timestamp(SHARD, 12_500, LATEST) == 2_750
        assert engine.get_offset_by_timestamp(SHARD, 5_000, LATEST) == 500
        assert len(engine.query_by_key(SHARD, b"1", limit=9_999)) == 179 + 1_500
    if isinstance(cut.engine, RocksDBStorageEngine):
        assert isinstance(never.engine, RocksDBStorageEngine)
        assert kinds(cut.engine) == kinds(never.engine)


def kinds(engine: RocksDBStorageEngine) -> dict[str, int]:
    """Count the rows of records and their indexes by kind."""
    counts: dict[str, int] = {}
    for key, _ in engine._family.scan(b"D", b"E"):
        counts[chr(key[9])] = counts.get(chr(key[9]), 0) + 1
    return {kind: count for kind, count in counts.items() if kind in "RKTXB"}


def test_followers_copy_whole_writes(make: MakeEngine) -> None:
    leader, follower = Node(make()).lead(), Node(make())
    leader.put(*[bytes(100)] * 20)
    leader.put(b"x")
    data, end = leader.records.read_range(0, 1)
    assert end == 20
    follower.records.append_range(data)
    assert follower.records.end == 20
    follower.records.cut(7)  # damage: what is left of the write goes, too
    assert follower.records.end == 0


def test_an_open_transaction_travels_and_its_end_acts_at_the_commit(make: MakeEngine) -> None:
    leader, follower = Node(make()).lead().commits_at_once(), Node(make())
    leader.put(b"a", producer=Producer(7, 0, 0, is_transactional=True))
    leader.put(b"b")
    leader.commit()
    follower.copy_from(leader)
    leader.records.follow()
    follower.lead(2).commits_at_once()
    assert follower.engine.end_transaction(SHARD, 7, Offset(0), is_commit=False) == 1
    assert follower.values() == [b"b"]
    assert follower.engine.end_transaction(SHARD, 7, Offset(0), is_commit=False) == 0
    leader.copy_from(follower)
    assert leader.values() == [b"b"]


def test_a_follower_behind_the_stream_of_operations_begins_anew(make: MakeEngine) -> None:
    leader, late, fresh = Node(make()).lead().commits_at_once(), Node(make()), Node(make())
    leader.replica.snapshot_every = 4
    leader.put(*[b"v%d" % n for n in range(20)])
    leader.commit()
    late.copy_from(leader)
    for offset in range(12):
        leader.engine.delete_by_offset(SHARD, Offset(offset))
    leader.engine.delete_records_before(SHARD, Offset(5))
    assert leader.operations.start > 4
    assert len(leader.replica.operations) < 12
    for node in (late, fresh):
        node.operations.restart_at(leader.operations.start)
        assert node.records.end == node.records.start
        if node.records.end < leader.records.start:
            node.records.restart_at(leader.records.start)
        node.copy_from(leader)
        assert node.values() == leader.values()
        assert node.engine.shard_info(SHARD).earliest == 5


def test_other_operations_up_to_the_leaders_first_are_dropped(make: MakeEngine) -> None:
    node = Node(make())
    wrong = OperationEntry.of(1, Remove(0, (0,)))
    node.operations.append_range(encode_operation(0, wrong) + encode_operation(1, wrong))
    snapshot = OperationEntry.of(3, Snapshot(0, 0, is_sealed=False, epoch_before=2))
    node.operations.append_range(encode_operation(2, snapshot))
    assert (node.operations.start, node.operations.end, node.operations.last_epoch) == (2, 3, 3)
    same = OperationEntry.of(3, Snapshot(0, 0, is_sealed=False, epoch_before=3))
    node.operations.append_range(encode_operation(3, same))
    assert (node.operations.start, node.operations.end) == (2, 4)


def test_operations_act_again_on_records_that_are_copied_again(make: MakeEngine) -> None:
    leader, other = Node(make()).lead().commits_at_once(), Node(make())
    slow = Node(make())
    leader.put(b"a", b"b")
    leader.put(b"c")
    leader.commit()
    slow.copy_from(leader)
    leader.engine.delete_by_offset(SHARD, Offset(2))
    other.copy_from(leader)
    other.records.cut(2)  # as a repair does; the next leader has not seen the commit yet
    slow.operations.append_range(leader.operations.read_range(0, 1_000)[0])
    other.records.append_range(slow.records.read_range(2, 1_000)[0])
    other.records.set_commit(3)
    assert other.values() == [b"a", b"b"]


def test_a_shard_with_records_becomes_replicated_with_all_of_them(make: MakeEngine) -> None:
    engine = make()
    engine.create_shard(SHARD, ShardConfig())
    for sequence in range(3):
        producer = Producer(5, 0, sequence, is_transactional=sequence == 2)
        engine.write(SHARD, Record(value=b"p%d" % sequence, key=b"p"), producer=producer)
        engine.batch_write(SHARD, [Record(value=bytes(150), tags=("t",))] * 3)
    engine.delete_by_offset(SHARD, Offset(1))
    leader, follower = Node(engine), Node(make())
    assert leader.records.commit == leader.records.end == 12
    before = leader.values()
    leader.lead(4)
    leader.put(b"new")
    leader.commit()
    follower.copy_from(leader)
    assert follower.values() == leader.values() == [*before, b"new"]
    assert follower.records.epoch_end(0) == leader.records.epoch_end(0) == (0, 12)
    follower.lead(5)
    again = follower.engine.write(SHARD, Record(value=b"p"), producer=Producer(5, 0, 2))
    assert (again.first, again.repeated) == (8, True)
    follower.commits_at_once()
    assert follower.engine.end_transaction(SHARD, 5, Offset(0), is_commit=False) == 1


def test_the_last_replica_can_be_a_shard_without_replicas_again(make: MakeEngine) -> None:
    node = Node(make()).lead()
    node.put(b"a")
    engine = node.engine
    engine.end_replication(SHARD)
    assert node.values() == [b"a"]
    engine.write(SHARD, Record(value=b"b"))
    assert engine.delete_by_offset(SHARD, Offset(0))
    assert node.values() == [b"b"]
    again = Node(engine)
    assert again.records.commit == 2
    with pytest.raises(NotLeaderError):
        again.put(b"c")


def test_a_write_that_no_message_can_carry_is_refused(make: MakeEngine) -> None:
    node = Node(make(), ShardConfig(record_size_max=64 << 20)).lead()
    for batch in ([Record(value=bytes(16 << 20))], [Record(value=b"")] * 400_000):
        with pytest.raises(RecordTooLargeError):
            node.engine.batch_write(SHARD, batch)
    assert node.records.end == 0
    assert node.put(b"small") == 0


def test_a_full_memory_shard_evicts_when_its_replicas_have_confirmed() -> None:
    config = ShardConfig(memory_records_max=100)
    leader = Node(MemoryStorageEngine(), config).lead()
    follower = Node(MemoryStorageEngine(), config)
    for number in range(100):
        leader.put(b"%d" % number)
    leader.commit()
    follower.copy_from(leader)
    leader.put(b"one more")
    assert (leader.records.start, leader.operations.end) == (0, 1)
    for number in range(24):
        leader.put(b"%d" % number)
    assert leader.operations.end == 1
    with pytest.raises(BusyError, match="until its replicas confirm"):
        leader.put(b"too many")
    leader.commit()
    assert leader.records.start > 0
    follower.copy_from(leader)
    assert follower.records.start == leader.records.start
    assert follower.values() == leader.values()
    leader.put(b"room again")


def rocksdb_node(path: Path, flush: Flush = Flush.ASYNC) -> Node:
    engine = RocksDBStorageEngine.open(str(path), ManualClock())
    return Node(engine, ShardConfig(flush=flush))


def reopened(node: Node, path: Path, copy: Path) -> Node:
    """Return the node as the end of its process leaves it."""
    copy_at_rest(path, copy)
    node.engine.close()
    return rocksdb_node(copy)


def test_a_replica_in_rocksdb_opens_closed_and_shows_what_it_knew_as_committed(
    directory: Path,
) -> None:
    node = rocksdb_node(directory / "a").lead(7)
    node.put(b"a", b"b")
    node.commit()
    node.put(b"c")
    with pytest.raises(DeadlineError):
        node.engine.delete_by_offset(SHARD, Offset(0))
    node = reopened(node, directory / "a", directory / "b")
    assert node.values() == [b"a", b"b"]
    assert node.engine.shard_info(SHARD).latest == 2
    assert (node.records.end, node.records.commit, node.records.last_epoch) == (3, 2, 7)
    assert (node.operations.end, node.operations.commit, node.operations.last_epoch) == (1, 0, 7)
    with pytest.raises(NotLeaderError):
        node.put(b"d")
    node.lead(8)
    node.commit()
    assert node.values() == [b"b", b"c"]
    node.engine.close()


def test_a_cut_survives_the_end_of_the_process(directory: Path) -> None:
    node = rocksdb_node(directory / "a").lead(1)
    node.put(b"a", producer=Producer(1, 0, 0))
    node.put(b"b", producer=Producer(1, 0, 1))
    node.operations.append_range(encode_operation(0, OperationEntry.of(1, Remove(1, (0,)))))
    node.records.cut(1)
    node.operations.cut(0)
    node = reopened(node, directory / "a", directory / "b")
    assert (node.records.end, node.operations.end) == (1, 0)
    node.lead(2)
    assert node.put(b"B", producer=Producer(1, 0, 1)) == 1
    assert node.records.epoch_end(1) == (1, 1)
    node.engine.close()


def test_a_synchronous_replica_counts_for_what_is_on_the_device(directory: Path) -> None:
    leader = rocksdb_node(directory / "a", Flush.SYNC).lead()
    leader.put(b"a")
    assert leader.records.safe == 1
    follower = rocksdb_node(directory / "b", Flush.SYNC)
    follower.copy_from(leader)
    assert (follower.records.end, follower.records.safe) == (1, 0)
    assert isinstance(follower.engine, RocksDBStorageEngine)
    follower.engine.sync()
    assert follower.records.safe == 1
    mark = follower.engine._shards[SHARD].sync_mark()
    follower.records.cut(0)
    follower.copy_from(leader)
    follower.engine._shards[SHARD].synced(mark)  # it began before the cut
    assert (follower.records.end, follower.records.safe) == (1, 0)
    for node in (leader, follower):
        node.engine.close()


def test_damaged_rows_are_named_cut_and_copied_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, node = rocksdb_node(directory / "a").lead(), rocksdb_node(directory / "b")
    for number in range(6):
        leader.put(b"%d" % number)
    leader.commit()
    node.copy_from(leader)
    damage(monkeypatch, node, 3)
    _, end = node.records.read_range(0, 1 << 20)
    assert end == 3
    with pytest.raises(CorruptionError):
        node.records.read_range(3, 1 << 20)
    found = node.records.damaged_at
    assert found == 3
    node.records.cut(found)
    monkeypatch.undo()
    assert (node.replica.damaged_at, node.records.end, node.records.commit) == (None, 3, 3)
    node.copy_from(leader)
    assert node.values() == leader.values()
    assert [r.offset for r in node.engine.read_by_tag(SHARD, "t")] == list(range(6))
    for each in (leader, node):
        each.engine.close()


def test_damaged_rows_of_the_last_replica_become_holes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = rocksdb_node(directory / "a").lead()
    for number in range(6):
        node.put(b"%d" % number)
    node.commit()
    damage(monkeypatch, node, 3)
    with pytest.raises(CorruptionError):
        node.records.read_range(3, 1 << 20)
    node.records.give_up_damaged(0)
    monkeypatch.undo()
    assert node.records.damaged_at is None
    assert node.values() == [b"0", b"1", b"2", b"4", b"5"]
    assert node.records.read_range(3, 1 << 20)[1] == 6
    node.engine.close()


def damage(monkeypatch: pytest.MonkeyPatch, node: Node, offset: int) -> None:
    """Let reads of a record fail as RocksDB's do when the checksum of a block is wrong."""
    assert isinstance(node.engine, RocksDBStorageEngine)
    shard = node.engine._shards[SHARD]
    family, bad = shard._family, shard._rows.keys.record(offset)
    get, scan = family.get, family.scan

    def check(key: bytes) -> None:
        if key == bad:
            raise CorruptionError("test", position=0, reason="a wrong checksum")

    def damaged_get(key: bytes) -> bytes | None:
        check(key)
        return get(key)

    def damaged_scan(start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, row in scan(start, end):
            check(key)
            yield key, row

    monkeypatch.setattr(family, "get", damaged_get)
    monkeypatch.setattr(family, "scan", damaged_scan)


def is_a_replica_log(log: ReplicaLog) -> ReplicaLog:
    """For the type checker: both logs have what replication asks for."""
    return log


def test_both_logs_are_the_same_objects_each_time(make: MakeEngine) -> None:
    node = Node(make())
    assert tuple(map(id, node.engine.replica_logs(SHARD))) == tuple(map(id, node.logs))
    assert [is_a_replica_log(log).last_epoch for log in node.logs] == [-1, -1]


def test_a_log_that_begins_within_a_write_knows_its_producer_and_transaction(
    make: MakeEngine,
) -> None:
    leader, late = Node(make()).lead().commits_at_once(), Node(make())
    leader.put(b"a", b"b", b"c", producer=Producer(7, 0, 0, is_transactional=True))
    leader.put(b"d")
    leader.commit()
    assert leader.engine.delete_records_before(SHARD, Offset(1)) == 1
    late.records.restart_at(1)
    late.copy_from(leader)
    assert late.values() == leader.values() == [b"b", b"c", b"d"]
    late.lead(2).commits_at_once()
    again = late.engine.batch_write(
        SHARD, [Record(value=b"v")] * 3, producer=Producer(7, 0, 0, is_transactional=True)
    )
    assert (again.first, again.repeated) == (0, True)
    assert late.engine.end_transaction(SHARD, 7, Offset(0), is_commit=False) == 2
    assert late.values() == [b"d"]
