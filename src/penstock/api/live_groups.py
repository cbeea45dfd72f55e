"""Live members of consumer groups: their description, and the checks that protect their commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.api.topic_info import GroupInfo, GroupMember
from penstock.errors import GroupMovedError, GroupNotEmptyError
from penstock.groups.codes import GroupCode
from penstock.groups.error_mapping import refusal
from penstock.groups.model import Caller
from penstock.groups.routing import GroupRouter, GroupView
from penstock.meta import check_text

_OUTSIDER: Final = Caller("")
_NAMED_MAX: Final = 5
"""Maximum members named in an error."""


class LiveGroups:
    def __init__(self, router: GroupRouter) -> None:
        self._router: Final = router

    def check_commit(
        self,
        namespace: str,
        group: str,
        partitions: Collection[tuple[str, int]],
        caller: Caller | None,
    ) -> None:
        """Raise if a commit of `caller` is rejected; None: a caller that is not a member.
        `GroupMovedError` for one that had to wait: its consumer may have given it up, and have
        committed since."""
        check_text("a group", group)
        code, has_waited = self._router.check_commit(
            namespace, group, caller or _OUTSIDER, partitions
        )
        if code is GroupCode.none and has_waited:
            raise GroupMovedError(group)
        if code is GroupCode.none:
            return
        if caller is None and code is GroupCode.unknown_member_id:
            self.check_empty(namespace, group, "a commit of a consumer that is not one of them")
        raise refusal(code, group)

    def check_empty(self, namespace: str, group: str, action: str) -> None:
        """Raise `GroupNotEmptyError` when the group has members."""
        check_text("a group", group)
        view = self._router.view(namespace, group)
        if not view.is_empty:
            raise GroupNotEmptyError(group, members=_named(view), action=action)

    def describe(self, info: GroupInfo) -> GroupInfo:
        """Return `info` with the group's state and members."""
        check_text("a group", info.group)
        return _with_members(info, self._router.view(info.namespace, info.group))

    def with_live(self, namespace: str | None, infos: Sequence[GroupInfo]) -> list[GroupInfo]:
        """Return the groups with committed offsets or members, sorted."""
        groups = {(info.namespace, info.group): info for info in infos}
        for key, view in self._router.views(namespace).items():
            if not view.members:
                continue  # one that is about to get its first member
            info = groups.get(key, GroupInfo(key[1], key[0], 0))
            groups[key] = _with_members(info, view)
        return [groups[key] for key in sorted(groups)]


def _named(view: GroupView) -> str:
    ids = [f"{member.member_id} ({member.client_host})" for member in view.members] + list(
        view.pending
    )
    more = f" and {len(ids) - _NAMED_MAX} more" if len(ids) > _NAMED_MAX else ""
    return ", ".join(ids[:_NAMED_MAX]) + more


def _with_members(info: GroupInfo, view: GroupView) -> GroupInfo:
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            member.instance_id,
            member.partitions,
        )
        for member in view.members
    )
    return replace(info, state=view.state, protocol=view.protocol, members=members)
