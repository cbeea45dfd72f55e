"""When a node counts as gone: by a refused connection, by silence, and when it does not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from penstock.meta.controller.failure_detector import FailureDetector, Probe
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.state.metadata.commands import SetNodeStatus
from penstock.meta.state.model import Node
from penstock.meta.storage.log_format import Configuration
from penstock.testing import ManualClock


class World:
    """One node's view of three, of which the test decides everything."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.role, self.leader, self.term = "leader", 1, 5
        self.probes: dict[int, Probe] = {}
        self.probed: list[int] = []
        self.heard: dict[int, float] = {}
        self.refused: dict[int, int] = {}
        self.granted: tuple[int, float] | None = None
        self.voters_outgoing: tuple[int, ...] = ()
        self.unreached: dict[int, float] = {}
        self.reported: list[int] = []
        self.fenced: list[int] = []
        self.taken_over: list[int] = []
        self.nodes = {number: node(number) for number in (1, 2, 3)}
        self.detector = FailureDetector(
            1,
            clock=self.clock,
            sessions=self,
            status=self.status,
            watched=lambda: self.nodes,
            probe=self.probe,
            fence=self.fence,
            succeed_leader=self.taken_over.append,
        )
        self.detector.on_unreached = self.reported.append

    def status(self) -> RaftStatus:
        return RaftStatus(
            name="metadata",
            role=self.role,
            term=self.term,
            leader=self.leader,
            commit=0,
            applied=0,
            first=0,
            last=0,
            configuration=Configuration(voters=(1, 2, 3), voters_outgoing=self.voters_outgoing),
        )

    def probe(self, number: int) -> Probe:
        self.probed.append(number)
        return self.probes.get(number, "up")

    def fence(self, commands: Sequence[SetNodeStatus]) -> None:
        for command in commands:
            assert (command.status, command.epoch) == ("offline", command.node_id * 10)
            self.fenced.append(command.node_id)
            self.nodes[command.node_id] = node(command.node_id, "offline")

    # Sessions

    def begin_leading(self, *, is_new_term: bool) -> None:
        self.heard.clear()
        if is_new_term:
            self.refused.clear()

    def silent_s(self, node_id: int, since: float) -> float:
        return self.clock.monotonic() - max(since, self.heard.get(node_id, since))

    def unreached_s(self, node_id: int) -> float:
        return self.unreached.get(node_id, 0.0)

    def last_grant(self, term: int, voters: Collection[int]) -> float | None:
        assert voters == (1, 2, 3)
        return self.granted[1] if self.granted and self.granted[0] == term else None

    def refuse_leases(self, node_id: int, broker_epoch: int) -> None:
        self.refused[node_id] = broker_epoch

    def is_refused(self, node_id: int, broker_epoch: int) -> bool:
        return self.refused.get(node_id) == broker_epoch

    def beat(self, *numbers: int) -> None:
        for number in numbers:
            self.heard[number] = self.clock.monotonic()

    def run(self, seconds: float, *beating: int) -> None:
        for _ in range(round(seconds / 0.25)):
            self.clock.advance(milliseconds=250)
            self.beat(*beating)
            self.detector.check()


def node(number: int, status: str = "online") -> Node:
    return Node(
        node_id=number,
        address=f"h:{number}",
        listeners={},
        roles=("replication",),
        boot_id="b",
        epoch=number * 10,
        status=status,
        registered_at_ms=0,
    )


@pytest.fixture
def world() -> World:
    return World()


def test_a_node_whose_port_refuses_is_fenced_at_once(world: World) -> None:
    world.detector.check()
    world.probes[2] = "refused"
    world.detector.report_lost_connection(2)
    world.detector.check()
    assert world.fenced == [2]
    assert world.refused == {2: 20}, "it gets no lease while it is being fenced"


@pytest.mark.parametrize("answer", ["up", "silent"])
def test_a_lost_connection_alone_fences_no_node(world: World, answer: Probe) -> None:
    world.detector.check()
    world.probes[2] = answer
    world.detector.report_lost_connection(2)
    world.run(2, 2, 3)
    assert (world.fenced, world.probed) == ([], [2])


def test_a_silent_node_is_fenced_after_a_session(world: World) -> None:
    world.run(2, 2, 3)
    world.run(2.25, 3)
    assert world.fenced == []
    world.run(0.5, 3)
    assert world.fenced == [2]


def test_a_node_that_registers_has_a_session_for_its_first_heartbeat(world: World) -> None:
    world.run(60, 2, 3)
    world.nodes[4] = node(4)
    world.run(2.25, 2, 3)
    assert world.fenced == []
    world.run(0.5, 2, 3)
    assert world.fenced == [4]


def test_a_new_controller_waits_for_a_whole_session(world: World) -> None:
    world.role, world.leader = "follower", 3
    world.run(60)
    world.role, world.leader, world.term = "leader", 1, 6
    world.run(2.25)
    assert world.fenced == []
    world.run(0.75, 2)
    assert world.fenced == [3]


def succeed(world: World, *, granted: float | None) -> None:
    """Let node 1 lead after node 3 did, whose last lease began `granted` seconds ago."""
    world.role, world.leader = "follower", 3
    world.run(60)
    world.role, world.leader, world.term = "leader", 1, 6
    if granted is not None:
        world.granted = (6, world.clock.monotonic() - granted)
    world.detector.check()


def test_a_new_controller_counts_from_the_last_lease_that_another_granted(world: World) -> None:
    succeed(world, granted=1.5)
    world.run(0.75, 2)
    assert world.fenced == []
    world.run(0.25, 2)
    assert world.fenced == [3], "2.5 s after that lease began"


def test_a_new_controller_gives_the_others_time_to_turn_to_it(world: World) -> None:
    succeed(world, granted=60)
    world.run(0.75)
    assert world.fenced == []
    world.run(0.25, 2)
    assert world.fenced == [3]


def test_a_report_never_makes_a_session_longer(world: World) -> None:
    succeed(world, granted=-1)
    world.run(2.25, 2)
    assert world.fenced == []
    world.run(0.25, 2)
    assert world.fenced == [3]


def test_reports_do_not_count_while_two_configurations_are_in_effect(world: World) -> None:
    world.voters_outgoing = (1, 3)
    succeed(world, granted=60)
    world.run(2.25, 2)
    assert world.fenced == []
    world.run(0.25, 2)
    assert world.fenced == [3]


def test_a_new_controller_that_was_stopped_waits_for_a_whole_session(world: World) -> None:
    succeed(world, granted=60)
    world.clock.advance(milliseconds=5_000)
    world.detector.check()
    world.run(2.25, 2)
    assert world.fenced == []
    world.run(0.25, 2)
    assert world.fenced == [3]


def test_a_controller_whose_checks_are_all_late_fences_in_the_end(world: World) -> None:
    world.run(2, 2, 3)
    for _ in range(8):
        world.clock.advance(milliseconds=1_200)
        world.beat(2)
        world.detector.check()
    assert world.fenced == [3]


def test_a_controller_that_was_stopped_takes_silence_for_nothing(world: World) -> None:
    world.run(2, 2, 3)
    world.clock.advance(milliseconds=60_000)
    world.detector.check()
    world.run(1, 2, 3)
    assert world.fenced == []


def test_a_decision_stands_in_its_term_even_when_its_outcome_is_not_known(world: World) -> None:
    world.detector.check()
    world.refuse_leases(2, 20)  # decided; the command was not answered
    world.clock.advance(milliseconds=5_000)
    world.beat(2, 3)
    world.detector.check()
    assert world.fenced == [2]


def test_a_follower_campaigns_in_the_groups_of_nodes_that_refuse(world: World) -> None:
    world.role, world.leader = "follower", 3
    world.probes = {3: "refused", 2: "refused"}
    world.detector.report_lost_connection(2)
    world.detector.check()
    assert (world.taken_over, world.fenced) == ([2], []), "it may have led groups of offsets"
    world.detector.report_lost_connection(3)
    world.detector.check()
    assert world.probed == [2, 3, 2], "the leader of the metadata comes first"
    assert (set(world.taken_over), world.fenced) == ({2, 3}, [])
    world.role, world.leader, world.term = "leader", 1, 6
    world.detector.check()
    assert world.fenced == [2, 3], "it knows both already"


def test_the_controller_campaigns_in_the_groups_of_a_node_that_refuses(world: World) -> None:
    world.detector.check()
    world.probes[2] = "refused"
    world.detector.report_lost_connection(2)
    world.detector.check()
    assert world.taken_over == [2]
    world.probes[2] = "up"
    world.run(1, 2, 3)
    assert world.taken_over == [2]


def test_a_node_that_no_answer_reaches_is_fenced_and_reported(world: World) -> None:
    world.unreached[2] = 4.5
    world.run(10, 2, 3)
    assert (world.fenced, world.reported) == ([], [])
    world.unreached[2] = 5.0
    world.run(0.25, 2, 3)
    assert (world.fenced, world.reported) == ([2], [2])
