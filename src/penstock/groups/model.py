"""What a group of consumers is made of, and what it is asked and answers."""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.groups.codes import GroupCode

NO_GENERATION: Final = -1


class GroupState(Enum):
    """The values are the names that Kafka's tools show."""

    EMPTY = "Empty"  # no members; offsets may remain
    PREPARING = "PreparingRebalance"  # members are asked to join again
    COMPLETING = "CompletingRebalance"  # all have joined; the leader computes the assignment
    STABLE = "Stable"
    DEAD = "Dead"  # deleted; a caller with a reference to it must look the group up again


class Limits(Struct, frozen=True):
    """Bounds of one group."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_delay_ms: int = 500
    """How long the first rebalance of an empty group waits for further members."""
    members_max: int = 2_000
    metadata_size_max: int = 1 << 20
    """Bytes of all protocols of one member, and of all assignments of one leader per member."""
    new_member_timeout_ms: int = 300_000
    """How long a member without a first reply may wait to be admitted."""


class Caller(Struct, frozen=True):
    """Who sends a request about a generation."""

    member_id: str
    generation: int = NO_GENERATION
    instance_id: str | None = None


class Join(Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, the preferred one first."""
    requires_known_id: bool = False
    """A new member gets its id in a first reply and joins with it (since version 4)."""
    can_skip_assignment: bool = False
    """A reply can have the leader keep the assignment (since version 9)."""
    skips_delay: bool = False
    """The first rebalance of an empty group does not wait for further members."""
    is_local: bool = False
    """The member lives in this process and ends with it."""


class JoinedMember(Struct, frozen=True):
    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(Struct, frozen=True):
    """The answer to a join. Only the leader sees the members."""

    error: GroupCode = GroupCode.none
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class Sync(Struct, frozen=True):
    caller: Caller
    assignments: tuple[tuple[str, bytes], ...] = ()
    protocol_type: str | None = None
    protocol: str | None = None


class Synced(Struct, frozen=True):
    error: GroupCode = GroupCode.none
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


Answer = Joined | Synced
Ticket = int
"""Names a request that waits for its answer; the coordinator hands them out."""


class Member(Struct):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    deadline_ms: int = 0
    """When it counts as lost, unless it is heard of before."""
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    is_new: bool = True
    """It has never got the answer to a join."""
    must_sync: bool = False
    """It joined this generation and has not asked for its assignment yet."""
    is_local: bool = False
    """It lives in this process and ends with it."""

    def metadata_of(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the first of the member's protocols that is a candidate."""
        return next(name for name, _ in self.protocols if name in candidates)
