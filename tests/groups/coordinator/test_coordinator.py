"""The coordinator: threads, timers, and members that are kept over a restart or a move."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.meta.simulated_database import SimulatedDatabase

from penstock.errors import DeadlineError, StoreError
from penstock.groups.codes import GroupCode
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.model import Caller, Join, Joined, Limits, Sync, Synced
from penstock.groups.snapshot import decode_snapshot
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.platform.clock import SystemClock

LIMITS = Limits(session_timeout_min_ms=10, initial_delay_ms=0)
WAIT_S = 60.0


class FlakyStates:
    """What is kept, with failures on request."""

    def __init__(self, meta: StandaloneMetaClient) -> None:
        self.meta = meta
        self.failure: StoreError | None = None

    def save_group_state(self, namespace: str, group: str, generation: int, state: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.meta.save_group_state(namespace, group, generation, state)

    def get_group_state(self, namespace: str, group: str) -> bytes | None:
        return self.meta.get_group_state(namespace, group)

    def list_group_states(self) -> list[tuple[str, str, bytes]]:
        return self.meta.list_group_states()


@pytest.fixture
def states() -> Iterator[FlakyStates]:
    with StandaloneMetaClient(SimulatedDatabase()) as meta:
        yield FlakyStates(meta)


@pytest.fixture
def start(states: FlakyStates) -> Iterator[Callable[[], GroupCoordinator]]:
    started: list[GroupCoordinator] = []

    def make() -> GroupCoordinator:
        started.append(GroupCoordinator(SystemClock(), LIMITS, states=states))
        return started[-1]

    yield make
    for one in started:
        one.close()


def join(
    groups: GroupCoordinator, member_id: str = "", *, session_ms: int = 60_000, local: bool = False
) -> Joined:
    request = Join(
        member_id=member_id,
        instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=5_000,
        protocol_type="consumer",
        protocols=(("range", b"m"),),
        skips_delay=True,
        is_local=local,
    )
    return groups.join_within("g", request, WAIT_S)


def sync(groups: GroupCoordinator, joined: Joined, assignment: bytes = b"all") -> Synced:
    caller = Caller(joined.member_id, joined.generation)
    return groups.sync_within("g", Sync(caller, ((joined.member_id, assignment),)), WAIT_S)


def settle(groups: GroupCoordinator, *, session_ms: int = 60_000, local: bool = False) -> Joined:
    joined = join(groups, session_ms=session_ms, local=local)
    assert joined.error is GroupCode.none
    assert sync(groups, joined) == Synced(
        assignment=b"all", protocol_type="consumer", protocol="range"
    )
    return joined


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


Start = Callable[[], GroupCoordinator]


def test_a_restarted_coordinator_knows_members_generation_and_assignment(start: Start) -> None:
    first = start()
    joined = settle(first)
    first.close()
    second = start()
    second.load_all()
    caller = Caller(joined.member_id, joined.generation)
    assert second.heartbeat("g", caller) is GroupCode.none
    assert second.check_commit("g", caller) is GroupCode.none
    assert second.check_commit("g", Caller("")) is GroupCode.unknown_member_id
    machine = second.find("g")
    assert machine is not None
    assert [one.assignment for one in machine.members] == [b"all"]


def test_an_assignment_is_not_told_before_it_is_saved(start: Start, states: FlakyStates) -> None:
    groups = start()
    states.failure = DeadlineError("no majority")
    joined = join(groups)
    assert sync(groups, joined).error is GroupCode.coordinator_not_available
    assert states.list_group_states() == []
    states.failure = None
    assert sync(groups, joined).assignment == b"all"
    ((_, _, kept),) = states.list_group_states()
    snapshot = decode_snapshot(kept)
    assert snapshot is not None
    assert snapshot.generation == joined.generation


def test_the_last_member_takes_what_is_kept_along(start: Start, states: FlakyStates) -> None:
    groups = start()
    joined = settle(groups)
    assert groups.leave("g", joined.member_id, None) is GroupCode.none
    until(lambda: states.list_group_states() == [])
    again = settle(groups)  # begins with its first generation
    assert again.generation == 1
    assert len(states.list_group_states()) == 1


def test_members_that_do_not_come_back_are_removed_by_their_sessions(
    start: Start, states: FlakyStates
) -> None:
    first = start()
    settle(first, session_ms=300)
    first.close()
    second = start()
    second.load_all()
    assert second.find("g") is not None
    until(lambda: second.find("g") is None)
    until(lambda: states.list_group_states() == [])


def test_members_of_this_process_are_not_kept(start: Start, states: FlakyStates) -> None:
    settle(start(), local=True)
    assert states.list_group_states() == []


def test_a_group_moves_to_another_node_with_its_members(start: Start, states: FlakyStates) -> None:
    here, there = start(), start()
    owner = {"g": here}
    for one in (here, there):
        one.load_when_asked()
        one.is_here = lambda group, one=one: owner[group] is one  # type: ignore[misc]  # bound now

    def ask(groups: GroupCoordinator, caller: Caller) -> GroupCode:
        code = groups.heartbeat("g", caller)
        deadline = time.monotonic() + WAIT_S
        while code is GroupCode.coordinator_load_in_progress and time.monotonic() < deadline:
            time.sleep(0.01)
            code = groups.heartbeat("g", caller)
        return code

    assert ask(here, Caller("nobody", 1)) is GroupCode.unknown_member_id
    joined = settle(here)
    caller = Caller(joined.member_id, joined.generation)
    owner["g"] = there
    here.nodes_changed()
    there.nodes_changed()
    assert here.heartbeat("g", caller) is GroupCode.not_coordinator
    assert here.find("g") is None
    assert ask(there, caller) is GroupCode.none
    assert len(states.list_group_states()) == 1


def test_a_coordinator_that_was_replaced_undoes_nothing(start: Start, states: FlakyStates) -> None:
    old, new = start(), start()
    joined = settle(old)
    new.load_all()
    other = join_second(new, joined)
    assert other.generation == joined.generation + 1
    late = join(old, joined.member_id)  # the old one does not know that it was replaced
    if late.error is GroupCode.none:
        states.meta.save_group_state("default", "g", late.generation + 5, b"newer")
        assert sync(old, late).error is GroupCode.not_coordinator
    assert old.find("g") is None


def join_second(groups: GroupCoordinator, joined: Joined) -> Joined:
    """Let the known member, the leader, join a rebalance of its own and sync."""
    again = join(groups, joined.member_id)
    assert sync(groups, again).error is GroupCode.none
    return again


def test_bytes_that_are_no_snapshot_are_passed_over() -> None:
    for data in (b"", b"x", b"x" * 100):
        assert decode_snapshot(data) is None
