"""Batches made of records of other doors: kept within a bound, never longer than their records."""

from __future__ import annotations

import pytest
from tests.brokers.kafka.running import Running, WireClient

from penstock.adapter.requests import Compact, DeleteByKey, DeleteByOffset
from penstock.brokers.kafka.fetch.conversion_cache import (
    OVERHEAD,
    ConversionCache,
    Converted,
    ConvertedKey,
)
from penstock.brokers.kafka.fetch.handler import HELD_MAX
from penstock.codec.select import core
from penstock.record import Offset, Record

FETCH = 1


def key(offset: int) -> ConvertedKey:
    return ConvertedKey("t_0", offset, "tag", is_part=False)


def test_the_oldest_in_use_go_when_there_are_too_many_bytes() -> None:
    kept = ConversionCache(4 * (100 + OVERHEAD))
    for offset in range(4):
        kept.add(key(offset), Converted(1, bytes(100), offset + 1))
    assert kept.find(key(0), 1, 10, 1_000) is not None
    kept.add(key(4), Converted(1, bytes(100), 5))
    assert kept.size == 4 * (100 + OVERHEAD)
    there = [kept.find(key(offset), 1, 10, 1_000) is not None for offset in range(5)]
    assert there == [True, False, True, True, True]
    kept.add(key(9), Converted(1, bytes(10_000), 10))
    assert kept.find(key(9), 1, 10, 1 << 20) is None, "one must not push out all others"
    assert kept.size <= 4 * (100 + OVERHEAD)


def test_a_batch_is_found_only_if_it_fits_and_is_still_good() -> None:
    kept = ConversionCache(1 << 20)
    kept.add(key(0), Converted("before", bytes(100), 5))
    assert kept.find(key(0), "before", 4, 1_000) is None
    assert kept.find(key(0), "before", 5, 99) is None
    assert kept.find(key(0), "before", 5, 100) is not None
    assert kept.find(key(0), "after", 5, 100) is None
    assert kept.size == 0


def ask(server: Running, topic: str, partitions: int, offset: int, max_bytes: int) -> list[bytes]:
    """Return the records of each partition in one answer."""
    requested = [
        {
            "partition": number,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "log_start_offset": -1,
            "partition_max_bytes": max_bytes,
        }
        for number in range(partitions)
    ]
    with WireClient(server.server.port) as client:
        response = client.ask(
            FETCH,
            11,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": topic, "partitions": requested}],
            forgotten_topics_data=[],
            rack_id="",
        )
    return [one.blob("records") for one in response.items_of("responses")[0].items_of("partitions")]


def fetch(server: Running, topic: str, offset: int = 0) -> list[tuple[int, bytes | None]]:
    """Return offsets and values of one answer."""
    (data,) = ask(server, topic, 1, offset, 1 << 20)
    if not data:
        return []
    base = int.from_bytes(data[:8], "big")
    return [(one.offset, one.value) for one in core.decode_inner(data, True, base, 0, 0)]


@pytest.mark.parametrize("kind", ["memory", "rocksdb", "segment"])
def test_what_was_deleted_is_gone_from_the_next_fetch(server: Running, kind: str) -> None:
    server.node.admin.create_topic_full(kind, 1, {"storage": kind, "cleanup": "compact"})
    topics, hits = server.node.driver_manager, server.broker.conversion_cache.hits
    for number in range(6):
        topics.write(kind, Record(b"%d" % number, key=b"k%d" % (number % 5)))
    everything = [(number, b"%d" % number) for number in range(6)]
    assert fetch(server, kind) == fetch(server, kind) == everything
    assert server.broker.conversion_cache.hits == hits + 1, "the second one was kept"
    topics.execute(DeleteByOffset(kind, 0, Offset(2)))
    assert fetch(server, kind) == [one for one in everything if one[0] != 2]
    topics.execute(DeleteByKey(kind, b"k3"))
    assert fetch(server, kind) == [one for one in everything if one[0] not in (2, 3)]
    topics.execute(Compact(kind))
    assert fetch(server, kind) == [(1, b"1"), (4, b"4"), (5, b"5")]
    topics.write(kind, Record(b"new", key=b"n"))
    seen: list[tuple[int, bytes | None]] = []
    while page := fetch(server, kind, seen[-1][0] + 1 if seen else 0):
        seen += page
    assert seen == [(1, b"1"), (4, b"4"), (5, b"5"), (6, b"new")]


def test_records_that_expire_are_read_again_every_time(server: Running) -> None:
    server.node.admin.create_topic_full("fleeting", 1, {"storage": "memory"})
    later_ms = server.node.clock.now_ms() + 3_600_000
    server.node.driver_manager.write("fleeting", Record(b"v", expires_at_ms=later_ms))
    hits, size = server.broker.conversion_cache.hits, server.broker.conversion_cache.size
    assert fetch(server, "fleeting") == fetch(server, "fleeting") == [(0, b"v")]
    assert (server.broker.conversion_cache.hits, server.broker.conversion_cache.size) == (
        hits,
        size,
    )


def test_an_answer_holds_a_bounded_part_of_what_must_be_built(server: Running) -> None:
    server.node.admin.create_topic_full("large", 4, {"storage": "memory"})
    for partition in range(4):
        for _ in range(8):
            server.node.driver_manager.write("large", Record(bytes(1 << 20)), partition=partition)
    sizes = [len(data) for data in ask(server, "large", 4, 0, 1 << 30)]
    assert HELD_MAX // 2 < sum(sizes) <= HELD_MAX + (1 << 16)
    assert sizes[3] == 0, "it comes with the next request"
