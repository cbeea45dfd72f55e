"""A pass over the log of a shard, to find what compaction removes."""

from __future__ import annotations

from typing import Final

from penstock.engine.compaction import CompactionPass, CompactionRules, Removal
from penstock.engine.segment.store import SegmentStore
from penstock.engine.transaction_limits import Ranges
from penstock.record import ShardId

_RECORDS_PER_PAGE: Final = 4096
_SIZE_PER_PAGE: Final = 64 << 20


def find_removable(
    store: SegmentStore,
    shard: ShardId,
    rules: CompactionRules,
    *,
    until: int | None = None,
    aborted: Ranges = (),
    tombstones_until: int | None = None,
) -> Removal:
    """Read the shard once, oldest first; see `CompactionPass` for what goes."""
    bounds = store.bounds(shard)
    offset, end = int(bounds.earliest), int(bounds.commit)
    if until is not None:
        end = min(end, until)
    compaction = CompactionPass(rules, end, aborted)
    while offset < end:
        page = store.read_page(
            shard, offset, max_records=_RECORDS_PER_PAGE, max_size=_SIZE_PER_PAGE
        )
        if not all(map(compaction.take, page.records)) or page.next_offset <= offset:
            break
        offset = page.next_offset
    return compaction.finish(tombstones_until)
