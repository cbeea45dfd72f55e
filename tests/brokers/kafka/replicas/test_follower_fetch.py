"""Fetches from replicas that follow: by `client.rack`, up to what the replica knows."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import TopicPartition
from kio.schema.errors import ErrorCode
from tests.brokers.kafka.replicas.replicated_topics import (
    FOLLOWER,
    LEADER,
    WAIT_S,
    create,
    fetch,
    follower_reads,
    produce,
)
from tests.brokers.kafka.transactions.test_transactions_across_nodes import TwoNodes, producer_of
from tests.kafka_clients import AdminClient, Consumer

pytestmark = pytest.mark.timeout(300)


def wait_for_copy(nodes: TwoNodes, topic: str, end: int, *, is_committed: bool = False) -> None:
    """Wait until the follower serves records up to `end`."""

    def has_all() -> bool:
        found = fetch(nodes, FOLLOWER, topic, end, is_committed=is_committed)
        return (found["error_code"], found["high_watermark"]) == (0, end)

    nodes.wait_for(has_all, f"the follower has the records before {end}")


def test_a_consumer_with_a_rack_reads_from_the_replica_there(nodes: TwoNodes) -> None:
    topic = create(nodes, "near")
    produce(nodes, topic, *(b"%d" % number for number in range(20)))
    before = follower_reads(nodes, FOLLOWER)
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.addresses[LEADER],
            "group.id": "near",
            "client.rack": f"rack-{FOLLOWER}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < 25:
        assert time.monotonic() < deadline, f"{len(found)} of 25 records came"
        if len(found) == 20:
            produce(nodes, topic, *(b"%d" % number for number in range(20, 25)))
        found += [one.value() for one in consumer.consume(25, 1.0) if one.error() is None]
    consumer.close()
    assert found == [b"%d" % number for number in range(25)]
    assert follower_reads(nodes, FOLLOWER) >= before + 2, "the follower sent the records"
    assert follower_reads(nodes, LEADER) == 0


def test_the_leader_names_a_replica_for_the_rack_of_a_client(nodes: TwoNodes) -> None:
    topic = create(nodes, "named")
    produce(nodes, topic, b"a")
    near = fetch(nodes, LEADER, topic, 0, rack=f"rack-{FOLLOWER}", version=12)
    assert (near["error_code"], near["preferred_read_replica"]) == (0, FOLLOWER)
    assert not near.blob("records")
    assert near["high_watermark"] == 1
    for rack in ("", "rack-1", "elsewhere"):
        own = fetch(nodes, LEADER, topic, 0, rack=rack)
        assert (own["error_code"], own["preferred_read_replica"]) == (0, -1), rack
        assert own.blob("records"), rack
    past = fetch(nodes, LEADER, topic, 9, rack=f"rack-{FOLLOWER}")
    assert past["error_code"] == ErrorCode.offset_out_of_range, "the leader knows"


def test_a_follower_serves_what_it_knows_and_says_what_it_does_not(nodes: TwoNodes) -> None:
    topic = create(nodes, "known")
    produce(nodes, topic, b"a", b"b")
    wait_for_copy(nodes, topic, 2)
    copies = [fetch(nodes, node, topic, 0).blob("records") for node in (LEADER, FOLLOWER)]
    assert copies[0] == copies[1]
    codes = {
        (0, 10, -1): ErrorCode.not_leader_or_follower,  # such clients know no replicas
        (3, 17, -1): ErrorCode.offset_not_available,
        (0, 17, 7): ErrorCode.unknown_leader_epoch,
    }
    for (offset, version, epoch), code in codes.items():
        found = fetch(nodes, FOLLOWER, topic, offset, version=version, epoch=epoch)
        assert found["error_code"] == code, (offset, version, epoch)
    admin = AdminClient({"bootstrap.servers": nodes.addresses[LEADER]})
    for future in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        future.result(WAIT_S)

    def is_gone() -> bool:
        code = fetch(nodes, FOLLOWER, topic, 0)["error_code"]
        return bool(code == ErrorCode.offset_out_of_range)

    nodes.wait_for(is_gone, "the follower's log begins where the leader's does")


def test_a_fetch_at_a_follower_waits_for_what_is_committed(nodes: TwoNodes) -> None:
    topic = create(nodes, "awaited")
    found: list[bytes] = []

    def wait_for_records() -> None:
        found.append(fetch(nodes, FOLLOWER, topic, 0, max_wait=60_000).blob("records"))

    waiting = threading.Thread(target=wait_for_records)
    waiting.start()
    time.sleep(0.2)  # so that it waits, mostly
    produce(nodes, topic, b"a")
    waiting.join(30)
    assert not waiting.is_alive(), "it was answered before its time was up"
    assert b"a" in found[0]


def test_a_follower_hides_what_is_open_and_names_what_was_aborted(nodes: TwoNodes) -> None:
    topic = create(nodes, "transactions")
    producer = producer_of(nodes, "at-follower")
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=0)
    assert producer.flush(WAIT_S) == 0
    produce(nodes, topic, b"plain")
    wait_for_copy(nodes, topic, 2)
    held = fetch(nodes, FOLLOWER, topic, 0, is_committed=True)
    assert (held["error_code"], held["last_stable_offset"]) == (0, 0)
    assert not held.blob("records")
    assert fetch(nodes, FOLLOWER, topic, 0).blob("records"), "readers of all records see them"
    found = []

    def wait_for_end() -> None:
        found.append(fetch(nodes, FOLLOWER, topic, 0, is_committed=True, max_wait=60_000))

    waiting = threading.Thread(target=wait_for_end)
    waiting.start()
    producer.abort_transaction(WAIT_S)
    waiting.join(30)
    assert not waiting.is_alive(), "the end of a transaction is noticed"
    (response,) = found
    aborted = response.items_of("aborted_transactions")
    assert [one["first_offset"] for one in aborted] == [0]
    assert b"plain" in response.blob("records")
    wait_for_copy(nodes, topic, 3, is_committed=True)
    later = fetch(nodes, FOLLOWER, topic, 1, is_committed=True)
    assert later["last_stable_offset"] == 3
    assert len(later.items_of("aborted_transactions")) == 1


def test_topics_of_records_are_served_but_for_readers_of_committed_ones(nodes: TwoNodes) -> None:
    """An abort deletes records there, later on the follower than on the leader."""
    topic = create(nodes, "rows", **{"penstock.storage": "rocksdb"})
    produce(nodes, topic, b"row")
    wait_for_copy(nodes, topic, 1)
    assert b"row" in fetch(nodes, FOLLOWER, topic, 0).blob("records")
    refused = fetch(nodes, FOLLOWER, topic, 0, is_committed=True)
    assert refused["error_code"] == ErrorCode.not_leader_or_follower
    assert refused["current_leader"] == {"leader_id": LEADER, "leader_epoch": 0}
    rack = f"rack-{FOLLOWER}"
    for is_committed, preferred in ((False, FOLLOWER), (True, -1)):
        found = fetch(nodes, LEADER, topic, 0, rack=rack, is_committed=is_committed)
        assert found["preferred_read_replica"] == preferred
