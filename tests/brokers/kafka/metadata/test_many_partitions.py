"""A fetch of many partitions, of which few have news."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from tests.brokers.kafka.running import Running, WireClient
from tests.brokers.kafka.wire.test_data_requests import batch, make, write

from penstock.adapter.requests import DeleteBefore
from penstock.adapter.topics.shard_name import build_storage_name
from penstock.brokers.kafka.fetch.partition_reader import PartitionReader
from penstock.brokers.kafka.fetch.request import FetchPartition, parse_fetch
from penstock.brokers.kafka.fetch.response import FetchedPartition
from penstock.brokers.kafka.metadata.partitions import Partition
from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.brokers.kafka.wire.fields import Fields
from penstock.brokers.kafka.wire.schema import request_layout
from penstock.record import Offset

FETCH = 1
VERSIONS = (4, 11, 12, 13, 17)
PARTITIONS = 40


def fields_of(
    server: Running, topic: str, offsets: list[int], leader_epoch: int = -1, **changes: object
) -> dict[str, object]:
    found = server.node.broker_cache.get_topic(topic)
    partitions = [
        {
            "partition": number,
            "fetch_offset": offset,
            "current_leader_epoch": leader_epoch,
            "partition_max_bytes": 1 << 20,
        }
        for number, offset in enumerate(offsets)
    ]
    named = {"topic": topic, "topic_id": uuid_of(found.topic_id), "partitions": partitions}
    limits = {"max_wait": 60_000, "min_bytes": 1, "max_bytes": 1 << 24, "session_epoch": -1}
    return {**limits, "topics": [named], **changes}


def told(response: Fields) -> dict[int, Fields]:
    (topic,) = response.items_of("responses")
    return {one.number("partition_index"): one for one in topic.items_of("partitions")}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", [0, 1])
def test_partitions_without_news_are_told_beside_those_that_have_some(
    server: Running, client: WireClient, version: int, isolation: int
) -> None:
    topic = make(server, f"some-{version}-{isolation}", PARTITIONS)
    for number in range(0, PARTITIONS, 7):
        write(client, topic, batch(b"a", b"b"), partition=number)
    ends = [2 if number % 7 == 0 else 0 for number in range(PARTITIONS)]
    for offset in (0, 1, 2):
        if offset == 2:
            write(client, topic, batch(b"c"), partition=1)
        requested = [min(offset, end) for end in ends]
        fields = fields_of(server, topic, requested, isolation_level=isolation)
        found = told(client.ask(FETCH, version, **fields))
        assert list(found) == list(range(PARTITIONS))
        for number, one in found.items():
            end = 1 if offset == 2 and number == 1 else ends[number]
            assert one.number("error_code") == 0
            assert one.number("high_watermark") == end
            assert one.number("last_stable_offset") == end
            assert bool(one.blob("records")) == (requested[number] < end)
            if version >= 5:
                assert one.number("log_start_offset") == 0


def test_a_wake_up_looks_at_nothing_but_the_partition_with_news(
    server: Running, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make(server, "waiting", PARTITIONS)
    looks: Counter[int] = Counter()
    try_fast = PartitionReader.try_fast

    def count(
        self: PartitionReader,
        partition: Partition,
        requested: FetchPartition,
        *,
        is_committed: bool,
    ) -> FetchedPartition | None:
        looks[partition.index] += 1
        return try_fast(self, partition, requested, is_committed=is_committed)

    monkeypatch.setattr(PartitionReader, "try_fast", count)
    client.send(FETCH, 12, **fields_of(server, topic, [0] * PARTITIONS))
    wait_for(lambda: len(looks) == PARTITIONS)  # then it waits: nothing is there
    for number in range(1, 6):
        server.node.handler.release_readers(shard(server, topic, 3))
        wait_for(partial(has_looked, looks, 3, 1 + number))
    assert set(looks.values()) == {1, 6}, "a wake-up without news looks at one partition"
    with WireClient(server.server.port) as writer:
        write(writer, topic, batch(b"x"), partition=9)
    found = told(client.receive(FETCH, 12))
    assert [number for number, one in found.items() if one.blob("records")] == [9]


def has_looked(looks: Counter[int], partition: int, times: int) -> bool:
    return looks[partition] == times


def wait_for(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def shard(server: Running, topic: str, partition: int) -> str:
    found = server.node.broker_cache.get_topic(topic)
    return build_storage_name(found.topic_id, partition)


def test_what_was_deleted_is_out_of_range_for_a_connection_that_knew_better(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "deleted")
    for value in (b"a", b"b", b"c"):
        write(client, topic, batch(value))
    fields = fields_of(server, topic, [3], max_wait=0)
    assert told(client.ask(FETCH, 12, **fields))[0].number("log_start_offset") == 0
    server.node.driver_manager.execute(DeleteBefore(topic, 0, Offset(2)))
    found = told(client.ask(FETCH, 12, **fields_of(server, topic, [0])))[0]
    assert (found.number("error_code"), found.number("log_start_offset")) == (1, 2)


def test_another_leader_epoch_is_told_at_once(server: Running, client: WireClient) -> None:
    topic = make(server, "epoch")
    fields = fields_of(server, topic, [0], leader_epoch=7)
    assert told(client.ask(FETCH, 12, **fields))[0].number("error_code") == 75


def test_tagged_fields_of_a_partition_are_passed_over(server: Running) -> None:
    topic = make(server, "tagged", 3)
    body = bytearray()
    request_layout(FETCH, 12).write(body, fields_of(server, topic, [5, 6, 7]))
    plain = parse_fetch(12, memoryview(body))
    assert [one.offset for one in plain.requested] == [5, 6, 7]
    # Behind the second partition: one field, number 9, of two bytes.
    first = body.index((0).to_bytes(4, "big") + b"\xff\xff\xff\xff" + (5).to_bytes(8, "big"))
    at = first + 2 * 33 - 1
    assert body[at] == 0
    tagged = body[:at] + b"\x01\x09\x02ab" + body[at + 1 :]
    assert parse_fetch(12, memoryview(tagged)) == plain
