"""An idempotent producer's batches stay in order when this node refuses one of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from tests.brokers.kafka.running import Running, WireClient
from tests.brokers.kafka.wire.test_data_requests import batch, make, patched, write
from tests.kafka_clients import Producer

from penstock.brokers.kafka.metadata.partitions import Partition
from penstock.brokers.kafka.produce.partition_writer import PartitionWriter, Result, Verdict
from penstock.brokers.kafka.produce.pending_commits import WAIT_FOR_ALL, Commit
from penstock.brokers.kafka.produce.refused_batches import (
    ENTRIES_MAX,
    REFUSALS_MAX,
    SEQUENCES,
    NumberedBatch,
    RefusedBatches,
)
from penstock.brokers.kafka.wire.batch_validation import Checked
from penstock.engine import producer_table
from penstock.record import Offset

OK, UNKNOWN_TOPIC, NOT_LEADER, TIMED_OUT = 0, 3, 6, 7
TOO_LARGE, OUT_OF_ORDER, INVALID_TXN_STATE = 10, 45, 48
TRANSACTIONAL = 16


def send(client: WireClient, topic: str, sequence: int, epoch: int = 0, **head: int) -> int:
    """Write a batch with one record; return the error code."""
    numbers = {"producer_id": 77, "producer_epoch": epoch, "sequence": sequence}
    data = patched(batch(b"%d" % sequence), **numbers, **head)
    return write(client, topic, data).number("error_code")


@contextmanager
def led_elsewhere(server: Running, topic: str) -> Iterator[None]:
    """Let the node believe that another one leads the topic."""
    known = server.node.broker_cache.topics["default", topic]
    handle = server.node.driver_manager.open_partition(known, 0)
    assert handle is not None
    entry = handle.entry
    meta = entry.meta
    assert meta is not None
    entry.meta = replace(meta, leader=99)
    entry.clear_derived()
    try:
        yield
    finally:
        entry.meta = meta
        entry.clear_derived()


def stored(server: Running, topic: str) -> list[bytes | None]:
    records = server.node.driver_manager.read_by_offset(topic, 0, Offset(0))
    return [record.value for record in records]


@pytest.mark.parametrize("queue", ["batch", "simple"])
@pytest.mark.parametrize("known", [0, 1])
def test_batches_after_a_refused_one_are_refused_until_it_comes_again(
    server: Running, client: WireClient, queue: str, known: int
) -> None:
    topic = make(server, f"in-order-{queue}-{known}", queue=queue)
    for sequence in range(known):
        assert send(client, topic, sequence) == OK
    with led_elsewhere(server, topic):
        assert send(client, topic, known) == NOT_LEADER
    assert [send(client, topic, known + later) for later in (1, 2)] == [NOT_LEADER] * 2
    assert [send(client, topic, known + number) for number in range(3)] == [OK] * 3
    assert stored(server, topic) == [b"%d" % number for number in range(known + 3)]


def test_a_gap_without_a_refused_batch_is_out_of_order(server: Running, client: WireClient) -> None:
    topic = make(server, "gap")
    assert [send(client, topic, sequence) for sequence in (0, 2)] == [OK, OUT_OF_ORDER]
    with led_elsewhere(server, topic):
        assert send(client, topic, 1) == NOT_LEADER
    with WireClient(server.server.port) as other:
        assert send(other, topic, 2) == OUT_OF_ORDER


def test_a_client_that_leaves_a_refused_batch_out_learns_of_the_gap(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "left-out")
    assert send(client, topic, 0) == OK
    with led_elsewhere(server, topic):
        assert send(client, topic, 1) == NOT_LEADER
    codes = [send(client, topic, 2) for _ in range(REFUSALS_MAX + 1)]
    assert codes == [NOT_LEADER] * REFUSALS_MAX + [OUT_OF_ORDER]


def test_a_batch_that_another_node_has_taken_meanwhile_is_not_asked_for_again(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "elsewhere")
    assert send(client, topic, 0) == OK
    with led_elsewhere(server, topic):
        assert send(client, topic, 1) == NOT_LEADER
    with WireClient(server.server.port) as other:
        assert send(other, topic, 1) == OK
    assert send(client, topic, 2) == OK


def test_batches_after_one_for_a_topic_that_is_not_known_yet_are_refused(
    server: Running, client: WireClient
) -> None:
    assert send(client, "soon", 0) == UNKNOWN_TOPIC
    make(server, "soon")
    assert [send(client, "soon", number) for number in (1, 0, 1)] == [NOT_LEADER, OK, OK]


def test_a_transactional_batch_is_told_who_leads_before_all_else(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "led-elsewhere")
    assert send(client, topic, 0, attributes=TRANSACTIONAL) == INVALID_TXN_STATE
    with led_elsewhere(server, topic):
        assert send(client, topic, 0, attributes=TRANSACTIONAL) == NOT_LEADER


# The table


def numbered(sequence: int, epoch: int = 0, partition: int = 0) -> NumberedBatch:
    return NumberedBatch(b"topic", partition, 5, epoch, sequence)


def test_the_first_refused_batch_counts_and_its_return_ends_it() -> None:
    refused = RefusedBatches()
    refused.record(numbered(7), NOT_LEADER)
    refused.record(numbered(8), NOT_LEADER)
    assert refused.code_of(numbered(8), OUT_OF_ORDER) == NOT_LEADER
    assert refused.code_of(numbered(9), TOO_LARGE) == TOO_LARGE
    assert refused.code_of(numbered(7), OUT_OF_ORDER) == OUT_OF_ORDER
    assert refused.code_of(numbered(9, partition=1), OUT_OF_ORDER) == OUT_OF_ORDER
    refused.record(numbered(7), OK)
    assert not refused


def test_an_earlier_batch_replaces_the_one_that_was_refused_first() -> None:
    refused = RefusedBatches()
    refused.record(numbered(7), NOT_LEADER)
    refused.record(numbered(6), TIMED_OUT)
    assert refused.code_of(numbered(7), OUT_OF_ORDER) == NOT_LEADER


def test_a_new_epoch_begins_anew() -> None:
    refused = RefusedBatches()
    refused.record(numbered(0), NOT_LEADER)
    assert refused.must_wait(numbered(1))
    assert not refused.must_wait(numbered(1, epoch=1))
    refused.record(numbered(0, epoch=1), NOT_LEADER)
    assert refused.must_wait(numbered(1, epoch=1))
    assert not refused.must_wait(numbered(1))


def test_as_many_batches_are_refused_as_a_shard_remembers() -> None:
    assert REFUSALS_MAX + 1 == producer_table.WRITES_MAX
    assert SEQUENCES == producer_table.SEQUENCES


def test_zero_comes_after_the_largest_sequence() -> None:
    refused = RefusedBatches()
    refused.record(numbered(SEQUENCES - 1), NOT_LEADER)
    assert refused.code_of(numbered(0), OUT_OF_ORDER) == NOT_LEADER


def test_an_error_after_which_a_batch_does_not_come_again_holds_nothing_up() -> None:
    refused = RefusedBatches()
    refused.record(numbered(7), TOO_LARGE)
    assert not refused


def test_the_table_of_a_connection_is_bounded() -> None:
    refused = RefusedBatches()
    for partition in range(ENTRIES_MAX + 10):
        refused.record(numbered(0, partition=partition), NOT_LEADER)
    assert len(refused) == ENTRIES_MAX
    assert not refused.must_wait(numbered(1, partition=9))
    assert refused.must_wait(numbered(1, partition=10))


# librdkafka

RECORDS: list[bytes | None] = [b"%d" % number for number in range(5)]


Script = dict[tuple[int, int], tuple[bool, int]]
"""What happens to the batch with a sequence, the n-th time: whether it is written, and the error
code."""


def play(monkeypatch: pytest.MonkeyPatch, topic: str, script: Script) -> list[tuple[int, int]]:
    """Answer the batches for a topic by a script. Returns the list to which their producer epochs
    and sequences are added."""
    real, seen = PartitionWriter.write, list[tuple[int, int]]()

    def write(
        self: PartitionWriter,
        partition: Partition,
        verdict: Verdict,
        records: memoryview,
        transactional_id: str | None,
        commit: Commit = WAIT_FOR_ALL,
    ) -> Result:
        if partition.topic.topic.name != topic:
            return real(self, partition, verdict, records, transactional_id, commit)
        assert isinstance(verdict, Checked)
        numbers = (verdict.producer_epoch, verdict.sequence)
        seen.append(numbers)
        is_written, code = script.get((verdict.sequence, seen.count(numbers)), (True, OK))
        if not is_written:
            time.sleep(0.2)  # so that librdkafka sends the next ones before it knows
            return Result(code)
        result = real(self, partition, verdict, records, transactional_id, commit)
        return Result(code) if code else result

    monkeypatch.setattr(PartitionWriter, "write", write)
    return seen


def produce_one_by_one(server: Running, topic: str) -> None:
    """Have librdkafka send several requests before it has the first response."""
    settings = {
        "bootstrap.servers": server.address,
        "enable.idempotence": True,
        "linger.ms": 0,
        "batch.num.messages": 1,
        "retry.backoff.ms": 50,
        "topic.metadata.refresh.fast.interval.ms": 50,
    }
    producer = Producer(settings)
    for value in RECORDS:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def test_librdkafka_writes_a_batch_of_unknown_outcome_once_to_a_leader_that_is_not_ready(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make(server, "unknown-outcome")
    lost = dict.fromkeys([(2, 1), (3, 1), (4, 1), (1, 2), (2, 2)], (False, NOT_LEADER))
    seen = play(monkeypatch, topic, {(1, 1): (True, TIMED_OUT), **lost})
    produce_one_by_one(server, topic)
    assert stored(server, topic) == RECORDS
    assert {epoch for epoch, _ in seen} == {0}


def test_librdkafka_loses_no_first_batch_to_a_leader_that_is_not_ready(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make(server, "first-refused")
    play(monkeypatch, topic, {(0, 1): (False, NOT_LEADER)})
    produce_one_by_one(server, topic)
    assert stored(server, topic) == RECORDS
