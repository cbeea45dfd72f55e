"""Commands of the offset state machine that remove offsets and groups."""

from __future__ import annotations

from typing import assert_never

from penstock.meta.state.answers import (
    Head,
    Rejected,
)
from penstock.meta.state.keys import after_prefix
from penstock.meta.state.offsets.commands import (
    DeleteGroup,
    DeleteOffsets,
    ExpireGroups,
    ForgetShards,
    GroupName,
    OffsetResult,
    PurgeGroup,
    Removed,
)
from penstock.meta.state.offsets.rows import (
    NO_OFFSET,
    CommittedOffset,
    delete_group_row,
    group_prefix,
    offset_key,
    pack_offset,
    read_group,
    read_offset,
    unpack_pair,
    write_group,
)
from penstock.meta.state.view import View


def remove_offsets(
    view: View,
    command: DeleteOffsets | DeleteGroup | PurgeGroup | ExpireGroups | ForgetShards,
    head: Head,
    time_ms: int,
) -> OffsetResult | Rejected:
    match command:
        case DeleteOffsets():
            return _delete_offsets(view, command, head, time_ms)
        case DeleteGroup():
            return _delete_group(view, command, head, time_ms)
        case PurgeGroup():
            return _purge_group(view, command)
        case ExpireGroups():
            return _expire_groups(view, command, head)
        case ForgetShards():
            return _remove_shards(view, command)
        case _:
            assert_never(command)


def _delete_offsets(
    view: View, command: DeleteOffsets, head: Head, time_ms: int
) -> OffsetResult | Rejected:
    group = read_group(view, command.namespace, command.group)
    if group is None or group.is_deleted:
        return unknown_group(command.group)
    head.counter += 1
    group.epoch = head.counter
    prefix = group_prefix(command.namespace, command.group)
    rows = 0
    for shard in command.shards:
        if read_offset(view, command.namespace, command.group, shard) is not None:
            rows += 1
        deleted = CommittedOffset(
            offset=NO_OFFSET,
            metadata="",
            leader_epoch=-1,
            commit_timestamp_ms=time_ms,
            epoch=group.epoch,
            sequence=0,
        )
        view.put(offset_key(prefix, shard), pack_offset(deleted))
    write_group(view, command.namespace, command.group, group)
    return Removed(rows=rows)


def _delete_group(
    view: View, command: DeleteGroup, head: Head, time_ms: int
) -> OffsetResult | Rejected:
    group = read_group(view, command.namespace, command.group)
    if group is None or group.is_deleted:
        return unknown_group(command.group)
    head.counter += 1
    group.epoch = group.floor = head.counter
    group.is_deleted = 1
    group.last_commit_ms = time_ms
    write_group(view, command.namespace, command.group, group)
    return Removed(has_more=True)


def _purge_group(view: View, command: PurgeGroup) -> OffsetResult:
    group = read_group(view, command.namespace, command.group)
    if group is None:
        return Removed()
    rows, has_more = _delete_rows(
        view, command.namespace, command.group, below=group.floor, rows_max=command.rows_max
    )
    return Removed(rows=rows, has_more=has_more)


def _expire_groups(view: View, command: ExpireGroups, head: Head) -> OffsetResult:
    rows = 0
    gone: list[GroupName] = []
    for name in command.groups:
        group = read_group(view, name.namespace, name.group)
        if group is None or group.last_commit_ms >= command.before_ms:
            continue
        if rows == command.rows_max:
            return Removed(groups=tuple(gone), rows=rows, has_more=True)
        removed, has_more = _delete_rows(
            view, name.namespace, name.group, below=None, rows_max=command.rows_max - rows
        )
        rows += removed
        if has_more:
            # Half a group must never be seen: what is left is hidden until it is removed, too.
            head.counter += 1
            group.epoch = group.floor = head.counter
            group.is_deleted = 1
            write_group(view, name.namespace, name.group, group)
            return Removed(groups=tuple(gone), rows=rows, has_more=True)
        delete_group_row(view, name.namespace, name.group)
        gone.append(name)
    return Removed(groups=tuple(gone), rows=rows)


def _remove_shards(view: View, command: ForgetShards) -> OffsetResult:
    prefix = group_prefix(command.namespace, command.group)
    rows = 0
    for shard in command.shards:
        key = offset_key(prefix, shard)
        if view.get(key) is not None:
            view.delete(key)
            rows += 1
    return Removed(rows=rows)


def _delete_rows(
    view: View, namespace: str, group: str, *, below: int | None, rows_max: int
) -> tuple[int, bool]:
    """Delete offset rows of a group (with an epoch below `below`); return how many, and whether
    some are left."""
    prefix = group_prefix(namespace, group)
    doomed: list[bytes] = []
    has_more = False
    for key, row in view.scan(prefix, after_prefix(prefix)):
        if below is not None and unpack_pair(row)[0] >= below:
            continue
        if len(doomed) == rows_max:
            has_more = True
            break
        doomed.append(key)
    for key in doomed:
        view.delete(key)
    return len(doomed), has_more


def unknown_group(group: str) -> Rejected:
    return Rejected("unknown_group", f"consumer group {group!r} does not exist", group)
