"""One consumer group as a pure state machine: Kafka's classic rebalance protocol.

            first join                all joined, or time is up            leader's sync
    EMPTY ────────────▶ PREPARING ──────────────────────────▶ COMPLETING ───────────────▶ STABLE
      ▲                  │    ▲  ▲                                 │                        │
      └──────────────────┘    │  └─────────────────────────────────┴────────────────────────┘
        no member is left     └── a join while it waits             a join, a leave, a lost member

No clock, no connections: every call carries the time, pending requests are tickets, and
`drain_answers` returns the decisions. `deadline_ms` says when `tick` must be called.

Invariants:

  * every ticket is answered exactly once
  * a generation is never given twice, and its members are fixed when it begins
  * a ticket of a join waits only while the group prepares, one of a sync only while it completes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.groups.codes import GroupCode
from penstock.groups.members import MemberTable
from penstock.groups.model import (
    Answer,
    Caller,
    GroupState,
    Join,
    Joined,
    Limits,
    Member,
    Sync,
    Synced,
    Ticket,
)
from penstock.groups.request_checks import join_error, new_member, sync_error
from penstock.groups.snapshot import GroupSnapshot, member_of

DEAD_ERROR: Final = GroupCode.coordinator_not_available


class GroupMachine:
    def __init__(self, limits: Limits, make_member_id: Callable[[str], str]) -> None:
        """`make_member_id` returns an unused id that begins with the given text."""
        self.state = GroupState.EMPTY
        self.generation = 0
        self.members: Final = MemberTable()
        self._limits: Final = limits
        self._make_member_id: Final = make_member_id
        self._answers: list[tuple[Ticket, Answer]] = []
        self._phase_at_ms: int | None = None
        """While preparing: the end of the wait for joins. Later: the end of the wait for syncs."""
        self._is_initial = False
        self._initial_left_ms = 0
        self._has_newcomer = False
        self._skips_delay = False
        """The member that joined last does not want to wait for others."""

    # What the coordinator does with it

    def drain_answers(self) -> list[tuple[Ticket, Answer]]:
        answers, self._answers = self._answers, []
        return answers

    def deadline_ms(self) -> int | None:
        """Return the earliest moment at which `tick` has something to do, if nothing happens."""
        moments = [member.deadline_ms for member in self.members if not _is_waiting(member)]
        moments += self.members.pending.values()
        if self._phase_at_ms is not None:
            moments.append(self._phase_at_ms)
        return min(moments, default=None)

    def tick(self, now_ms: int) -> None:
        """Let everything happen that is due."""
        pending = self.members.pending
        expired = [name for name, until_ms in pending.items() if until_ms <= now_ms]
        for member_id in expired:
            del pending[member_id]
        for member in self.members:
            if member.deadline_ms <= now_ms and not _is_waiting(member):
                self._remove(member, now_ms)
        if self._phase_at_ms is not None and self._phase_at_ms <= now_ms:
            self._end_phase(now_ms)
        elif expired and self.state is GroupState.PREPARING:
            self._try_to_complete(now_ms)

    def restore(self, snapshot: GroupSnapshot, now_ms: int) -> None:
        """Go on with the members of a coordinator that was here, or elsewhere, before: their
        sessions begin anew."""
        assert not len(self.members), "only into a new group"
        members = self.members
        kind = snapshot.protocol_type
        for saved in snapshot.members:
            deadline_ms = now_ms + saved.session_timeout_ms
            members.add(member_of(saved, deadline_ms=deadline_ms, protocol_type=kind))
        members.protocol_type = snapshot.protocol_type
        members.protocol = snapshot.protocol
        if snapshot.leader in members.by_id:
            members.leader = snapshot.leader
        self.generation = snapshot.generation
        self.state = GroupState.STABLE

    def delete(self) -> GroupCode:
        """End an empty group."""
        if self.state is GroupState.DEAD:
            return GroupCode.group_id_not_found
        if self.state is not GroupState.EMPTY or self.members.pending:
            return GroupCode.non_empty_group
        self.state = GroupState.DEAD
        return GroupCode.none

    # Joining

    def join(self, ticket: Ticket, request: Join, now_ms: int) -> None:
        refusal = join_error(request, self.members, self._limits)
        if self.state is GroupState.DEAD:
            refusal = DEAD_ERROR
        if refusal is not None:
            self._answers.append((ticket, Joined(refusal, request.member_id)))
        elif not request.member_id:
            self._join_new(ticket, request, now_ms)
        elif request.member_id in self.members.pending and request.instance_id is None:
            self._admit(ticket, request, request.member_id, now_ms)
        else:
            self._join_again(ticket, request, now_ms)

    def _join_new(self, ticket: Ticket, request: Join, now_ms: int) -> None:
        member_id = self._make_member_id(request.instance_id or request.client_id)
        if request.instance_id is not None and request.instance_id in self.members.static_ids:
            self._replace_static(ticket, request, member_id, now_ms)
        elif request.requires_known_id and request.instance_id is None:
            self.members.pending[member_id] = now_ms + request.session_timeout_ms
            self._answers.append((ticket, Joined(GroupCode.member_id_required, member_id)))
        else:
            self._admit(ticket, request, member_id, now_ms)

    def _admit(self, ticket: Ticket, request: Join, member_id: str, now_ms: int) -> None:
        deadline_ms = now_ms + self._limits.new_member_timeout_ms
        self.members.add(new_member(request, member_id, ticket, deadline_ms))
        self._has_newcomer = True
        self._skips_delay = request.skips_delay
        self._prepare(now_ms)

    def _join_again(self, ticket: Ticket, request: Join, now_ms: int) -> None:
        member = self.members.check(Caller(request.member_id, instance_id=request.instance_id))
        if isinstance(member, GroupCode):
            self._answers.append((ticket, Joined(member, request.member_id)))
            return
        is_same = member.protocols == request.protocols
        is_leader = member.member_id == self.members.leader
        self._update(member, request, now_ms)
        # A follower that missed the answer gets it again. A leader that joins a stable group asks
        # for a rebalance: what it saw of the topics has changed.
        if is_same and (
            self.state is GroupState.COMPLETING
            or (self.state is GroupState.STABLE and not is_leader)
        ):
            self._answers.append((ticket, self._generation_of(member)))
        else:
            member.join_ticket = ticket
            self._prepare(now_ms)

    def _update(self, member: Member, request: Join, now_ms: int) -> None:
        self._reject_tickets(member, GroupCode.rebalance_in_progress)
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id = request.client_id
        member.client_host = request.client_host
        self._extend_session(member, now_ms)

    def _replace_static(self, ticket: Ticket, request: Join, member_id: str, now_ms: int) -> None:
        """A static member came back as another process: it replaces the old one, which is fenced.
        Without another change the group needs no rebalance."""
        assert request.instance_id is not None, "asked for static members only"
        members = self.members
        member = members.by_id[members.static_ids[request.instance_id]]
        self._reject_tickets(member, GroupCode.fenced_instance_id)
        old_id, was_leader = member.member_id, members.leader == member.member_id
        members.rename(member, member_id)
        self._update(member, request, now_ms)
        if self.state is not GroupState.STABLE or members.select_protocol() != members.protocol:
            member.join_ticket = ticket
            self._prepare(now_ms)
            return
        member.is_new = False
        if not was_leader:
            answer = self._generation_of(member)
        elif request.can_skip_assignment:
            answer = self._generation_of(member, skip_assignment=True)
        else:
            # A client that cannot skip must not take itself for the leader, or it would assign.
            answer = self._generation_of(member, leader=old_id)
        self._answers.append((ticket, answer))

    # Rebalancing

    def _prepare(self, now_ms: int) -> None:
        """Start a rebalance: have all members join, unless one is under way."""
        if self.state is not GroupState.PREPARING:
            for member in self.members:
                if self.state is GroupState.COMPLETING:
                    member.assignment = b""
                self._answer_sync(member, Synced(GroupCode.rebalance_in_progress))
                member.must_sync = False
            timeout_ms = self.members.rebalance_timeout_ms()
            self._is_initial = self.state is GroupState.EMPTY
            if self._is_initial:
                delay_ms = min(self._limits.initial_delay_ms, timeout_ms)
                if self._skips_delay:
                    delay_ms = 0
                self._initial_left_ms = timeout_ms - delay_ms
                self._phase_at_ms = now_ms + delay_ms
                self._has_newcomer = False
            else:
                self._phase_at_ms = now_ms + timeout_ms
            self.state = GroupState.PREPARING
        self._try_to_complete(now_ms)

    def _try_to_complete(self, now_ms: int) -> None:
        assert self._phase_at_ms is not None, "a group that prepares has an end of it"
        if self._is_initial and now_ms < self._phase_at_ms:
            return
        if self.members.pending or any(member.join_ticket is None for member in self.members):
            return
        self._complete_join(now_ms)

    def _end_phase(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING:
            self._phase_at_ms = None
            for member in [member for member in self.members if member.must_sync]:
                self._remove(member, now_ms)
        elif self._is_initial and self._has_newcomer and self._initial_left_ms > 0:
            # A member joined meanwhile: more will probably follow.
            delay_ms = min(self._limits.initial_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._phase_at_ms = now_ms + delay_ms
            self._has_newcomer = False
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        members = self.members
        for member in members:
            if member.join_ticket is None and member.instance_id is None:
                members.remove(member)
        timeout_ms = members.rebalance_timeout_ms()
        if len(members) and not members.elect_joined_leader():
            # Only static members, all away: their session timeouts decide.
            self._phase_at_ms = now_ms + timeout_ms
            return
        self.generation += 1
        self._is_initial = False
        if not len(members):
            self.state = GroupState.EMPTY
            members.protocol = None
            self._phase_at_ms = None
            return
        self.state = GroupState.COMPLETING
        self._phase_at_ms = now_ms + timeout_ms
        members.protocol = members.select_protocol()
        for member in members:
            member.must_sync = True
            if member.join_ticket is not None:
                self._answers.append((member.join_ticket, self._generation_of(member)))
                member.join_ticket = None
                member.is_new = False
                self._extend_session(member, now_ms)

    def _generation_of(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> Joined:
        members = self.members
        leader = leader or members.leader or ""
        return Joined(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=members.protocol_type,
            protocol=members.protocol,
            leader=leader,
            members=members.metadata() if leader == member.member_id else (),
            skip_assignment=skip_assignment,
        )

    # Syncing

    def sync(self, ticket: Ticket, request: Sync, now_ms: int) -> None:
        member = self._check_generation(request.caller)
        if isinstance(member, GroupCode):
            self._answers.append((ticket, Synced(member)))
            return
        problem = sync_error(request, self.state, self.members, self._limits)
        if problem is not None:
            self._answers.append((ticket, Synced(problem)))
            return
        self._answer_sync(member, Synced(GroupCode.rebalance_in_progress))  # an older try of it
        member.must_sync = False
        member.sync_ticket = ticket
        self._extend_session(member, now_ms)
        if self.state is GroupState.COMPLETING and member.member_id == self.members.leader:
            assignments = dict(request.assignments)
            for other in self.members:
                other.assignment = assignments.get(other.member_id, b"")
            self.state = GroupState.STABLE
        if self.state is GroupState.STABLE:
            self._hand_out(now_ms)

    def _hand_out(self, now_ms: int) -> None:
        members = self.members
        for member in members:
            if member.sync_ticket is not None:
                self._extend_session(member, now_ms)
                self._answer_sync(
                    member,
                    Synced(
                        assignment=member.assignment,
                        protocol_type=members.protocol_type,
                        protocol=members.protocol,
                    ),
                )
        if not any(member.must_sync for member in members):
            self._phase_at_ms = None

    # Staying and leaving

    def heartbeat(self, caller: Caller, now_ms: int) -> GroupCode:
        member = self._check_generation(caller)
        if isinstance(member, GroupCode):
            return member
        self._extend_session(member, now_ms)
        if self.state is GroupState.PREPARING:
            return GroupCode.rebalance_in_progress
        return GroupCode.none

    def check_commit(
        self, caller: Caller, now_ms: int, *, in_transaction: bool = False
    ) -> GroupCode:
        """Say whether a commit of offsets may be taken from `caller`."""
        if self.state is GroupState.DEAD:
            return DEAD_ERROR
        if caller.generation < 0 and (self.state is GroupState.EMPTY or in_transaction):
            is_plain = not caller.member_id and caller.instance_id is None
            if is_plain or self.state is GroupState.EMPTY:
                return GroupCode.none  # a program that assigns partitions by itself
        member = self._check_generation(caller)
        if isinstance(member, GroupCode):
            return member
        self._extend_session(member, now_ms)
        if self.state is GroupState.COMPLETING and not in_transaction:
            return GroupCode.rebalance_in_progress
        return GroupCode.none

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> GroupCode:
        if self.state is GroupState.DEAD:
            return DEAD_ERROR
        members = self.members
        if member_id in members.pending and instance_id is None:
            del members.pending[member_id]
            if self.state is GroupState.PREPARING:
                self._try_to_complete(now_ms)
            return GroupCode.none
        if instance_id is not None and not member_id:
            # An operator removes a static member without knowing its id.
            member_id = members.static_ids.get(instance_id, "")
        member = members.check(Caller(member_id, instance_id=instance_id))
        if isinstance(member, GroupCode):
            return member
        self._remove(member, now_ms)
        return GroupCode.none

    def _check_generation(self, caller: Caller) -> Member | GroupCode:
        if self.state is GroupState.DEAD:
            return DEAD_ERROR
        member = self.members.check(caller)
        if isinstance(member, GroupCode):
            return member
        return member if caller.generation == self.generation else GroupCode.illegal_generation

    def _remove(self, member: Member, now_ms: int) -> None:
        self._reject_tickets(member, GroupCode.unknown_member_id)
        self.members.remove(member)
        self._prepare(now_ms)

    def _extend_session(self, member: Member, now_ms: int) -> None:
        member.deadline_ms = now_ms + member.session_timeout_ms

    def _reject_tickets(self, member: Member, error: GroupCode) -> None:
        if member.join_ticket is not None:
            self._answers.append((member.join_ticket, Joined(error, member.member_id)))
            member.join_ticket = None
        self._answer_sync(member, Synced(error))

    def _answer_sync(self, member: Member, answer: Synced) -> None:
        if member.sync_ticket is not None:
            self._answers.append((member.sync_ticket, answer))
            member.sync_ticket = None


def _is_waiting(member: Member) -> bool:
    """A member with a pending request is not lost; but a new member may have gone again."""
    return (member.join_ticket is not None and not member.is_new) or member.sync_ticket is not None
