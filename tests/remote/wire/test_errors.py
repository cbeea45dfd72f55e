"""Errors and large answers over gRPC: what the store raised arrives, whatever its size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import penstock
from penstock import Store, aio
from penstock.errors import (
    BadRequestError,
    BusyError,
    CorruptionError,
    NotSupportedError,
    PartialWriteError,
    RecordTooLargeError,
    RetryableError,
    StoreError,
    UnknownGroupError,
    UnknownTopicError,
)
from penstock.record import Location, Offset
from penstock.remote import storage_pb2 as pb
from penstock.remote.server.node_server import Server
from penstock.remote.wire.call import SERVICE
from penstock.remote.wire.errors import error_from_wire, error_to_metadata, shorten
from penstock.settings import EMBEDDED, merge_settings

SETTINGS = merge_settings(
    EMBEDDED,
    {
        "kafka": {"enabled": False},
        "server": {"port": 0, "http_port": 0},
        "engine": {"memory_evict": False},
    },
)
METADATA_SOFT_MAX = 8 << 10
"""From here on gRPC drops some."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(str(tmp_path / "data"), SETTINGS) as running:
        yield running


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with penstock.connect(f"127.0.0.1:{server.port}") as connected:
        yield connected


# A batch that was written in part


def test_a_batch_written_in_part_says_which_records_were_written(store: Store) -> None:
    store.create_topic("a")
    store.create_topic("b", record_size_max=10)
    with pytest.raises(PartialWriteError, match="1 of 3 records") as raised:
        store.write_many([("a", b"first"), ("b", bytes(100)), ("a", b"second")])
    assert raised.value.locations == [Location(0, Offset(0)), None, Location(0, Offset(1))]
    (at, why), *others = raised.value.errors.items()
    assert (at, others) == (("b", -1), [])
    assert isinstance(why, RecordTooLargeError)
    assert (why.size, why.size_max) == (100, 10)


def test_a_large_batch_written_in_part_has_a_location_for_every_record(store: Store) -> None:
    topic = store.create_topic("t", partitions=2, storage="memory", memory_records_max=10_000)
    topic.write_many([b"before"] * 5_000, partition=0)
    with pytest.raises(PartialWriteError) as raised:
        topic.write_many([b"%d" % number for number in range(20_000)])
    written = [at for at in raised.value.locations if at is not None]
    assert len(raised.value.locations) == 20_000
    assert written == [Location(1, Offset(offset)) for offset in range(10_000)]
    assert [(at, type(why)) for at, why in raised.value.errors.items()] == [(0, BusyError)]


def test_coroutines_whose_records_were_written_learn_so_when_others_of_their_group_were_not(
    server: Server,
) -> None:
    async def main() -> list[Location | BaseException]:
        async with await aio.connect(f"127.0.0.1:{server.port}") as store:
            topic = await store.create_topic(
                "t", partitions=2, storage="memory", memory_records_max=5
            )
            for _ in range(4):
                await topic.write(b"before", partition=0)
            # The first goes alone; the others are a group.
            writes = [topic.write(b"%d" % number) for number in range(8)]
            return await asyncio.gather(*writes, return_exceptions=True)

    answers = asyncio.run(main())
    assert {type(one) for one in answers} == {Location, BusyError}


# Long texts


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f642", "\n", '"'])
def test_errors_about_long_names_keep_their_types(store: Store, letter: str) -> None:
    for length in (100, 1_000, 9_000, 200_000):
        name = letter * length
        assert name not in store
        with pytest.raises(UnknownGroupError):
            store.describe_group(name)
        with pytest.raises(BadRequestError):
            store.create_topic("t", storage=name)
    with pytest.raises(BadRequestError):
        store.create_topic(letter * 20_000)


def test_a_long_text_is_shortened_in_the_middle_and_says_so() -> None:
    assert shorten("short", 100) == "short"
    found = shorten("begin" + "é" * 50_000 + "end", 100)
    assert found.startswith("beginé")
    assert found.endswith("éend")
    assert "50008 characters in all" in found
    assert len(found.encode()) <= 100


@pytest.mark.parametrize("text", ["x", "\x01", "\U0001f642", "\udcff"])
def test_no_error_takes_more_metadata_than_a_call_can_end_with(text: str) -> None:
    long = text * 100_000
    for error in (
        StoreError(long),
        UnknownTopicError(long),
        CorruptionError(long, position=7, reason=long),
        PartialWriteError([None] * 100_000, {0: BusyError(long)}),
    ):
        _, data = error_to_metadata(error)
        again = error_from_wire(pb.Error.FromString(data))
        assert type(again) is type(error)
        assert len(data) * 4 / 3 < METADATA_SOFT_MAX * 0.6


# Large answers and requests


@pytest.fixture
def small_messages(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a message take a megabyte instead of 64."""
    size = 1 << 20
    for module in ("client.backend", "server.grpc_server", "wire.errors"):
        monkeypatch.setattr(f"penstock.remote.{module}.MESSAGE_SIZE_MAX", size)
    monkeypatch.setattr("penstock.remote.wire.records.PAGE_SIZE", size // 4)
    return size


@pytest.fixture
def small_store(small_messages: int, tmp_path: Path) -> Iterator[Store]:
    with (
        Server(str(tmp_path / "data"), SETTINGS) as server,
        penstock.connect(f"127.0.0.1:{server.port}") as store,
    ):
        yield store


def test_a_query_larger_than_a_message_is_answered_whole(
    small_store: Store, small_messages: int
) -> None:
    topic = small_store.create_topic("t", partitions=2)
    assert topic.query(b"k") == []
    for number in range(40):
        topic.write(b"%d" % number + bytes(small_messages // 10), key=b"k")
    found = [int((message.value or b"").rstrip(b"\0")) for message in topic.query(b"k")]
    assert found[0] in (38, 39)
    assert sorted(found) == list(range(40))
    assert len(topic.query(b"k", limit=3)) == 3
    with pytest.raises(UnknownTopicError):
        small_store.topic("none").query(b"k")


def test_a_request_that_is_too_large_says_so_and_that_nothing_was_sent(
    small_store: Store, small_messages: int
) -> None:
    topic = small_store.create_topic("t")
    batch = [bytes(small_messages // 10)] * 20
    for write in (
        lambda: topic.write_many(batch),
        lambda: topic.write(bytes(small_messages)),
        lambda: small_store.write_many([("t", value) for value in batch]),
    ):
        with pytest.raises(BadRequestError, match=r"takes \d+ bytes.*nothing was sent") as raised:
            write()
        assert not isinstance(raised.value, RetryableError)
    assert topic.read() == []
    topic.write_many(batch[:5])
    assert len(topic.read()) == 5


def test_an_answer_that_no_message_can_hold_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that was written in the program itself, say, before there was a server."""
    size = 1 << 20
    with penstock.open(tmp_path / "data") as embedded:
        embedded.create_topic("t").write(bytes(2 * size))
    monkeypatch.setattr("penstock.remote.client.backend.MESSAGE_SIZE_MAX", size)
    with (
        Server(str(tmp_path / "data"), SETTINGS) as server,
        penstock.connect(f"127.0.0.1:{server.port}") as store,
        pytest.raises(NotSupportedError, match=r"the answer of .* is larger than"),
    ):
        store.topic("t").read()


def test_malformed_requests_are_bad_requests(server: Server, store: Store) -> None:
    store.create_topic("t")
    name = pb.TopicName(namespace="default", topic="new")
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:

        def ask(method: str, request: pb.TopicRequest | pb.WriteTopicsRequest) -> grpc.StatusCode:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/{SERVICE}/{method}"
            )
            failed: object = call.future(request.SerializeToString(), timeout=60)
            assert isinstance(failed, grpc.Call)
            return failed.code()

        for options in ("{", "[]", "5", '{"retention_ms": "\\ud800"}'):
            for method in ("CreateTopic", "AlterTopic"):
                request = pb.TopicRequest(name=name, options=options)
                assert ask(method, request) is grpc.StatusCode.INVALID_ARGUMENT
        for topics in ([], ["t", "t"]):
            batch = pb.WriteTopicsRequest(
                namespace="default", topics=topics, records=[pb.Record(value=b"v")]
            )
            assert ask("WriteTopics", batch) is grpc.StatusCode.INVALID_ARGUMENT
    assert store.topics() == ["t"]
    assert store.topic("t").read() == []
