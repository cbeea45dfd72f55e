"""Managers of several nodes over one meta service: each group has one coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pytest
from tests.meta.simulated_database import SimulatedDatabase
from tests.offsets.world import S0, S1

from penstock.errors import (
    BadRequestError,
    DeadlineError,
    GroupMovedError,
    StaleWriteError,
    StoreError,
    UnknownGroupError,
)
from penstock.meta.client import (
    GroupOffsets,
    NewGroupOffsets,
    NewOffset,
    Node,
    StaleEntry,
    Update,
)
from penstock.meta.client_api.offset_client import LogOffsetClient
from penstock.meta.events import NodePut
from penstock.meta.group_coordinators import GroupCoordinators
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.offsets import cluster_manager as cluster
from penstock.offsets.cluster_manager import ClusterOffsetManager
from penstock.offsets.config import CACHE_FAMILY
from penstock.offsets.strategy import GroupCommit, OffsetCommit
from penstock.record import Offset, ShardId
from penstock.testing import ManualClock

NODES = (1, 2, 3)


def node_put(node_id: int, status: str = "online") -> NodePut:
    node = Node(
        node_id=node_id,
        address="",
        listeners={"storage": f"n{node_id}:9190"},
        roles=(),
        boot_id="",
        epoch=1,
        status=status,
        registered_at_ms=0,
    )
    return NodePut(node)


class Links:
    """The way to the other managers; a node may be cut off."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def send_offset_request(self, node_id: int, request: str, seconds: float) -> str:
        assert seconds > 0
        self._nodes.asked.append(node_id)
        self._nodes.before_step(node_id)
        if node_id in self._nodes.cut_off:
            raise DeadlineError(f"node {node_id} does not answer; the outcome is unknown")
        return self._nodes.managers[node_id].handle_request(request)


class Nodes:
    """Three nodes; no thread saves what waits: tests call `flush`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.meta = StandaloneMetaClient(SimulatedDatabase(), clock=self.clock, offset_groups=2)
        self.cut_off: set[int] = set()
        self.asked: list[int] = []
        self.before_step: Callable[[int], None] = lambda _node: None
        self.coordinators = {node: GroupCoordinators(node) for node in NODES}
        self.tell(*NODES)
        self.managers = {node: self.start(node) for node in NODES}

    def tell(self, *online: int, to: tuple[int, ...] = NODES) -> None:
        """Have nodes `to` know which nodes are online."""
        events = [node_put(node, "online" if node in online else "offline") for node in NODES]
        for node in to:
            self.coordinators[node].apply(Update(1, tuple(events)))

    def start(self, node: int, local: SimulatedDatabase | None = None) -> ClusterOffsetManager:
        client = LogOffsetClient(self.meta._offset_groups, node_id=node, clock=self.clock)
        database = local if local is not None else SimulatedDatabase(families=(CACHE_FAMILY,))
        return ClusterOffsetManager(
            client, database, self.coordinators[node], Links(self), clock=self.clock
        )

    def commit(
        self,
        node: int,
        group: str,
        shard: ShardId,
        offset: int,
        *,
        enable_cache: bool | None = None,
    ) -> None:
        """Commit as a consumer does, which sends a commit again when its group has moved."""
        commit = partial(self.managers[node].commit_offset, group, shard, offset)
        for _ in range(5):
            with suppress(GroupMovedError):
                return commit(enable_cache=enable_cache)
        return commit(enable_cache=enable_cache)

    def group_of(self, node: int) -> str:
        """Return a group that a node coordinates."""
        names = (f"group-{number}" for number in range(1_000))
        return next(name for name in names if self.coordinators[node].is_here(name))

    def saved(self, group: str, shard: ShardId = S0) -> int | None:
        found = self.meta.get_offset("default", group, shard.name)
        return None if found is None else found.offset

    def seen(self, group: str, shard: ShardId = S0) -> set[int | None]:
        """What all nodes answer."""
        found = [one.get_offset(group, shard) for one in self.managers.values()]
        return {None if one is None else one.offset for one in found}


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.mark.parametrize("is_cached", [True, False])
def test_commits_through_all_nodes_in_turn_are_seen_through_all_and_none_is_lost(
    nodes: Nodes, is_cached: bool
) -> None:
    group = nodes.group_of(2)
    for number in range(1, 31):
        manager = nodes.managers[NODES[number % 3]]
        manager.commit_offset(group, S0, number * 10, enable_cache=is_cached)
        assert nodes.seen(group) == {number * 10}
        if number % 4 == 0:
            for one in nodes.managers.values():
                one.flush()
            assert nodes.saved(group) == number * 10
    assert nodes.managers[1].cache.pending_count == nodes.managers[3].cache.pending_count == 0


def test_a_request_takes_one_hop(nodes: Nodes) -> None:
    group = nodes.group_of(3)
    nodes.commit(1, group, S0, 7)
    assert nodes.asked == [3]
    nodes.commit(3, group, S0, 8)
    assert nodes.managers[3].get_offset(group, S0) is not None
    assert nodes.asked == [3], "the coordinator asks no other node"


def test_everything_else_is_done_by_the_coordinator_too(nodes: Nodes) -> None:
    group, other = nodes.group_of(1), nodes.managers[2]
    other.commit_offsets(
        group, {S0: OffsetCommit(Offset(5), "note", 3), S1: OffsetCommit(Offset(6))}
    )
    found = other.get_offset(group, S0)
    assert found is not None
    assert (found.offset, found.metadata, found.leader_epoch) == (5, "note", 3)
    with pytest.raises(StaleWriteError):
        other.compare_and_set(group, S0, 9, expected=4)
    other.compare_and_set(group, S0, 9, expected=5)
    assert nodes.seen(group) == {9}
    other.reset_offsets(group, {S0: OffsetCommit(Offset(2))})
    assert nodes.seen(group) == {2}
    nodes.commit(1, group, S0, 3)
    assert nodes.seen(group) == {3}, "the coordinator goes on under the epoch of the reset"
    assert other.delete_offsets(group, [S1]) == 1
    assert nodes.seen(group, S1) == {None}
    other.delete_group(group)
    assert nodes.seen(group) == {None}
    with pytest.raises(UnknownGroupError):
        other.delete_group(group)
    other.commit_offset(group, S0, 1)
    assert nodes.seen(group) == {1}


def test_bad_requests_are_refused_before_they_travel(nodes: Nodes) -> None:
    group = nodes.group_of(2)
    with pytest.raises(BadRequestError, match="an offset is a number"):
        nodes.commit(1, group, S0, -1)
    with pytest.raises(BadRequestError):
        nodes.commit(1, "", S0, 1)
    with pytest.raises(BadRequestError):
        nodes.managers[1].commit_offset(group, S0, 1, metadata="m" * 5_000)
    assert nodes.asked == []
    with pytest.raises(BadRequestError, match="not a request"):
        nodes.managers[1].handle_request('{"type":"conquer"}')


def test_a_group_that_moves_takes_the_cached_commits_of_its_last_coordinator_along(
    nodes: Nodes,
) -> None:
    group = nodes.group_of(3)
    nodes.commit(3, group, S0, 50)
    nodes.commit(3, group, S1, 60)
    assert nodes.saved(group) is None
    # Node 3 drains, say: it answers, and another one coordinates from now on.
    nodes.tell(1, 2, 3)
    for one in nodes.coordinators.values():
        one.apply(Update(2, (_without_storage(3),)))
    heir = nodes.coordinators[1].coordinator_of(group)
    assert heir != 3
    nodes.commit(heir, group, S0, 55)
    assert nodes.saved(group) == 50, "the last coordinator has saved first"
    assert nodes.seen(group) == {55}
    assert nodes.seen(group, S1) == {60}


def test_a_read_at_the_new_coordinator_sees_what_waits_on_the_last_one(nodes: Nodes) -> None:
    group = nodes.group_of(3)
    nodes.commit(3, group, S0, 50)
    for one in nodes.coordinators.values():
        one.apply(Update(2, (_without_storage(3),)))
    assert nodes.seen(group) == {50}
    nodes.asked.clear()
    heir = nodes.coordinators[1].coordinator_of(group)
    assert nodes.managers[heir].get_offset(group, S0) is not None
    assert nodes.asked == [], "the last coordinator is asked once"


def test_two_nodes_that_both_take_themselves_for_the_coordinator_lose_nothing(
    nodes: Nodes,
) -> None:
    group = nodes.group_of(2)
    # Node 1 believes that it is alone; the others know better. All of them can be reached.
    nodes.coordinators[1].apply(Update(2, (_without_storage(2), _without_storage(3))))
    assert nodes.coordinators[1].is_here(group)
    assert nodes.coordinators[3].coordinator_of(group) == 2
    for number in range(1, 21):
        node = 1 + number % 2
        nodes.commit(node, group, S0, number, enable_cache=number % 3 > 0)
        assert nodes.seen(group) == {number}
        if number % 5 == 0:
            nodes.managers[node].flush()


def test_a_node_that_takes_a_group_while_another_is_taking_it_wins_and_both_commits_stay(
    nodes: Nodes,
) -> None:
    """Node 1 has its epoch and asks node 3 to hand over; meanwhile node 2 takes the group."""
    group = nodes.group_of(3)
    nodes.commit(3, group, S0, 1)
    for node in (1, 2):
        everyone_else = [_without_storage(other) for other in NODES if other != node]
        nodes.coordinators[node].apply(Update(2, tuple(everyone_else)))

    def take_meanwhile(_asked: int) -> None:
        nodes.before_step = lambda _node: None
        nodes.commit(2, group, S0, 2)

    nodes.before_step = take_meanwhile
    nodes.commit(1, group, S0, 3)
    for node in NODES:
        nodes.managers[node].flush()
    assert nodes.saved(group) == 3, "acknowledged last"


def test_a_commit_that_waited_while_another_node_had_the_group_replaces_no_newer_one(
    nodes: Nodes,
) -> None:
    group = nodes.group_of(2)
    first, late, newer, newest = ([group_commit(group, offset)] for offset in (10, 20, 30, 40))
    assert nodes.managers[2].commit_groups(first) == [None]
    # Node 1 believes that it is alone. The consumer gives up its commit at node 2 and goes there.
    nodes.coordinators[1].apply(Update(2, (_without_storage(2), _without_storage(3))))
    (refused,) = nodes.managers[1].commit_groups(newer)
    assert isinstance(refused, GroupMovedError), "it may have waited here, too"
    assert nodes.managers[1].commit_groups(newer) == [None]
    (refused,) = nodes.managers[2].commit_groups(late)
    assert isinstance(refused, GroupMovedError)
    assert nodes.saved(group) == 30
    assert nodes.managers[2].commit_groups(newest) == [None], "sent since the group is back"
    assert nodes.saved(group) == 40


@pytest.mark.parametrize("asked", [2, 3])
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_python_commit_that_waited_while_another_node_had_the_group_replaces_no_newer_one(
    nodes: Nodes, is_cached: bool, asked: int
) -> None:
    """It waits at the node that had the group, or at one that passes it on to there."""
    group = nodes.group_of(2)
    nodes.commit(2, group, S0, 10, enable_cache=is_cached)
    # Node 1 believes that it is alone. The consumer gives up its commit and goes there.
    nodes.coordinators[1].apply(Update(2, (_without_storage(2), _without_storage(3))))
    with pytest.raises(GroupMovedError):
        nodes.managers[1].commit_offset(group, S0, 30, enable_cache=is_cached)
    nodes.managers[1].commit_offset(group, S0, 30, enable_cache=is_cached)
    with pytest.raises(GroupMovedError):
        nodes.managers[asked].commit_offset(group, S0, 20, enable_cache=is_cached)
    assert nodes.seen(group) == {30}
    nodes.managers[asked].commit_offset(group, S0, 40, enable_cache=is_cached)
    assert nodes.seen(group) == {40}


def test_a_dead_coordinator_is_replaced_and_what_it_kept_comes_back_with_it(nodes: Nodes) -> None:
    group = nodes.group_of(3)
    manager = nodes.managers[3]
    manager.commit_offset(group, S0, 50)
    manager.commit_offset(group, S1, 60)
    local = manager._database
    assert isinstance(local, SimulatedDatabase)
    nodes.cut_off.add(3)
    nodes.tell(1, 2)
    survivors = [nodes.managers[1], nodes.managers[2]]
    nodes.commit(1, group, S0, 40)
    assert [one.get_offset(group, S0) is not None for one in survivors] == [True, True]
    nodes.managers[3] = nodes.start(3, local.after_kill())
    nodes.cut_off.clear()
    nodes.tell(*NODES)
    nodes.managers[3].flush()
    assert nodes.seen(group) == {40}, "committed since"
    assert nodes.seen(group, S1) == {60}


def test_a_coordinator_that_does_not_answer_is_looked_for_again_by_reads(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = nodes.group_of(3)
    nodes.commit(3, group, S0, 5, enable_cache=False)
    nodes.asked.clear()
    nodes.cut_off.add(3)

    def notice(_node: int) -> None:
        if nodes.asked.count(3) == 3:
            nodes.tell(1, 2)

    nodes.before_step = notice
    monkeypatch.setattr(nodes.clock, "wait", lambda *_: False)
    found = nodes.managers[1].get_offset(group, S0)
    assert found is not None
    assert found.offset == 5
    assert nodes.asked.count(3) >= 3


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_commit_is_not_sent_again_to_the_next_coordinator_by_the_node(
    nodes: Nodes, is_cached: bool
) -> None:
    """The consumer may have given it up meanwhile, and have committed through another node."""
    group = nodes.group_of(3)
    nodes.cut_off.add(3)

    def give_up(_node: int) -> None:
        nodes.before_step = lambda _node: None
        nodes.tell(1, 2)
        nodes.commit(2, group, S0, 8, enable_cache=is_cached)

    nodes.before_step = give_up
    with pytest.raises(GroupMovedError, match="commit again"):
        nodes.managers[1].commit_offset(group, S0, 5, enable_cache=is_cached)
    assert nodes.managers[1].get_offsets(group)[S0].offset == 8
    nodes.commit(1, group, S0, 9, enable_cache=is_cached)
    assert nodes.managers[2].get_offsets(group)[S0].offset == 9


def test_kafka_commits_are_not_sent_again_to_the_next_coordinator_either(nodes: Nodes) -> None:
    group = nodes.group_of(3)
    nodes.cut_off.add(3)
    (refused,) = nodes.managers[1].commit_groups([group_commit(group, 5)])
    assert isinstance(refused, GroupMovedError)
    assert nodes.asked == [3]


def test_the_wait_for_a_coordinator_is_bounded(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = nodes.group_of(3)
    nodes.cut_off.add(3)

    def pass_time(_event: threading.Event, seconds: float) -> bool:
        nodes.clock.advance(seconds)
        return False

    monkeypatch.setattr(nodes.clock, "wait", pass_time)
    began = nodes.clock.monotonic()
    with pytest.raises(DeadlineError):
        nodes.managers[1].get_offsets(group)
    assert nodes.clock.monotonic() - began < cluster.ROUTE_S + 1
    asked = len(nodes.asked)
    with pytest.raises(DeadlineError):
        nodes.managers[1].reset_offsets(group, {S0: OffsetCommit(Offset(1))})
    assert len(nodes.asked) == asked + 1, "a reset is not repeated blindly"


@pytest.mark.parametrize("status", ["stopping", "online"])
def test_only_a_holder_that_did_not_announce_its_stop_is_warned_of(
    nodes: Nodes, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = nodes.group_of(2)
    nodes.commit(2, group, S0, 7)
    nodes.managers[2].flush()
    events = [node_put(1), node_put(2, status), node_put(3)]
    nodes.coordinators[1].apply(Update(2, tuple(events)))
    nodes.cut_off = {2}
    assert nodes.managers[1]._read_flushed("default", group)[S0].offset == 7
    assert nodes.asked == [2]
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warned == (["offsets_not_handed_over"] if status == "online" else [])


def test_a_silent_predecessor_is_waited_for_once_not_for_every_group(nodes: Nodes) -> None:
    groups = [f"g{number}" for number in range(60)]
    groups = [name for name in groups if nodes.coordinators[1].coordinator_of(name) == 3]
    for name in groups:
        nodes.commit(3, name, S0, 1)
    nodes.cut_off.add(3)
    for one in nodes.coordinators.values():
        one.apply(Update(2, (_without_storage(3),)))
    nodes.asked.clear()
    mine = [name for name in groups if nodes.coordinators[1].is_here(name)]
    assert len(mine) > 3
    for name in mine:
        nodes.commit(1, name, S0, 2)
    assert nodes.asked == [3]


@pytest.mark.parametrize("is_told_all", [True, False])
@pytest.mark.parametrize("change", ["commit", "reset", "delete"])
def test_a_group_that_comes_back_is_not_committed_under_an_epoch_that_others_have_passed(
    nodes: Nodes, change: str, is_told_all: bool
) -> None:
    """The coordinator is cut off for a while: another node changes the group without asking it."""
    group = nodes.group_of(3)
    nodes.commit(3, group, S0, 50)
    nodes.managers[3].flush()
    nodes.cut_off.add(3)
    nodes.tell(1, 2, to=(1, 2))
    if change == "commit":
        nodes.commit(1, group, S0, 60, enable_cache=False)
    elif change == "reset":
        nodes.managers[1].reset_offsets(group, {S0: OffsetCommit(Offset(10))})
    else:
        nodes.managers[1].delete_group(group)
    nodes.cut_off.clear()
    if is_told_all:
        nodes.tell(1, 2, to=(3,))
        nodes.tell(*NODES)
    else:
        nodes.tell(*NODES, to=(1, 2))
        now = tuple(node_put(node) for node in NODES)
        nodes.coordinators[3].apply(Update(9, now, is_reset=True))
    nodes.commit(3, group, S0, 70)
    nodes.managers[3].flush()
    assert nodes.saved(group) == 70


@pytest.mark.parametrize("change", ["reset", "delete"])
def test_a_reset_at_the_new_coordinator_ends_the_use_of_the_last_ones_epoch(
    nodes: Nodes, change: str
) -> None:
    """The last coordinator does not know yet that it is no longer the one."""
    group = nodes.group_of(3)
    nodes.commit(3, group, S0, 50)
    for node in (1, 2):
        nodes.coordinators[node].apply(Update(2, (_without_storage(3),)))
    if change == "reset":
        nodes.managers[1].reset_offsets(group, {S0: OffsetCommit(Offset(10))})
    else:
        nodes.managers[1].delete_group(group)
    nodes.commit(3, group, S0, 70)
    nodes.managers[3].flush()
    assert nodes.saved(group) == 70


def test_a_reset_fences_a_direct_commit_that_is_on_its_way(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = nodes.group_of(1)
    manager = nodes.managers[1]
    manager.commit_offset(group, S0, 5, enable_cache=False)
    save = manager._meta.save_offsets

    def reset_first(groups: Sequence[GroupOffsets]) -> list[StaleEntry]:
        monkeypatch.undo()
        manager.reset_offsets(group, {S0: OffsetCommit(Offset(1))})
        return save(groups)

    monkeypatch.setattr(manager._meta, "save_offsets", reset_first)
    with pytest.raises(StaleWriteError):
        manager.commit_offset(group, S0, 6, enable_cache=False)
    assert nodes.seen(group) == {1}


# -- many groups in one commit ------------------------------------------------------------------


def group_commit(group: str, offset: int, shard: str = S0.name) -> GroupCommit:
    return GroupCommit("default", group, {shard: OffsetCommit(Offset(offset))})


def new_offsets(group: str, offset: int) -> NewGroupOffsets:
    return NewGroupOffsets("default", group, (NewOffset(S0.name, offset),))


def log_ends(nodes: Nodes) -> int:
    return sum(status.last for status in nodes.meta.log_status)


def test_groups_of_all_coordinators_are_committed_by_one_call(nodes: Nodes) -> None:
    groups = [f"g{number}" for number in range(30)]
    for round_ in (1, 2):
        commits = [group_commit(name, round_) for name in groups]
        assert nodes.managers[2].commit_groups(commits) == [None] * len(groups)
        assert all(nodes.seen(name) == {round_} for name in groups)


def test_one_bad_group_of_many_is_refused_alone(nodes: Nodes) -> None:
    commits = [group_commit("a", 1), group_commit("b", -1), group_commit("c", 3)]
    fine, bad, also_fine = nodes.managers[1].commit_groups(commits)
    assert fine is None
    assert also_fine is None
    assert isinstance(bad, StoreError)
    assert nodes.seen("a") == {1}
    assert nodes.seen("b") == {None}


def test_a_thousand_new_groups_are_one_entry_of_each_offset_log(nodes: Nodes) -> None:
    before = [status.last for status in nodes.meta.log_status]
    commits = [new_offsets(f"group {number}", number) for number in range(1_000)]
    assert nodes.managers[1].commit_new_offsets(commits) == [None] * 1_000
    after = [status.last for status in nodes.meta.log_status]
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, 1, 1]
    assert nodes.seen("group 17") == {17}


def test_what_other_doors_do_never_keeps_a_save_from_being_stored(nodes: Nodes) -> None:
    group, save = nodes.group_of(2), 0
    others: list[Callable[[int], object]] = [
        lambda at: nodes.managers[3].commit_new_offsets([new_offsets(group, at)]),
        lambda at: nodes.commit(1, group, S0, at),
        lambda at: nodes.commit(2, group, S0, at, enable_cache=False),
        lambda at: nodes.managers[1].reset_offsets(group, {S0: OffsetCommit(Offset(at))}),
        lambda _at: nodes.managers[3].delete_group(group),
    ]
    for number, other in enumerate(others * 3):
        save = 100 + number * 2
        assert nodes.managers[1].commit_new_offsets([new_offsets(group, save)]) == [None]
        assert nodes.seen(group) == {save}
        other(save + 1)
        expected = None if number % len(others) == len(others) - 1 else save + 1
        assert nodes.seen(group) == {expected}
        for one in nodes.managers.values():
            one.flush()
        assert nodes.seen(group) == {expected}


def _without_storage(node_id: int) -> NodePut:
    """The node is there and can be asked, and coordinates nothing."""
    node = node_put(node_id).node
    return NodePut(
        Node(
            node_id=node.node_id,
            address="",
            listeners={},
            roles=(),
            boot_id="",
            epoch=1,
            status="online",
            registered_at_ms=0,
        )
    )
