"""The consumer groups of this node: state machines with a clock, threads, requests and bounds.

Methods may be called from any thread and never wait for a device or a network; `join` and `sync`
call back when the group has decided, `join_within` and `sync_within` wait for that.

With a `GroupStateClient` a generation is saved before any member gets its assignment, and removed
with its last member: a restarted or another coordinator goes on with the same members and
generation, whose sessions begin anew. Members of this process (`Join.is_local`) end with it and are
not saved.

Bounds: `GROUPS_MAX` groups with members; what one group may hold is in `Limits`. A group without
members is forgotten: its offsets are stored elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final, cast
from uuid import uuid4

from penstock.errors import StoreError
from penstock.groups.codes import GroupCode
from penstock.groups.consumer_protocol import TopicPartition
from penstock.groups.coordinator.pending_requests import (
    AnswerFuture,
    Done,
    PendingGroup,
    is_assigned_to_others,
)
from penstock.groups.coordinator.persistence import GroupKeeper, GroupKey, GroupStateClient
from penstock.groups.coordinator.timers import GroupTimers, monotonic_ms
from penstock.groups.model import (
    Caller,
    GroupState,
    Join,
    Joined,
    Limits,
    Sync,
    Synced,
    Ticket,
)
from penstock.groups.snapshot import GroupSnapshot, snapshot_of
from penstock.groups.state_machine import GroupMachine
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.clock import Clock

GROUPS_MAX: Final = 50_000
CLIENT_ID_SIZE_MAX: Final = 200
_KNOWN_MAX: Final = 100_000

AskLater = Callable[[int, bytes, Callable[[bytes | StoreError], None]], None]


class GroupCoordinator:
    def __init__(
        self,
        clock: Clock,
        limits: Limits | None = None,
        is_here: Callable[[str], bool] = lambda _: True,
        states: GroupStateClient | None = None,
    ) -> None:
        """`is_here` says whether this node coordinates a group; another may, in a cluster.
        `states` keeps the members of groups; without it they live in memory only."""
        self.is_here = is_here
        self.node_of: Callable[[str], int | None] = lambda _: None
        """The node that coordinates a group, in a cluster; None: not known."""
        self.send_to_coordinator: Callable[[int, bytes], bytes] | None = None
        """Sends a request to the coordinator on another node, in a cluster; see `routing`."""
        self.ask_other_later: AskLater | None = None
        """The same, and calls back in place of waiting."""
        self.lock: Final = threading.RLock()
        """Guards all groups; held by code that reads a state machine in more than one call."""
        self._clock: Final = clock
        self._limits: Final = limits if limits is not None else Limits()
        self._groups: Final[dict[GroupKey, PendingGroup]] = {}
        self._last_ticket = 0
        self._timers: Final = GroupTimers(clock, self.lock, self._expire)
        self._is_closed = False
        self._known: Final[dict[GroupKey, None]] = {}
        """Groups without stored members."""
        self._loads_lazily = False
        self._keeper: Final = None if states is None else GroupKeeper(states, self, clock)

    # What members ask

    def join(
        self, group_id: str, request: Join, done: Done, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        with self.lock:
            group = self._find_or_add(GroupKey(namespace, group_id), request)
            if isinstance(group, GroupCode):
                done(Joined(group, request.member_id))
                return
            machine = group.machine
            self._ask(group, done, lambda ticket, now_ms: machine.join(ticket, request, now_ms))

    def sync(
        self, group_id: str, request: Sync, done: Done, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        with self.lock:
            group = self._find(GroupKey(namespace, group_id))
            if isinstance(group, GroupCode):
                done(Synced(group))
                return
            machine = group.machine
            self._ask(group, done, lambda ticket, now_ms: machine.sync(ticket, request, now_ms))

    def join_within(
        self,
        group_id: str,
        request: Join,
        seconds: float,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Joined:
        """As `join`; `still_waiting` when the group has not decided within `seconds`."""
        waiter = AnswerFuture()
        self.join(group_id, request, waiter.set_answer, namespace=namespace)
        late = Joined(GroupCode.still_waiting, request.member_id)
        return cast("Joined", waiter.wait(self._clock, seconds, late))

    def sync_within(
        self,
        group_id: str,
        request: Sync,
        seconds: float,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Synced:
        waiter = AnswerFuture()
        self.sync(group_id, request, waiter.set_answer, namespace=namespace)
        return cast("Synced", waiter.wait(self._clock, seconds, Synced(GroupCode.still_waiting)))

    def heartbeat(
        self, group_id: str, caller: Caller, *, namespace: str = DEFAULT_NAMESPACE
    ) -> GroupCode:
        with self.lock:
            group = self._find(GroupKey(namespace, group_id))
            if isinstance(group, GroupCode):
                return group
            # It only moves a deadline further away: the timer can stay as it is.
            return group.machine.heartbeat(caller, self._now_ms())

    def leave(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> GroupCode:
        with self.lock:
            group = self._find(GroupKey(namespace, group_id))
            if isinstance(group, GroupCode):
                return group
            code = group.machine.leave(member_id, instance_id, self._now_ms())
            self._publish(group)
            return code

    def check_commit(
        self,
        group_id: str,
        caller: Caller,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        in_transaction: bool = False,
        partitions: Collection[TopicPartition] = (),
    ) -> GroupCode:
        """Say whether `caller` may commit offsets of a group. With `partitions` those that another
        member has are refused as of an old generation, and the others are taken also between join
        and sync, when Kafka's clients have to wait."""
        if not group_id:
            return GroupCode.invalid_group_id
        with self.lock:
            group = self._find(GroupKey(namespace, group_id))
            if group is GroupCode.unknown_member_id:
                return GroupCode.none if caller.generation < 0 else GroupCode.illegal_generation
            if isinstance(group, GroupCode):
                return group
            machine = group.machine
            code = machine.check_commit(caller, self._now_ms(), in_transaction=in_transaction)
            if code is GroupCode.rebalance_in_progress and partitions:
                code = GroupCode.none  # its leader has not assigned them to another yet
            if code is GroupCode.none and is_assigned_to_others(
                machine, caller.member_id, partitions
            ):
                return GroupCode.illegal_generation
            return code

    # What administrators ask

    def find(self, group_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> GroupMachine | None:
        """Return a group that has, or is about to have, members."""
        group = self._groups.get(GroupKey(namespace, group_id))
        return None if group is None else group.machine

    def with_members(self, namespace: str | None = None) -> Iterator[tuple[GroupKey, GroupMachine]]:
        with self.lock:
            groups = list(self._groups.items())
        for key, group in groups:
            if namespace in (None, key.namespace):
                yield key, group.machine

    # Keeping members

    def load_all(self) -> None:
        """Load the groups that this node coordinated when it stopped."""
        if self._keeper is not None:
            for key, snapshot in self._keeper.read_all():
                self.restore(key, snapshot)

    def load_when_asked(self) -> None:
        """Load the members of a group with its first request: another node may have been its
        coordinator before."""
        self._loads_lazily = self._keeper is not None

    def nodes_changed(self) -> None:
        """Groups may have another coordinator now: drop those that moved away, and load those that
        moved here."""
        with self.lock:
            self._known.clear()
            for group in list(self._groups.values()):
                if not self.is_here(group.key.group):
                    self._abandon(group)

    def restore(self, key: GroupKey, snapshot: GroupSnapshot | None) -> None:
        """Restore a group from its stored members (None: there are none)."""
        with self.lock:
            self._add_known(key)
            if snapshot is None or key in self._groups or self._is_closed:
                return
            if not self.is_here(key.group):
                return  # it has moved on meanwhile
            group = self._add(key)
            group.machine.restore(snapshot, self._now_ms())
            group.saved = group.mark()
            self._publish(group)

    def to_save(self, key: GroupKey) -> tuple[GroupSnapshot, tuple[object, ...]] | None:
        """Return a group that is to be saved, and its mark; None when it was removed."""
        with self.lock:
            group = self._groups.get(key)
            if group is None:
                return None
            if not self._is_unsaved(group):
                self._release(group, GroupCode.rebalance_in_progress)
                return None
            return snapshot_of(group.machine.generation, group.machine.members), group.mark()

    def mark_saved(self, key: GroupKey, mark: tuple[object, ...]) -> None:
        with self.lock:
            group = self._groups.get(key)
            if group is None:
                return
            group.saved = mark
            is_current = mark == group.mark()
            self._release(group, None if is_current else GroupCode.rebalance_in_progress)

    def mark_unsaved(self, key: GroupKey, *, is_ours: bool) -> None:
        """A save failed: members retry. Not `is_ours`: another node coordinates the group."""
        with self.lock:
            group = self._groups.get(key)
            if group is None:
                return
            if is_ours:
                self._release(group, GroupCode.coordinator_not_available)
            else:
                self._abandon(group)

    def close(self) -> None:
        """Answer the pending requests: their members must look for another coordinator."""
        with self.lock:
            self._is_closed = True
            for group in list(self._groups.values()):
                self._abandon(group)
        self._timers.close()
        if self._keeper is not None:
            self._keeper.close()

    # Groups

    def _find(self, key: GroupKey) -> PendingGroup | GroupCode:
        if self._is_closed:
            return GroupCode.coordinator_not_available
        if not self.is_here(key.group):
            return GroupCode.not_coordinator
        group = self._groups.get(key)
        if group is not None:
            return group
        if self._loads_lazily and key not in self._known:
            assert self._keeper is not None, "only then it loads"
            self._keeper.load(key)
            return GroupCode.coordinator_load_in_progress
        return GroupCode.unknown_member_id

    def _find_or_add(self, key: GroupKey, request: Join) -> PendingGroup | GroupCode:
        if not key.group:
            return GroupCode.invalid_group_id
        group = self._find(key)
        if group is not GroupCode.unknown_member_id or request.member_id:
            return group
        if len(self._groups) >= GROUPS_MAX:
            return GroupCode.coordinator_load_in_progress
        return self._add(key)

    def _add(self, key: GroupKey) -> PendingGroup:
        group = self._groups[key] = PendingGroup(key, GroupMachine(self._limits, _make_member_id))
        return group

    def _drop_empty(self, group: PendingGroup) -> None:
        assert not group.waiting, "a group without members has no pending requests"
        if self._groups.get(group.key) is group:
            del self._groups[group.key]
            if group.saved and self._keeper is not None:
                self._keeper.remove(group.key, group.machine.generation)
            self._add_known(group.key)

    def _abandon(self, group: PendingGroup) -> None:
        """Drop a group that another node coordinates, or that is stored for later."""
        for done in group.waiting.values():
            # Of which kind it is does not matter here: both answers carry the code.
            done(Joined(GroupCode.not_coordinator))
        group.waiting.clear()
        self._release(group, GroupCode.not_coordinator)
        if self._groups.get(group.key) is group:
            del self._groups[group.key]

    def _add_known(self, key: GroupKey) -> None:
        if not self._loads_lazily:
            return
        self._known[key] = None
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]

    # Time and tickets

    def _ask(self, group: PendingGroup, done: Done, ask: Callable[[Ticket, int], None]) -> None:
        self._last_ticket += 1
        ticket = self._last_ticket
        # The member stays when its connection goes: it may come back, and its session timeout
        # decides. Then the answer is dropped, which is all that happens.
        group.waiting[ticket] = done
        ask(ticket, self._now_ms())
        self._publish(group)

    def _publish(self, group: PendingGroup) -> None:
        """Send the answers, save a new generation, set the timer to the next deadline."""
        machine = group.machine
        is_unsaved = self._is_unsaved(group)
        for ticket, answer in machine.drain_answers():
            done = group.waiting.pop(ticket)
            if is_unsaved and answer.error is GroupCode.none:
                group.held.append((done, answer))
            else:
                done(answer)
        if is_unsaved:
            assert self._keeper is not None, "only then there is something to save"
            self._keeper.save(group.key)
        if machine.state is GroupState.EMPTY and not machine.members.pending:
            self._drop_empty(group)
            return
        due_ms = machine.deadline_ms()
        if due_ms is not None and (group.due_ms is None or due_ms < group.due_ms):
            group.due_ms = due_ms
            self._timers.schedule(group.key, due_ms)

    def _is_unsaved(self, group: PendingGroup) -> bool:
        machine = group.machine
        return (
            self._keeper is not None
            and machine.state is GroupState.STABLE
            and group.saved != group.mark()
            and not any(member.is_local for member in machine.members)
        )

    @staticmethod
    def _release(group: PendingGroup, code: GroupCode | None) -> None:
        """Send the answers that waited for a save, or `code` in their place."""
        held, group.held[:] = list(group.held), []
        for done, answer in held:
            if code is None:
                done(answer)
            elif isinstance(answer, Joined):
                done(Joined(code, answer.member_id))
            else:
                done(Synced(code))

    def _expire(self, key: GroupKey, due_ms: int) -> None:
        group = self._groups.get(key)
        if group is None or group.due_ms != due_ms:
            return  # a later timer stands in its place
        group.due_ms = None
        if not self.is_here(key.group):
            self._abandon(group)
            return
        group.machine.tick(self._now_ms())
        self._publish(group)

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)


def _make_member_id(prefix: str) -> str:
    return f"{prefix[:CLIENT_ID_SIZE_MAX]}-{uuid4()}"
