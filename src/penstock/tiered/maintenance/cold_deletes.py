"""Deletes records that only the tier holds: below the log's first offset, in the manifest.

The lock of the flat file is held from the search to the change of the manifest, so that of several
callers each record counts for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codec.format import RawRecord
from penstock.codec.select import core
from penstock.engine.segment import inner_count, transaction_records_in
from penstock.tiered.read.tier_query import TierQuery

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile


def delete_key(flat: CompositeFlatFile, key: bytes, until: int) -> int:
    """Delete the records of a key below `until`; return how many."""
    with flat.delete_lock:
        return _delete(flat, [record.offset for record in flat.reader.by_key(key, until)])


def delete_offset(flat: CompositeFlatFile, offset: int) -> bool:
    """Delete a record; return whether there was one."""
    with flat.delete_lock:
        records = flat.reader.read(TierQuery(offset, offset + 1, 1)).records
        _delete(flat, [offset])
    return bool(records)


def delete_transaction(flat: CompositeFlatFile, producer_id: int, start: int, until: int) -> int:
    """Delete the transactional records of a producer in [start, until); return how many."""
    with flat.delete_lock:
        return _delete(flat, _transactional_offsets(flat, producer_id, start, until))


def _delete(flat: CompositeFlatFile, offsets: list[int]) -> int:
    flat.upkeep.delete_ranges((offset, offset + 1) for offset in offsets)
    return len(offsets)


def _transactional_offsets(
    flat: CompositeFlatFile, producer_id: int, start: int, until: int
) -> list[int]:
    offsets: list[int] = []
    next_offset = start
    while next_offset < until and (records := flat.reader.read_raw(TierQuery(next_offset, until))):
        offsets += transaction_records_in(b"".join(records), producer_id)
        last = core.decode_raw(records[-1], 0, 0, False)
        assert isinstance(last, RawRecord), "the tier has checked it"
        next_offset = last.queue_offset + inner_count(last)
    return [offset for offset in offsets if offset >= start]  # a chunk may begin before it
