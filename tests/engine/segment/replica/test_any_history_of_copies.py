"""Any history of a leader and a follower: after all is copied and committed, both are equal."""

from __future__ import annotations

import random
from typing import Final

import pytest
from tests.codec.kafka_builder import kafka_batch
from tests.engine.segment.replica.replica_pair import SHARD, Pair, commit_all, copy_all, logs_of
from tests.engine.segment.rig import everything, record

from penstock.codec.format import KIND_BATCH, KIND_SIMPLE
from penstock.codec.select import core
from penstock.engine.replication.leader import _compare
from penstock.engine.replication.messages import StreamPosition
from penstock.engine.segment.control import control_records as control
from penstock.engine.segment.inspect.verify import verify
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.replica.replica_log import SegmentReplicaLog
from penstock.engine.segment.store import SegmentStore
from penstock.record import Flush, Producer, QueueKind

STEPS: Final = 60
SEEDS: Final = 40


class History:
    """One seed decides who leads, what is written, copied, cut, and when a store stops."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kind = QueueKind.BATCH if seed % 2 else QueueKind.SIMPLE
        self.flush = Flush.SYNC if seed % 3 == 0 else Flush.ASYNC
        self.pair = Pair(self.kind, self.flush)
        self.epoch = 1
        self.number = 0

    @property
    def leader(self) -> SegmentStore:
        return self.pair.leader.store

    @property
    def follower(self) -> SegmentStore:
        return self.pair.follower.store

    def run(self) -> None:
        steps = (
            self.write, self.write, self.write_group, self.write_group, self.write_as_producer,
            self.write_as_producer, self.write_kafka, self.copy, self.copy, self.commit,
            self.delete, self.delete_before, self.stop, self.elect, self.checkpoint,
        )  # fmt: skip
        for _ in range(STEPS):
            self.chance.choice(steps)()
        if self.chance.random() < 0.3:
            self.commit()
            self.pair.do(lambda: self.leader.seal(SHARD))
        self._reconcile()
        copy_all(self.pair)
        for store in (self.leader, self.follower):
            store.flush()
        commit_all(self.pair)

    def _record(self) -> int:
        self.number += 1
        return self.number

    def write(self) -> None:
        n = self._record()
        self.leader.append(SHARD, record(n, key=b"k%d" % (n % 5), tag=f"t{n % 3}", size=n % 90))

    def write_group(self) -> None:
        count = self.chance.randint(1, 6)
        records = [record(self._record(), key=b"g%d" % (n % 2)) for n in range(count)]
        self.leader.append_many(SHARD, records)

    def write_as_producer(self) -> None:
        producer, count = self.chance.randint(1, 3), self.chance.randint(1, 3)
        known = self.leader.state(SHARD).producers.writes_of(producer)
        sequence = known[-1].next_sequence if known else 0
        records = [record(self._record()) for _ in range(count)]
        written = Producer(producer, 0, sequence, is_transactional=self.chance.random() < 0.3)
        self.leader.append_once(SHARD, records, written)

    def write_kafka(self) -> None:
        if self.kind is QueueKind.BATCH:
            count = self.chance.randint(1, 5)
            body = kafka_batch([record(self._record()) for _ in range(count)])
            self.leader.append_batch(SHARD, body, count, kafka=True, born_ms=1_000_000)

    def copy(self) -> None:
        """Copy some of what the follower lacks."""
        self._reconcile()
        for ours, theirs in zip(logs_of(self.leader), logs_of(self.follower), strict=True):
            if theirs.end < ours.start:
                theirs.restart_at(ours.start)
            for _ in range(self.chance.randint(0, 4)):
                if theirs.end < ours.end:
                    size = self.chance.choice((1, 300, 3000))
                    theirs.append_range(ours.read_range(theirs.end, size)[0])

    def commit(self) -> None:
        """Commit what both have."""
        self._reconcile()
        for ours, theirs in zip(logs_of(self.leader), logs_of(self.follower), strict=True):
            commit = min(ours.safe, theirs.safe)
            for log in (ours, theirs):
                if commit > log.commit:
                    log.set_commit(commit)

    def delete(self) -> None:
        end = int(self.leader.bounds(SHARD).commit)
        if end:
            wanted = [self.chance.randrange(end) for _ in range(self.chance.randint(1, 4))]
            self._submit(control.delete_offsets(wanted))

    def delete_before(self) -> None:
        bounds = self.leader.bounds(SHARD)
        if bounds.commit > bounds.earliest and self.chance.random() < 0.3:
            self._submit([control.DeleteBefore(offset=self.chance.randint(0, bounds.commit))])

    def _submit(self, commands: list[control.DeleteOffsets] | list[control.DeleteBefore]) -> None:
        store = self.leader
        store._commands.submit(store._table.get(SHARD), lambda _: commands)

    def stop(self) -> None:
        """Stop a store in one of the ways in which stores stop; a leader leads again."""
        rig = self.chance.choice((self.pair.leader, self.pair.follower))
        commits = [log.commit for log in logs_of(rig.store)]
        how = self.chance.randrange(3)
        if how == 0:
            rig.restart()
        elif how == 1:
            rig.kill()
        else:
            rig.store.flush()
            rig.crash(self.chance.randrange(1 << 30))
        rig.store.set_flush(SHARD, self.flush)
        after = [log.commit for log in logs_of(rig.store)]
        assert all(now <= before for now, before in zip(after, commits, strict=True))
        if rig is self.pair.leader:
            self.epoch += 1
            for log in logs_of(rig.store):
                log.begin_epoch(self.epoch)

    def elect(self) -> None:
        """Let the follower lead, if it has what is committed."""
        ours, theirs = logs_of(self.leader), logs_of(self.follower)
        if any(their.end < our.commit for our, their in zip(ours, theirs, strict=True)):
            return
        self.epoch += 1
        for log in ours:
            log.follow()
        for log in theirs:
            log.begin_epoch(self.epoch)
        self.pair.leader, self.pair.follower = self.pair.follower, self.pair.leader

    def checkpoint(self) -> None:
        self.chance.choice((self.pair.leader, self.pair.follower)).store.run_upkeep()

    def _reconcile(self) -> None:
        """Cut the follower where its epochs say that it differs from the leader."""
        for ours, theirs in zip(logs_of(self.leader), logs_of(self.follower), strict=True):
            while True:
                position = StreamPosition(theirs.end, theirs.last_epoch, theirs.safe, theirs.commit)
                reply = _compare(ours, position)
                if reply.cut_end < 0:
                    break
                end = max(min(reply.cut_end, theirs.epoch_end(reply.cut_epoch)[1]), theirs.start)
                assert end >= theirs.commit, "a committed record is not cut"
                assert end < theirs.end, "the next fetch would ask the same again"
                theirs.cut(end)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_copies_are_equal_after_any_history(seed: int) -> None:
    history = History(seed)
    history.run()
    pair = history.pair
    check_equal(pair)
    for rig in (pair.leader, pair.follower):
        rig.store.checkpoint()
        rig.kill()
        for log in logs_of(rig.store):
            log.set_commit(log.end)
    check_equal(pair)
    for rig in (pair.leader, pair.follower):
        rig.close()
        report = verify(rig.root, disk=rig.disk, clock=rig.clock, settings=rig.settings)
        assert report.findings == []


def check_equal(pair: Pair) -> None:
    ours, theirs = pair.leader.store, pair.follower.store
    found = everything(ours, SHARD)
    assert everything(theirs, SHARD) == found
    for our_log, their_log in zip(logs_of(ours), logs_of(theirs), strict=True):
        assert (their_log.end, their_log.commit) == (our_log.end, our_log.commit)
        start = max(our_log.start, their_log.start)
        assert raws(their_log, start) == raws(our_log, start)
        assert their_log.last_epoch == our_log.last_epoch
        for epoch in range(their_log.last_epoch):
            ends = [max(start, log.epoch_end(epoch)[1]) for log in (our_log, their_log)]
            assert ends[0] == ends[1]
    for key in {each.key for each in found if each.key is not None}:
        assert list(theirs.by_key(SHARD, key)) == list(ours.by_key(SHARD, key))
    for tag in {tag for each in found for tag in each.tags}:
        pages = [store.read_page(SHARD, 0, tag=tag) for store in (ours, theirs)]
        assert pages[0] == pages[1]
    for time_ms in range(1_000_000, 1_000_400, 7):
        moments = [store.offset_by_timestamp(SHARD, time_ms) for store in (ours, theirs)]
        assert moments[0] == moments[1]
    states = ours.state(SHARD), theirs.state(SHARD)
    for state in states:
        assert (state.sealed, state.floor_offset) == (states[0].sealed, states[0].floor_offset)
        assert state.deleted.to_list() == states[0].deleted.to_list()
        assert writes(state) == writes(states[0])


def writes(state: ShardState) -> list[tuple[int, list[tuple[int, int, int, int]]]]:
    """What is known of producers, without the time at which each node learned it, and without
    writes that are deleted: a copy that began anew, or was cut, does not have them."""
    found = [
        (producer_id, [write[:4] for write in known if write.first_offset >= state.floor_offset])
        for producer_id, known in state.producers.to_list()
    ]
    return [(producer_id, known) for producer_id, known in found if known]


def raws(log: SegmentReplicaLog, offset: int) -> bytes:
    """Return the records of a log as they are stored, but for their positions."""
    kind = KIND_SIMPLE if log._log.kind is QueueKind.SIMPLE else KIND_BATCH
    found = b""
    while offset < log.end:
        data, after = log.read_range(offset, 1000)
        found += core.place_records(data, kind, len(found), offset, 0, len(data))[0]
        offset = after
    return found
