"""Membership of the groups, and the changes that their leaders make in the background.

A node joins group by group: an earlier incarnation of it is removed, the new one recorded, then
added as a learner. The leader of each group promotes a learner to a voter once it has nearly the
whole log. Every step can be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.errors import BadRequestError, RetryableError, StoreError
from penstock.meta.controller.decisions import Leadership, raft_transfers
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.raft.network.messages import HandshakeAccepted, HandshakeRejected, JoinRequest
from penstock.meta.state.model import Member
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.groups import GroupName
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

VOTER, REMOVED, LEARNER = 0, 1, 2
_NEAR: Final = 64
"""A member that lacks at most this many entries counts as up to date."""
_TRIES: Final = 3
PROMOTE_TICKS: Final = 7
BALANCE_TICKS: Final = 61
"""Primes: a leader forgets whom it has heard of once in an election timeout. Checks in step
with that would find all members silent each time."""


class MemberGroup(Protocol):
    """The operations of a group that concern its members."""

    @property
    def name(self) -> GroupName: ...
    @property
    def configuration(self) -> fmt.Configuration: ...
    def barrier(self) -> None: ...
    def change_members(self, *changes: tuple[int, int]) -> None: ...
    def transfer(self, to: int) -> None: ...
    def truncate_log(self) -> None: ...

    # On the driver's thread only:
    @property
    def status(self) -> RaftStatus: ...
    def begin_change(self, change: tuple[int, int]) -> None: ...


class Membership:
    """Adds and removes nodes. One change at a time; each may take seconds."""

    def __init__(
        self,
        identity: fmt.Identity,
        groups: Sequence[MemberGroup],
        *,
        find: Callable[[int], Member | None],
        record: Callable[[Member], None],
        remove_rows: Callable[[int], None],
    ) -> None:
        self._identity = identity
        self._groups = groups
        self._find = find
        self._record = record
        self._remove_rows = remove_rows
        self._changing = threading.Lock()

    def join(self, join: JoinRequest) -> HandshakeAccepted | HandshakeRejected:
        """Add a node that may join."""
        mine = self._identity
        try:
            self.add(
                Member(node_id=join.node_id, address=join.address, incarnation=join.incarnation)
            )
        except StoreError as error:
            return HandshakeRejected(str(error))
        return HandshakeAccepted(mine.cluster_id, mine.offset_groups)

    def add(self, member: Member) -> None:
        with self._changing:
            known = self._find(member.node_id)
            if known != member:
                if known is None or known.incarnation != member.incarnation:
                    self._remove_everywhere(member.node_id)
                self._record(member)
            for group in self._groups:
                group.barrier()
                if not _is_in(group.configuration, member.node_id):
                    self._change(group, (LEARNER, member.node_id))
        _log.info("member_added", node=member.node_id, address=member.address)

    def remove(self, node_id: int) -> None:
        """Remove a node from all groups and from the metadata. Raises `BadRequestError` for the
        last voter."""
        with self._changing:
            for group in self._groups:
                group.barrier()
                if set(group.configuration.voters) == {node_id}:
                    raise BadRequestError(f"node {node_id} is the only voter and must stay")
            self._remove_everywhere(node_id)
            self._remove_rows(node_id)
        _log.info("member_removed", node=node_id)

    def _remove_everywhere(self, node_id: int) -> None:
        for group in self._groups:
            group.barrier()
            if _is_in(group.configuration, node_id):
                self._change(group, (REMOVED, node_id))

    def _change(self, group: MemberGroup, change: tuple[int, int]) -> None:
        for number in range(1, _TRIES + 1):
            try:
                group.change_members(change)
            except RetryableError:
                # A leader that took over may have dropped it, or done it.
                if number == _TRIES:
                    raise
            else:
                return


def promotions(status: RaftStatus) -> list[int]:
    """Return the learners of a group that this node leads which may vote now."""
    learners = set(status.configuration.learners)
    if status.role != "leader" or status.configuration.voters_outgoing:
        return []
    return [
        node
        for node, matched, _, state, is_active in status.progress
        if node in learners and is_active and _is_level(matched, state, status.last)
    ]


def transfers(node_id: int, statuses: Sequence[RaftStatus]) -> list[tuple[str, int]]:
    """Return (group, node) for the leaders that should move, and where to."""
    metadata_leader = next(
        (group_status.leader for group_status in statuses if group_status.name == "metadata"), 0
    )
    leads = [
        Leadership(
            group=group_status.name,
            voters=group_status.configuration.voters,
            ready=ready_voters(group_status),
        )
        for group_status in statuses
        if group_status.role == "leader"
    ]
    return raft_transfers(node_id, leads, metadata_leader)


def ready_voters(status: RaftStatus) -> frozenset[int]:
    """Return the voters of a group that this node leads which could lead it."""
    return frozenset(
        node
        for node, matched, _, state, is_active in status.progress
        if node in status.configuration.voters
        and is_active
        and _is_level(matched, state, status.last)
    )


def _is_level(matched: int, state: str, last: int) -> bool:
    """Return whether a member has the log, or nearly. After a broken connection the leader probes
    a member until the next entry is written: in an idle group for hours, with nothing missing."""
    return matched >= last or (state == "replicate" and matched + _NEAR >= last)


def _is_in(configuration: fmt.Configuration, node_id: int) -> bool:
    return node_id in {*configuration.voters, *configuration.learners}


def maintain_membership(node_id: int, groups: Sequence[MemberGroup], ticks: int) -> None:
    """On the driver's thread: promote learners, and spread the leaders."""
    if ticks % PROMOTE_TICKS and ticks % BALANCE_TICKS:
        return
    statuses = [group.status for group in groups]
    for group, status in zip(groups, statuses, strict=True):
        for node in promotions(status):
            group.begin_change((VOTER, node))
    if ticks % BALANCE_TICKS == 0:
        moves = dict(transfers(node_id, statuses))
        for group in groups:
            if group.name.name in moves:
                group.transfer(moves[group.name.name])
