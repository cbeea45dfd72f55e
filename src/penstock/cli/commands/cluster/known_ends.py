"""How far a shard had come, as others than its replicas know: groups that read it, its segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from penstock.errors import StoreError
from penstock.meta import MetaClient, Shard

_GROUPS_MAX: Final = 10_000
"""Groups whose offsets are read: each one is a call."""


class KnownEnd(Struct, frozen=True):
    """Records before `offset` were committed."""

    offset: int
    source: str


def known_ends(client: MetaClient, shards: Sequence[Shard]) -> tuple[Mapping[str, KnownEnd], str]:
    """Return the greatest end of each shard that the metadata know, by name; and what could not be
    read, if something could not. Only committed records are read, so a group's offset says that
    the records before it were committed once."""
    known: dict[str, KnownEnd] = {}
    try:
        for shard in shards:
            for segment in client.list_segments(shard.id):
                end = max(segment.start_offset, segment.end_offset or 0)
                _raise(known, shard.name, end, f"the end of segment {segment.number}")
        groups = client.list_groups()
        for group in groups[:_GROUPS_MAX]:
            committed = client.get_offsets(group.namespace, group.group)
            for shard in shards:
                offset = committed.get(shard.name)
                if offset is not None:
                    source = f"the committed offset of group {group.group!r}"
                    _raise(known, shard.name, offset.offset, source)
    except StoreError as error:
        return known, f"offsets of groups could not be read: {error}"
    return known, (
        ""
        if len(groups) <= _GROUPS_MAX
        else f"only {_GROUPS_MAX} of {len(groups)} groups were read"
    )


def _raise(known: dict[str, KnownEnd], name: str, offset: int, source: str) -> None:
    if name not in known or offset > known[name].offset:
        known[name] = KnownEnd(offset, source)
