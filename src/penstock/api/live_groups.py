"""What a store says of the live members of groups, and what they forbid to others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.api.topic_info import GroupInfo, GroupMember
from penstock.errors import GroupNotEmptyError
from penstock.groups.codes import GroupCode
from penstock.groups.consumer_protocol import decode_assignment
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.machine import GroupMachine
from penstock.groups.model import Caller, GroupState
from penstock.groups.refusals import named_members, refusal
from penstock.meta.rejections import check_text

_OUTSIDER: Final = Caller("")


class LiveGroups:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator: Final = coordinator

    def check_commit(
        self,
        namespace: str,
        group: str,
        partitions: Collection[tuple[str, int]],
        caller: Caller | None,
    ) -> None:
        """Raise what a commit of `caller` is refused with; None: of no member."""
        check_text("a group", group)
        code = self._coordinator.check_commit(
            group, caller or _OUTSIDER, namespace=namespace, partitions=partitions
        )
        if code is GroupCode.none:
            return
        if caller is None and code is GroupCode.unknown_member_id:
            self.check_empty(namespace, group, "a commit of a consumer that is not one of them")
        raise refusal(code, group)

    def check_empty(self, namespace: str, group: str, action: str) -> None:
        """Raise `GroupNotEmptyError` when the group has members."""
        check_text("a group", group)
        with self._coordinator.lock:
            machine = self._coordinator.find(group, namespace=namespace)
            if machine is not None:
                raise GroupNotEmptyError(group, members=named_members(machine), action=action)

    def describe(self, info: GroupInfo) -> GroupInfo:
        """Return `info` with the group's state and members."""
        check_text("a group", info.group)
        with self._coordinator.lock:
            machine = self._coordinator.find(info.group, namespace=info.namespace)
            return info if machine is None else _with_members(info, machine)

    def with_live(self, namespace: str | None, infos: Sequence[GroupInfo]) -> list[GroupInfo]:
        """Return groups that committed something and those that have members, sorted."""
        found = {(info.namespace, info.group): info for info in infos}
        with self._coordinator.lock:
            for key, machine in self._coordinator.with_members(namespace):
                info = found.get(key, GroupInfo(key.group, key.namespace, 0))
                found[key] = _with_members(info, machine)
        return [found[key] for key in sorted(found)]


def _with_members(info: GroupInfo, machine: GroupMachine) -> GroupInfo:
    is_stable = machine.state is GroupState.STABLE
    members = tuple(
        GroupMember(
            member_id=one.member_id,
            client_id=one.client_id,
            client_host=one.client_host.removeprefix("/"),
            instance_id=one.instance_id,
            partitions=tuple(sorted(decode_assignment(one.assignment))) if is_stable else (),
        )
        for one in machine.members
    )
    protocol = machine.members.protocol or ""
    return replace(info, state=machine.state.value, protocol=protocol, members=members)
