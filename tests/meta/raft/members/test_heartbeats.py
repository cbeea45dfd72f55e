"""Heartbeats: who gets a lease, from when on, and who does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.meta.raft.cluster_in_process import wait_until

from penstock.meta.client_api.broker_lease import LEASE_MS, BrokerLease
from penstock.meta.raft.members.heartbeats import Heartbeats
from penstock.meta.raft.network.frames import Beat, BeatAnswer
from penstock.testing import ManualClock


class Node:
    """A member whose confirmations the test holds back."""

    def __init__(self, node_id: int = 1) -> None:
        self.clock = ManualClock()
        self.lease = BrokerLease(self.clock)
        self.broker_epoch: int | None = 10
        self.epochs: dict[int, int] = {1: 10, 2: 20}
        self.targets: tuple[int, ...] = (1,)
        self.sent: list[tuple[int, Beat | BeatAnswer]] = []
        self.confirmations: list[Callable[[bool], None]] = []
        self.registrations = 0
        self.contact = (0, 0)
        self.beats = Heartbeats(node_id, self, self.lease, clock=self.clock)

    def beat_targets(self) -> tuple[int, ...]:
        return self.targets

    def leader_contact(self) -> tuple[int, int]:
        return self.contact

    def epoch_of(self, node_id: int) -> int | None:
        return self.epochs.get(node_id)

    def confirm_lead(self, done: Callable[[bool], None]) -> None:
        self.confirmations.append(done)

    def send_beat(self, to: int, frame: Beat | BeatAnswer) -> None:
        self.sent.append((to, frame))

    def register_again(self) -> None:
        self.registrations += 1


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_heartbeat_is_answered_when_a_majority_has_confirmed_the_lead(node: Node) -> None:
    node.beats.receive(2, Beat(20, 111))
    assert node.sent == []
    node.confirmations.pop()(True)
    assert node.sent == [(2, BeatAnswer(20, 111, is_granted=True))]


def test_a_leader_without_a_majority_answers_nothing(node: Node) -> None:
    node.beats.receive(2, Beat(20, 111))
    node.confirmations.pop()(False)
    assert node.sent == []


def test_a_heartbeat_needs_a_confirmation_that_began_after_it(node: Node) -> None:
    node.beats.receive(2, Beat(20, 111))
    node.beats.receive(2, Beat(20, 222))
    node.confirmations.pop()(True)
    assert node.sent == [(2, BeatAnswer(20, 111, is_granted=True))]
    node.confirmations.pop()(True)
    assert node.sent[-1] == (2, BeatAnswer(20, 222, is_granted=True))
    assert node.confirmations == []


@pytest.mark.parametrize("epoch", [19, 21])
def test_another_broker_epoch_gets_no_lease(node: Node, epoch: int) -> None:
    node.beats.receive(2, Beat(epoch, 111))
    node.confirmations.pop()(True)
    assert node.sent == [(2, BeatAnswer(epoch, 111, is_granted=False))]


def test_a_fenced_node_gets_no_lease(node: Node) -> None:
    del node.epochs[2]
    node.beats.receive(2, Beat(20, 111))
    node.confirmations.pop()(True)
    assert node.sent == [(2, BeatAnswer(20, 111, is_granted=False))]


def test_a_node_that_is_being_fenced_gets_no_lease(node: Node) -> None:
    node.beats.refuse_leases(2, 20)
    node.beats.receive(2, Beat(20, 111))
    node.confirmations.pop()(True)
    assert node.sent == [(2, BeatAnswer(20, 111, is_granted=False))]
    node.epochs[2] = 21
    node.beats.receive(2, Beat(21, 222))
    node.confirmations.pop()(True)
    assert node.sent[-1] == (2, BeatAnswer(21, 222, is_granted=True)), "it registered again"


def test_the_lease_counts_from_the_moment_of_sending(node: Node) -> None:
    sent_at = node.lease.sent_at()
    node.clock.advance(milliseconds=1_500)
    node.beats.receive(2, BeatAnswer(10, sent_at, is_granted=True))
    assert node.lease.left_s() == (LEASE_MS - 1_500) / 1_000
    node.clock.advance(milliseconds=500)
    assert node.lease.left_s() == 0
    node.beats.receive(2, BeatAnswer(10, sent_at, is_granted=True))
    assert node.lease.left_s() == 0, "a late answer revives nothing"


def test_an_answer_to_a_registration_before_grants_nothing(node: Node) -> None:
    node.beats.receive(2, BeatAnswer(9, node.lease.sent_at(), is_granted=True))
    assert node.lease.left_s() == 0


def test_a_refused_node_registers_again(node: Node) -> None:
    node.beats.receive(2, BeatAnswer(10, 111, is_granted=False))
    assert node.registrations == 1


def test_a_node_that_does_not_know_the_leader_sends_to_all_members() -> None:
    node = Node(node_id=4)
    node.targets = (1, 2, 3)
    node.beats.start()
    try:
        wait_until(lambda: len(node.sent) >= 3, "a heartbeat is sent")
    finally:
        node.beats.close()
    assert [to for to, _ in node.sent[:3]] == [1, 2, 3]
    assert node.sent[0][1] == Beat(10, node.lease.sent_at(), unanswered_ms=1)


def test_a_heartbeat_reports_when_the_voter_answered_an_earlier_leader() -> None:
    node = Node(node_id=3)
    node.contact = (7, 1_250)
    node.beats.start()
    try:
        wait_until(lambda: bool(node.sent), "a heartbeat is sent")
    finally:
        node.beats.close()
    assert node.sent[0] == (1, Beat(10, node.lease.sent_at(), 7, 1_250))


VOTERS = (1, 2, 3)


def test_the_last_grant_of_earlier_leaders_is_known_from_a_majority(node: Node) -> None:
    node.clock.advance(10)
    now = node.clock.monotonic()
    assert node.beats.last_grant(7, VOTERS) is None
    node.beats.receive(1, Beat(10, 0, 7, 1_500))
    node.beats.receive(4, Beat(40, 0, 7, 9_000))
    assert node.beats.last_grant(7, VOTERS) is None, "node 4 does not vote"
    node.beats.receive(2, Beat(20, 0, 7, 1_000))
    assert node.beats.last_grant(7, VOTERS) == now - 1.0, "the later one of the two"
    node.beats.receive(3, Beat(30, 0, 7, 2_000))
    assert node.beats.last_grant(7, VOTERS) == now - 1.5, "every majority will do"


def test_reports_of_another_term_say_nothing(node: Node) -> None:
    node.beats.receive(1, Beat(10, 0, 7, 1_500))
    node.beats.receive(2, Beat(20, 0, 6, 1_500))
    node.beats.receive(3, Beat(30, 0))
    assert node.beats.last_grant(7, VOTERS) is None
    assert node.beats.last_grant(6, VOTERS) is None


def test_a_later_report_of_the_same_term_may_only_be_closer(node: Node) -> None:
    node.clock.advance(10)
    now = node.clock.monotonic()
    node.beats.receive(1, Beat(10, 0, 7, 1_500))
    node.beats.receive(2, Beat(20, 0, 7, 1_500))
    node.clock.advance(1)
    node.beats.receive(2, Beat(20, 0, 7, 1_700))
    assert node.beats.last_grant(7, VOTERS) == now - 1.5, "it missed ticks"
    node.beats.receive(1, Beat(10, 0, 7, 2_700))
    node.beats.receive(2, Beat(20, 0, 7, 2_700))
    assert node.beats.last_grant(7, VOTERS) == now - 1.7


def answer_all(node: Node) -> None:
    while node.confirmations:
        node.confirmations.pop()(True)


def test_a_node_that_gets_the_answers_is_reached(node: Node) -> None:
    for number in range(40):
        node.beats.receive(2, Beat(20, number, unanswered_ms=240))
        answer_all(node)
        node.clock.advance(milliseconds=250)
    assert node.beats.unreached_s(2) == 0.25


def test_a_node_that_gets_no_answer_is_unreached_since_the_first_one(node: Node) -> None:
    for number in range(20):
        node.beats.receive(2, Beat(20, number, unanswered_ms=250 * number + 1))
        answer_all(node)
        node.clock.advance(milliseconds=250)
    assert node.beats.unreached_s(2) == 5.0
    node.beats.receive(2, Beat(20, 20, unanswered_ms=100))
    assert node.beats.unreached_s(2) == 0, "one has come"


@pytest.mark.parametrize("beat", [Beat(20, 1), Beat(19, 1, unanswered_ms=60_000)])
def test_no_answers_are_missed_by_members_and_by_nodes_that_get_no_lease(
    node: Node, beat: Beat
) -> None:
    for _ in range(40):
        node.beats.receive(2, beat)
        answer_all(node)
        node.clock.advance(milliseconds=250)
    assert node.beats.unreached_s(2) == 0


def test_answers_that_no_leader_could_give_are_not_missed(node: Node) -> None:
    for number in range(40):
        node.beats.receive(2, Beat(20, number, unanswered_ms=250 * number + 1))
        node.confirmations.clear()
        node.clock.advance(milliseconds=250)
    assert node.beats.unreached_s(2) == 0


def test_a_node_says_since_when_no_answer_has_come() -> None:
    node = Node(node_id=4)
    node.clock.advance(60)
    node.beats._beat()
    node.clock.advance(3)
    node.beats._beat()
    node.beats.receive(1, BeatAnswer(10, node.lease.sent_at(), is_granted=True))
    node.clock.advance(2)
    node.beats._beat()
    node.broker_epoch = 11
    node.beats._beat()
    sent = [frame.unanswered_ms for _, frame in node.sent if isinstance(frame, Beat)]
    assert sent == [1, 3_000, 2_000, 1]
