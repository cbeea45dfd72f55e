"""A commit is checked where its group is coordinated; one that waited is left to the consumer."""

from __future__ import annotations

import pytest

from penstock.api.live_groups import LiveGroups
from penstock.errors import DeadlineError, GroupFencedError, GroupMovedError, StoreError
from penstock.groups import routing
from penstock.groups.codes import GroupCode
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.model import Caller, Limits
from penstock.groups.routing import GroupRouter, Reply
from penstock.platform.clock import SystemClock

HERE = ("default", "g", [("work", 0)], Caller("member"))


class Elsewhere:
    """Another node coordinates all groups, and answers in this order."""

    def __init__(self, *answers: GroupCode | StoreError) -> None:
        self.answers = list(answers)
        here = GroupCoordinator(SystemClock(), Limits(), is_here=lambda _: False)
        here.node_of = lambda _: 2
        here.send_to_coordinator = self._answer
        self.groups = LiveGroups(GroupRouter(here))

    def _answer(self, _node: int, _question: bytes) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return routing._encoder.encode(Reply(code=answer))


def test_a_commit_that_is_checked_immediately_goes_on() -> None:
    elsewhere = Elsewhere(GroupCode.none)
    elsewhere.groups.check_commit(*HERE)
    assert elsewhere.answers == []


@pytest.mark.parametrize(
    "first", [GroupCode.coordinator_load_in_progress, DeadlineError("it does not answer")]
)
def test_a_commit_that_waited_for_its_group_is_left_to_the_consumer(
    first: GroupCode | StoreError,
) -> None:
    """It may have given this one up, and have committed through another node."""
    with pytest.raises(GroupMovedError):
        Elsewhere(first, GroupCode.none).groups.check_commit(*HERE)
    with pytest.raises(GroupFencedError):
        Elsewhere(first, GroupCode.illegal_generation).groups.check_commit(*HERE)
