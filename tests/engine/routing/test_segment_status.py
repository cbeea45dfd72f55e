"""What each state of a segment allows."""

from __future__ import annotations

from penstock.engine.routing.segment_status import ALLOWED, Answer, SegmentStatus, allowed
from penstock.meta.state.constants import SEGMENT_STEPS

YES, LATER, NO = Answer.YES, Answer.LATER, Answer.NO


def test_the_states_are_those_of_the_metadata() -> None:
    assert {status.value for status in SegmentStatus} == set(SEGMENT_STEPS)
    assert set(ALLOWED) == set(SegmentStatus)


def test_what_each_state_allows() -> None:
    #                        write, read, delete
    assert {status.value: tuple(answers) for status, answers in ALLOWED.items()} == {
        "write": (YES, YES, YES),
        "pre-seal": (LATER, YES, YES),
        "sealed": (NO, YES, YES),
        "pre-delete": (NO, NO, NO),
        "deleting": (NO, NO, NO),
        "unavailable": (LATER, LATER, LATER),
    }


def test_only_one_state_takes_writes() -> None:
    assert [s for s in SegmentStatus if ALLOWED[s].write is YES] == [SegmentStatus.WRITE]


def test_a_refusal_that_may_pass_is_of_a_state_that_can_be_left_towards_writing() -> None:
    for status, answers in ALLOWED.items():
        if answers.write is LATER:
            assert "write" in SEGMENT_STEPS[status.value]


def test_a_state_of_a_newer_node_allows_nothing_for_now() -> None:
    assert allowed("archived") == ALLOWED[SegmentStatus.UNAVAILABLE]
    assert allowed("write") == ALLOWED[SegmentStatus.WRITE]
