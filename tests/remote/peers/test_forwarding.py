"""A node without a shard serves it all the same: by the node that leads it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from msgspec import msgpack
from msgspec.structs import replace
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.network.two_nodes import TwoNodes

from penstock.adapter.engine_adapter import DriverList
from penstock.adapter.leader_changes import LeaderChanges
from penstock.adapter.shard_drivers import ShardDrivers
from penstock.engine.contract import (
    Acks,
    AdapterOffsetStrategy,
    Cleanup,
    Isolation,
    OnCommitted,
    ShardConfig,
    Written,
)
from penstock.engine.engine_set import EngineSet
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.routing.storage_cache import StorageCacheManager
from penstock.errors import (
    BadRequestError,
    BusyError,
    DeadlineError,
    NotLeaderError,
    NotSentError,
    NotSupportedError,
    RecordTooLargeError,
    SequenceGapError,
    ShardSealedError,
    UnknownShardError,
)
from penstock.meta.client import TopicConfig, Update
from penstock.meta.events import ShardPut
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.state.model import Shard
from penstock.platform.clock_guard import GuardedClock
from penstock.record import Offset, Producer, Record, ShardId
from penstock.remote import shards_pb2 as pb
from penstock.remote.peers import connections as forwarding
from penstock.remote.peers.connections import ClientConnectionManager
from penstock.remote.peers.forward_calls import ForwardCalls
from penstock.remote.peers.shard_service import ShardService, forwarded_methods, shard_handlers
from penstock.remote.wire import records as wire
from penstock.remote.wire.packed_write import WRITE_PACKED, unpack_write
from penstock.remote.wire.shard_calls import READ, WRITE

HERE, THERE = 1, 2
packed = msgpack.encode
MEMORY = "EngineMemory"


class Pair:
    """Two nodes that share one meta service; node 2 leads what there is. `with_channel`: the nodes
    have internal ports, and writes and reads take their channel `forward`."""

    def __init__(self, directory: Path, *, with_channel: bool = False) -> None:
        self.meta = StandaloneMetaClient.open(str(directory / "meta"), node_id=THERE)
        config = TopicConfig(storage_type=MEMORY, record_size_max=10_000, cleanup="compact")
        topic = self.meta.create_topic("orders", config=config)
        self.shard = ShardId(topic.topic_id, 0)
        self.name = self.shard.name
        self.engine = MemoryStorageEngine()
        self.there = self._handler(THERE, self.engine)
        self.drivers = ShardDrivers(DriverList(self.there))
        clock = GuardedClock(self.there.clock)
        self.rpc = self.serve_there()
        self.forwarder = ClientConnectionManager()
        self.forwarder.follow(self.meta)
        self.here = self._handler(HERE, MemoryStorageEngine(), self.forwarder)
        self.nodes: TwoNodes | None = None
        if with_channel:
            self._connect_channels(ShardService(self.drivers, clock))

    def serve_there(self) -> grpc.Server:
        """Serve node 2 at a new address, over gRPC."""
        self.rpc = grpc.server(ThreadPoolExecutor(4))
        clock = GuardedClock(self.there.clock)
        self.rpc.add_generic_rpc_handlers((shard_handlers(self.drivers, clock),))
        port = self.rpc.add_insecure_port("127.0.0.1:0")
        self.rpc.start()
        self.meta.register_node("", listeners={"storage": f"127.0.0.1:{port}"})
        return self.rpc

    def _connect_channels(self, service: ShardService) -> None:
        self.nodes = TwoNodes()
        self.serving = ForwardCalls(
            self.nodes.transports[THERE].data.channel("forward"),
            forwarded_methods(service),
            ThreadPoolExecutor(4),
        )
        channel = self.nodes.transports[HERE].data.channel("forward")
        self.forwarder.forward_calls = ForwardCalls(channel, {}, ThreadPoolExecutor(1))
        channel.send(THERE, b"")
        wait_until(lambda: channel.is_connected(THERE), "the channel stands")

    @property
    def forwarded_bytes(self) -> int:
        """What the channel has carried."""
        if self.nodes is None:
            return 0
        return self.nodes.transports[HERE].data.channel("forward").traffic.sent

    def set_record_size_max(self, size: int) -> None:
        """Alter the topic in the metadata alone."""
        (topic,) = self.meta.list_topics()
        config = replace(topic.config, record_size_max=size)
        self.meta.alter_topic(topic.topic_id, config=config)

    def stop_there(self) -> None:
        self.rpc.stop(None).wait()
        if self.nodes is not None:
            self.nodes.transports[THERE].close()
            channel = self.nodes.transports[HERE].data.channel("forward")
            wait_until(lambda: not channel.is_connected(THERE), "the channel is lost")

    def _handler(
        self,
        node: int,
        engine: MemoryStorageEngine,
        forwarder: ClientConnectionManager | None = None,
    ) -> StorageEngineHandler:
        cache = StorageCacheManager()
        self.meta.watch(0, cache.apply)
        engines = EngineSet({MEMORY: lambda: engine})
        return StorageEngineHandler(cache, engines, node_id=node, forwarder=forwarder)

    def close(self) -> None:
        if self.nodes is not None:
            assert self.forwarder.forward_calls is not None
            self.forwarder.forward_calls.close()
            self.serving.close(10)
            self.nodes.close()
        self.forwarder.close()
        self.rpc.stop(None).wait()
        self.meta.close()


@pytest.fixture(params=["gRPC", "channel"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, with_channel=request.param == "channel")
    yield made
    made.close()


def test_every_operation_is_done_by_the_leader(pair: Pair) -> None:
    here, name = pair.here, pair.name
    odd = b"\xff".decode("utf-8", "surrogateescape")
    first = Record(b"one", b"k", ("red", odd), ((odd, None), ("h", b"x")), 1_000, 1 << 50)
    assert here.write(name, first).first == 0
    assert here.batch_write(name, [Record(None, b"k"), Record(b"", b"")]).offsets == range(1, 3)
    (found, *_) = here.read_by_offset(name, Offset(0))
    assert found.as_record() == first
    assert here.read_by_offset(name, Offset(0)) == pair.there.read_by_offset(name, Offset(0))
    page = here.read_by_offset(name, Offset(1), max_records=1, isolation=Isolation.UNCOMMITTED)
    assert [record.offset for record in page] == [1]
    assert [record.offset for record in here.read_by_tag(name, odd)] == [0]
    newest = here.read_by_key(name, b"k")
    assert newest is not None
    assert newest.offset == 1
    assert here.read_by_key(name, b"nobody") is None
    assert [record.offset for record in here.query_by_key(name, b"k")] == [1, 0]
    assert [record.offset for record in here.query_by_key(name, b"k", end_ms=1_000)] == [0]
    latest = AdapterOffsetStrategy.LATEST
    assert here.get_offset_by_timestamp(name, 1_001, AdapterOffsetStrategy.EARLIEST) == 1
    assert here.get_offset_by_timestamp(name, 1 << 60, latest) == 3
    assert here.shard_info(name) == pair.there.shard_info(name)
    assert here.compact(name).records == 1
    assert here.delete_by_offset(name, Offset(2))
    assert not here.delete_by_offset(name, Offset(2))
    assert here.delete_by_key(name, b"k") == 1
    assert here.delete_records_before(name, Offset(2)) == 2
    here.seal_shard(name)
    with pytest.raises(ShardSealedError):
        here.write(name, Record(b"late"))


def test_a_query_larger_than_a_message_is_answered_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "MESSAGE_SIZE_MAX", 100_000)
    monkeypatch.setattr(wire, "PAGE_SIZE", 25_000)
    pair = Pair(tmp_path)
    try:
        pair.there.batch_write(pair.name, [Record(bytes(9_000), b"k") for _ in range(40)])
        found = pair.here.query_by_key(pair.name, b"k")
    finally:
        pair.close()
    assert [record.offset for record in found] == list(range(39, -1, -1))


def test_errors_keep_their_types_and_what_they_say(pair: Pair) -> None:
    here, name = pair.here, pair.name
    with pytest.raises(RecordTooLargeError):
        here.write(name, Record(bytes(20_000)))
    producer = Producer(1, 0, 0)
    assert not here.write(name, Record(b"one"), producer=producer).repeated
    assert here.write(name, Record(b"one"), producer=producer).repeated
    with pytest.raises(SequenceGapError):
        here.write(name, Record(b"gap"), producer=Producer(1, 0, 7))
    with pytest.raises(UnknownShardError):
        here.write("nobody_0", Record(b"x"))


def test_a_request_is_passed_on_once(pair: Pair) -> None:
    """The node that is asked is behind: it believes that a third one leads."""
    (shard,) = pair.meta.list_shards()
    pair.there.cache.apply(Update(10_000, (ShardPut(_led_by(pair, 3)),)))
    with pytest.raises(NotLeaderError, match="leader: 3"):
        pair.here.write(pair.name, Record(b"x"))
    assert shard.leader == THERE
    pair.there.cache.shards.clear()
    with pytest.raises(NotLeaderError, match="unknown"):
        pair.here.write(pair.name, Record(b"x"))


def _led_by(pair: Pair, leader: int) -> Shard:
    (shard,) = pair.meta.list_shards()
    return replace(shard, leader=leader, replicas=(leader,), in_sync=(leader,))


def test_protocols_that_know_the_leaders_are_told_and_not_served(pair: Pair) -> None:
    entry = pair.here.find(pair.name)
    for ask in (
        lambda: pair.here.bounds(entry),
        lambda: pair.here.epoch_end(entry, 0),
        lambda: pair.here.write_batch(entry, b"", 1, timestamp_ms=0),
    ):
        with pytest.raises(NotLeaderError, match="leader: 2"):
            ask()
    assert pair.there.bounds(pair.there.find(pair.name)) == (0, 0)


def test_shards_are_created_and_altered_by_their_leader(pair: Pair) -> None:
    entry = pair.here.find(pair.name)
    assert pair.engine.list_shard() == []
    pair.here.open_elsewhere([entry])
    assert pair.engine.list_shard() == [pair.shard]
    pair.set_record_size_max(5)
    pair.here.alter_elsewhere(entry)
    with pytest.raises(RecordTooLargeError):
        pair.here.write(pair.name, Record(b"too long"))
    other = pair.forwarder.engine_of(THERE, MEMORY)
    other.create_shard(pair.shard, ShardConfig())
    for ask in (other.list_shard, lambda: other.delete_shard(pair.shard)):
        with pytest.raises(NotSupportedError, match="node 2 itself"):
            ask()


def test_an_alteration_that_arrives_after_a_later_one_does_not_undo_it(pair: Pair) -> None:
    config = ShardConfig(cleanup=Cleanup.COMPACT, record_size_max=5)
    pair.here.open_elsewhere([pair.here.find(pair.name)])
    revision = pair.here.cache.revision
    pair.set_record_size_max(5_000)
    pair.forwarder.alter_shard(THERE, pair.shard, config, revision)
    pair.here.write(pair.name, Record(b"not too long"))
    pair.forwarder.alter_shard(THERE, pair.shard, config, 0)  # of an earlier release
    with pytest.raises(RecordTooLargeError):
        pair.here.write(pair.name, Record(b"too long"))


def test_a_leader_that_has_not_heard_of_a_shard_is_waited_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.remote.peers.shard_service.KNOWN_WITHIN_S", 0.05)
    with pytest.raises(DeadlineError, match="knows the metadata up to"):
        pair.forwarder.open_shards(THERE, pair.shard.topic, [0], 1_000_000)


def test_a_reader_that_waits_sees_what_was_written_at_the_leader(pair: Pair) -> None:
    waited: list[bool] = []

    def has_records() -> bool:
        return pair.here.shard_info(pair.name).latest > 0

    waiting = threading.Thread(
        target=lambda: waited.append(pair.here.wait_for_append([pair.name], has_records, 60))
    )
    waiting.start()
    pair.there.write(pair.name, Record(b"news"))
    waiting.join(90)
    assert waited == [True]


def test_a_node_that_is_away_or_unknown_is_a_reason_to_try_again(pair: Pair) -> None:
    pair.stop_there()
    with pytest.raises(NotSentError, match=r"node 2 at 127.*nothing was sent"):
        pair.here.write(pair.name, Record(b"x"))
    pair.meta.remove_node(THERE)
    with pytest.raises(NotSentError, match="node 2 has not registered"):
        pair.here.write(pair.name, Record(b"x"))


def test_a_write_that_the_leader_refused_to_connect_for_is_made_again_when_one_serves(
    pair: Pair,
) -> None:
    (shard,) = pair.meta.list_shards()
    replicated = replace(shard, replicas=(THERE, HERE), in_sync=(THERE, HERE))
    pair.here.cache.apply(Update(10_000, (ShardPut(replicated),)))
    pair.stop_there()
    refused = threading.Semaphore(0)
    written: list[Written] = []

    def write() -> None:
        def call() -> Written:
            try:
                return pair.here.write(pair.name, Record(b"once"))
            except NotSentError:
                refused.release()
                raise

        try:
            written.append(call())
        except NotSentError as error:
            written.append(LeaderChanges(pair.here).repeat(pair.name, error, call))

    writing = threading.Thread(target=write)
    writing.start()
    for _ in range(3):
        assert refused.acquire(timeout=60)
    pair.serve_there()
    writing.join(60)
    assert [one.first for one in written] == [0]
    assert len(pair.there.read_by_offset(pair.name, Offset(0))) == 1


def test_requests_that_wait_for_other_nodes_are_bounded(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "PENDING_CALLS_MAX", 0)
    connections = ClientConnectionManager()
    connections.follow(pair.meta)
    with pytest.raises(BusyError):
        connections.engine_of(THERE, MEMORY).shard_info(pair.shard)
    connections.close()


def test_write_send_and_read_send_reach_the_leader(pair: Pair) -> None:
    manager = pair.forwarder
    sent = [wire.record_to_wire(Record(b"one", b"k", ("red",)))]
    written = manager.write_send(THERE, WRITE, pb.ShardWrite(shard=pair.name, records=sent))
    assert isinstance(written, pb.ShardWritten)
    assert (written.first, written.count) == (0, 1)
    reply = manager.read_send(THERE, READ, READ.encode(pair.shard, Offset(0)))
    assert [record.value for record in READ.decode(reply)] == [b"one"]
    engine = manager.engine_of(THERE, MEMORY)
    by_offset = engine.read_by_offset(pair.shard, Offset(0), max_records=1)
    by_tag = engine.read_by_tag(pair.shard, "red")
    newest = engine.read_by_key(pair.shard, b"k")
    assert [record.value for record in (*by_offset, *by_tag)] == [b"one", b"one"]
    assert newest is not None
    assert newest.value == b"one"
    with pytest.raises(NotLeaderError):
        manager.write_send(THERE, WRITE, pb.ShardWrite(shard="absent_0", records=sent))


def test_a_forwarded_write_keeps_its_acks_and_the_transaction_of_its_producer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, Producer | None, Acks]] = []
    write = pair.there.batch_write

    def record_options(
        shard_name: str,
        records: Sequence[Record],
        *,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        on_committed: OnCommitted | None = None,
    ) -> Written:
        seen.append((len(records), producer, acks))
        return write(shard_name, records, producer=producer, acks=acks, on_committed=on_committed)

    monkeypatch.setattr(pair.drivers.open_shard(pair.name).driver, "batch_write", record_options)
    plain, transactional = Producer(1, 0, 0), Producer(2, 0, 0, is_transactional=True)
    pair.here.write(pair.name, Record(b"one"))
    pair.here.write(pair.name, Record(b"two"), producer=plain, acks=Acks.LEADER)
    pair.here.batch_write(
        pair.name, [Record(b"three"), Record(b"four")], producer=transactional, acks=Acks.NONE
    )
    pair.here.batch_write(pair.name, [Record(b"five")], acks=Acks.ALL)
    assert seen == [
        (1, None, Acks.ALL),
        (1, plain, Acks.LEADER),
        (2, transactional, Acks.NONE),
        (1, None, Acks.ALL),
    ]
    # A node of an earlier release says nothing of acks.
    sent = pb.ShardWrite(shard=pair.name, records=[wire.record_to_wire(Record(b"six"))])
    pair.forwarder.write_send(THERE, WRITE, sent)
    assert seen[-1] == (1, None, Acks.ALL)
    sent.acks = "some"
    with pytest.raises(BadRequestError, match="'some' is not one of none, leader, all"):
        pair.forwarder.write_send(THERE, WRITE, sent)


def test_writes_and_reads_take_the_channel_and_grpc_where_there_is_none(tmp_path: Path) -> None:
    pair = Pair(tmp_path, with_channel=True)
    try:
        before = pair.forwarded_bytes
        pair.here.write(pair.name, Record(bytes(5_000)))
        pair.here.read_by_offset(pair.name, Offset(0))
        assert pair.forwarded_bytes > before + 5_000
        calls = pair.forwarder.forward_calls
        assert calls is not None
        assert pair.nodes is not None
        pair.nodes.transports[THERE].close()
        wait_until(lambda: not calls._channel.is_connected(THERE), "the channel is lost")
        pair.here.write(pair.name, Record(b"by gRPC"))
        records = pair.here.read_by_offset(pair.name, Offset(0))
        assert [len(record.value or b"") for record in records] == [5_000, 7]
    finally:
        pair.close()


def test_every_field_of_a_record_survives_the_way_to_the_leader(pair: Pair) -> None:
    records = [
        Record(None, b"gone"),
        Record(b"", b"", ("red", "gr\u00fcn"), (("a", None), ("b", b"")), 5, 1 << 50),
        Record(b"bytes of another alphabet", None, ("\udcff",), (("\udc80", b"x"),), 0),
    ]
    for record in records:
        pair.here.batch_write(pair.name, [record])
    found = pair.there.read_by_offset(pair.name, Offset(0))
    for sent, stored in zip(records, found, strict=True):
        assert (stored.value, stored.key, stored.tags, stored.headers) == (
            sent.value,
            sent.key,
            sent.tags,
            sent.headers,
        )
        assert stored.expires_at_ms == sent.expires_at_ms
        assert sent.timestamp_ms in {None, stored.timestamp_ms}


def test_a_leader_of_an_earlier_release_gets_writes_in_its_form(tmp_path: Path) -> None:
    pair = Pair(tmp_path, with_channel=True)
    try:
        method = pair.serving._methods.pop(WRITE_PACKED.encode())
        pair.here.write(pair.name, Record(b"one"))
        pair.here.batch_write(pair.name, [Record(b"two"), Record(b"three")])
        assert pair.forwarder._unpacked == {THERE}
        # After its update it registers again.
        pair.serving._methods[WRITE_PACKED.encode()] = method
        pair.meta.register_node("", listeners=pair.meta.list_nodes()[0].listeners)
        wait_until(lambda: not pair.forwarder._unpacked, "the node is asked again")
        pair.here.write(pair.name, Record(b"four"))
        assert pair.forwarder._unpacked == set()
        found = pair.there.read_by_offset(pair.name, Offset(0))
        assert [record.value for record in found] == [b"one", b"two", b"three", b"four"]
    finally:
        pair.close()


@pytest.mark.parametrize(
    "data", [b"", b"\x93", b"\xc1", packed([1, [], None, "all"]), packed(["a_0", [], None, "some"])]
)
def test_a_malformed_packed_write_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequestError, match="malformed request"):
        unpack_write(data)
