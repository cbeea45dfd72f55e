"""The members of a group: who they are, who leads, which protocol all of them speak.

Invariants:

  * a static member's instance id leads to exactly one member
  * an id is pending or a member's, never both
  * when there are members, all speak one protocol type and at least one common protocol
  * the leader is a member, or there is none
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.groups.codes import GroupCode
from penstock.groups.model import Caller, JoinedMember, Member


class MemberTable:
    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        """In the order in which they joined."""
        self.static_ids: dict[str, str] = {}
        """Member ids by instance id."""
        self.pending: dict[str, int] = {}
        """Ids that were given and not used yet, with the moment they expire."""
        self.leader: str | None = None
        self.protocol_type: str | None = None
        self.protocol: str | None = None

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self.by_id.values()))

    def add(self, member: Member) -> None:
        assert member.member_id not in self.by_id, "an id belongs to one member"
        if not self.by_id:
            self.protocol_type = member.protocol_type
        self.by_id[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            assert member.instance_id not in self.static_ids, "an instance is one member"
            self.static_ids[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.by_id), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member the id of its new incarnation; its place and its lead stay."""
        assert member.instance_id is not None, "only static members come back"
        renamed = {
            (member_id if other is member else key): other for key, other in self.by_id.items()
        }
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        self.static_ids[member.instance_id] = member_id
        self.by_id = renamed

    def check(self, caller: Caller) -> Member | GroupCode:
        """Return the member that calls, or the code with which its request is rejected."""
        if caller.instance_id is not None:
            known = self.static_ids.get(caller.instance_id)
            if known is None:
                return GroupCode.unknown_member_id
            if known != caller.member_id:
                return GroupCode.fenced_instance_id
        return self.by_id.get(caller.member_id, GroupCode.unknown_member_id)

    def supports(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Say whether a member with these protocols can be in the group."""
        if not protocol_type or not names:
            return False
        if not self.by_id:
            return True
        return protocol_type == self.protocol_type and bool(self._shared() & set(names))

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all of them speak."""
        candidates = self._shared()
        assert candidates, "a member without a common protocol is not let in"
        votes: dict[str, int] = {}
        for member in self.by_id.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])  # the earliest voted for, of equals

    def _shared(self) -> set[str]:
        names = [{name for name, _ in member.protocols} for member in self.by_id.values()]
        return set.intersection(*names) if names else set()

    def elect_joined_leader(self) -> bool:
        """Keep a leader that has joined, or choose a member that has; False when there is none."""
        leader = self.by_id.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.join_ticket is not None:
            return True
        joined = [
            member.member_id for member in self.by_id.values() if member.join_ticket is not None
        ]
        if not joined:
            return False
        self.leader = joined[0]
        return True

    def metadata(self) -> tuple[JoinedMember, ...]:
        """Return the metadata of all members, for the leader."""
        protocol = self.protocol or ""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_of(protocol))
            for member in self.by_id.values()
        )

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)
