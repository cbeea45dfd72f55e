"""`OffsetClient` over a log, shared by the standalone, the Raft and the remote client.

A consumer group lives in the offset group that the CRC-32 of its namespace and name points at; the
number of offset groups is fixed when the directory is created.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeVar
from zlib import crc32

from penstock.errors import BadRequestError, StoreError
from penstock.meta.client import GroupInfo, Takeover
from penstock.meta.client_api.proposer import Proposer
from penstock.meta.controller.decisions import idle_groups
from penstock.meta.rejections import check_text, encode_checked, error_of
from penstock.meta.state.answers import Rejected
from penstock.meta.state.keys import encode_key
from penstock.meta.state.offsets import commands as cmd
from penstock.meta.state.offsets.entries import NewOffset
from penstock.meta.state.offsets.rows import (
    CommittedOffset,
    Group,
    read_group,
    read_members,
    read_offset,
    scan_groups,
    scan_members,
    scan_offsets,
)
from penstock.meta.storage.groups import GroupLog
from penstock.platform.clock import Clock

OffsetGroup = GroupLog[cmd.OffsetAnswer]
ResultT = TypeVar("ResultT", bound=cmd.OffsetResult)

_SAVE_SIZE_MAX: Final = 100 << 10
"""Characters in one save, about: its entry stays below the limit also at four bytes for each."""
_ENTRY_SIZE: Final = 64


class LogOffsetClient(Proposer):
    """See `OffsetClient` for what the methods promise."""

    def __init__(self, groups: Sequence[OffsetGroup], *, node_id: int, clock: Clock) -> None:
        Proposer.__init__(self, node_id=node_id, clock=clock)
        self._offset_groups: Final = tuple(groups)

    def claim_groups(self, groups: Sequence[cmd.GroupName]) -> list[Takeover]:
        taken: dict[cmd.GroupName, Takeover] = {}
        for home, names in self._by_home(groups):
            for start in range(0, len(names), cmd.ROWS_MAX):
                part = tuple(names[start : start + cmd.ROWS_MAX])
                result = self._ask(home, cmd.TakeEpochs(part, self._node_id), cmd.Epochs)
                taken.update(zip(part, _takeovers(result), strict=True))
        return [taken[name] for name in groups]

    def commit_groups(
        self,
        saves: Sequence[cmd.GroupOffsets],
        firsts: Sequence[cmd.NewGroupOffsets],
        *,
        node: int | None = None,
    ) -> tuple[list[cmd.StaleEntry], list[Takeover]]:
        holder = self._node_id if node is None else node
        stale: list[cmd.StaleEntry] = []
        taken: dict[int, Takeover] = {}
        for home in self._offset_groups:
            numbers = [
                number
                for number, offsets in enumerate(firsts)
                if self._home(offsets.namespace, offsets.group) is home
            ]
            own = [
                offsets for offsets in saves if self._home(offsets.namespace, offsets.group) is home
            ]
            first = [firsts[number] for number in numbers]
            stale_here, takeovers = self._commit_at(home, own, first, holder)
            stale += stale_here
            taken.update(zip(numbers, takeovers, strict=True))
        return stale, [taken[number] for number in range(len(firsts))]

    def _commit_at(
        self,
        home: OffsetGroup,
        saves: Sequence[cmd.GroupOffsets],
        firsts: Sequence[cmd.NewGroupOffsets],
        holder: int,
    ) -> tuple[list[cmd.StaleEntry], list[Takeover]]:
        """Propose everything at the same moment: requests that wait together share an entry."""
        requests = [self._offset_request(cmd.SaveOffsets(part)) for part in _split(saves)]
        requests += [
            self._offset_request(cmd.CommitGroups(part, holder), self._request_id())
            for part in _split_firsts(firsts)
        ]
        stale: list[cmd.StaleEntry] = []
        taken: list[Takeover] = []
        for outcome in home.propose_many(requests) if requests else ():
            if isinstance(outcome, StoreError):
                raise outcome
            if isinstance(outcome, Rejected):
                raise error_of(outcome)
            if isinstance(outcome.result, cmd.Saved):
                stale += outcome.result.stale
            else:
                assert isinstance(outcome.result, cmd.Epochs), "the answer to a first commit"
                taken += _takeovers(outcome.result)
        return stale, taken

    def save_offsets(self, groups: Sequence[cmd.GroupOffsets]) -> list[cmd.StaleEntry]:
        stale: list[cmd.StaleEntry] = []
        for home in self._offset_groups:
            own = [
                offsets
                for offsets in groups
                if len(self._offset_groups) == 1
                or self._home(offsets.namespace, offsets.group) is home
            ]
            if own:
                stale += self._save(home, own)
        return stale

    def _save(self, home: OffsetGroup, groups: list[cmd.GroupOffsets]) -> list[cmd.StaleEntry]:
        size = sum(
            len(offsets.entries) * (_ENTRY_SIZE + len(offsets.namespace) + len(offsets.group))
            for offsets in groups
        )
        if size < _SAVE_SIZE_MAX:
            data = self._offset_request(cmd.SaveOffsets(tuple(groups)))
            if size + len(data) < _SAVE_SIZE_MAX:
                return list(_asked(home, data, cmd.Saved).stale)
        stale: list[cmd.StaleEntry] = []
        for part in _split(groups):
            stale += _asked(home, self._offset_request(cmd.SaveOffsets(part)), cmd.Saved).stale
        return stale

    def compare_and_set_offset(
        self, namespace: str, group: str, entry: cmd.OffsetEntry, *, expected: int | None
    ) -> None:
        command = cmd.CompareAndSet(namespace, group, expected, entry)
        self._ask(self._home(namespace, group), command, cmd.Saved)

    def reset_offsets(
        self, namespace: str, group: str, offsets: Sequence[NewOffset], *, request_id: str = ""
    ) -> int:
        if len(offsets) > cmd.ROWS_MAX:
            raise BadRequestError(f"{len(offsets)} offsets to reset; at most {cmd.ROWS_MAX}")
        command = cmd.ResetOffsets(namespace, group, tuple(offsets), self._node_id)
        return self._ask(self._home(namespace, group), command, cmd.Epochs, request_id).epochs[0]

    def get_offset(self, namespace: str, group: str, shard: str) -> CommittedOffset | None:
        check_text("a shard", shard)
        return read_offset(self._home(namespace, group).reader, namespace, group, shard)

    def get_offsets(self, namespace: str, group: str) -> dict[str, CommittedOffset]:
        return dict(scan_offsets(self._home(namespace, group).reader, namespace, group))

    def get_group(self, namespace: str, group: str) -> GroupInfo | None:
        known = read_group(self._home(namespace, group).reader, namespace, group)
        return None if known is None or known.is_deleted else _info(namespace, group, known)

    def list_groups(self, namespace: str | None = None) -> list[GroupInfo]:
        if namespace is not None:
            check_text("a namespace", namespace)
        groups = [
            _info(*row)
            for home in self._offset_groups
            for row in scan_groups(home.reader, namespace)
        ]
        return sorted(groups, key=attrgetter("namespace", "group"))

    def delete_offsets(self, namespace: str, group: str, shards: Sequence[str]) -> int:
        home = self._home(namespace, group)
        rows = 0
        for start in range(0, len(shards), cmd.ROWS_MAX):
            part = tuple(shards[start : start + cmd.ROWS_MAX])
            rows += self._ask(home, cmd.DeleteOffsets(namespace, group, part), cmd.Removed).rows
        return rows

    def delete_group(self, namespace: str, group: str) -> None:
        home = self._home(namespace, group)
        result = self._ask(home, cmd.DeleteGroup(namespace, group), cmd.Removed)
        while result.has_more:
            result = self._ask(home, cmd.PurgeGroup(namespace, group), cmd.Removed)

    def expire_groups(
        self, before_ms: int, *, keep: Collection[cmd.GroupName] = ()
    ) -> list[cmd.GroupName]:
        kept = frozenset(keep)
        gone: list[cmd.GroupName] = []
        for home in self._offset_groups:
            groups = (
                (cmd.GroupName(namespace, name), group.last_commit_ms)
                for namespace, name, group in scan_groups(home.reader, None, with_deleted=True)
            )
            idle = idle_groups(groups, before_ms, kept)
            for start in range(0, len(idle), cmd.ROWS_MAX):
                gone += self._expire(home, idle[start : start + cmd.ROWS_MAX], before_ms)
        return sorted(gone)

    def delete_topic_offsets(self, topic_id: str, partitions: Collection[int] | None = None) -> int:
        rows = 0
        deleted = (
            None if partitions is None else {f"{topic_id}_{partition}" for partition in partitions}
        )
        for home in self._offset_groups:
            for namespace, group, _ in list(scan_groups(home.reader, None, with_deleted=True)):
                shards = [
                    shard
                    for shard, _ in scan_offsets(home.reader, namespace, group, f"{topic_id}_")
                    if (_is_shard_of(shard, topic_id) if deleted is None else shard in deleted)
                ]
                for start in range(0, len(shards), cmd.ROWS_MAX):
                    part = tuple(shards[start : start + cmd.ROWS_MAX])
                    command = cmd.ForgetShards(namespace, group, part)
                    rows += self._ask(home, command, cmd.Removed).rows
        return rows

    def save_group_state(self, namespace: str, group: str, generation: int, state: bytes) -> None:
        command = cmd.SaveGroupState(namespace, group, generation, state)
        self._ask(self._home(namespace, group), command, cmd.Saved)

    def get_group_state(self, namespace: str, group: str) -> bytes | None:
        members = read_members(self._home(namespace, group).reader, namespace, group)
        return None if members is None else members[1]

    def list_group_states(self) -> list[tuple[str, str, bytes]]:
        return [state for home in self._offset_groups for state in scan_members(home.reader)]

    def _expire(
        self, home: OffsetGroup, names: list[cmd.GroupName], before_ms: int
    ) -> list[cmd.GroupName]:
        gone: list[cmd.GroupName] = []
        while names:
            command = cmd.ExpireGroups(tuple(names), before_ms)
            result = self._ask(home, command, cmd.Removed)
            gone += result.groups
            # Every command removes a row or a group, so this ends.
            names = [name for name in names if name not in gone] if result.has_more else []
        return gone

    def _home(self, namespace: str, group: str) -> OffsetGroup:
        check_text("a namespace", namespace)
        check_text("a group", group)
        if len(self._offset_groups) == 1:
            return self._offset_groups[0]
        number = crc32(encode_key(0, namespace, group)) % len(self._offset_groups)
        return self._offset_groups[number]

    def _by_home(
        self, names: Sequence[cmd.GroupName]
    ) -> Iterator[tuple[OffsetGroup, list[cmd.GroupName]]]:
        homes = {name: self._home(name.namespace, name.group) for name in names}
        ordered = sorted(homes, key=lambda name: homes[name].name.number)
        for number, part in groupby(ordered, key=lambda name: homes[name].name.number):
            yield self._offset_groups[number], list(part)

    def _ask(
        self,
        home: OffsetGroup,
        command: cmd.OffsetCommand,
        kind: type[ResultT],
        request_id: str = "",
    ) -> ResultT:
        if not isinstance(command, cmd.SaveOffsets | cmd.CompareAndSet | cmd.SaveGroupState):
            request_id = self._request_id(request_id)  # those can be repeated as they are
        return _asked(home, self._offset_request(command, request_id), kind)

    def _offset_request(self, command: cmd.OffsetCommand, request_id: str = "") -> bytes:
        now_ms = self._clock.now_ms()
        return encode_checked(cmd.OffsetRequest(now_ms, command, request_id))


def _asked(home: OffsetGroup, data: bytes, kind: type[ResultT]) -> ResultT:
    answer = home.propose(data)
    if isinstance(answer, Rejected):
        raise error_of(answer)
    assert isinstance(answer.result, kind), f"expected {kind.__name__}, got {answer.result!r}"
    return answer.result


def _split(groups: Sequence[cmd.GroupOffsets]) -> Iterator[tuple[cmd.GroupOffsets, ...]]:
    """Yield the entries in parts of a bounded size, in order."""
    part: list[cmd.GroupOffsets] = []
    size = 0
    for offsets in groups:
        start = 0
        name_size = len(offsets.namespace) + len(offsets.group)
        size += name_size
        for position, entry in enumerate(offsets.entries):
            size += _ENTRY_SIZE + name_size + len(entry.shard) + len(entry.metadata)
            if size >= _SAVE_SIZE_MAX:
                entries = offsets.entries[start : position + 1]
                yield (*part, cmd.GroupOffsets(offsets.namespace, offsets.group, entries))
                part, size, start = [], name_size, position + 1
        if start == 0:
            part.append(offsets)
        elif start < len(offsets.entries):
            rest = offsets.entries[start:]
            part.append(cmd.GroupOffsets(offsets.namespace, offsets.group, rest))
    if part:
        yield tuple(part)


def _split_firsts(
    groups: Sequence[cmd.NewGroupOffsets],
) -> Iterator[tuple[cmd.NewGroupOffsets, ...]]:
    """Yield whole groups in parts of a bounded size, in order."""
    part: list[cmd.NewGroupOffsets] = []
    size = 0
    for group in groups:
        part.append(group)
        size += len(group.namespace) + len(group.group)
        size += sum(_ENTRY_SIZE + len(new.shard) + len(new.metadata) for new in group.offsets)
        if size >= _SAVE_SIZE_MAX or len(part) == cmd.ROWS_MAX:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def _takeovers(granted: cmd.Epochs) -> list[Takeover]:
    previous = granted.previous or (0,) * len(granted.epochs)
    return [Takeover(*pair) for pair in zip(granted.epochs, previous, strict=True)]


def _is_shard_of(shard: str, topic_id: str) -> bool:
    topic, separator, _ = shard.rpartition("_")
    return bool(separator) and topic == topic_id


def _info(namespace: str, name: str, group: Group) -> GroupInfo:
    return GroupInfo(
        namespace=namespace,
        group=name,
        epoch=group.epoch,
        node=group.node,
        last_commit_ms=group.last_commit_ms,
    )
