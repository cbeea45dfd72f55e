"""A member's report of its last contact with earlier leaders: never too early a moment."""

from __future__ import annotations

from penstock.meta.raft.group.leader_contact import LeaderContact


class Member:
    def __init__(self, term: int = 5) -> None:
        self.term, self.leads = term, False
        self.contact = LeaderContact(term)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.contact.tick()
            self.turn()

    def hear_leader(self) -> None:
        self.contact.observe(self.term, leads=self.leads)
        self.contact.record()
        self.turn()

    def turn(self) -> None:
        self.contact.observe(self.term, leads=self.leads)
        self.contact.publish()

    @property
    def report(self) -> tuple[int, int]:
        return self.contact.report


def test_silence_counts_from_the_last_message_of_the_leader_before() -> None:
    member = Member()
    member.tick(40)
    member.hear_leader()
    member.tick(30)
    member.term = 6
    member.turn()
    assert member.report == (6, 28)
    member.tick(10)
    assert member.report == (6, 38)


def test_messages_of_the_leader_of_this_term_do_not_matter() -> None:
    member = Member()
    member.hear_leader()
    member.tick(30)
    member.term = 6
    member.hear_leader()
    member.tick(10)
    member.hear_leader()
    assert member.report == (6, 38)


def test_a_member_that_led_was_in_contact_until_it_did_not_lead_any_more() -> None:
    member = Member()
    member.hear_leader()
    member.term, member.leads = 6, True
    member.tick(50)
    member.term, member.leads = 7, False
    member.tick(12)
    assert member.report == (7, 9), "it may have led until the first tick of the next term"


def test_a_member_that_gave_up_within_its_term_was_in_contact_until_then() -> None:
    member = Member()
    member.leads = True
    member.tick(20)
    member.leads = False
    member.tick(10)
    member.term = 6
    member.turn()
    assert member.report == (6, 7)


def test_a_start_counts_as_contact() -> None:
    member = Member()
    member.tick(3)
    member.term = 6
    member.tick(4)
    assert member.report == (6, 5)


def test_the_report_names_a_term_only_once_it_is_on_the_device() -> None:
    member = Member()
    member.tick(30)
    member.contact.observe(6, leads=False)
    assert member.report == (5, 28)
    member.contact.publish()
    assert member.report == (6, 28)
