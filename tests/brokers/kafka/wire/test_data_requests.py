"""Produce, Fetch and look-ups, message by message."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.brokers.kafka.running import Running, WireClient, running

from penstock.adapter.requests import Compact
from penstock.brokers.kafka.wire.batch_conversion import batch_of
from penstock.brokers.kafka.wire.batch_header import CHECKED_FROM, HEAD, TRANSACTIONAL
from penstock.brokers.kafka.wire.fields import Fields
from penstock.codec.select import native_only
from penstock.engine.segment import SegmentEngine
from penstock.errors import ShardLostError
from penstock.record import Offset, Record, StoredRecord

PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2


def make(server: Running, name: str, partitions: int = 1, **options: object) -> str:
    server.node.admin.create_topic_full(name, partitions, {"queue": "batch", **options})
    return name


def batch(*values: bytes, key: bytes | None = b"k", time_ms: int = 1_000) -> bytes:
    records = [
        StoredRecord(Offset(at), value, key, (), (), time_ms + at, None, 0, 0)
        for at, value in enumerate(values)
    ]
    return batch_of(records, "")


def patched(data: bytes, **changes: int) -> bytes:
    """Return a batch with other fields in its head, and the right checksum."""
    names = ["base_offset", "size", "epoch", "magic", "crc", "attributes", "last_delta"]
    names += ["base_ms", "max_ms", "producer_id", "producer_epoch", "sequence", "count"]
    fields = dict(zip(names, HEAD.unpack_from(data), strict=True)) | changes
    out = bytearray(data)
    HEAD.pack_into(out, 0, *fields.values())
    if "crc" not in changes:
        fields["crc"] = native_only().crc32c(memoryview(out)[CHECKED_FROM:])
        HEAD.pack_into(out, 0, *fields.values())
    return bytes(out)


def write(
    client: WireClient,
    topic: str,
    data: bytes,
    *,
    version: int = 9,
    acks: int = 1,
    partition: int = 0,
) -> Fields:
    response = client.ask(
        PRODUCE,
        version,
        acks=acks,
        topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": data}]}],
    )
    return response.items_of("responses")[0].items_of("partition_responses")[0]


def fetch_fields(topic: str, offset: int, **changes: object) -> dict[str, object]:
    partition = {
        "partition": 0,
        "fetch_offset": offset,
        "current_leader_epoch": -1,
        "partition_max_bytes": 1 << 20,
    }
    fields: dict[str, object] = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }
    return fields | changes


def read(client: WireClient, topic: str, offset: int, version: int = 11) -> Fields:
    response = client.ask(FETCH, version, **fetch_fields(topic, offset))
    return response.items_of("responses")[0].items_of("partitions")[0]


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce(server: Running, client: WireClient, version: int) -> None:
    topic = make(server, f"produce-{version}")
    for first in (0, 2):
        response = write(client, topic, batch(b"a", b"b"), version=version)
        assert (response.number("error_code"), response.number("base_offset")) == (0, first)


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_of_fetch_by_name(server: Running, client: WireClient, version: int) -> None:
    topic = make(server, f"fetch-{version}")
    write(client, topic, batch(b"a", b"b"))
    write(client, topic, batch(b"c"))
    found = read(client, topic, 1, version)
    assert (found.number("error_code"), found.number("high_watermark")) == (0, 3)
    # Whole batches: the client drops what lies before its offset.
    data = found.blob("records")
    assert data[61:]
    assert HEAD.unpack_from(data)[0] == 0
    assert read(client, topic, 3, version).blob("records") == b""
    assert read(client, topic, 4, version).number("error_code") == 1


@pytest.mark.parametrize("version", range(13, 18))
def test_every_version_of_fetch_by_id(server: Running, client: WireClient, version: int) -> None:
    topic = make(server, f"fetch-id-{version}")
    write(client, topic, batch(b"a"))
    described = client.ask(3, 12, topics=[{"name": topic, "topic_id": UUID(int=0)}])
    identifier = described.items_of("topics")[0].uuid("topic_id")
    partitions = [{"partition": 0, "current_leader_epoch": -1, "partition_max_bytes": 1 << 20}]
    fields = fetch_fields("", 0)
    fields["topics"] = [{"topic_id": identifier, "partitions": partitions}]
    found = client.ask(FETCH, version, **fields).items_of("responses")[0]
    assert found.uuid("topic_id") == identifier
    assert found.items_of("partitions")[0].blob("records")
    fields["topics"] = [{"topic_id": UUID(int=7), "partitions": partitions}]
    unknown = client.ask(FETCH, version, **fields).items_of("responses")[0]
    assert unknown.items_of("partitions")[0].number("error_code") == 100


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", 2),
        (b"short", 2),
        (patched(batch(b"v"), crc=1), 2),
        (patched(batch(b"v"), magic=1), 43),
        (batch(b"v") + batch(b"w"), 87),
        (batch(b"v")[:-1], 87),
        (patched(batch(b"v"), attributes=7), 76),
        (patched(batch(b"v"), attributes=32), 87),
        (patched(batch(b"v"), count=2), 87),
        (patched(batch(b"v"), last_delta=-1, count=0), 87),
        (patched(batch(b"v"), count=40_000, last_delta=39_999), 10),
        (patched(batch(b"v"), producer_id=5), 87),
        (patched(batch(b"v"), attributes=TRANSACTIONAL), None),
    ],
)
def test_batches_that_are_refused(
    server: Running, client: WireClient, data: bytes, code: int | None
) -> None:
    topics = server.node.broker_cache.topics
    topic = "refused" if ("default", "refused") in topics else make(server, "refused")
    response = write(client, topic, data)
    assert (
        response.number("error_code") == code if code is not None else response.number("error_code")
    )
    assert response.number("base_offset") == -1
    assert server.node.driver_manager.shard_info(topic, 0).latest == 0


def test_a_producer_s_batches_are_stored_once_and_in_order(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "once")

    def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
        data = patched(batch(b"a", b"b"), producer_id=77, producer_epoch=epoch, sequence=sequence)
        response = write(client, topic, data, acks=-1)
        return response.number("error_code"), response.number("base_offset")

    assert send(0) == (0, 0)
    assert send(2) == (0, 2)
    assert send(0) == (0, 0)
    assert send(6) == (45, -1)
    assert send(0, epoch=1) == (0, 4)
    assert send(4, epoch=0) == (47, -1)
    assert server.node.driver_manager.shard_info(topic, 0).latest == 6


def test_unknown_partitions_topics_and_acks(server: Running, client: WireClient) -> None:
    topic = make(server, "known")
    assert write(client, "nobody", batch(b"v")).number("error_code") == 3
    assert write(client, topic, batch(b"v"), partition=5).number("error_code") == 3
    assert write(client, topic, batch(b"v"), partition=-1).number("error_code") == 3
    assert write(client, topic, batch(b"v"), acks=7).number("error_code") == 21
    assert read(client, "nobody", 0).number("error_code") == 3


def test_nobody_waits_for_an_answer_without_acks(server: Running, client: WireClient) -> None:
    topic = make(server, "no-acks")
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"v")}]}]
    client.send(PRODUCE, 9, acks=0, topic_data=data)
    assert write(client, topic, batch(b"w")).number("base_offset") == 1


def test_a_topic_that_syncs_answers_when_it_is_durable(server: Running, client: WireClient) -> None:
    topic = make(server, "synced", flush="sync")
    for first in range(3):
        assert write(client, topic, batch(b"v")).number("base_offset") == first
    assert read(client, topic, 0).number("high_watermark") == 3


def test_a_compacted_topic_wants_keys_and_keeps_the_newest(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "compacted", cleanup="compact")
    assert write(client, topic, batch(b"v", key=None)).number("error_code") == 87
    write(client, topic, batch(b"1", key=b"a"))
    write(client, topic, batch(b"2", b"3", key=b"b"))
    write(client, topic, batch(b"4", key=b"a"))
    assert server.node.driver_manager.execute(Compact(topic)).records == 2
    seen, offset = [], 0
    while offset < 4:
        data = read(client, topic, offset).blob("records")
        base, size, _, _, _, _, delta = HEAD.unpack_from(data)[:7]
        seen.append(base)
        assert size + 12 <= len(data)
        offset = base + delta + 1
    assert seen == [2, 3]


def test_a_fetch_waits_for_min_bytes_or_the_time(server: Running, client: WireClient) -> None:
    topic = make(server, "patient")
    started = time.monotonic()
    response = client.ask(FETCH, 11, **fetch_fields(topic, 0, max_wait=300))
    assert time.monotonic() - started >= 0.25
    assert response.items_of("responses")[0].items_of("partitions")[0].blob("records") == b""
    one = batch(b"x" * 100)
    client.send(FETCH, 11, **fetch_fields(topic, 0, max_wait=20_000, min_bytes=3 * len(one)))
    with WireClient(server.server.port) as writer:
        for _ in range(3):
            write(writer, topic, one)
    found = client.receive(FETCH, 11).items_of("responses")[0].items_of("partitions")[0]
    assert len(found.blob("records")) == 3 * len(one)


def test_limits_of_size_are_kept_but_the_first_batch_always_comes(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "limits")
    one = batch(b"x" * 5_000)
    for _ in range(4):
        write(client, topic, one)
    small = client.ask(FETCH, 11, **fetch_fields(topic, 0, max_bytes=10))
    assert len(small.items_of("responses")[0].items_of("partitions")[0].blob("records")) == len(one)
    two = client.ask(FETCH, 11, **fetch_fields(topic, 0, max_bytes=2 * len(one) + 100))
    assert len(two.items_of("responses")[0].items_of("partitions")[0].blob("records")) == 2 * len(
        one
    )


def test_a_session_tells_only_what_is_new(server: Running, client: WireClient) -> None:
    topics = [make(server, f"session-{n}") for n in range(3)]
    partition = {
        "partition": 0,
        "fetch_offset": 0,
        "current_leader_epoch": -1,
        "partition_max_bytes": 1 << 20,
    }
    fields: dict[str, object] = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    requested = [{"topic": topic, "partitions": [partition]} for topic in topics]
    full = client.ask(FETCH, 11, **fields, session_epoch=0, topics=requested)
    number = full.number("session_id")
    assert number > 0
    assert len(full.items_of("responses")) == 3
    write(client, topics[1], batch(b"v"))
    changed = client.ask(FETCH, 11, **fields, session_id=number, session_epoch=1)
    assert [one.text("topic") for one in changed.items_of("responses")] == [topics[1]]
    gone = [{"topic": topics[1], "partitions": [0]}]
    fields["forgotten_topics_data"] = gone
    nothing = client.ask(FETCH, 11, **fields, session_id=number, session_epoch=2)
    assert nothing.items_of("responses") == []
    late = client.ask(FETCH, 11, **fields, session_id=number, session_epoch=2)
    assert late.number("error_code") == 71
    other = client.ask(FETCH, 11, **fields, session_id=number + 1, session_epoch=3)
    assert other.number("error_code") == 70


def test_offsets_by_time_and_the_newest(server: Running, client: WireClient) -> None:
    topic = make(server, "when")
    for time_ms in (5_000, 9_000, 7_000):
        write(client, topic, batch(b"v", time_ms=time_ms))

    def try_fast(timestamp: int, version: int = 7) -> tuple[int, int]:
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        response = client.ask(
            LIST_OFFSETS, version, topics=[{"name": topic, "partitions": [partition]}]
        )
        found = response.items_of("topics")[0].items_of("partitions")[0]
        assert found.number("error_code") == 0
        return found.number("timestamp"), found.number("offset")

    for version in range(1, 11):
        assert try_fast(-2, version) == (-1, 0)
        assert try_fast(-1, version) == (-1, 3)
        assert try_fast(6_000, version) == (9_000, 1)
    assert try_fast(-3) == (9_000, 1)
    assert try_fast(10_000) == (-1, -1)


def test_where_an_epoch_ends_and_who_is_there(server: Running, client: WireClient) -> None:
    topic = make(server, "epochs")
    write(client, topic, batch(b"v"))
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    response = client.ask(23, 4, topics=[{"topic": topic, "partitions": [partition]}])
    found = response.items_of("topics")[0].items_of("partitions")[0]
    assert (found.number("error_code"), found.number("end_offset")) == (0, 1)
    cluster = client.ask(60, 1)
    assert [one.number("broker_id") for one in cluster.items_of("brokers")] == [1]
    directories = client.ask(35, 4, topics=[{"topic": topic, "partitions": [0]}])
    described = directories.items_of("results")[0].items_of("topics")[0]
    assert described.items_of("partitions")[0].number("partition_size") > 0


def test_an_epoch_whose_end_cannot_be_read_has_an_error_code_in_the_response(
    server: Running, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make(server, "lost")

    def fail(*_: object) -> NoReturn:
        raise ShardLostError("lost_0", topic="lost", nodes=[1])

    monkeypatch.setattr(SegmentEngine, "epoch_end", fail)
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    response = client.ask(23, 4, topics=[{"topic": topic, "partitions": [partition]}])
    ended = response.items_of("topics")[0].items_of("partitions")[0]
    assert ended.number("error_code") == ErrorCode.kafka_storage_error.value


def test_a_deleted_topic_ends_a_fetch_that_waits_for_it(
    server: Running, client: WireClient
) -> None:
    topic = make(server, "doomed")
    # Longer than a client waits for an answer: the deletion itself must bring it.
    client.send(FETCH, 11, **fetch_fields(topic, 0, max_wait=600_000))
    time.sleep(0.2)
    server.node.admin.delete_topic(topic)
    found = client.receive(FETCH, 11).items_of("responses")[0].items_of("partitions")[0]
    assert found.number("error_code") == 3


def test_what_lies_far_back_is_read_by_a_thread(
    server: Running, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.brokers.kafka.fetch.partition_reader.HOT_RECORDS", 0)
    monkeypatch.setattr("penstock.engine.segment.read.kafka_batches.HOT_SIZE", 0)
    topic = make(server, "cold")
    for n in range(5):
        write(client, topic, batch(b"%d" % n))
    found = read(client, topic, 0)
    assert len(found.blob("records")) == 5 * len(batch(b"0"))


def test_records_of_the_python_api_lie_between_batches(server: Running, client: WireClient) -> None:
    topic = make(server, "mixed")
    write(client, topic, batch(b"a"))
    server.node.driver_manager.write(topic, Record(b"b", key=b"p"))
    write(client, topic, batch(b"c"))
    bases, offset = [], 0
    while offset < 3:
        data = read(client, topic, offset).blob("records")
        while data:
            base, size, _, _, _, _, delta = HEAD.unpack_from(data)[:7]
            bases.append(base)
            offset = base + delta + 1
            data = data[size + 12 :]
    assert bases == [0, 1, 2]


def test_a_broken_disk_record_is_never_served(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    with running(path) as one, WireClient(one.server.port) as client:
        topic = make(one, "broken")
        write(client, topic, batch(b"precious" * 100))
    log = min((path / "segment" / "commitlog").iterdir())
    data = log.read_bytes()
    at = data.index(b"preciousprecious") + 50
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    with running(path) as one, WireClient(one.server.port) as client:
        found = read(client, topic, 0)
        # CORRUPT_MESSAGE: clients report it, where they would ask again after a storage error.
        assert found.number("error_code") == 2
        assert found.blob("records") == b""
