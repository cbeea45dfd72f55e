"""The offset state machine: what groups of consumers have read, as a pure function over rows.

Every commit carries a pair: the epoch that the machine granted when a node became the coordinator
of the group, and a sequence number of that node. Invariants:

  * a row's pair only grows: whatever arrives late, twice or after a crash undoes nothing newer
  * epochs come from one counter and are never given twice, not even after a group was forgotten
  * a reset or a removal takes a new epoch, so that every commit made before it is older
  * entries below a group's floor are neither stored nor seen
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from penstock.meta.state.answers import (
    Head,
    Rejected,
    find_answer,
    read_head,
    store_answer,
    write_head,
)
from penstock.meta.state.keys import decode_texts
from penstock.meta.state.offset_codec import PackedOffsets, PackedSave, pack_group, put_newer
from penstock.meta.state.offsets.commands import (
    CommitGroups,
    CompareAndSet,
    DeleteGroup,
    DeleteOffsets,
    Epochs,
    ExpireGroups,
    ForgetShards,
    OffsetAnswer,
    OffsetApplied,
    OffsetCommand,
    OffsetEntry,
    OffsetRequest,
    OffsetResult,
    PurgeGroup,
    ResetOffsets,
    Saved,
    SaveGroupState,
    SaveOffsets,
    StaleEntry,
    TakeEpochs,
)
from penstock.meta.state.offsets.entries import NewOffset
from penstock.meta.state.offsets.removal import remove_offsets
from penstock.meta.state.offsets.rows import (
    PAIR_SIZE,
    CommittedOffset,
    Group,
    delete_members,
    group_prefix,
    offset_key,
    pack_offset,
    read_group,
    read_members,
    read_offset,
    unpack_offset,
    unpack_pair,
    write_group,
    write_members,
)
from penstock.meta.state.transactions.machine import change_transaction
from penstock.meta.state.view import View

_encoder: Final = Encoder()
_request_decoder: Final = Decoder(OffsetRequest)
_applied_decoder: Final = Decoder(OffsetApplied)


def encode_request(request: OffsetRequest) -> bytes:
    return _encoder.encode(request)


def decode_request(data: bytes) -> OffsetRequest:
    """Decode and check a request; raise `MsgspecError` when it breaks a bound of its types."""
    return _request_decoder.decode(data)


def apply(view: View, request: OffsetRequest) -> OffsetAnswer:
    answered = find_answer(view, request.request_id)
    if answered is not None:
        return replace(_applied_decoder.decode(answered), repeated=True)
    head = read_head(view)
    result = _change(view, request, head)
    if isinstance(result, Rejected):
        return result
    head.revision += 1
    applied = OffsetApplied(revision=head.revision, result=result)
    if request.request_id:
        store_answer(view, head, request.request_id, _encoder.encode(applied))
    write_head(view, head)
    return applied


def apply_packed(view: View, save: PackedSave) -> OffsetAnswer:
    """As `apply` of the request that was packed."""
    head = read_head(view)
    result = _save_offsets(view, save.groups, head)
    if isinstance(result, Rejected):
        return result
    head.revision += 1
    write_head(view, head)
    return OffsetApplied(revision=head.revision, result=result)


def _change(view: View, request: OffsetRequest, head: Head) -> OffsetResult | Rejected:
    command: OffsetCommand = request.command
    match command:
        case SaveOffsets():
            groups = [pack_group(offsets) for offsets in command.groups]
            return _save_offsets(view, groups, head)
        case TakeEpochs():
            return _grant_epochs(view, command, head, request.time_ms)
        case CommitGroups():
            return _commit_groups(view, command, head, request.time_ms)
        case CompareAndSet():
            return _compare_and_set(view, command, head)
        case ResetOffsets():
            return _reset_offsets(view, command, head, request.time_ms)
        case DeleteOffsets() | DeleteGroup() | PurgeGroup() | ExpireGroups() | ForgetShards():
            return remove_offsets(view, command, head, request.time_ms)
        case SaveGroupState():
            return _save_group_state(view, command)
        case _:
            return change_transaction(view, command, request.time_ms)


def _grant_epochs(view: View, command: TakeEpochs, head: Head, time_ms: int) -> OffsetResult:
    epochs: list[int] = []
    previous: list[int] = []
    for name in command.groups:
        group, before = _grant_epoch(view, name.namespace, name.group, command.node, head, time_ms)
        epochs.append(group.epoch)
        previous.append(before)
    return Epochs(tuple(epochs), tuple(previous))


def _commit_groups(view: View, command: CommitGroups, head: Head, time_ms: int) -> OffsetResult:
    epochs: list[int] = []
    previous: list[int] = []
    for offsets in command.groups:
        group, before = _grant_epoch(
            view, offsets.namespace, offsets.group, command.node, head, time_ms
        )
        _put_new(view, offsets.namespace, offsets.group, group.epoch, offsets.offsets, time_ms)
        epochs.append(group.epoch)
        previous.append(before)
    return Epochs(tuple(epochs), tuple(previous))


def _grant_epoch(
    view: View, namespace: str, name: str, node: int, head: Head, time_ms: int
) -> tuple[Group, int]:
    """Give a group to `node` under a new epoch; return the group, and the node that had it."""
    group = read_group(view, namespace, name) or Group()
    before = group.node
    head.counter += 1
    group.epoch = head.counter
    group.node = node
    group.last_commit_ms = max(group.last_commit_ms, time_ms)
    group.is_deleted = 0
    write_group(view, namespace, name, group)
    return group, before


def _put_new(
    view: View, namespace: str, name: str, epoch: int, offsets: Sequence[NewOffset], time_ms: int
) -> None:
    """Set offsets under an epoch that was granted just now: no row can have a greater pair."""
    prefix = group_prefix(namespace, name)
    for new in offsets:
        committed = CommittedOffset(
            offset=new.offset,
            metadata=new.metadata,
            leader_epoch=new.leader_epoch,
            commit_timestamp_ms=time_ms,
            epoch=epoch,
            sequence=0,
        )
        view.put(offset_key(prefix, new.shard), pack_offset(committed))


def _save_offsets(
    view: View, groups: Sequence[PackedOffsets], head: Head
) -> OffsetResult | Rejected:
    for packed in groups:
        if packed.epoch_max > head.counter:
            return _never_given_in(packed, head.counter)
    stale: list[StaleEntry] = []
    for packed in groups:
        namespace, name = packed.namespace, packed.group
        group = read_group(view, namespace, name) or Group()
        if packed.epoch_min < group.floor:
            packed = _above_floor(packed, group.floor, stale)  # noqa: PLW2901 - what is left of it
        refused = put_newer(view, packed.keys, packed.rows, PAIR_SIZE)
        stored = _stored(packed, {number for number, _ in refused}) if refused else packed
        for number, stored_row in refused:
            if stored_row[:PAIR_SIZE] != packed.rows[number][:PAIR_SIZE]:
                stale.append(_stale(packed, packed.keys[number], *unpack_pair(stored_row)))
        if stored.keys:
            group.epoch = max(group.epoch, stored.epoch_max)
            group.last_commit_ms = max(group.last_commit_ms, stored.newest_ms)
            group.is_deleted = 0
            write_group(view, namespace, name, group)
    return Saved(tuple(stale))


def _above_floor(packed: PackedOffsets, floor: int, stale: list[StaleEntry]) -> PackedOffsets:
    """Return the entries whose epoch the group still takes; note the others."""
    below = {number for number, row in enumerate(packed.rows) if unpack_pair(row)[0] < floor}
    stale += [_stale(packed, packed.keys[number], floor, 0) for number in sorted(below)]
    return _stored(packed, below)


def _stored(packed: PackedOffsets, left_out: set[int]) -> PackedOffsets:
    kept = [number for number in range(len(packed.keys)) if number not in left_out]
    rows = [unpack_offset(packed.rows[number]) for number in kept]
    return PackedOffsets(
        namespace=packed.namespace,
        group=packed.group,
        keys=[packed.keys[number] for number in kept],
        rows=[packed.rows[number] for number in kept],
        epoch_min=min((row.epoch for row in rows), default=0),
        epoch_max=max((row.epoch for row in rows), default=0),
        newest_ms=max((row.commit_timestamp_ms for row in rows), default=0),
    )


def _never_given_in(packed: PackedOffsets, highest: int) -> Rejected:
    for key, row in zip(packed.keys, packed.rows, strict=True):
        epoch = unpack_pair(row)[0]
        if epoch > highest:
            return _never_given(epoch, decode_texts(key)[2])
    raise AssertionError("the highest epoch is that of an entry")


def _stale(packed: PackedOffsets, key: bytes, epoch: int, sequence: int) -> StaleEntry:
    return StaleEntry(packed.namespace, packed.group, decode_texts(key)[2], epoch, sequence)


def _store(view: View, prefix: bytes, group: Group, entry: OffsetEntry) -> tuple[int, int] | None:
    """Store `entry` and note it in `group`, or return the pair that is not lower than its own."""
    if entry.epoch < group.floor:
        return group.floor, 0
    key = offset_key(prefix, entry.shard)
    row = view.get(key)
    if row is not None:
        pair = unpack_pair(row)
        if pair >= (entry.epoch, entry.sequence):
            return pair
    view.put(key, pack_offset(_committed(entry)))
    group.epoch = max(group.epoch, entry.epoch)
    group.last_commit_ms = max(group.last_commit_ms, entry.commit_timestamp_ms)
    group.is_deleted = 0
    return None


def _compare_and_set(view: View, command: CompareAndSet, head: Head) -> OffsetResult | Rejected:
    namespace, name, entry = command.namespace, command.group, command.entry
    if entry.epoch > head.counter:
        return _never_given(entry.epoch, entry.shard)
    current = read_offset(view, namespace, name, entry.shard)
    if current is not None and current == _committed(entry):
        return Saved()  # sent again: this very command has stored it
    stored = None if current is None else current.offset
    if stored != command.expected:
        return Rejected(
            "stale",
            f"group {name!r} is at {stored} in {entry.shard}, not at {command.expected}",
            name,
        )
    group = read_group(view, namespace, name) or Group()
    standing = _store(view, group_prefix(namespace, name), group, entry)
    if standing is not None:
        return Rejected("stale", f"a later commit than {entry.epoch}.{entry.sequence} stands", name)
    write_group(view, namespace, name, group)
    return Saved()


def _reset_offsets(view: View, command: ResetOffsets, head: Head, time_ms: int) -> OffsetResult:
    namespace, name = command.namespace, command.group
    group, before = _grant_epoch(view, namespace, name, command.node, head, time_ms)
    _put_new(view, namespace, name, group.epoch, command.offsets, time_ms)
    return Epochs((group.epoch,), (before,))


def _save_group_state(view: View, command: SaveGroupState) -> OffsetResult | Rejected:
    kept = read_members(view, command.namespace, command.group)
    if kept is not None and kept[0] > command.generation:
        return Rejected(
            "stale",
            f"generation {kept[0]} of group {command.group!r} is kept, and {command.generation} "
            "is older: another node coordinates the group",
            command.group,
        )
    if command.state:
        write_members(view, command.namespace, command.group, command.generation, command.state)
    elif kept is not None:
        delete_members(view, command.namespace, command.group)
    return Saved()


def _committed(entry: OffsetEntry) -> CommittedOffset:
    return CommittedOffset(
        offset=entry.offset,
        metadata=entry.metadata,
        leader_epoch=entry.leader_epoch,
        commit_timestamp_ms=entry.commit_timestamp_ms,
        epoch=entry.epoch,
        sequence=entry.sequence,
    )


def _never_given(epoch: int, shard: str) -> Rejected:
    return Rejected("bad_request", f"epoch {epoch} was never given", shard)
