"""Three replicas of one shard in one process, with the real rules of leaders and followers.

What is committed is noted beside them, record by record and operation by operation: that is what
every replica must hold in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from penstock.engine.contract import (
    AdapterOffsetStrategy,
    Cleanup,
    ShardConfig,
)
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.memory.shard import MemoryShard
from penstock.engine.producer_table import Write
from penstock.engine.record_rows import decode_record
from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.follower import FollowerReplica
from penstock.engine.replication.leader import LeaderReplica
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.replication.messages import FetchError, ShardReply
from penstock.engine.replication.reply_reader import _read
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.engine.row_replica import Replica
from penstock.engine.row_replica.logged_write import decode_writes
from penstock.engine.row_replica.operations import (
    Before,
    Remove,
    Seal,
    Snapshot,
    decode_operations,
)
from penstock.errors import (
    DeadlineError,
    NotLeaderError,
    ProducerFencedError,
    SequenceGapError,
    ShardSealedError,
)
from penstock.record import Flush, Offset, Producer, Record, ShardId, StoredRecord
from penstock.testing.manual_clock import ManualClock

SHARD: Final = ShardId("t", 0)
NODES: Final = (1, 2, 3)
KEYS: Final = (b"a", b"b", b"c")
TAGS: Final = ("t", "u")
RANGE_SIZE: Final = 300

RowEngine = MemoryStorageEngine | RocksDBStorageEngine
OpenEngine = Callable[[int, ManualClock], RowEngine]
"""Opens the engine of a node again, as the end of its process has left it."""


class ReplicaCluster:
    def __init__(self, seed: int, open_engine: OpenEngine, config: ShardConfig) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock(1_000)
        self.config = config
        self._open = open_engine
        self.engines: dict[int, RowEngine] = {}
        self.logs: dict[int, tuple[ReplicaLog, ...]] = {}
        self.followers: dict[int, FollowerReplica] = {}
        self.epoch = 0
        self.leader_id = 0
        self.leader: LeaderReplica | None = None
        self.committed: list[tuple[int, StoredRecord | None]] = []
        """Epoch and record of every committed offset; None: it was gone when it was committed."""
        self.operations: list[int] = []
        """Epochs of the committed operations."""
        self.gone: set[int] = set()
        self.floor = 0
        self.is_sealed = False
        self.acknowledged = 0
        self.copies: frozenset[int] = frozenset()
        """Followers that get operations while a client waits for them."""
        self.away = 0
        """A follower that copies nothing for a while."""
        self.snapshot_every = self.random.choice((5, 20, 10_000))
        for node in NODES:
            self.start(node)
        self.elect(1)

    # Nodes

    def start(self, node: int) -> None:
        engine = self._open(node, self.clock)
        engine.create_shard(SHARD, self.config)
        engine.on_operation = self._on_operation
        self.engines[node] = engine
        self.logs[node] = tuple(engine.replica_logs(SHARD))
        replica = self.replica(node)
        replica.operation_s = 5.0
        replica.snapshot_every = self.snapshot_every
        if self.leader_id:
            self.followers[node] = FollowerReplica(self._assignment(), self.logs[node])

    def replica(self, node: int) -> Replica:
        replica = self.engines[node]._shards[SHARD].replica
        assert replica is not None
        return replica

    def restart(self, node: int) -> None:
        """End the process of a node, and start it again."""
        others = [other for other in NODES if other != node and self.may_lead(other)]
        was_able = self.may_lead(node)
        if self.config.flush is Flush.SYNC:
            self.start(node)
            assert self.may_lead(node) or not was_able, "synced records are lost"
            others += [node] * self.may_lead(node)
        elif others:
            self.start(node)
        if node == self.leader_id and others:
            self.elect(self.random.choice(others))

    def may_lead(self, node: int) -> bool:
        """Say whether a node has everything that is committed."""
        epochs = ([epoch for epoch, _ in self.committed], self.operations)
        histories = self.replica(node).histories
        return all(
            log.end >= len(known) and (not known or table.epoch_at(len(known) - 1) == known[-1])
            for log, known, table in zip(self.logs[node], epochs, histories, strict=True)
        )

    def _assignment(self) -> Assignment:
        return Assignment(
            shard=SHARD.name,
            replicas=NODES,
            leader=self.leader_id,
            leader_epoch=self.epoch,
            in_sync=NODES,
            eligible=(),
            partition_epoch=self.epoch,
            min_insync=2,
        )

    def elect(self, node: int) -> None:
        for log in self.logs.get(self.leader_id, ()):
            log.follow()
        self.epoch += 1
        self.leader_id = node
        self.leader = LeaderReplica(node, self._assignment(), self.logs[node], 0.0)
        self.followers = {
            other: FollowerReplica(self._assignment(), self.logs[other])
            for other in NODES
            if other != node
        }

    # Copying

    def copy(self, node: int) -> None:
        """Let a follower fetch once."""
        follower, leader = self.followers[node], self.leader
        assert leader is not None
        fetch = follower.fetch()
        streams = leader.divergence(fetch)
        if streams is None:
            streams = tuple(
                _read(log, position.end, RANGE_SIZE)[0]
                for log, position in zip(leader.logs, fetch.positions, strict=True)
            )
        follower.apply(ShardReply(SHARD.name, FetchError.NONE, self.epoch, streams))
        assert follower.damage is None, follower.damage

    def copy_all(self, node: int) -> None:
        for _ in range(1_000):
            before = [log.end for log in self.logs[node]]
            self.copy(node)
            ends = [log.end for log in self.logs[node]]
            if before == ends == [log.end for log in self.logs[self.leader_id]]:
                return
        raise AssertionError(f"node {node} does not catch up")

    def sync(self) -> None:
        for engine in self.engines.values():
            if isinstance(engine, RocksDBStorageEngine):
                engine.sync()

    def commit(self, members: frozenset[int], streams: tuple[int, ...] = (0, 1)) -> None:
        """Commit what the leader and `members` have, if those followers are prefixes of it."""
        leader = self.leader
        assert leader is not None
        counted = [n for n in sorted(members) if n != self.leader_id]
        if not counted or any(
            leader.divergence(self.followers[node].fetch()) is not None for node in counted
        ):
            return
        for stream in streams:
            log = leader.logs[stream]
            safe = min(self.logs[node][stream].safe for node in (self.leader_id, *counted))
            if safe > log.commit:
                self._note(stream, safe)
                log.set_commit(safe)

    def _note(self, stream: int, commit: int) -> None:
        """Note what becomes committed."""
        known: list[int] | list[tuple[int, StoredRecord | None]]
        known = self.operations if stream else self.committed
        log = self.logs[self.leader_id][stream]
        while len(known) < commit:
            first = len(known)
            data, end = log.read_range(first, 1)
            assert end <= commit, "a write is committed as a whole"
            if stream:
                self._note_operations(data, first)
            else:
                self._note_writes(data, first)

    def _note_writes(self, data: bytes, first: int) -> None:
        for write, rows in decode_writes(data, "noted", first):
            there = {offset: decode_record(offset, row) for offset, row in rows}
            self.committed += [
                (write.epoch, there.get(offset)) for offset in range(write.first, write.end)
            ]

    def _note_operations(self, data: bytes, first: int) -> None:
        for entry in decode_operations(data, "noted", first):
            self.operations.append(entry.epoch)
            match entry.operation:
                case Remove(after, offsets):
                    assert max(offsets) < after <= len(self.committed)
                    self.gone.update(offsets)
                case Before(offset):
                    assert offset <= len(self.committed)
                    self.floor = max(self.floor, offset)
                case Seal():
                    self.is_sealed = True
                case Snapshot(_, earliest, is_sealed):
                    assert earliest <= self.floor
                    assert self.is_sealed or not is_sealed

    def _on_operation(self, _: ShardId) -> None:
        for node in self.copies:
            self.copy_all(node)
        self.sync()
        for node in self.copies:
            self.copy_all(node)
        if self.copies:
            self.commit(self.copies)
        if self.replica(self.leader_id).saved.acted < self.logs[self.leader_id][1].end:
            self.clock.advance(60)  # the client gives up

    # Clients

    def write(self) -> None:
        chance, leader = self.random, self.engines[self.leader_id]
        records = [self._record() for _ in range(chance.randint(1, 4))]
        producer = None
        if chance.random() < 0.6:
            producer_id = chance.randint(1, 3)
            sequence = self._next_sequence(producer_id)
            producer = Producer(producer_id, 0, sequence, chance.random() < 0.5)
        try:
            leader.batch_write(SHARD, records, producer=producer)
            self.acknowledged += 1
        except ShardSealedError:
            assert self.is_sealed
        except (SequenceGapError, ProducerFencedError) as error:
            raise AssertionError(str(error)) from error

    def _next_sequence(self, producer_id: int) -> int:
        known = self.producers(self.leader_id).get(producer_id)
        return known[-1].next_sequence if known else 0

    def _record(self) -> Record:
        chance = self.random
        return Record(
            value=None if chance.random() < 0.1 else chance.randbytes(chance.randint(0, 40)),
            key=chance.choice((None, *KEYS)),
            tags=tuple(chance.sample(TAGS, chance.randint(0, 2))),
            timestamp_ms=chance.choice((None, chance.randint(0, 5_000))),
            expires_at_ms=self.clock.now_ms() + 2_000 if chance.random() < 0.1 else None,
        )

    def operate(self) -> None:
        chance, engine = self.random, self.engines[self.leader_id]
        self.copies = frozenset(chance.choice(((), (1, 2, 3), (1, 2, 3), (1, 2), (2, 3), (1, 3))))
        if self.copies:
            self.copies -= {self.leader_id, self.away}
        end = self.logs[self.leader_id][0].end
        offset = Offset(chance.randint(0, end))
        calls: list[Callable[[], object]] = [
            lambda: engine.delete_by_offset(SHARD, offset),
            lambda: engine.delete_by_offset(SHARD, offset),
            lambda: engine.delete_by_key(SHARD, chance.choice(KEYS)),
            lambda: engine.delete_records_before(SHARD, Offset(offset // 2)),
            lambda: engine.compact(SHARD),
            lambda: engine.remove_expired(SHARD),
            lambda: engine.end_transaction(SHARD, 1, offset, is_commit=chance.random() < 0.5),
            lambda: engine.end_transaction(SHARD, 2, Offset(0), is_commit=False),
        ]
        if chance.random() < 0.004:
            calls = [lambda: engine.seal_shard(SHARD)]
        for node in self.copies:
            self.copy_all(node)
        self.sync()
        if self.copies:
            self.commit(self.copies)
        else:
            self.replica(self.leader_id).operation_s = 0.0
        try:
            chance.choice(calls)()
        except (DeadlineError, NotLeaderError):
            pass
        finally:
            self.replica(self.leader_id).operation_s = 5.0

    def step(self) -> None:
        chance = self.random
        others = [node for node in NODES if node != self.leader_id]
        if chance.random() < 0.03:
            self.away = 0 if self.away else chance.choice(others)
        near = [node for node in others if node != self.away]
        actions: tuple[tuple[Callable[[], None], int], ...] = (
            (self.write, 40),
            (lambda: self.copy(chance.choice(near)), 20),
            (self.commit_some, 12),
            (self.operate, 16),
            (lambda: self.clock.advance(milliseconds=chance.randint(1, 3_000)), 4),
            (lambda: self.restart(chance.choice(NODES)), 4),
            (self.elect_some, 4),
        )
        calls, weights = zip(*actions, strict=True)
        chance.choices(calls, weights)[0]()
        self.check_readers()

    def commit_some(self) -> None:
        chance = self.random
        if chance.random() < 0.7:
            self.sync()
        members = frozenset(chance.choice(((1, 2, 3), (1, 2), (2, 3), (1, 3))))
        self.commit(members, chance.choice(((0, 1), (0, 1), (0,), (1,))))

    def elect_some(self) -> None:
        able = [node for node in NODES if self.may_lead(node)]
        if able:
            self.elect(self.random.choice(able))

    # What must hold

    def check_readers(self) -> None:
        for node, engine in self.engines.items():
            info = engine.shard_info(SHARD)
            assert info.commit == info.latest <= len(self.committed)
            for record in engine.read_by_offset(SHARD, Offset(0)):
                assert record.offset < info.commit
                assert record == self.committed[record.offset][1], f"node {node}"
            latest = AdapterOffsetStrategy.LATEST
            assert engine.get_offset_by_timestamp(SHARD, 10**9, latest) == info.commit

    def finish(self) -> None:
        """Let all replicas catch up, and compare them with what was committed."""
        self.away = 0
        able = [node for node in NODES if self.may_lead(node)]
        assert able, "committed records are lost"
        self.elect(self.random.choice(able))
        for _ in range(3):
            for node in self.followers:
                self.copy_all(node)
            self.sync()
            self.commit(frozenset(NODES))
        for node in self.followers:
            self.copy(node)
        assert len(self.committed) == self.logs[self.leader_id][0].end
        self.check_readers()
        views = {node: self.view(node) for node in NODES}
        for node in NODES:
            assert views[node] == views[self.leader_id], f"node {node}"
            self.check_producers(node)
        self.check_committed()

    def check_committed(self) -> None:
        engine, now_ms = self.engines[self.leader_id], self.clock.now_ms()
        expected = [
            record
            for _, record in self.committed[self.floor :]
            if record is not None
            and record.offset not in self.gone
            and (record.expires_at_ms is None or record.expires_at_ms > now_ms)
        ]
        assert engine.read_by_offset(SHARD, Offset(0), max_records=10_000) == expected
        for key in KEYS:
            newest_first = [record for record in reversed(expected) if record.key == key]
            assert engine.query_by_key(SHARD, key, limit=10_000) == newest_first
        for tag in TAGS:
            tagged = [record for record in expected if tag in record.tags]
            assert engine.read_by_tag(SHARD, tag, max_records=10_000) == tagged
        for timestamp_ms in (0, 1_000, 2_500, 4_999):
            young = [r.offset for r in expected if r.timestamp_ms >= timestamp_ms]
            latest = AdapterOffsetStrategy.LATEST
            found = engine.get_offset_by_timestamp(SHARD, timestamp_ms, latest)
            assert found == (young[0] if young else len(self.committed))
        info = engine.shard_info(SHARD)
        assert (info.earliest, info.sealed) == (self.floor, self.is_sealed)

    def view(self, node: int) -> object:
        """Return all that two equal replicas agree on."""
        engine, replica = self.engines[node], self.replica(node)
        latest = AdapterOffsetStrategy.LATEST
        store = replica.store
        return (
            engine.read_by_offset(SHARD, Offset(0), max_records=10_000),
            [engine.read_by_tag(SHARD, tag, max_records=10_000) for tag in TAGS],
            [engine.query_by_key(SHARD, key, limit=10_000) for key in KEYS],
            [engine.get_offset_by_timestamp(SHARD, t, latest) for t in range(0, 6_000, 500)],
            engine.shard_info(SHARD).earliest,
            engine.shard_info(SHARD).sealed,
            [store.transacted_offsets(producer_id, 0) or None for producer_id in (1, 2, 3)],
            replica.saved.commit,
            replica.saved.operations_commit,
            replica.saved.acted,
            replica.histories.records.latest,
            replica.histories.operations.latest,
        )

    def producers(self, node: int) -> dict[int, list[Write]]:
        shard = self.engines[node]._shards[SHARD]
        if isinstance(shard, MemoryShard):
            return dict(shard._producers.to_list())
        with shard.lock:
            return dict(shard._known_producers()._table.to_list())

    def check_producers(self, node: int) -> None:
        """A replica that began later knows fewer writes; those that two know are the same."""
        own, others = self.producers(node), self.producers(self.leader_id)
        for producer_id in own.keys() & others.keys():
            known = min(len(own[producer_id]), len(others[producer_id]))
            assert own[producer_id][-known:] == others[producer_id][-known:], f"node {node}"
        if self.logs[node][0].start == self.logs[self.leader_id][0].start == 0:
            assert own == others, f"node {node}"

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()


COMPACTED: Final = ShardConfig(cleanup=Cleanup.COMPACT)
