"""Checks of the requests to join and to sync, and the member that a join makes."""

from __future__ import annotations

from penstock.groups.codes import GroupCode
from penstock.groups.members import MemberTable
from penstock.groups.model import GroupState, Join, Limits, Member, Sync, Ticket


def join_error(request: Join, members: MemberTable, limits: Limits) -> GroupCode | None:
    """Return why a group does not accept a join, or None."""
    timeout_ms = request.session_timeout_ms
    if not limits.session_timeout_min_ms <= timeout_ms <= limits.session_timeout_max_ms:
        return GroupCode.invalid_session_timeout
    size = sum(len(name) + len(metadata) for name, metadata in request.protocols)
    if size > limits.metadata_size_max:
        return GroupCode.invalid_request
    if not members.supports(request.protocol_type, [name for name, _ in request.protocols]):
        return GroupCode.inconsistent_group_protocol
    if not _is_known(request, members):
        if request.member_id:
            return GroupCode.unknown_member_id
        if len(members) + len(members.pending) >= limits.members_max:
            return GroupCode.group_max_size_reached
    return None


def _is_known(request: Join, members: MemberTable) -> bool:
    if request.instance_id is not None and request.instance_id in members.static_ids:
        return True
    return request.member_id in members.by_id or request.member_id in members.pending


def sync_error(
    request: Sync, state: GroupState, members: MemberTable, limits: Limits
) -> GroupCode | None:
    """Return why a group does not accept a sync, or None."""
    for given, known in (
        (request.protocol_type, members.protocol_type),
        (request.protocol, members.protocol),
    ):
        if given is not None and given != known:
            return GroupCode.inconsistent_group_protocol
    if state is GroupState.PREPARING:
        return GroupCode.rebalance_in_progress
    size = sum(len(assignment) for _, assignment in request.assignments)
    if size > limits.metadata_size_max * max(1, len(members)):
        return GroupCode.invalid_request
    return None


def new_member(request: Join, member_id: str, ticket: Ticket, deadline_ms: int) -> Member:
    return Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=request.protocols,
        deadline_ms=deadline_ms,
        join_ticket=ticket,
        is_local=request.is_local,
    )
