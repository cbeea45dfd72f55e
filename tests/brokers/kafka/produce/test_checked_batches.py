"""Batches that no consumer could read are refused, and those that inflate without end."""

from __future__ import annotations

import gzip
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.brokers.kafka.running import Running, WireClient, running
from tests.brokers.kafka.wire.batch_oracle import put_varint
from tests.brokers.kafka.wire.test_data_requests import PRODUCE, batch, make, patched, read, write

from penstock.brokers.kafka.produce.decompression import SMALL_SIZE
from penstock.brokers.kafka.wire.batch_header import CODEC_MASK, HEAD, HEAD_SIZE, LOG_APPEND_TIME
from penstock.codec.kafka_interface import BatchFlaw
from penstock.codec.pure.read.kafka_batch import decode_batches
from penstock.codec.select import native_only
from penstock.errors import NotSupportedError

OK, CORRUPT, TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD = 0, 2, 10, 32, 87
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def packed(codec: int, content: bytes) -> bytes:
    match codec:
        case 1:
            return gzip.compress(content, 6)
        case 3:
            return bytes(lz4.frame.compress(content))
        case 4:
            return zstandard.ZstdCompressor(level=3).compress(content)
    return content


def wrapped(content: bytes, count: int = 1, codec: int = 0, **changes: int) -> bytes:
    """Return a batch with a right head and checksum around any content."""
    data = batch(b"x")[:HEAD_SIZE] + content
    fields = {"size": len(data) - 12, "attributes": codec, "count": count, "last_delta": count - 1}
    return patched(data, **(fields | changes))


def record(index: int, value: bytes = b"v", key: bytes | None = b"k", time_delta: int = 0) -> bytes:
    one = bytearray(1)
    put_varint(one, time_delta)
    put_varint(one, index)
    for field in (key, value):
        put_varint(one, -1 if field is None else len(field))
        one += field or b""
    put_varint(one, 0)
    out = bytearray()
    put_varint(out, len(one))
    return bytes(out + one)


GARBAGE: Final = b"\x01" + random.Random(1).randbytes(499)
"""Starts as a snappy block of one byte: others may claim a size above the limit, which is another
error."""


def bomb(size: int, codec: int = ZSTD) -> bytes:
    return wrapped(packed(codec, record(0, bytes(size))), codec=codec, max_ms=1_000)


@pytest.mark.parametrize("queue", ["batch", "simple"])
@pytest.mark.parametrize(
    "data",
    [
        wrapped(GARBAGE, codec=ZSTD),
        wrapped(GARBAGE, codec=GZIP),
        wrapped(GARBAGE, codec=SNAPPY),
        wrapped(GARBAGE, codec=LZ4),
        wrapped(b"\xff" * 500),
        wrapped(b"", 3),
        wrapped(b"", 3, ZSTD),
        wrapped(record(0), 5),
        wrapped(record(0) + record(1), 1),
        wrapped(packed(ZSTD, record(0)), 5, ZSTD),
        wrapped(packed(ZSTD, record(0)) + b"garbage", 1, ZSTD),
        wrapped(record(1)),
        wrapped(record(0) + record(0), 2),
        wrapped(record(0)[:-1] + b"\x02"),
        wrapped(record(0), base_offset=5),
    ],
)
def test_a_batch_that_cannot_be_read_is_refused(
    server: Running, client: WireClient, queue: str, data: bytes
) -> None:
    topic = f"unreadable-{queue}"
    if ("default", topic) not in server.node.broker_cache.topics:
        make(server, topic, queue=queue)
    response = write(client, topic, data)
    assert response.number("error_code") == INVALID_RECORD
    assert response.optional_text("error_message")
    assert server.node.driver_manager.shard_info(topic, 0).latest == 0


def test_the_records_at_fault_are_named(server: Running, client: WireClient) -> None:
    topic = make(server, "named-faults", cleanup="compact")
    content = record(0) + record(1, key=None) + record(2) + record(3, key=None)
    response = write(client, topic, wrapped(content, 4), version=8)
    assert response.number("error_code") == INVALID_RECORD
    errors = response.items_of("record_errors")
    assert [one.number("batch_index") for one in errors] == [1, 3]
    assert all("key" in one.text("batch_index_error_message") for one in errors)
    assert "key" in response.text("error_message")
    bad = write(client, topic, wrapped(record(0) + record(2), 2), version=9)
    assert [one.number("batch_index") for one in bad.items_of("record_errors")] == [1]
    old = write(client, topic, wrapped(content, 4), version=7)
    assert old.number("error_code") == INVALID_RECORD


def test_producers_cannot_say_when_a_batch_was_stored(server: Running, client: WireClient) -> None:
    topic = make(server, "stored-when")
    response = write(client, topic, patched(batch(b"v"), attributes=LOG_APPEND_TIME))
    assert response.number("error_code") == INVALID_TIMESTAMP


# A gibibyte is made when its test runs, not when the tests are collected.
@pytest.mark.parametrize(
    "make_bad",
    [lambda: wrapped(os.urandom(99), codec=ZSTD), lambda: bomb(1 << 30)],
    ids=["garbage", "bomb"],
)
def test_one_bad_partition_does_not_harm_the_others(
    server: Running, client: WireClient, make_bad: Callable[[], bytes]
) -> None:
    bad = make_bad()
    topic = make(server, f"others-{len(bad)}", 3)
    good = batch(b"v")
    response = client.ask(
        PRODUCE,
        9,
        acks=-1,
        topic_data=[
            {
                "name": topic,
                "partition_data": [
                    {"index": index, "records": data}
                    for index, data in enumerate([good, bad, good])
                ],
            }
        ],
    )
    found = response.items_of("responses")[0].items_of("partition_responses")
    codes = [one.number("error_code") for one in found]
    assert codes[0] == codes[2] == OK
    assert codes[1] in {TOO_LARGE, INVALID_RECORD}
    assert [one.number("base_offset") for one in found] == [0, -1, 0]


@pytest.mark.parametrize("queue", ["batch", "simple"])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_batches_are_inflated_up_to_a_limit(
    server: Running, client: WireClient, queue: str, flush: str
) -> None:
    topic = make(server, f"inflated-{queue}-{flush}", queue=queue, flush=flush)
    large = write(client, topic, bomb(3 << 20))
    assert (large.number("error_code"), large.number("base_offset")) == (OK, 0)
    for codec, size in ((GZIP, 80 << 20), (LZ4, 80 << 20), (ZSTD, SMALL_SIZE)):
        rejection = write(client, topic, bomb(size, codec))
        assert rejection.number("error_code") == TOO_LARGE
        assert "batch_inflated_size_max" in rejection.text("error_message")
    assert write(client, topic, batch(b"v")).number("base_offset") == 1


def test_many_small_bombs_in_a_request_have_one_limit_together(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "many-bombs", 40)
    one = bomb(12 << 20)
    parts = [{"index": index, "records": one} for index in range(40)]
    response = client.ask(
        PRODUCE, 9, acks=-1, topic_data=[{"name": topic, "partition_data": parts}]
    )
    found = response.items_of("responses")[0].items_of("partition_responses")
    codes = [each.number("error_code") for each in found]
    assert codes[0] == OK
    assert codes[-1] == TOO_LARGE
    assert 4 <= codes.count(OK) <= 6


def test_without_acks_a_bad_batch_closes_the_connection(server: Running) -> None:
    topic = make(server, "unheard", flush="sync")
    for data in (bomb(1 << 28), wrapped(b"", 3)):
        parts = [{"index": 0, "records": data}]
        with WireClient(server.server.port) as client:
            client.send(PRODUCE, 9, acks=0, topic_data=[{"name": topic, "partition_data": parts}])
            with pytest.raises(ConnectionError):
                client.receive(PRODUCE, 9)


def test_requests_that_wait_are_bounded_together(
    data_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(data_path, {"buffer_size_max": 1 << 20}) as server:
        topic = make(server, "kept", flush="sync")
        run_blocking, go_on = server.broker.run_blocking, threading.Event()

        def held(call: Callable[[], object]) -> object:
            go_on.wait(60)
            return call()

        monkeypatch.setattr(
            server.broker, "run_blocking", lambda call: run_blocking(lambda: held(call))
        )
        data = [{"index": 0, "records": batch(os.urandom(700_000))}]
        fields = {"acks": -1, "topic_data": [{"name": topic, "partition_data": data}]}
        with WireClient(server.server.port) as first, WireClient(server.server.port) as second:
            first.send(PRODUCE, 9, **fields)
            time.sleep(0.3)
            with pytest.raises(ConnectionError):
                second.ask(PRODUCE, 9, **fields)
            go_on.set()
            response = first.receive(PRODUCE, 9).items_of("responses")[0]
            assert response.items_of("partition_responses")[0].number("error_code") == OK
        with WireClient(server.server.port) as again:
            # Larger than the limit, and alone: it is taken.
            assert write(again, topic, batch(os.urandom(2 << 20))).number("error_code") == OK


def test_the_newest_time_is_that_of_the_records(server: Running, client: WireClient) -> None:
    topic = make(server, "true-times")
    data = wrapped(record(0) + record(1, time_delta=500), 2, base_ms=1_000, max_ms=1 << 50)
    assert write(client, topic, data).number("error_code") == OK
    stored = read(client, topic, 0).blob("records")
    head = HEAD.unpack_from(stored)
    assert head[8] == 1_500
    assert head[4] == native_only().crc32c(stored[21:])
    assert stored[HEAD_SIZE:] == data[HEAD_SIZE:]


@pytest.mark.parametrize("codec", [0, GZIP, LZ4, ZSTD])
def test_every_codec_can_be_rewritten_as_every_other(codec: int) -> None:
    content = b"".join(record(n, os.urandom(50) * 20) for n in range(200))
    data = wrapped(packed(codec, content), 200, codec)
    for other in range(5):
        again = native_only().rewrite_batch(data, other, None, None)
        head = HEAD.unpack_from(again)
        assert head[5] & CODEC_MASK == other
        assert native_only().check_batch(again, 1 << 20, True)[0] == BatchFlaw.NONE
        back = native_only().rewrite_batch(again, 0, None, None)
        assert back[HEAD_SIZE:] == content


def _is_readable(data: bytes) -> bool:
    try:
        found, _ = decode_batches(data, 0, 0, 0)
    except NotSupportedError:
        return False
    except ValueError:
        return False
    return [one.offset for one in found] == list(range(HEAD.unpack_from(data)[12]))


@given(
    values=st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    codec=st.sampled_from([0, GZIP, LZ4, ZSTD]),
    at=st.integers(min_value=0),
    bit=st.integers(min_value=0, max_value=7),
    count_change=st.integers(min_value=-1, max_value=1),
)
def test_what_passes_the_check_can_be_read_and_the_reverse(
    values: list[bytes], codec: int, at: int, bit: int, count_change: int
) -> None:
    content = bytearray(b"".join(record(n, value) for n, value in enumerate(values)))
    if count_change:
        content[at % len(content)] ^= 1 << bit
    count = max(1, len(values) + count_change)
    data = wrapped(packed(codec, bytes(content)), count, codec)
    passes = native_only().check_batch(data, 1 << 20, False)[0] == BatchFlaw.NONE
    if passes:
        assert _is_readable(data)
    if not count_change:
        assert passes


def test_every_cut_of_a_compressed_batch_is_noticed() -> None:
    content = record(0, b"abc" * 100)
    for codec in (GZIP, LZ4, ZSTD):
        whole = packed(codec, content)
        for cut in range(len(whole)):
            data = wrapped(whole[:cut], 1, codec)
            assert native_only().check_batch(data, 1 << 20, False)[0] == BatchFlaw.RECORD
