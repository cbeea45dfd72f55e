"""The tables of the offset state machine, packed so that a million offsets stay small.

    0x20 groups   namespace, group          → epoch, floor, node, times
    0x21 offsets  namespace, group, shard   → offset, pair, leader epoch, time, metadata
    0x24 members  namespace, group          → generation, members (0x22, 0x23: transactions)

A row of an offset whose epoch is below its group's floor is hidden: the group was deleted since.
A row without an offset says that the offset was deleted under that pair; it stays, so that an older
commit, sent again after a crash, cannot bring the offset back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct

from penstock.meta.state.keys import (
    after_prefix,
    begin_of_text,
    decode_texts,
    encode_key,
    encode_part,
)
from penstock.meta.state.view import Reader, View
from penstock.platform.layout import Field, Layout

GROUPS_TABLE: Final = 0x20
OFFSETS_TABLE: Final = 0x21
MEMBERS_TABLE: Final = 0x24

NO_OFFSET: Final = -1

OFFSET_ROW: Final = Layout(
    "offset row; the metadata follows as UTF-8",
    Field("epoch", "u64", "coordinator epoch of the commit"),
    Field("sequence", "u64", "its number within the epoch; the pair only grows"),
    Field("offset", "i64", "next offset to read; -1: deleted"),
    Field("leader_epoch", "i64", "leader epoch of the record read last; -1: not given"),
    Field("commit_timestamp_ms", "i64", "when it was committed"),
    size=40,
)

GROUP_ROW: Final = Layout(
    "group row",
    Field("epoch", "u64", "epoch that was given last"),
    Field("floor", "u64", "entries of a lower epoch are hidden and refused"),
    Field("node", "u64", "node that the epoch was given to"),
    Field("last_commit_ms", "i64", "newest commit, or when an epoch was taken"),
    Field("is_deleted", "u8", "1: deleted and not used since"),
    size=33,
)

PAIR_SIZE: Final = 16

_GENERATION_SIZE: Final = 8

_GROUP_KEYS_MAX: Final = 1_024
"""Keys of groups that are kept: every commit needs that of its group twice."""


class CommittedOffset(Struct, frozen=True, gc=False):
    """What a group has committed for one shard."""

    offset: int
    metadata: str
    leader_epoch: int
    commit_timestamp_ms: int
    epoch: int
    sequence: int

    @property
    def pair(self) -> tuple[int, int]:
        return self.epoch, self.sequence


class Group(Struct):
    """The row of a group; see `GROUP_ROW`."""

    epoch: int = 0
    floor: int = 0
    node: int = 0
    last_commit_ms: int = 0
    is_deleted: int = 0


def group_prefix(namespace: str, group: str) -> bytes:
    """Return what the keys of all offset rows of a group begin with."""
    return encode_key(OFFSETS_TABLE, namespace, group)


def offset_key(prefix: bytes, shard: str) -> bytes:
    return prefix + encode_part(shard)


def pack_offset(committed: CommittedOffset) -> bytes:
    row = OFFSET_ROW.pack(
        committed.epoch,
        committed.sequence,
        committed.offset,
        committed.leader_epoch,
        committed.commit_timestamp_ms,
    )
    return row + committed.metadata.encode() if committed.metadata else row


def unpack_offset(row: bytes) -> CommittedOffset:
    epoch, sequence, offset, leader_epoch, commit_timestamp_ms = OFFSET_ROW.unpack_from(row)
    return CommittedOffset(
        offset=offset,
        metadata=row[OFFSET_ROW.size :].decode(),
        leader_epoch=leader_epoch,
        commit_timestamp_ms=commit_timestamp_ms,
        epoch=epoch,
        sequence=sequence,
    )


def unpack_pair(row: bytes) -> tuple[int, int]:
    return int.from_bytes(row[:8], "big"), int.from_bytes(row[8:PAIR_SIZE], "big")


@lru_cache(_GROUP_KEYS_MAX)
def _group_key(namespace: str, group: str) -> bytes:
    return encode_key(GROUPS_TABLE, namespace, group)


def read_group(view: Reader, namespace: str, group: str) -> Group | None:
    row = view.get(_group_key(namespace, group))
    return None if row is None else Group(*GROUP_ROW.unpack(row))


def write_group(view: View, namespace: str, name: str, group: Group) -> None:
    row = GROUP_ROW.pack(
        group.epoch, group.floor, group.node, group.last_commit_ms, group.is_deleted
    )
    view.put(_group_key(namespace, name), row)


def delete_group_row(view: View, namespace: str, group: str) -> None:
    view.delete(_group_key(namespace, group))


def scan_groups(
    view: Reader, namespace: str | None, *, with_deleted: bool = False
) -> Iterator[tuple[str, str, Group]]:
    """Yield (namespace, group, row), in key order."""
    parts = () if namespace is None else (namespace,)
    prefix = encode_key(GROUPS_TABLE, *parts)
    for key, row in view.scan(prefix, after_prefix(prefix)):
        group = Group(*GROUP_ROW.unpack(row))
        if with_deleted or not group.is_deleted:
            namespace_of, name = decode_texts(key)
            yield namespace_of, name, group


def read_offset(view: Reader, namespace: str, group: str, shard: str) -> CommittedOffset | None:
    """Return what can be seen of a shard's offset: not deleted, not hidden by the floor."""
    row = view.get(offset_key(group_prefix(namespace, group), shard))
    if row is None:
        return None
    known = read_group(view, namespace, group)
    return _visible(row, 0 if known is None else known.floor)


def scan_offsets(
    view: Reader, namespace: str, group: str, begin: str = ""
) -> Iterator[tuple[str, CommittedOffset]]:
    """Yield (shard, offset) of a group, of the shards whose names start with `begin`, in key
    order."""
    known = read_group(view, namespace, group)
    if known is None:
        return
    prefix = group_prefix(namespace, group) + begin_of_text(begin)
    for key, row in view.scan(prefix, after_prefix(prefix)):
        committed = _visible(row, known.floor)
        if committed is not None:
            yield decode_texts(key)[2], committed


def _visible(row: bytes, floor: int) -> CommittedOffset | None:
    committed = unpack_offset(row)
    is_hidden = committed.offset == NO_OFFSET or committed.epoch < floor
    return None if is_hidden else committed


def read_members(view: Reader, namespace: str, group: str) -> tuple[int, bytes] | None:
    """Return the generation whose members are kept, and their state."""
    row = view.get(encode_key(MEMBERS_TABLE, namespace, group))
    return None if row is None else _members(row)


def write_members(view: View, namespace: str, group: str, generation: int, state: bytes) -> None:
    key = encode_key(MEMBERS_TABLE, namespace, group)
    view.put(key, generation.to_bytes(_GENERATION_SIZE, "big") + state)


def delete_members(view: View, namespace: str, group: str) -> None:
    view.delete(encode_key(MEMBERS_TABLE, namespace, group))


def scan_members(view: Reader) -> Iterator[tuple[str, str, bytes]]:
    """Yield (namespace, group, state), in key order."""
    prefix = encode_key(MEMBERS_TABLE)
    for key, row in view.scan(prefix, after_prefix(prefix)):
        namespace, group = decode_texts(key)
        yield namespace, group, _members(row)[1]


def _members(row: bytes) -> tuple[int, bytes]:
    return int.from_bytes(row[:_GENERATION_SIZE], "big"), row[_GENERATION_SIZE:]
