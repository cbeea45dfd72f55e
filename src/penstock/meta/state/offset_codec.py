"""Commits of offsets as rows, before they meet the state: nearly all that a cluster ever applies.

The two loops over entries are native where the extension is there; what is written here is what
they do.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock.meta.state.offsets.commands import GroupOffsets
from penstock.meta.state.offsets.rows import OFFSET_ROW, group_prefix, offset_key
from penstock.meta.state.view import Overlay, View

try:
    from penstock import _native

    IS_NATIVE = True
except ImportError:  # pragma: no cover - depends on the installation
    IS_NATIVE = False


class PackedOffsets(Struct, frozen=True):
    """The entries of one group, as keys and rows."""

    namespace: str
    group: str
    keys: list[bytes]
    rows: list[bytes]
    epoch_min: int
    epoch_max: int
    newest_ms: int
    """The newest moment of a commit."""


class PackedSave(Struct, frozen=True):
    """A request that saves offsets and has no id."""

    time_ms: int
    groups: list[PackedOffsets]


def unpack_save(data: bytes) -> PackedSave | None:
    """Return an encoded request as rows; None when it is of another kind, when it has an id, when
    it is damaged, and without the extension: then it is to be decoded as all others."""
    if not IS_NATIVE:
        return None
    packed = _native.pack_offsets(data)
    if packed is None:
        return None
    return PackedSave(packed[0], [PackedOffsets(*group) for group in packed[1]])


def pack_group(offsets: GroupOffsets) -> PackedOffsets:
    prefix = group_prefix(offsets.namespace, offsets.group)
    entries = offsets.entries
    return PackedOffsets(
        namespace=offsets.namespace,
        group=offsets.group,
        keys=[offset_key(prefix, entry.shard) for entry in entries],
        rows=[
            OFFSET_ROW.pack(
                entry.epoch,
                entry.sequence,
                entry.offset,
                entry.leader_epoch,
                entry.commit_timestamp_ms,
            )
            + entry.metadata.encode()
            for entry in entries
        ],
        epoch_min=min((entry.epoch for entry in entries), default=(1 << 63) - 1),
        epoch_max=max((entry.epoch for entry in entries), default=0),
        newest_ms=max((entry.commit_timestamp_ms for entry in entries), default=0),
    )


def put_newer(
    view: View, keys: list[bytes], rows: list[bytes], compared: int
) -> Sequence[tuple[int, bytes]]:
    """Put each row whose first `compared` bytes are greater than those of the row that is there;
    return (number, row that is there) of those that were not put."""
    if IS_NATIVE and isinstance(view, Overlay):
        size, refused = _native.put_newer(keys, rows, compared, view.changes, view.caches, view.get)
        view.size += size
        return refused
    left: list[tuple[int, bytes]] = []
    for number, (key, row) in enumerate(zip(keys, rows, strict=True)):
        stored = view.get(key)
        if stored is not None and stored[:compared] >= row[:compared]:
            left.append((number, stored))
        else:
            view.put(key, row)
    return left
