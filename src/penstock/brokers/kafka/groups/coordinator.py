"""Gives the groups of this node a clock and connections: timers, requests that wait, bounds.

Runs on the server's event loop and is used from there only. Members live in memory: after a restart
of the server they are told that nobody knows them, and join again; what they committed is in the
offsets' own store.

Bounds: `GROUPS_MAX` groups with members; what one group may hold is in `Limits`. A group without
members is forgotten at once: its offsets are kept elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final
from uuid import uuid4

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.groups.machine import GroupMachine
from penstock.brokers.kafka.groups.model import (
    Answer,
    Caller,
    GroupState,
    Join,
    Joined,
    Limits,
    Sync,
    Synced,
    Ticket,
)
from penstock.clock import Clock

GROUPS_MAX: Final = 50_000
CLIENT_ID_SIZE_MAX: Final = 200


class _Group:
    """A machine with its timer and the requests that wait for it."""

    __slots__ = ("machine", "timer", "timer_at_ms", "waiting")

    def __init__(self, machine: GroupMachine) -> None:
        self.machine: Final = machine
        self.waiting: Final[dict[Ticket, asyncio.Future[Answer]]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at_ms = 0


class GroupCoordinator:
    def __init__(
        self,
        clock: Clock,
        limits: Limits | None = None,
        is_here: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`is_here` says whether this node coordinates a group; another may, in a cluster."""
        self._clock: Final = clock
        self.is_here: Final = is_here
        self._limits: Final = limits if limits is not None else Limits()
        self._groups: Final[dict[str, _Group]] = {}
        self._last_ticket = 0

    # What members ask

    async def join(self, group_id: str, request: Join) -> Joined:
        if not group_id:
            return Joined(ErrorCode.invalid_group_id, request.member_id)
        if not self.is_here(group_id):
            return Joined(ErrorCode.not_coordinator, request.member_id)
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id:
                return Joined(ErrorCode.unknown_member_id, request.member_id)
            if len(self._groups) >= GROUPS_MAX:
                return Joined(ErrorCode.coordinator_load_in_progress)
            group = _Group(GroupMachine(self._limits, _make_member_id))
            self._groups[group_id] = group
        answer = await self._ask(
            group_id, group, lambda ticket, now_ms: group.machine.join(ticket, request, now_ms)
        )
        assert isinstance(answer, Joined), "a ticket of a join gets its answer"
        return answer

    async def sync(self, group_id: str, request: Sync) -> Synced:
        if not self.is_here(group_id):
            return Synced(ErrorCode.not_coordinator)
        group = self._groups.get(group_id)
        if group is None:
            return Synced(ErrorCode.unknown_member_id)
        answer = await self._ask(
            group_id, group, lambda ticket, now_ms: group.machine.sync(ticket, request, now_ms)
        )
        assert isinstance(answer, Synced), "a ticket of a sync gets its answer"
        return answer

    def heartbeat(self, group_id: str, caller: Caller) -> ErrorCode:
        if not self.is_here(group_id):
            return ErrorCode.not_coordinator
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        # It only moves a deadline further away: the timer can stay as it is.
        return group.machine.heartbeat(caller, self._now_ms())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.machine.leave(member_id, instance_id, self._now_ms())
        self._settle(group_id, group)
        return error

    def check_commit(
        self, group_id: str, caller: Caller, *, in_transaction: bool = False
    ) -> ErrorCode:
        """Say whether `caller` may commit offsets of a group."""
        if not group_id:
            return ErrorCode.invalid_group_id
        if not self.is_here(group_id):
            return ErrorCode.not_coordinator
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.none if caller.generation < 0 else ErrorCode.illegal_generation
        return group.machine.check_commit(caller, self._now_ms(), in_transaction=in_transaction)

    # What administrators ask

    def find(self, group_id: str) -> GroupMachine | None:
        """Return a group that has, or is about to have, members."""
        group = self._groups.get(group_id)
        return None if group is None else group.machine

    def with_members(self) -> Iterator[tuple[str, GroupMachine]]:
        for group_id, group in list(self._groups.items()):
            yield group_id, group.machine

    def close(self) -> None:
        """Whoever waits is told to look for another coordinator."""
        for group in self._groups.values():
            if group.timer is not None:
                group.timer.cancel()
            for waiting in group.waiting.values():
                waiting.cancel()
        self._groups.clear()

    # Time and tickets

    async def _ask(
        self, group_id: str, group: _Group, ask: Callable[[Ticket, int], None]
    ) -> Answer:
        self._last_ticket += 1
        ticket = self._last_ticket
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        group.waiting[ticket] = waiting
        ask(ticket, self._now_ms())
        self._settle(group_id, group)
        # The member stays when its connection goes: it may come back, and its session timeout
        # decides. Then nobody takes the answer, which is all that happens.
        return await waiting

    def _settle(self, group_id: str, group: _Group) -> None:
        """Hand out the answers and set the timer to what is due next."""
        for ticket, answer in group.machine.take_answers():
            waiting = group.waiting.pop(ticket)
            if not waiting.done():
                waiting.set_result(answer)
        machine = group.machine
        if machine.state is GroupState.EMPTY and not machine.members.pending:
            self._forget(group_id, group)
            return
        due_ms = machine.deadline_ms()
        if due_ms is None or (group.timer is not None and group.timer_at_ms <= due_ms):
            return
        if group.timer is not None:
            group.timer.cancel()
        group.timer_at_ms = due_ms
        delay = max(0, due_ms - self._now_ms()) / 1000
        group.timer = asyncio.get_running_loop().call_later(delay, self._tick, group_id, group)

    def _tick(self, group_id: str, group: _Group) -> None:
        group.timer = None
        group.machine.tick(self._now_ms())
        self._settle(group_id, group)

    def _forget(self, group_id: str, group: _Group) -> None:
        assert not group.waiting, "nobody waits for a group without members"
        if group.timer is not None:
            group.timer.cancel()
        if self._groups.get(group_id) is group:
            del self._groups[group_id]

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _make_member_id(prefix: str) -> str:
    return f"{prefix[:CLIENT_ID_SIZE_MAX]}-{uuid4()}"
