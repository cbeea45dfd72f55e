"""A pass over the log of a shard, to find what compaction removes."""

from __future__ import annotations

from itertools import pairwise
from operator import add, sub
from typing import Final

from penstock.codec.codes import FIELD_KEY, FIELD_STORED, FIELD_VALUE
from penstock.codec.interface import Columns
from penstock.engine.compaction import CompactionPass, CompactionRules, KeyedRows, Removal
from penstock.engine.segment.read.key_reader import Query
from penstock.engine.segment.store import SegmentStore
from penstock.engine.transactions.stable_offsets import Ranges
from penstock.errors import UnreadableContentError
from penstock.record import ShardId

_RECORDS_PER_PAGE: Final = 4096
_SIZE_PER_PAGE: Final = 64 << 20
_FIELDS: Final = FIELD_KEY | FIELD_VALUE | FIELD_STORED


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
        offset = max(offset, int(store.bounds(shard).earliest))
        query = Query(offset, end, _RECORDS_PER_PAGE, _SIZE_PER_PAGE)
        try:
            columns, after = store.read_columns(shard, query, _FIELDS)
        except UnreadableContentError as error:
            offset = error.next_offset  # it has no keys: it replaces nothing, and stays
            continue
        if (columns is not None and not _add_page(compaction, columns)) or after <= offset:
            break
        offset = after
    return compaction.finish(tombstones_until)


def _add_page(compaction: CompactionPass, columns: Columns) -> bool:
    """Show a page to the pass; return False when it ends there."""
    offsets, stored_ms = _numbers(columns["offset"][0]), _numbers(columns["store_timestamp"][0])
    if not offsets:
        return True
    has_key, key_ends, key_data = columns["key"]
    has_value, value_ends, _ = columns["value"]
    key_at, value_at = _numbers(key_ends), _numbers(value_ends)
    keys = [key_data[start:end] for start, end in pairwise(key_at)]
    value_sizes = list(map(sub, value_at[1:], value_at))
    everything = (1 << len(offsets)) - 1
    if int.from_bytes(has_key, "little") == int.from_bytes(has_value, "little") == everything:
        sizes = list(map(add, value_sizes, map(len, keys)))
        return compaction.add_rows(KeyedRows(offsets, keys, sizes, stored_ms))
    return all(
        compaction.add_row(
            offset,
            keys[n] if has_key[n >> 3] >> (n & 7) & 1 else None,
            value_sizes[n] if has_value[n >> 3] >> (n & 7) & 1 else None,
            stored_ms[n],
        )
        for n, offset in enumerate(offsets)
    )


def _numbers(data: bytes) -> list[int]:
    return memoryview(data).cast("q").tolist()
