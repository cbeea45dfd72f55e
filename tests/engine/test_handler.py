"""The handler: who serves a shard, and what the state of its segment lets through."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.adapter.adapter_engine import NODE, segment_of, shard_of, topic_of
from tests.engine.replication.simulated_log import SimulatedLog

from penstock.engine.contract import (
    Acks,
    AdapterOffsetStrategy,
    ForwardingEngine,
    ShardConfig,
    StorageEngine,
    Written,
)
from penstock.engine.engine_set import EngineSet
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.replication import Assignment
from penstock.engine.replication.runtime.shard_replica import ShardReplica
from penstock.engine.routing.append_notifications import AppendSubscription
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    DiskFullError,
    NotLeaderError,
    ShardSealedError,
    StoreError,
    UnknownShardError,
)
from penstock.meta.client import Update
from penstock.meta.events import Event, SegmentDeleted, SegmentPut, ShardPut, TopicDeleted, TopicPut
from penstock.record import Offset, Producer, Record, ShardId

SHARD = ShardId("orders-1", 0)
NAME = SHARD.name
MEMORY = "EngineMemory"
TOPIC = topic_of(SHARD, MEMORY, ShardConfig())


class OtherNode:
    """A forwarder to one other engine."""

    def __init__(self) -> None:
        self.engine = MemoryStorageEngine()
        self.asked: list[tuple[int, str]] = []

    def engine_of(self, node_id: int, storage_type: str) -> StorageEngine:
        self.asked.append((node_id, storage_type))
        return self.engine

    def open_shards(
        self, node_id: int, topic_id: str, partitions: Sequence[int], revision: int
    ) -> None:
        for partition in partitions:
            self.asked.append((node_id, f"open {topic_id}_{partition} at {revision}"))

    def alter_shard(self, node_id: int, shard: ShardId, config: ShardConfig, revision: int) -> None:
        size = config.record_size_max
        self.asked.append((node_id, f"alter {shard.name} at {revision}: {size} bytes"))

    def run_transaction_step(self, node_id: int, step: str) -> str:
        self.asked.append((node_id, step))
        return "done there"


class ForwardedEngine(MemoryStorageEngine, ForwardingEngine):
    """An engine of another node, which hides what its transactions hide."""

    def forward_write(
        self,
        shard: ShardId,
        records: Sequence[Record],
        *,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
    ) -> Written:
        return self.batch_write(shard, records, producer=producer)


class Bench:
    def __init__(self, forwarder: OtherNode | None = None) -> None:
        self.cache = StorageCacheManager()
        self.engine = MemoryStorageEngine()
        self.handler = StorageEngineHandler(
            self.cache,
            EngineSet({MEMORY: lambda: self.engine}),
            node_id=NODE,
            forwarder=forwarder,
        )
        self.tell(TopicPut(TOPIC), ShardPut(shard_of(SHARD)), SegmentPut(segment_of(SHARD)))

    def tell(self, *events: Event, is_reset: bool = False) -> None:
        self.cache.apply(Update(self.cache.revision + 1, events, is_reset))

    def put(self, *values: bytes) -> None:
        for value in values:
            self.handler.write(NAME, Record(value, key=b"k", tags=("t",)))

    def values(self, offset: int = 0) -> list[bytes | None]:
        return [r.value for r in self.handler.read_by_offset(NAME, Offset(offset))]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_shard_that_the_metadata_does_not_have_is_unknown(bench: Bench) -> None:
    with pytest.raises(UnknownShardError):
        bench.handler.write("other_0", Record(b"v"))
    with pytest.raises(BadRequestError):
        bench.handler.find(["orders"])  # type: ignore[arg-type] # what a careless caller passes


def test_an_engine_gets_a_shard_with_the_first_request_if_it_was_not_created(bench: Bench) -> None:
    assert bench.engine.list_shard() == []
    assert bench.handler.write(NAME, Record(b"v")).first == 0
    assert bench.engine.list_shard() == [SHARD]


def test_transactions_that_this_node_knows_hide_nothing_of_what_another_node_has_read() -> None:
    other = OtherNode()
    other.engine = ForwardedEngine()
    bench = Bench(other)
    bench.tell(ShardPut(shard_of(SHARD, leader=7)))
    other.engine.create_shard(SHARD, ShardConfig())
    bench.put(b"a", b"b", b"c")
    handler = bench.handler
    # From the time when this node led the shard, or started: the leader releases its own only.
    handler.limits.hold_written(NAME, 1, 1)
    assert bench.values() == [b"a", b"b", b"c"]
    assert len(handler.read_by_tag(NAME, "t")) == 3
    assert len(handler.query_by_key(NAME, b"k")) == 3
    newest = handler.read_by_key(NAME, b"k")
    assert newest is not None
    assert newest.value == b"c"
    assert handler.stable_info(NAME).commit == 3
    latest = AdapterOffsetStrategy.LATEST
    assert handler.get_offset_by_timestamp(NAME, 1 << 60, latest) == 3


def test_another_nodes_shard_is_not_written_here(bench: Bench) -> None:
    bench.tell(ShardPut(shard_of(SHARD, leader=7)))
    for leader in (7, None):
        bench.tell(ShardPut(shard_of(SHARD, leader=leader)))
        with pytest.raises(NotLeaderError, match="unknown" if leader is None else "7"):
            bench.handler.write(NAME, Record(b"v"))
        with pytest.raises(NotLeaderError):
            bench.handler.read_by_offset(NAME, Offset(0))
    assert bench.engine.list_shard() == []


def test_another_nodes_shard_is_forwarded_to_its_leader() -> None:
    other = OtherNode()
    other.engine.create_shard(SHARD, ShardConfig())
    bench = Bench(other)
    bench.put(b"here")
    bench.tell(ShardPut(shard_of(SHARD, leader=7)))
    bench.put(b"there")
    assert bench.values() == [b"there"]
    assert set(other.asked) == {(7, MEMORY)}
    bench.tell(ShardPut(shard_of(SHARD)))
    assert bench.values() == [b"here"]


def test_a_local_write_is_not_forwarded_when_its_leader_changes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = OtherNode()
    other.engine.create_shard(SHARD, ShardConfig())
    bench = Bench(other)
    check_led = bench.handler.check_led

    def check_and_change(entry: ShardEntry) -> None:
        check_led(entry)
        bench.tell(ShardPut(shard_of(SHARD, leader=7)))

    monkeypatch.setattr(bench.handler, "check_led", check_and_change)
    with pytest.raises(NotLeaderError, match="7"):
        bench.handler.batch_write(NAME, [Record(b"v")], is_local=True)
    assert other.asked == []


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("pre-seal", BusyError),
        ("sealed", ShardSealedError),
        ("pre-delete", ShardSealedError),
        ("deleting", ShardSealedError),
        ("unavailable", BusyError),
    ],
)
def test_only_a_segment_in_state_write_takes_writes(
    bench: Bench, status: str, error: type[StoreError]
) -> None:
    bench.put(b"before")
    bench.tell(SegmentPut(segment_of(SHARD, status=status)))
    with pytest.raises(error):
        bench.put(b"after")
    bench.tell(SegmentPut(segment_of(SHARD)))
    bench.put(b"again")
    assert bench.values() == [b"before", b"again"]


def test_a_roll_is_never_seen_in_between(bench: Bench) -> None:
    bench.put(b"0", b"1")
    stop = threading.Event()
    failures: list[StoreError] = []

    def write() -> None:
        while not stop.is_set():
            try:
                bench.put(b"v")
            except StoreError as error:
                failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(300):
        end = bench.handler.shard_info(NAME).latest
        old = segment_of(SHARD, number, 0, end, "sealed")
        new = segment_of(SHARD, number + 1, end)
        shard = shard_of(SHARD, active_segment=number + 1)
        bench.tell(SegmentPut(old), SegmentPut(new), ShardPut(shard))
    stop.set()
    writer.join()
    assert failures == []
    assert len(bench.cache.shards[NAME].segments) == 301


def roll(bench: Bench, *statuses: str) -> None:
    """Give the shard segments of two records each in these states, and an active one behind."""
    bench.put(*(b"%d" % n for n in range(2 * len(statuses) + 1)))
    for number, status in enumerate(statuses):
        bench.tell(SegmentPut(segment_of(SHARD, number, 2 * number, 2 * number + 2, status)))
    bench.tell(SegmentPut(segment_of(SHARD, len(statuses), 2 * len(statuses))))


def test_segments_that_are_going_lie_before_the_earliest_offset(bench: Bench) -> None:
    roll(bench, "deleting", "pre-delete", "sealed")
    for offset in range(5):
        assert bench.values(offset) == [b"4", b"5", b"6"]
    assert bench.values(5) == [b"5", b"6"]
    tagged = bench.handler.read_by_tag(NAME, "t")
    assert [record.offset for record in tagged] == [4, 5, 6]
    assert [r.offset for r in bench.handler.query_by_key(NAME, b"k")] == [6, 5, 4]
    newest = bench.handler.read_by_key(NAME, b"k")
    assert newest is not None
    assert newest.offset == 6
    assert bench.handler.delete_by_offset(NAME, Offset(1)) is False


def test_a_page_ends_before_a_segment_that_cannot_be_read_now(bench: Bench) -> None:
    roll(bench, "sealed", "unavailable", "sealed")
    assert bench.values(0) == [b"0", b"1"]
    with pytest.raises(BusyError):
        bench.values(2)
    assert bench.values(4) == [b"4", b"5", b"6"]
    for search in (bench.handler.read_by_key, bench.handler.query_by_key):
        with pytest.raises(BusyError):
            search(NAME, b"k")
    with pytest.raises(BusyError):
        bench.handler.delete_by_key(NAME, b"k")
    bench.tell(SegmentPut(segment_of(SHARD, 1, 2, 4, "sealed")))
    assert len(bench.values()) == 7


def test_a_forgotten_segment_hides_nothing(bench: Bench) -> None:
    roll(bench, "deleting", "sealed")
    bench.tell(SegmentDeleted(SHARD.topic, SHARD.partition, 0))
    assert bench.cache.shards[NAME].offline == ()


def test_a_deleted_topic_takes_no_more_requests(bench: Bench) -> None:
    bench.put(b"v")
    bench.tell(TopicDeleted(TOPIC))
    with pytest.raises(UnknownShardError):
        bench.put(b"v")


def test_an_entry_found_before_the_deletion_creates_nothing_behind_it(bench: Bench) -> None:
    entry = bench.handler.find(NAME)
    bench.tell(TopicDeleted(TOPIC))
    bench.handler.delete_shard(SHARD, MEMORY)
    entry.is_open = False
    with pytest.raises(UnknownShardError):
        bench.handler.open_shard(entry)
    assert bench.engine.list_shard() == []


def test_after_a_reset_exactly_what_it_names_is_known(bench: Bench) -> None:
    bench.put(b"v")
    other = ShardId("other-2", 0)
    topic = topic_of(other, MEMORY, ShardConfig())
    bench.tell(
        TopicPut(topic), ShardPut(shard_of(other)), SegmentPut(segment_of(other)), is_reset=True
    )
    assert list(bench.cache.shards) == [other.name]
    assert list(bench.cache.topics) == [other.topic]


def test_a_topic_in_words_of_a_newer_node_is_left_alone(bench: Bench) -> None:
    strange = topic_of(ShardId("strange-1", 0), MEMORY, ShardConfig())
    strange = replace(strange, config=replace(strange.config, cleanup="archive"))
    bench.tell(TopicPut(strange), ShardPut(shard_of(ShardId("strange-1", 0))))
    assert list(bench.cache.topics) == [SHARD.topic]
    bench.put(b"goes on")


def test_writes_and_reads_are_counted(bench: Bench) -> None:
    bench.put(b"1", b"2")
    bench.handler.batch_write(NAME, [Record(b"v")] * 3)
    bench.values()
    with pytest.raises(BadRequestError):
        bench.handler.batch_write(NAME, [])
    entry = bench.handler.find(NAME)
    assert (entry.writes, entry.records_written, entry.errors) == (3, 5, 1)
    assert (entry.reads, entry.records_read) == (1, 5)


def test_whoever_waits_is_woken_by_a_write(bench: Bench) -> None:
    woken = threading.Event()
    with AppendSubscription(bench.handler.cache, [NAME, "nothing_0"], woken.set):
        bench.put(b"v")
        assert woken.is_set()
    woken.clear()
    bench.put(b"v")
    assert not woken.is_set()
    assert bench.handler.find(NAME).appended == ()


def test_waiting_ends_with_its_time(bench: Bench) -> None:
    assert bench.handler.wait_for_append([NAME], lambda: False, 0.01) is False
    assert bench.handler.wait_for_append([NAME], lambda: True, 0.0) is True


def test_an_engine_is_opened_once_and_on_demand() -> None:
    opened: list[MemoryStorageEngine] = []

    def open_engine() -> StorageEngine:
        opened.append(MemoryStorageEngine())
        return opened[-1]

    engines = EngineSet({MEMORY: open_engine})
    assert opened == []
    together = [threading.Thread(target=engines.get, args=(MEMORY,)) for _ in range(8)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert len(opened) == 1
    with pytest.raises(BadRequestError, match="EngineMemory"):
        engines.get("EngineTape")
    engines.close()
    with pytest.raises(ClosedError):
        opened[0].list_shard()


def test_all_engines_are_closed_also_when_one_fails() -> None:
    class Stuck(MemoryStorageEngine):
        def close(self) -> None:
            raise DiskFullError("stuck")

    last = MemoryStorageEngine()
    engines = EngineSet({"a": Stuck, "b": lambda: last})
    engines.get("a")
    engines.get("b")
    with pytest.raises(DiskFullError):
        engines.close()
    with pytest.raises(ClosedError):
        last.list_shard()


def test_a_step_of_a_transaction_is_taken_where_it_belongs() -> None:
    other = OtherNode()
    bench = Bench(other)
    assert bench.handler.run_transaction_step(NODE + 1, "step") == "done there"
    assert other.asked == [(NODE + 1, "step")]
    with pytest.raises(BusyError, match="no transactions"):
        bench.handler.run_transaction_step(NODE, "step")
    bench.handler.transaction_steps = lambda step: f"{step} taken"
    assert bench.handler.run_transaction_step(NODE, "step") == "step taken"


class _Owner:
    def touch(self, shard: str) -> None:
        pass

    def lease_holds(self) -> bool:
        return True


def test_a_transaction_ends_when_all_of_its_records_are_committed(bench: Bench) -> None:
    """The engine sees committed records only: an abort would leave the others behind."""
    bench.put(b"a")
    log = SimulatedLog(is_sync=False)
    log.begin_epoch(4)
    log.append(1)
    assigned = Assignment(
        shard=NAME,
        replicas=(NODE, 2),
        in_sync=(NODE, 2),
        eligible=(),
        leader=NODE,
        leader_epoch=4,
        partition_epoch=1,
        min_insync=2,
    )
    entry = bench.handler.find(NAME)
    entry.replica = replica = ShardReplica(NAME, NODE, [log], _Owner(), assigned)
    replica.set_ready(4)
    ended: list[int] = []
    ending = threading.Thread(
        target=lambda: ended.append(
            bench.handler.end_transaction(entry, 7, Offset(0), is_commit=False)
        )
    )
    ending.start()
    with pytest.raises(NotLeaderError):
        bench.handler.read_by_key(NAME, b"k")
    with pytest.raises(NotLeaderError):
        bench.handler.delete_by_key(NAME, b"k")
    assert bench.handler.shard_info(NAME).is_lagging
    ending.join(0.1)
    assert not ended, "the follower does not have the record yet"
    log.set_commit(1)
    replica.committed()
    ending.join(60)
    assert ended == [0]
    assert not bench.handler.shard_info(NAME).is_lagging
    assert bench.handler.read_by_key(NAME, b"k") is not None
