"""A read of one shard from its tier, and its page."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.record import StoredRecord

UNLIMITED: Final = 1 << 62


class TierQuery(NamedTuple):
    """The records from `offset` on and below `until`, of a tag or a key if it names one."""

    offset: int
    until: int = UNLIMITED
    max_records: int = 1_000
    max_size: int = 4 << 20
    tag: str | None = None
    key: bytes | None = None


class TierPage(NamedTuple):
    """Records, and the offset to continue at."""

    records: list[StoredRecord]
    next_offset: int
