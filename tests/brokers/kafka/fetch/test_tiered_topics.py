"""Consumers read what only the tier still has, in the form in which it came."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, TopicPartition
from tests.brokers.kafka.running import Running, WireClient, running
from tests.brokers.kafka.transactions.test_transactions import read
from tests.brokers.kafka.waiting import wait_until_ended
from tests.kafka_clients import Consumer, Producer
from tests.meta.raft.cluster_in_process import wait_until

from penstock.brokers.kafka.metadata.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST_TIERED
from penstock.meta.state.model import TieringPolicy
from penstock.record import Offset, Record
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.read.tier_query import TierQuery

WAIT_S = 60.0
TOPIC = "orders"
SMALL = {
    "broker__commit_log_file_size": 1 << 16,
    "tiering__chunk_size": 8192,
    "tiering__segment_size": 40_000,
    "tiering__upload_interval_ms": 50,
}


def make_topic(server: Running, queue: str = "batch") -> None:
    policy = TieringPolicy(local_retention_bytes=20_000)
    server.node.admin.create_topic_full(TOPIC, 1, {"queue": queue, "tiering": policy})


def fill_the_log(server: Running) -> list[bytes]:
    """Write so much that what is before it need not stay in the log."""
    values = [bytes(2_000)] * 60
    for value in values:
        server.node.driver_manager.write(TOPIC, Record(value=value), partition=0)
    return values


def move_to_tier(server: Running, least: int) -> int:
    """Return the first offset that the log still has, once those below `least` are gone."""
    engine = server.node.engines.opened()["EngineSegment"]
    assert isinstance(engine, TieredSegmentEngine)
    (shard,) = engine.list_shard()

    def is_moved() -> bool:
        # What the uploader is busy with at this moment is done by a later round.
        server.node.run_upkeep()
        server.node.run_upkeep()
        return engine.store.bounds(shard).earliest >= least

    wait_until(is_moved, "the log has less", seconds=WAIT_S)
    return int(engine.store.bounds(shard).earliest)


def offset_of(server: Running, timestamp: int) -> int:
    """Ask ListOffsets for one of its named places."""
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    with WireClient(server.server.port) as client:
        response = client.ask(
            2, 9, replica_id=-1, topics=[{"name": TOPIC, "partitions": [partition]}]
        )
    (found,) = response.items_of("topics")[0].items_of("partitions")
    assert found.number("error_code") == 0
    return found.number("offset")


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_consumer_reads_from_the_tier_into_the_log(data_path: Path, codec: str) -> None:
    with running(data_path, store=SMALL) as server:
        make_topic(server)
        producer = Producer(
            {"bootstrap.servers": server.address, "compression.type": codec, "linger.ms": 0}
        )
        expected: list[bytes | None] = []
        for number in range(30):
            for inner in range(10):
                value = b"%d/%d" % (number, inner) * (10 + 61 * (codec == "lz4"))
                producer.produce(TOPIC, value, partition=0)
                expected.append(value)
            assert producer.flush(WAIT_S) == 0
            if number % 10 == 5:
                server.node.driver_manager.write(TOPIC, Record(value=b"python"), partition=0)
                expected.append(b"python")
        expected += fill_the_log(server)
        assert offset_of(server, EARLIEST_LOCAL) == 0
        assert offset_of(server, LATEST_TIERED) == -1
        local = move_to_tier(server, 301)
        assert offset_of(server, EARLIEST) == 0
        assert offset_of(server, EARLIEST_LOCAL) == local
        assert offset_of(server, LATEST_TIERED) == local - 1
        assert read(server.address, TOPIC, len(expected)) == expected


def test_aborted_records_of_the_tier_stay_unseen(data_path: Path) -> None:
    with running(data_path, store=SMALL) as server:
        make_topic(server)
        producer = Producer({"bootstrap.servers": server.address, "transactional.id": "t"})
        producer.init_transactions(WAIT_S)
        expected: list[bytes | None] = []
        for number in range(40):
            value = b"%d" % number * 1_000
            producer.begin_transaction()
            producer.produce(TOPIC, value, partition=0)
            if number % 3 == 0:
                producer.flush(WAIT_S)
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
                expected.append(value)
        filled = fill_the_log(server)
        move_to_tier(server, 80)
        seen = read(server.address, TOPIC, len(expected) + len(filled))
        assert seen[: len(expected)] == expected
        offset, from_python = 0, []
        while page := server.node.driver_manager.read_by_offset(TOPIC, 0, Offset(offset)):
            from_python += [record.value for record in page]
            offset = page[-1].offset + 1
        assert from_python[: len(expected)] == expected


@pytest.mark.parametrize("queue", ["batch", "simple"])
def test_a_tier_holds_no_record_of_an_open_or_aborted_transaction(
    data_path: Path, queue: str
) -> None:
    with running(data_path, store=SMALL) as server:
        make_topic(server, queue)
        producer = Producer({"bootstrap.servers": server.address, "transactional.id": "t"})
        producer.init_transactions(WAIT_S)
        for value, is_commit in ((b"kept", True), (b"aborted", False), (b"kept, too", True)):
            producer.begin_transaction()
            producer.produce(TOPIC, value, partition=0)
            producer.flush(WAIT_S)
            if is_commit:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
            wait_until_ended(server.node, TOPIC)
        producer.begin_transaction()
        producer.produce(TOPIC, b"open", partition=0)
        producer.flush(WAIT_S)
        assert tiered(server) == [b"kept", b"kept, too"]
        producer.commit_transaction(WAIT_S)
        wait_until_ended(server.node, TOPIC)
        assert tiered(server) == [b"kept", b"kept, too", b"open"]


def tiered(server: Running) -> list[bytes | None]:
    """Upload what may be uploaded; return what a reader of the tier alone finds there."""
    engine = server.node.engines.opened()["EngineSegment"]
    assert isinstance(engine, TieredSegmentEngine)
    (shard,) = engine.list_shard()
    engine.dispatcher.upload(shard)
    flat = engine.tiers.flat(shard)
    assert flat is not None
    return [record.value for record in flat.reader.read(TierQuery(0)).records]


@pytest.mark.parametrize("queue", ["batch", "simple"])
def test_a_fetch_at_a_missing_chunk_is_told_so_at_once(data_path: Path, queue: str) -> None:
    with running(data_path, store=SMALL) as server:
        make_topic(server, queue)
        expected = fill_the_log(server) + fill_the_log(server)
        move_to_tier(server, 40)
        chunks = sorted(data_path.rglob("*.chunk"))
        gone = chunks[3]
        first = int(gone.name.split("-")[1])
        gone.unlink()
        engine = server.node.engines.opened()["EngineSegment"]
        assert isinstance(engine, TieredSegmentEngine)
        consumer = Consumer(
            {"bootstrap.servers": server.address, "group.id": "g", "auto.offset.reset": "error"}
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        seen: list[bytes | None] = []
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, "neither a record nor an error"
            error = message.error()
            if error is not None:
                break
            seen.append(message.value())
        assert error.code() == KafkaError.INVALID_MSG, "Kafka's CORRUPT_MESSAGE"
        assert len(seen) == first, "all that comes before it"
        assert seen == expected[:first]
        consumer.close()
        assert [one.first_offset for one in engine.tiers.damage.known()] == [first]
