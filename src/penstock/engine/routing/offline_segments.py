"""Segments of a shard that cannot be read, for the moment or for good, and what reads do there."""

from __future__ import annotations

from penstock.codec.validation import INT64_MAX
from penstock.engine.routing.segment_status import Answer
from penstock.engine.routing.storage_cache import ShardEntry
from penstock.errors import BusyError
from penstock.record import Offset, StoredRecord


def after_offline(entry: ShardEntry, offset: int) -> Offset | None:
    """Return where a read that wants `offset` begins, if not there."""
    moved = None
    for begin, end, answer in entry.offline:
        if offset < begin or (end is not None and offset >= end):
            continue
        if answer is Answer.LATER or end is None:
            raise BusyError(f"the segment of {entry.name!r} from {begin} on cannot be read now")
        offset = end
        moved = Offset(end)
    return moved


def without_offline(
    entry: ShardEntry, records: list[StoredRecord], start: int
) -> list[StoredRecord]:
    """Leave out what is in a hidden segment; a page ends before one that comes back."""
    for begin, end, answer in entry.offline:
        last = INT64_MAX if end is None else end
        if answer is Answer.LATER and start < begin:
            last = INT64_MAX
        records = [record for record in records if not begin <= record.offset < last]
    return records


def check_complete(entry: ShardEntry) -> None:
    """A search by key must not miss what only cannot be read for the moment."""
    for begin, _, answer in entry.offline:
        if answer is Answer.LATER:
            raise BusyError(f"the segment of {entry.name!r} from {begin} on cannot be read now")
