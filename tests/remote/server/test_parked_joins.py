"""Joins of groups wait without a thread, on the node that is asked and on the coordinator's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace
from tests.groups.coordinator.test_coordinator import LIMITS, join, settle
from tests.remote.peers.test_forwarding import THERE, Pair
from tests.remote.server.test_parked_calls import address_of, wait_until
from tests.remote.server.test_waiting_calls import SMALL, channel_to

import penstock
from penstock.errors import BadRequestError, StoreError
from penstock.groups.codes import GroupCode
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.model import Join, Joined
from penstock.groups.routing import GroupRouter, PendingReply, Question
from penstock.platform.calls.grpc import WaitingPools
from penstock.platform.clock import SystemClock
from penstock.platform.clock_guard import GuardedClock
from penstock.remote import storage_pb2 as pb
from penstock.remote.peers.shard_service import shard_handlers
from penstock.remote.server import grpc_server, service
from penstock.remote.server.node_server import Server
from penstock.remote.wire import groups as group_wire
from penstock.remote.wire.call import SERVICE

JOINS = 60
THREADS = 4
NEWCOMER = Join(
    member_id="",
    instance_id=None,
    client_id="c",
    client_host="/h",
    session_timeout_ms=60_000,
    rebalance_timeout_ms=60_000,
    protocol_type="consumer",
    protocols=(("range", b"m"),),
    skips_delay=True,
)


def waiting_threads() -> int:
    return sum(one.name.startswith("penstock-rpc-wait") for one in threading.enumerate())


@pytest.fixture(autouse=True)
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "WAIT_THREADS_MAX", THREADS)


class TwoNodes:
    """A node that is asked, and one that coordinates all groups."""

    def __init__(self, directory: Path) -> None:
        self.pair = Pair(directory)
        self.there = GroupCoordinator(SystemClock(), LIMITS)
        self.pools: WaitingPools = grpc_server.waiting_pools()
        self.rpc = grpc.server(ThreadPoolExecutor(4))
        drivers, clock = self.pair.drivers, GuardedClock(SystemClock())
        handlers = shard_handlers(drivers, clock, self.there, None, self.pools)
        self.rpc.add_generic_rpc_handlers((handlers,))
        port = self.rpc.add_insecure_port("127.0.0.1:0")
        self.rpc.start()
        self.pair.meta.register_node("", listeners={"storage": f"127.0.0.1:{port}"})
        self.here = GroupCoordinator(SystemClock(), LIMITS, is_here=lambda _: False)
        self.here.node_of = lambda _: THERE
        self.here.send_to_coordinator = self.pair.forwarder.ask_group
        self.here.ask_other_later = self.pair.forwarder.ask_group_later
        self.router = GroupRouter(self.here)

    def close(self) -> None:
        self.rpc.stop(None).wait()
        self.pools.shutdown()
        self.there.close()
        self.here.close()
        self.pair.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    made = TwoNodes(tmp_path)
    yield made
    made.close()


def begin(nodes: TwoNodes, seconds: float, told: threading.Event) -> PendingReply:
    question = Question("default", "g", join=NEWCOMER, seconds=seconds)
    return nodes.router.begin(question, told.set)


def test_joins_that_another_node_coordinates_wait_without_threads(nodes: TwoNodes) -> None:
    member = settle(nodes.there)
    began = threading.active_count()
    told = [threading.Event() for _ in range(JOINS)]
    pending = [begin(nodes, 5.0, event) for event in told]
    wait_until(lambda: nodes.pools.waits.under_way == JOINS, "not all joins are there")
    assert waiting_threads() <= THREADS
    assert threading.active_count() <= began + THREADS + 8, "none for each join, here or there"
    assert not any(one.is_there for one in pending)
    rejoined = join(nodes.there, member.member_id)
    assert rejoined.error is GroupCode.none
    for event in told:
        assert event.wait(60)
    joined = [one.now().joined or Joined(GroupCode.invalid_request) for one in pending]
    assert {one.error for one in joined} == {GroupCode.none}
    assert {one.generation for one in joined} == {rejoined.generation}
    assert len({one.member_id for one in joined}) == JOINS


def test_a_group_that_does_not_decide_in_time_is_told_by_its_coordinator(nodes: TwoNodes) -> None:
    settle(nodes.there)
    told = threading.Event()
    pending = begin(nodes, 0.2, told)
    assert told.wait(60)
    joined = pending.now().joined
    assert joined is not None
    assert joined.error is GroupCode.still_waiting


def test_what_the_coordinator_refuses_is_raised_on_the_node_that_asked(nodes: TwoNodes) -> None:
    told = threading.Event()
    answers: list[bytes | StoreError] = []

    def take(found: bytes | StoreError) -> None:
        answers.append(found)
        told.set()

    nodes.pair.forwarder.ask_group_later(THERE, b"\xff", take)
    assert told.wait(60)
    assert isinstance(answers[0], BadRequestError)


def test_a_coordinator_that_is_gone_is_an_error_and_frees_what_was_taken(nodes: TwoNodes) -> None:
    nodes.rpc.stop(None).wait()
    told = threading.Event()
    pending = begin(nodes, 0.2, told)
    assert told.wait(60)
    with pytest.raises(StoreError):
        pending.now()
    assert nodes.pair.forwarder._free._value == 128


@pytest.mark.timeout(120)
def test_other_waits_are_answered_beside_joins_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "GROUP_WAIT_S_MAX", 600.0)
    with (
        Server(str(tmp_path / "data"), SMALL) as server,
        penstock.connect(address_of(server)) as store,
        channel_to(address_of(server)) as channel,
    ):
        store.create_topic("a")
        call = channel.unary_unary(
            f"/{SERVICE}/JoinGroup",
            request_serializer=pb.GroupJoin.SerializeToString,
            response_deserializer=pb.GroupJoined.FromString,
        )
        name = pb.GroupName(namespace="default", group="g")
        waits = server._pools.waits

        def request(member_id: str) -> pb.GroupJoin:
            join = replace(NEWCOMER, member_id=member_id)
            return group_wire.join_to_wire(name, join, 600.0)

        members = [call(request(""), timeout=60).member_id for _ in range(JOINS + 1)]
        assert call(request(members[0]), timeout=60).code == 0, "it leads the group"
        calls = [call.future(request(member)) for member in members[1:]]
        wait_until(lambda: waits.under_way == JOINS, "not all joins wait")
        assert waiting_threads() <= THREADS
        assert not store.topic("a").wait({0: 0}, seconds=0.01)
        assert waits.under_way == JOINS, "all of them still wait for the leader to join again"
        for one in calls:
            one.cancel()
        wait_until(lambda: waits.under_way == 0, "joins are still counted")
