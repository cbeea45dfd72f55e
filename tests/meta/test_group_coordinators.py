"""One rule says which node coordinates a consumer group."""

from __future__ import annotations

from collections import Counter

from penstock.meta.client import Node, Update
from penstock.meta.events import NodePut, NodeRemoved
from penstock.meta.group_coordinators import GroupCoordinators
from penstock.testing.manual_clock import ManualClock

STORAGE = {"storage": "host:9190"}
BOTH = {"storage": "host:9190", "kafka": "host:9092"}
GROUPS = [f"group {number}" for number in range(600)]


def put(node_id: int, listeners: dict[str, str], status: str = "online") -> NodePut:
    node = Node(
        node_id=node_id,
        address="",
        listeners=listeners,
        roles=(),
        boot_id="",
        epoch=1,
        status=status,
        registered_at_ms=0,
    )
    return NodePut(node)


def told(node_id: int, *events: NodePut | NodeRemoved) -> GroupCoordinators:
    made = GroupCoordinators(node_id)
    made.apply(Update(1, events))
    return made


def chosen(coordinators: GroupCoordinators) -> list[int]:
    return [coordinators.coordinator_of(group) for group in GROUPS]


def test_all_nodes_name_the_same_coordinator_and_groups_are_spread() -> None:
    events = [put(number, BOTH) for number in (1, 2, 3)]
    first, *others = [told(number, *events) for number in (1, 2, 3)]
    assert all(chosen(one) == chosen(first) for one in others)
    counts = Counter(chosen(first))
    assert min(counts[number] for number in (1, 2, 3)) > len(GROUPS) // 5


def test_a_node_that_goes_moves_only_its_own_groups() -> None:
    coordinators = told(1, *[put(number, BOTH) for number in (1, 2, 3)])
    before, changes = chosen(coordinators), coordinators.changes
    coordinators.apply(Update(2, (put(3, BOTH, "offline"),)))
    after = chosen(coordinators)
    assert coordinators.changes == changes + 1
    assert 3 not in after
    assert all(now == then for now, then in zip(after, before, strict=True) if then != 3)
    coordinators.apply(Update(3, (NodeRemoved(2),)))
    assert set(chosen(coordinators)) == {1}


def test_the_same_name_in_two_namespaces_is_two_groups() -> None:
    coordinators = told(1, *[put(number, BOTH) for number in (1, 2, 3)])
    other = [coordinators.coordinator_of(group, "other") for group in GROUPS]
    assert other != chosen(coordinators)


def test_nodes_without_a_kafka_port_coordinate_only_where_no_node_has_one() -> None:
    assert set(chosen(told(1, put(1, STORAGE), put(2, STORAGE), put(3, {})))) == {1, 2}
    assert set(chosen(told(1, put(1, STORAGE), put(2, BOTH), put(3, BOTH)))) == {2, 3}


def test_a_node_coordinates_nothing_until_it_knows_the_others() -> None:
    coordinators = GroupCoordinators(1)
    assert not coordinators.is_here("g")
    coordinators.apply(Update(1, (put(1, BOTH),)))
    assert coordinators.is_here("g")
    assert coordinators.is_online(1)
    assert not coordinators.is_online(2)
    assert GroupCoordinators(1, is_alone=True).is_here("g")


def test_listeners_hear_of_changes_only() -> None:
    heard: list[int] = []
    coordinators = told(1, put(1, BOTH))
    coordinators.on_change(lambda: heard.append(coordinators.changes))
    coordinators.apply(Update(2, (put(1, BOTH),)))
    assert heard == []
    coordinators.apply(Update(3, (put(2, BOTH),)))
    assert heard == [coordinators.changes]
    coordinators.apply(Update(4, (put(1, BOTH),), is_reset=True))
    assert set(chosen(coordinators)) == {1}


def test_for_how_long_a_node_is_offline_is_known_from_its_last_change_on() -> None:
    clock = ManualClock()
    coordinators = GroupCoordinators(1, clock=clock)
    events = (put(1, BOTH), put(2, BOTH), put(3, BOTH, "stopping"), put(4, BOTH, "offline"))
    coordinators.apply(Update(1, events))
    assert [coordinators.offline_s(number) for number in (1, 2, 3, 4, 5)] == [None] * 5
    coordinators.apply(Update(2, (put(2, BOTH, "offline"), put(3, BOTH, "offline"))))
    clock.advance(3)
    # Nothing has changed, also when a snapshot says so.
    snapshot = (put(1, BOTH), put(2, BOTH, "offline"), put(3, BOTH, "offline"))
    coordinators.apply(Update(3, snapshot, is_reset=True))
    assert [coordinators.offline_s(number) for number in (1, 2, 3, 4)] == [None, 3, 3, None]
    coordinators.apply(Update(4, (put(2, BOTH), NodeRemoved(3))))
    assert [coordinators.offline_s(number) for number in (2, 3)] == [None, None]
