"""What clients are told of other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
from tests.brokers.kafka.running import Running, WireClient, running

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import LISTED_S, BrokerAddress, ClusterView
from penstock.errors import DeadlineError
from penstock.groups.codes import GroupCode
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.model import Caller
from penstock.meta.client import Node, Update
from penstock.meta.events import NodePut
from penstock.meta.group_coordinators import GroupCoordinators
from penstock.platform.clock import SystemClock
from penstock.testing.manual_clock import ManualClock

T = TypeVar("T")


def node(node_id: int, listeners: dict[str, str], status: str = "online") -> Node:
    return Node(
        node_id=node_id,
        address="",
        listeners=listeners,
        roles=(),
        boot_id="",
        epoch=1,
        status=status,
        registered_at_ms=0,
    )


def view(
    node_id: int = 1, *updates: Sequence[Node], clock: ManualClock | None = None
) -> ClusterView:
    coordinators = GroupCoordinators(node_id, clock=clock)
    for revision, nodes in enumerate(updates, 1):
        coordinators.apply(Update(revision, tuple(NodePut(one) for one in nodes)))
    broker = SimpleNamespace(
        node_id=node_id,
        advertised=("a", 9092),
        rack="",
        coordinators=coordinators,
        namespace="default",
    )
    return ClusterView(cast("KafkaBroker", broker))


def test_other_nodes_are_told_when_they_serve_kafka_clients() -> None:
    cluster = view(
        1,
        [
            node(1, {"kafka": "old:1"}),
            node(2, {"kafka": "::1:9093", "rack": "r2"}),
            node(3, {"mqtt": "c:1883"}),
            node(4, {"kafka": "d:9092"}, "offline"),
            node(5, {"kafka": "e:9092"}, "draining"),
        ],
    )
    others = [BrokerAddress(2, "::1", 9093, "r2"), BrokerAddress(5, "e", 9092)]
    assert cluster.brokers == [BrokerAddress(1, "a", 9092), *others]
    assert cluster.registered == {1, 2, 3, 4, 5}
    assert cluster.find(4) is None


def test_a_node_that_has_gone_offline_is_listed_for_a_while() -> None:
    clock = ManualClock()
    listeners = {"kafka": "b:9092"}
    cluster = view(
        1,
        [node(2, listeners), node(3, {"kafka": "c:9092"}, "offline"), node(4, {})],
        [node(2, listeners, "offline"), node(4, {}, "offline")],
        clock=clock,
    )
    own, other = BrokerAddress(1, "a", 9092), BrokerAddress(2, "b", 9092)
    # librdkafka loses the partitions of a broker for a second when it is not listed any more.
    assert cluster.listed == [own, other]
    assert cluster.brokers == [own]
    assert cluster.find(2) is None
    clock.advance(LISTED_S)
    assert cluster.listed == [own]


def test_every_node_names_the_same_coordinator_and_where_it_serves_kafka_clients() -> None:
    three = [
        node(number, {"storage": f"n{number}:9190", "kafka": f"n{number}:9092"})
        for number in (1, 2, 3)
    ]
    views = [view(number, three) for number in (1, 2, 3)]
    for number in range(100):
        name = f"group {number}"
        (chosen,) = {one.node_of(name) for one in views}
        assert [one.is_coordinator_of(name) for one in views].index(True) == chosen - 1
        own = BrokerAddress(chosen, "a", 9092)
        told = BrokerAddress(chosen, f"n{chosen}", 9092)
        assert [one.coordinator_of(name) for one in views] == [
            own if number == chosen else told for number in (1, 2, 3)
        ]


def test_a_coordinator_without_a_known_address_is_not_named() -> None:
    others = view(1, [node(2, {"storage": "n2:9190"})])
    assert others.node_of("g") == 2
    assert others.coordinator_of("g") is None
    assert not others.is_coordinator_of("g")


def test_a_group_of_another_coordinator_is_sent_there() -> None:
    groups = GroupCoordinator(SystemClock(), is_here=lambda name: name == "mine")
    nobody = Caller("m", 1, None)
    assert groups.heartbeat("mine", nobody) is GroupCode.unknown_member_id
    assert groups.heartbeat("other", nobody) is GroupCode.not_coordinator
    assert groups.check_commit("other", Caller("", -1, None)) is GroupCode.not_coordinator


class Announced:
    """A meta service of a cluster, as far as the view asks it; it has no leader at first."""

    def __init__(self) -> None:
        self.announced: list[tuple[str, str]] = []

    def leave(self) -> None:
        raise AssertionError("this node stays")

    def announce(self, protocol: str, address: str) -> None:
        self.announced.append((protocol, address))
        raise DeadlineError("no leader yet; the meta service repeats it")


def test_a_node_announces_where_it_listens_once() -> None:
    meta = Announced()

    async def run_blocking(call: Callable[[], T]) -> T:
        return call()

    broker = SimpleNamespace(
        node_id=1,
        advertised=("a", 9092),
        rack="",
        meta=meta,
        run_blocking=run_blocking,
        coordinators=GroupCoordinators(1),
    )
    asyncio.run(ClusterView(cast("KafkaBroker", broker)).announce())
    assert meta.announced == [("kafka", "a:9092")], "the meta service repeats it"


@pytest.fixture
def server(data_path: Path) -> Iterator[Running]:
    with running(data_path) as one:
        yield one


def test_a_node_alone_is_the_cluster_and_coordinates_all(server: Running) -> None:
    with WireClient(server.server.port) as client:
        brokers = client.ask(3, 9, topics=[]).items_of("brokers")
        assert [(one["node_id"], one["port"]) for one in brokers] == [(1, server.server.port)]
        found = client.ask(10, 4, key_type=0, coordinator_keys=["g"]).items_of("coordinators")
        assert [one["port"] for one in found] == [server.server.port]
