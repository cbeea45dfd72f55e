"""A store behind gRPC is the store: the same methods, the same records, the same errors."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec
import pytest

import penstock
from penstock import Record, Store
from penstock.errors import (
    BadRequestError,
    ClosedError,
    DeadlineError,
    DiskFullError,
    LockedError,
    SequenceGapError,
    SetupError,
    UnknownGroupError,
    UnknownTopicError,
)
from penstock.platform.disk import Usage
from penstock.platform.local_disk import LocalDisk
from penstock.record import Producer
from penstock.remote import storage_pb2 as pb
from penstock.remote.server.node_server import Server
from penstock.remote.wire import records as wire
from penstock.remote.wire.call import SERVICE
from penstock.settings import EMBEDDED, Settings, merge_settings


def settings(port: int = 0) -> Settings:
    return merge_settings(
        EMBEDDED, {"kafka": {"port": 0}, "server": {"port": port, "http_port": 0}}
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(str(tmp_path / "data"), settings()) as running:
        yield running


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with penstock.connect(f"127.0.0.1:{server.port}") as connected:
        yield connected


ODD = Record(
    None,
    key=b"\x00\xff",
    tags=("a/b", "naïve", b"\xfe".decode("utf-8", "surrogateescape")),
    headers=(("twice", b"1"), ("twice", None), ("", b"")),
    timestamp_ms=-5,
    expires_at_ms=1 << 50,
)


def test_every_part_of_a_record_comes_back(store: Store) -> None:
    topic = store.create_topic("odd")
    for record in (ODD, Record(b""), Record(b"v", key=b"")):
        topic.write(record)
    found = [stored.as_record() for stored in topic.read()]
    assert found[0] == ODD
    assert [record.value for record in found] == [None, b"", b"v"]
    assert [record.key for record in found] == [b"\x00\xff", None, b""]


def test_topics_are_managed_from_afar(store: Store) -> None:
    store.create_topic("orders", partitions=3, storage="rocksdb", retention_ms=60_000)
    info = store.topic("orders").describe()
    assert (info.partition_count, info.storage, info.config.retention_ms) == (3, "rocksdb", 60_000)
    store.topic("orders").alter(partitions=4, retention_ms=None)
    assert store.topic("orders").describe().config.retention_ms is None
    assert store.topics() == ["orders"]
    assert "orders" in store
    store.topic("orders").delete()
    assert "orders" not in store


def test_reads_by_key_tag_and_time_agree_with_what_was_written(store: Store) -> None:
    topic = store.create_topic("t", partitions=2)
    for number in range(20):
        topic.write(b"%d" % number, key=b"k%d" % (number % 3), tags=["x"], timestamp=1000 + number)
    newest = topic.read_by_key(b"k1")
    assert newest is not None
    assert newest.value == b"19"
    assert len(topic.query(b"k1")) == 7
    assert {message.value for message in topic.read_by_tag("x")} == {b"%d" % n for n in range(20)}
    assert sum(topic.offsets_at(1010).values()) == 10
    assert topic.delete_by_key(b"k1") == 7
    assert topic.read_by_key(b"k1") is None
    assert topic.delete_before(0, 3) == 3
    assert topic.delete_by_offset(0, 9) in (True, False)


def test_a_repeated_write_of_a_producer_is_not_written_again(store: Store) -> None:
    topic = store.create_topic("t")
    producer = Producer(store.allocate_producer_id(), 0, 0)
    first = topic.write_many([b"a", b"b"], partition=0, producer=producer)
    again = topic.write_many([b"a", b"b"], partition=0, producer=producer)
    assert list(first) == list(again)
    assert len(topic.read()) == 2


def test_groups_commit_reset_and_lag_from_afar(store: Store) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.write_many([b"%d" % number for number in range(10)])
    with store.consumer("g", ["t"]) as consumer:
        seen = [message.value or b"" for message in consumer]
        consumer.commit()
    assert sorted(seen) == sorted(b"%d" % number for number in range(10))
    assert store.describe_group("g").total_lag == 0
    store.reset_group("g", {("t", 0): 1, ("t", 1): 0})
    assert store.describe_group("g").total_lag == 9
    assert store.groups() == ["g"]
    store.delete_group("g")
    with pytest.raises(UnknownGroupError):
        store.describe_group("g")


def test_errors_keep_their_types_and_fields(store: Store) -> None:
    with pytest.raises(UnknownTopicError, match="'none' does not exist") as unknown:
        store.topic("none").write(b"v")
    assert unknown.value.topic == "none"
    topic = store.create_topic("t")
    with pytest.raises(penstock.AlreadyExistsError):
        store.create_topic("t")
    with pytest.raises(BadRequestError, match="storage"):
        store.create_topic("u", storage="paper")
    producer = Producer(7, 0, 0)
    topic.write_many([b"a"], partition=0, producer=producer)
    with pytest.raises(SequenceGapError) as gap:
        topic.write_many([b"a"], partition=0, producer=producer._replace(sequence=5))
    assert gap.value.expected == 1


def test_a_consumer_waits_for_what_is_written_later(server: Server, store: Store) -> None:
    topic = store.create_topic("t")
    consumer = store.consumer("g", ["t"])
    timer = threading.Timer(0.3, lambda: topic.write(b"late"))
    timer.start()
    found = consumer.poll(timeout=60)
    timer.join()
    assert [message.value for message in found] == [b"late"]


def test_clients_that_wait_do_not_keep_others_from_being_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.remote.server.grpc_server.THREADS_MAX", 4)
    monkeypatch.setattr("penstock.remote.server.service.WAITS_MAX", 2)
    with (
        Server(str(tmp_path / "data"), settings()) as server,
        penstock.connect(f"127.0.0.1:{server.port}") as store,
        ThreadPoolExecutor(12) as pool,
    ):
        topic = store.create_topic("t")
        begun = threading.Barrier(13)

        def wait() -> list[penstock.Message]:
            consumer = store.consumer("g", ["t"])
            begun.wait(60)
            return consumer.poll(60.0)

        waiting = [pool.submit(wait) for _ in range(12)]
        begun.wait(60)
        assert store.topics() == ["t"]
        topic.write(b"for all")
        for each in waiting:
            assert [message.value for message in each.result(120)] == [b"for all"]


def test_a_full_disk_is_a_typed_error_and_reads_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines look at the disk now and then: it may take a few megabytes until one sees it."""
    topics = [store.create_topic(kind, storage=kind) for kind in ("segment", "rocksdb")]
    for topic in topics:
        topic.write(b"before")
    with monkeypatch.context() as full:
        full.setattr(LocalDisk, "usage", lambda _disk, _path: Usage(100 << 30, 100 << 30))
        store.run_upkeep()
        for topic in topics:
            with pytest.raises(DiskFullError):
                [topic.write(bytes(1 << 20)) for _ in range(100)]
            with pytest.raises(DiskFullError):
                topic.write_many([b"refused"] * 2)
            assert topic.read(0, 0, max_records=1)[0].value == b"before"
        assert store.consumer("g", ["segment", "rocksdb"]).poll(max_records=1)
    with monkeypatch.context() as roomy:
        roomy.setattr(LocalDisk, "usage", lambda _disk, _path: Usage(100 << 30, 1 << 30))
        store.run_upkeep()
        for topic in topics:
            written = topic.write(b"after")
            assert topic.read(0, written.offset)[0].value == b"after"


def test_pages_and_writes_stream(server: Server, store: Store) -> None:
    store.create_topic("t").write_many([b"%d" % number for number in range(50)])
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        read = channel.unary_stream(
            f"/{SERVICE}/ReadStream",
            request_serializer=pb.ReadRequest.SerializeToString,
            response_deserializer=pb.RecordsReply.FromString,
        )
        name = pb.TopicName(namespace="default", topic="t")
        pages = list(read(pb.ReadRequest(name=name, max_records=20, max_size=1 << 20), timeout=20))
        assert [len(page.records) for page in pages] == [20, 20, 10]
        write = channel.stream_stream(
            f"/{SERVICE}/WriteStream",
            request_serializer=pb.WriteRequest.SerializeToString,
            response_deserializer=pb.WriteReply.FromString,
        )
        requests = [
            pb.WriteRequest(name=name, records=[wire.record_to_wire(Record(b"s"))])
            for _ in range(5)
        ]
        replies = [reply.offsets[0] for reply in write(iter(requests), timeout=60)]
    assert replies == [50, 51, 52, 53, 54]


def test_everything_is_there_after_the_server_was_started_again(tmp_path: Path) -> None:
    for turn in range(3):
        with (
            Server(str(tmp_path / "data"), settings()) as server,
            penstock.connect(f"127.0.0.1:{server.port}") as store,
        ):
            store.create_topic("t", exist_ok=True).write(b"%d" % turn)
            assert [record.value for record in store.topic("t").read()] == [
                b"%d" % number for number in range(turn + 1)
            ]


def test_nobody_at_the_address_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.remote.client.failover.CONNECT_S", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(DeadlineError, match="penstock serve"):
            penstock.connect(f"127.0.0.1:{port}")
    with pytest.raises(BadRequestError, match="host:port"):
        penstock.connect("nowhere")


def test_a_closed_connection_refuses_calls(server: Server) -> None:
    store = penstock.connect(f"127.0.0.1:{server.port}")
    store.close()
    with pytest.raises(ClosedError):
        store.topics()


def test_a_busy_port_or_directory_is_refused_and_nothing_is_left_running(tmp_path: Path) -> None:
    with Server(str(tmp_path / "a"), settings()) as server:
        with pytest.raises(SetupError, match="choose another port"):
            Server(str(tmp_path / "b"), settings(server.port))
        with pytest.raises(LockedError):
            Server(str(tmp_path / "a"), settings())
    with Server(str(tmp_path / "b"), settings()) as other:
        assert other.port


def test_metrics_and_health_are_served(server: Server, store: Store) -> None:
    store.create_topic("t").write(b"v")
    root = f"http://127.0.0.1:{server.http_port}"
    with urllib.request.urlopen(f"{root}/health", timeout=60) as reply:
        assert msgspec.json.decode(reply.read())["topics"] == 1
    with urllib.request.urlopen(f"{root}/metrics", timeout=60) as reply:
        assert b"penstock_" in reply.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{root}/other", timeout=60)


def test_garbage_on_the_port_harms_nobody(server: Server, store: Store) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as rude:
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(1000))
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/Write")
        with pytest.raises(grpc.RpcError):
            call(b"\xff" * 50, timeout=60)
    assert store.topics() == []
