"""Which records of a shard a later record of the same key replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.segment.store import SegmentStore
from penstock.engine.transaction_limits import is_within
from penstock.record import ShardId

_RECORDS_PER_PAGE: Final = 4096
_SIZE_PER_PAGE: Final = 64 << 20


def superseded(
    store: SegmentStore,
    shard: ShardId,
    until: int | None = None,
    aborted: Sequence[tuple[int, int]] = (),
) -> tuple[list[int], int]:
    """Return the offsets of records whose key was written again later, and their size in bytes.

    Records from `until` on replace nothing: their transaction may still be aborted. Those in the
    ranges of `aborted` ones replace nothing, and are returned, too.

    Reads the shard once, oldest first. Memory holds each key once; records without a key stay.
    """
    newest: dict[bytes, tuple[int, int]] = {}
    replaced: list[int] = []
    size = 0
    bounds = store.bounds(shard)
    offset, end = int(bounds.earliest), int(bounds.commit)
    if until is not None:
        end = min(end, until)
    while offset < end:
        page = store.read_page(
            shard, offset, max_records=_RECORDS_PER_PAGE, max_size=_SIZE_PER_PAGE
        )
        for record in page.records:
            if record.offset >= end:
                break
            if aborted and is_within(aborted, record.offset):
                replaced.append(record.offset)
                size += len(record.value or b"") + len(record.key or b"")
                continue
            if record.key is None:
                continue
            before = newest.get(record.key)
            if before is not None:
                replaced.append(before[0])
                size += before[1]
            newest[record.key] = (record.offset, len(record.value or b"") + len(record.key))
        if page.next_offset <= offset:
            break
        offset = page.next_offset
    return replaced, size
