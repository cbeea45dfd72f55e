"""Calls that wait take no thread from those that do not, however many there are."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import penstock
from penstock.errors import BusyError, SetupError
from penstock.meta.proto import meta_pb2
from penstock.platform.calls.waiting_calls import WaitingThreads
from penstock.remote import storage_pb2 as pb
from penstock.remote.server import node_server as server_module
from penstock.remote.server.grpc_server import PER_CLIENT_MAX, STREAMS_MAX
from penstock.remote.server.node_server import Server
from penstock.settings import SERVE, Settings, merge_settings

SMALL: Settings = merge_settings(
    SERVE,
    {
        "server": {"port": 0, "http_port": 0},
        "kafka": {"enabled": False},
        "broker": {"commit_log_file_size": 4 << 20},
    },
)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with Server(str(tmp_path / "data"), SMALL) as server:
        at = f"127.0.0.1:{server.port}"
        with penstock.connect(at) as store:
            store.create_topic("a").write(b"x")
        yield at


def channel_to(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def follow(channel: grpc.Channel, count: int) -> list[grpc.Call]:
    call = channel.unary_stream(
        "/penstock.storage.v1.StorageService/ReadStream",
        request_serializer=pb.ReadRequest.SerializeToString,
        response_deserializer=pb.RecordsReply.FromString,
    )
    name = pb.TopicName(namespace="default", topic="a")
    request = pb.ReadRequest(name=name, max_records=10, max_size=1 << 20, follow=True)
    return [call(request) for _ in range(count)]


def watch(channel: grpc.Channel, count: int) -> list[grpc.Call]:
    call = channel.unary_stream(
        "/penstock.meta.v1.MetaService/Watch",
        request_serializer=meta_pb2.WatchRequest.SerializeToString,
        response_deserializer=meta_pb2.WatchReply.FromString,
    )
    return [call(meta_pb2.WatchRequest()) for _ in range(count)]


def wait(channel: grpc.Channel, count: int) -> list[grpc.Call]:
    call = channel.unary_unary(
        "/penstock.storage.v1.StorageService/WaitForRecords",
        request_serializer=pb.WaitRequest.SerializeToString,
        response_deserializer=pb.WaitReply.FromString,
    )
    at = pb.TopicPosition(topic="a", partition=0, offset=1_000_000)
    request = pb.WaitRequest(namespace="default", positions=[at], seconds=30)
    return [call.future(request) for _ in range(count)]  # each is a call, too


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", [follow, watch, wait])
def test_other_calls_are_served_beside_hundreds_that_wait(kind: type[object], address: str) -> None:
    channels = [channel_to(address) for _ in range(8)]
    calls = [call for channel in channels for call in kind(channel, 50)]  # type: ignore[call-arg,attr-defined] # one of the three functions
    try:
        with penstock.connect(address) as store, ThreadPoolExecutor(8) as pool:
            written = list(pool.map(lambda _: store.topic("a").write(b"p"), range(40)))
            assert len({location.offset for location in written}) == 40
    finally:
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()


def test_one_connection_has_a_bounded_number_of_streams(address: str) -> None:
    with channel_to(address) as channel:
        calls = follow(channel, PER_CLIENT_MAX + 10)
        codes: Counter[str] = Counter()
        for call in calls:
            try:
                assert next(iter(call)).records  # type: ignore[call-overload] # an iterator, too
                codes["served"] += 1
            except grpc.RpcError as error:
                codes[f"{error.code().name}: {error.details()}"] += 1
        assert codes["served"] == PER_CLIENT_MAX
        refused = [text for text in codes if "UNAVAILABLE" in text]
        assert len(refused) == 1
        assert f"{PER_CLIENT_MAX} calls of this kind of one connection" in refused[0]
        for call in calls:
            call.cancel()
    assert STREAMS_MAX > PER_CLIENT_MAX


def test_a_full_pool_refuses_at_once_and_takes_calls_again_when_some_ended() -> None:
    pool = WaitingThreads(3, 2)
    release = threading.Event()
    started = threading.Semaphore(0)

    def call(client: str) -> str:
        try:
            with pool.admit(client):
                started.release()
                release.wait(60)
                return "served"
        except BusyError as error:
            return str(error)

    try:
        waiting = [pool.submit(call, client) for client in ("a", "b", "a")]
        for _ in waiting:
            assert started.acquire(timeout=60)
        assert "3 calls of this kind wait already" in pool.submit(call, "c").result(60)
        release.set()
        assert [each.result(60) for each in waiting] == ["served"] * 3
        assert pool.submit(call, "c").result(60) == "served"
        release.clear()
        first = [pool.submit(call, "a") for _ in range(2)]
        for _ in range(3):
            assert started.acquire(timeout=60)
        assert "2 calls of this kind of one connection" in pool.submit(call, "a").result(60)
        release.set()
        assert [each.result(60) for each in first] == ["served"] * 2
    finally:
        release.set()
        pool.shutdown()


def test_a_server_that_was_asked_for_kafka_does_not_start_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ImportError("No module named 'kio'")

    monkeypatch.setattr(server_module, "native_only", missing)
    asked = merge_settings(SMALL, {"kafka": {"enabled": True, "port": 0}})
    with pytest.raises(SetupError, match=r"penstock\[kafka\]"):
        Server(str(tmp_path / "data"), asked)
    unasked = merge_settings(SMALL, {"kafka": {"enabled": True}})
    with Server(str(tmp_path / "data"), unasked) as server:
        assert server.kafka is None
