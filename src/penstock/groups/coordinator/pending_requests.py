"""Requests of members that wait for the decision of their group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from penstock.groups.consumer_protocol import TopicPartition, decode_assignment
from penstock.groups.coordinator.persistence import GroupKey
from penstock.groups.model import (
    Answer,
    Synced,
    Ticket,
)
from penstock.groups.state_machine import GroupMachine
from penstock.platform.clock import Clock

Done = Callable[[Answer], None]


class PendingGroup:
    """A state machine and its pending requests."""

    __slots__ = ("due_ms", "held", "key", "machine", "saved", "waiting")

    def __init__(self, key: GroupKey, machine: GroupMachine) -> None:
        self.key: Final = key
        self.machine: Final = machine
        self.waiting: Final[dict[Ticket, Done]] = {}
        self.held: Final[list[tuple[Done, Answer]]] = []
        """Answers that are sent after the generation is saved."""
        self.saved: tuple[object, ...] = ()
        self.due_ms: int | None = None

    def mark(self) -> tuple[object, ...]:
        """Return what differs when the group must be saved again."""
        return (self.machine.generation, *self.machine.members.by_id)


class AnswerFuture:
    """A future for one answer and one thread."""

    __slots__ = ("_answer", "_is_there")

    def __init__(self) -> None:
        self._is_there: Final = threading.Event()
        self._answer: Answer | None = None

    def set_answer(self, answer: Answer) -> None:
        self._answer = answer
        self._is_there.set()

    def wait(self, clock: Clock, seconds: float, late: Answer) -> Answer:
        if not self._is_there.is_set():
            clock.wait(self._is_there, seconds)
        answer = self._answer
        if answer is None:
            return late
        if type(answer) is not type(late):  # a group that was abandoned
            return Synced(answer.error)
        return answer


def is_assigned_to_others(
    machine: GroupMachine, member_id: str, partitions: Collection[TopicPartition]
) -> bool:
    """Say whether another member has one of the partitions."""
    own = machine.members.by_id.get(member_id)
    requested = set(partitions)
    if own is not None:
        requested -= decode_assignment(own.assignment)
    if not requested:
        return False
    return any(
        not requested.isdisjoint(decode_assignment(member.assignment))
        for member in machine.members
        if member is not own
    )
