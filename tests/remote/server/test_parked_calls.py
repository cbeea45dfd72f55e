"""A call that waits has no thread: many idle followers cost memory only."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tests.remote.server.test_waiting_calls import SMALL, channel_to, follow, wait, watch

import penstock
from penstock.errors import UnknownTopicError
from penstock.platform.calls import parked_calls
from penstock.remote import storage_pb2 as pb
from penstock.remote.server import grpc_server
from penstock.remote.server.node_server import Server
from penstock.remote.wire.errors import error_of_call
from penstock.settings import merge_settings

FOLLOWERS = 1_000
WITHIN_S = 60.0

FOLLOWER = """
import sys
from tests.remote.server.test_waiting_calls import channel_to, follow
calls = follow(channel_to(sys.argv[1]), 20)
for call in calls:
    next(iter(call))
print("follows", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(str(tmp_path / "data"), SMALL) as made:
        yield made


def address_of(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def rpc_threads() -> int:
    """Count the threads of gRPC servers in this process."""
    return sum(one.name.startswith("penstock-rpc") for one in threading.enumerate())


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def next_value(call: grpc.Call) -> bytes | None:
    """Return the first record that a follower gets; empty pages do not count."""
    pages: Iterator[pb.RecordsReply] = iter(call)  # type: ignore[call-overload] # an iterator, too
    for page in pages:
        if page.records:
            return page.records[0].value
    raise AssertionError("the stream has ended")


def followers_of(server: Server, count: int, per_connection: int = 125) -> list[grpc.Call]:
    """Return streams that wait for the first record of an empty topic."""
    address = address_of(server)
    calls: list[grpc.Call] = []
    for _ in range(count // per_connection):
        calls += follow(channel_to(address), per_connection)
    streams = server._pools.streams
    wait_until(lambda: streams.under_way == count, "not all streams have begun")
    parked = server.node.storage_cache.entries
    wait_until(
        lambda: sum(len(entry.appended) for entry in parked()) == count, "not all of them wait"
    )
    return calls


@pytest.mark.timeout(240)
def test_a_thousand_idle_followers_cost_no_threads_and_each_gets_what_comes(
    server: Server,
) -> None:
    with penstock.connect(address_of(server)) as store:
        topic = store.create_topic("a")
        calls = followers_of(server, FOLLOWERS)
        bound = grpc_server.STREAM_THREADS_MAX + grpc_server.WAIT_THREADS_MAX + 16
        assert rpc_threads() <= bound, "far fewer than followers"
        assert store.topics() == ["a"]
        assert store.topic("a").read() == []
        topic.write(b"late")
        assert [next_value(call) for call in calls] == [b"late"] * FOLLOWERS
        assert rpc_threads() <= bound
        for call in calls:
            call.cancel()
        wait_until(lambda: server._pools.streams.under_way == 0, "streams were not ended")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [watch, wait])
def test_watches_and_waits_have_no_thread_either(
    kind: Callable[[grpc.Channel, int], list[grpc.Call]], server: Server
) -> None:
    with penstock.connect(address_of(server)) as store:
        store.create_topic("a")
        calls = [one for _ in range(3) for one in kind(channel_to(address_of(server)), 200)]
        pools = server._pools
        wait_until(lambda: pools.streams.under_way + pools.waits.under_way == 600, "not begun")
        assert rpc_threads() <= grpc_server.STREAM_THREADS_MAX + grpc_server.WAIT_THREADS_MAX + 16
        assert store.topics() == ["a"]
        for call in calls:
            call.cancel()
        wait_until(lambda: pools.streams.under_way + pools.waits.under_way == 0, "not ended")


def test_a_follower_whose_client_closes_the_connection_frees_its_place(server: Server) -> None:
    with penstock.connect(address_of(server)) as store:
        store.create_topic("a")
        streams = server._pools.streams
        with channel_to(address_of(server)) as channel:
            calls = follow(channel, 30)
            wait_until(lambda: streams.under_way == 30, "not all streams have begun")
        assert len(calls) == 30, "a call that is collected would be cancelled"
        wait_until(lambda: streams.under_way == 0, "the places are still taken")
        entries = server.node.storage_cache.entries
        assert not any(entry.appended for entry in entries()), "and no writer calls them"


def test_a_follower_whose_process_is_killed_frees_its_place(server: Server) -> None:
    with penstock.connect(address_of(server)) as store:
        store.create_topic("a").write(b"x")
    client = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, address_of(server)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == b"follows\n"
        assert server._pools.streams.under_way == 20
    finally:
        client.kill()
        client.communicate(timeout=60)
    wait_until(lambda: server._pools.streams.under_way == 0, "the places are still taken")


def test_a_deadline_ends_a_stream_that_waits(server: Server) -> None:
    with penstock.connect(address_of(server)) as store, channel_to(address_of(server)) as channel:
        store.create_topic("a")
        call = channel.unary_stream(
            "/penstock.storage.v1.StorageService/ReadStream",
            request_serializer=pb.ReadRequest.SerializeToString,
            response_deserializer=pb.RecordsReply.FromString,
        )
        name = pb.TopicName(namespace="default", topic="a")
        request = pb.ReadRequest(name=name, max_records=1, max_size=1 << 20, follow=True)
        with pytest.raises(grpc.RpcError) as error:
            list(call(request, timeout=0.5))
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: server._pools.streams.under_way == 0, "the place is still taken")


def test_a_stream_whose_topic_is_deleted_ends_with_the_error(server: Server) -> None:
    with penstock.connect(address_of(server)) as store, channel_to(address_of(server)) as channel:
        store.create_topic("a")
        (call,) = follow(channel, 1)
        wait_until(
            lambda: any(one.appended for one in server.node.storage_cache.entries()), "not parked"
        )
        store.topic("a").delete()
        with pytest.raises(grpc.RpcError) as error:
            next_value(call)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert isinstance(error_of_call(error.value, "here", pb.ReadRequest()), UnknownTopicError)


@pytest.mark.timeout(120)
def test_a_server_stops_quickly_beside_hundreds_of_idle_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.remote.server.node_server.GRACE_S", 3600.0)
    server = Server(str(tmp_path / "data"), SMALL)
    with penstock.connect(address_of(server)) as store:
        store.create_topic("a")
    calls = followers_of(server, 250)
    calls += watch(channel_to(address_of(server)), 50)
    calls += wait(channel_to(address_of(server)), 50)
    pools = server._pools
    wait_until(lambda: pools.streams.under_way + pools.waits.under_way == 350, "not begun")
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    closing.join(WITHIN_S)
    assert not closing.is_alive()
    for call in calls[:-50]:
        for _ in iter(call):  # type: ignore[call-overload] # an iterator, too
            pass
    assert {call.code() for call in calls} == {grpc.StatusCode.OK}


@pytest.mark.timeout(120)
def test_clients_that_do_not_read_are_ended_when_others_need_their_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "STREAM_THREADS_MAX", 2)
    monkeypatch.setattr(parked_calls, "STARVED_S", 0.1)
    monkeypatch.setattr(parked_calls, "SEND_S", 0.5)
    with (
        Server(str(tmp_path / "data"), SMALL) as server,
        penstock.connect(address_of(server)) as store,
        channel_to(address_of(server)) as slow,
        channel_to(address_of(server)) as quick,
    ):
        topic = store.create_topic("a")
        for _ in range(30):
            topic.write(bytes(1 << 20))
        stuck = follow(slow, 2)
        time.sleep(1.0)
        assert all(call.is_active() for call in stuck), "no other stream needs a thread yet"
        (reader,) = follow(quick, 1)
        assert next_value(reader) == bytes(1 << 20)
        reader.cancel()
        for call in stuck:
            with pytest.raises(grpc.RpcError):
                for _ in iter(call):  # type: ignore[call-overload] # an iterator, too
                    pass
            assert call.code() is grpc.StatusCode.CANCELLED
        budget = server.reading.budget
        wait_until(lambda: budget.used == 0, "memory of replies is still taken")


def test_streams_beyond_the_memory_of_replies_wait_without_a_thread(tmp_path: Path) -> None:
    settings = merge_settings(SMALL, {"server": {"read_memory_max": 64 << 20}})
    with (
        Server(str(tmp_path / "data"), settings) as server,
        penstock.connect(address_of(server)) as store,
    ):
        store.create_topic("a").write(b"x")
        held = server.reading.budget.reserve(64 << 20)
        calls = [one for _ in range(2) for one in follow(channel_to(address_of(server)), 100)]
        streams = server._pools.streams
        wait_until(lambda: streams.under_way == 200, "not all streams have begun")
        wait_until(lambda: streams.executor._work_queue.empty(), "some have had no thread yet")
        held.release()
        assert [next_value(call) for call in calls] == [b"x"] * 200
        for call in calls:
            call.cancel()
        wait_until(lambda: server.reading.budget.used == 0, "memory of replies is still taken")
