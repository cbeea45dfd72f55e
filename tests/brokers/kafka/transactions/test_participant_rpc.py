"""What a coordinator asks of a node that leads partitions: twice, late, or by two coordinators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.kafka.running import Running, WireClient, running
from tests.brokers.kafka.wire.batch_oracle import batch_of

from penstock.brokers.kafka.transactions import participant_rpc
from penstock.brokers.kafka.transactions.markers import build_marker
from penstock.engine.contract import Isolation
from penstock.errors import BusyError, TransactionRefusedError, UnknownShardError
from penstock.meta.state.offsets.entries import NewOffset
from penstock.meta.state.transactions.commands import (
    AbortedRange,
    BeginProducer,
    Decide,
    Enlist,
    Finish,
    StagedOffsets,
    TransactionPartition,
)
from penstock.record import Offset, ShardId, StoredRecord

PRODUCER, EPOCH = 7_000, 0
FENCED, BAD_STATE = 47, 48


class Leader:
    """A node with one partition, asked by a coordinator that is somewhere else."""

    def __init__(self, server: Running, client: WireClient) -> None:
        self.node, self._client = server.node, client
        topic = server.node.admin.create_topic_full("orders", 1, {"queue": "batch"})
        self.shard = ShardId(topic.topic_id, 0).name
        self._sequence = 0

    def take(self, step: participant_rpc.Step) -> participant_rpc.StepResult:
        return participant_rpc.decode_result(
            self.node.handler.run_transaction_step(
                self.node.meta.node_id, participant_rpc.encode(step)
            )
        )

    def open(self, started_ms: int) -> None:
        end = self.node.handler.shard_info(self.shard).latest
        self.take(participant_rpc.OpenWriter("t", PRODUCER, EPOCH, started_ms, {self.shard: end}))

    def end(self, started_ms: int, *, commit: bool, bound: int = 0) -> participant_rpc.StepResult:
        return self.take(
            participant_rpc.EndWriter(PRODUCER, EPOCH, started_ms, commit, {self.shard: bound})
        )

    def write(self, value: bytes) -> int:
        """Return the error code for a batch of the producer."""
        record = StoredRecord(Offset(0), value, None, (), (), 1_000, None, 0, 0)
        data = batch_of([record], "", (PRODUCER, EPOCH, self._sequence))
        part = {"index": 0, "records": data}
        response = self._client.ask(
            0,
            9,
            transactional_id="t",
            acks=-1,
            topic_data=[{"name": "orders", "partition_data": [part]}],
        )
        code = response.items_of("responses")[0].items_of("partition_responses")[0]
        if code.number("error_code") == 0:
            self._sequence += 1
        return code.number("error_code")

    def values(self, isolation: Isolation = Isolation.COMMITTED) -> list[bytes | None]:
        found = self.node.handler.read_by_offset(self.shard, Offset(0), isolation=isolation)
        return [one.value for one in found]


@pytest.fixture
def leader(data_path: Path) -> Iterator[Leader]:
    with running(data_path) as server, WireClient(server.server.port) as client:
        yield Leader(server, client)


def test_a_producer_writes_between_the_two_steps_and_not_before_or_behind_them(
    leader: Leader,
) -> None:
    assert leader.write(b"too early") == BAD_STATE
    leader.open(10)
    assert leader.write(b"a") == 0
    assert leader.values() == []
    assert leader.end(10, commit=True) == []
    assert leader.values() == [b"a"]
    assert leader.write(b"too late") == BAD_STATE


def test_an_end_that_is_asked_for_again_tells_what_was_aborted_again(leader: Leader) -> None:
    leader.open(10)
    assert leader.write(b"a") == 0
    assert leader.end(10, commit=False) == [AbortedRange(leader.shard, 0, PRODUCER, 1)]
    assert leader.end(10, commit=False) == [AbortedRange(leader.shard, 0, PRODUCER, 2)]
    leader.open(20)
    assert leader.write(b"b") == 0
    leader.end(20, commit=True)
    assert leader.values() == [b"b"]


def test_what_comes_late_leaves_the_next_transaction_alone(leader: Leader) -> None:
    leader.open(10)
    leader.write(b"a")
    leader.end(10, commit=True)
    for late in (9, 10):
        with pytest.raises(TransactionRefusedError, match="is over"):
            leader.open(late)
    leader.open(20)
    assert leader.write(b"b") == 0
    with pytest.raises(TransactionRefusedError, match="is over"):
        leader.end(10, commit=False)
    assert leader.write(b"c") == 0, "nothing was shut"
    leader.end(20, commit=True)
    assert leader.values() == [b"a", b"b", b"c"]


def test_partitions_that_are_not_here_are_refused(leader: Leader) -> None:
    gone = participant_rpc.OpenWriter("t", PRODUCER, EPOCH, 10, {"nowhere_0": 0})
    with pytest.raises(UnknownShardError):
        leader.take(gone)
    leader.open(10)
    leader.write(b"a")
    leader.node.admin.delete_topic("orders")
    assert leader.end(10, commit=False) == [], "what was deleted needs no marker"


def test_a_group_of_another_node_is_not_committed_here(leader: Leader) -> None:
    steps_here = leader.node.handler.transaction_steps
    part = getattr(getattr(steps_here, "__self__", None), "_participant", None)
    assert part is not None
    part.is_group_here = lambda group: group == "ours"
    offsets = (NewOffset(leader.shard, 5),)
    theirs = participant_rpc.CommitStaged("default", "t", 10, StagedOffsets("theirs", offsets))
    with pytest.raises(BusyError, match="another node"):
        leader.take(theirs)
    late = participant_rpc.CommitStaged("default", "t", 10, StagedOffsets("ours", offsets))
    with pytest.raises(TransactionRefusedError, match="over"):
        leader.take(late)
    assert leader.node.offset_manager.get_offsets("ours") == {}


def test_a_transaction_that_was_ended_without_this_process_holds_nothing_up(
    data_path: Path,
) -> None:
    """The process before did its part and was killed; its coordinator has finished meanwhile."""
    with running(data_path) as server, WireClient(server.server.port) as client:
        leader = Leader(server, client)
        meta, shard = server.node.meta, leader.shard
        meta.change_transaction(BeginProducer("default", "t", 60_000, PRODUCER))
        enlist = Enlist("default", "t", PRODUCER, EPOCH, (TransactionPartition(shard, 0),))
        state = meta.change_transaction(enlist)
        assert state is not None
        leader.open(state.started_ms)
        assert leader.write(b"aborted") == 0
        meta.change_transaction(Decide("default", "t", PRODUCER, EPOCH, commit=False))
        marker = build_marker(PRODUCER, EPOCH, is_commit=False, timestamp_ms=1_000)
        entry = server.node.handler.find(shard)
        last = server.node.handler.write_batch(entry, marker, 1, timestamp_ms=1_000).first
        done = (AbortedRange(shard, 0, PRODUCER, last),)
        meta.change_transaction(Finish("default", "t", PRODUCER, EPOCH, done))
        assert leader.values() == [], "it is not known here yet"
        again = meta.change_transaction(enlist)
        assert again is not None
        assert again.started_ms > state.started_ms
        leader.open(again.started_ms)
        assert leader.write(b"committed") == 0
        leader.end(again.started_ms, commit=True)
        assert leader.values() == [b"committed"]
        assert leader.values(Isolation.UNCOMMITTED) == [b"aborted", b"committed"]
