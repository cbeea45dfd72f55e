"""From the codes of a coordinator to the errors that callers catch."""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    BadRequestError,
    BusyError,
    GroupFencedError,
    RebalanceInProgressError,
    StoreError,
)
from penstock.groups.codes import GroupCode

GONE: Final = frozenset(
    {
        GroupCode.unknown_member_id,
        GroupCode.illegal_generation,
    }
)
"""The caller is not a member of this generation any more."""
LATER: Final = frozenset(
    {
        GroupCode.coordinator_load_in_progress,
        GroupCode.coordinator_not_available,
        GroupCode.not_coordinator,
        GroupCode.rebalance_in_progress,
    }
)

_REASONS: Final = {
    GroupCode.inconsistent_group_protocol: (
        "its members use another protocol, and none of range, roundrobin and cooperative-sticky"
    ),
    GroupCode.invalid_session_timeout: (
        "session_timeout is outside the limits of the server "
        "(kafka.group_session_timeout_min_ms, kafka.group_session_timeout_max_ms)"
    ),
    GroupCode.group_max_size_reached: "it has as many members as kafka.group_members_max allows",
    GroupCode.invalid_group_id: "a group has a name",
    GroupCode.invalid_request: "the subscription is too large",
}


def refusal(code: GroupCode, group: str) -> StoreError:
    """Return the error for a code."""
    if code is GroupCode.rebalance_in_progress:
        return RebalanceInProgressError(group)
    if code in LATER:
        return BusyError(
            f"the coordinator of group {group!r} is not available ({code.name}); try again"
        )
    if code is GroupCode.fenced_instance_id:
        return GroupFencedError(group, "another consumer has taken its instance_id")
    if code in GONE:
        return GroupFencedError(
            group, "its partitions were given to other members: it was away too long, or it left"
        )
    reason = _REASONS.get(code, code.name)
    return BadRequestError(f"group {group!r} does not admit this consumer: {reason}")
