"""Reading one shard's rows between two offsets.

The callers take the bounds before these functions look at any row, and rows below the commit offset
are complete. Between an index row and its record the record may be deleted: it is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.engine.compaction import CompactionRules
from penstock.engine.record_rows import (
    decode_record,
    is_tombstone,
    moments,
    payload_size,
    stored_at,
)
from penstock.engine.rocksdb.rows import End
from penstock.engine.rocksdb.shard_rows import ShardRows
from penstock.record import Offset, StoredRecord

TOMBSTONES_PER_PASS: Final = 100_000


class Bounds(NamedTuple):
    """The offsets [start, end) that may be read, and the time that decides about expiry."""

    start: int
    end: int
    now_ms: int


def page(rows: ShardRows, bounds: Bounds, max_records: int, max_size: int) -> list[StoredRecord]:
    live = (
        (offset, row)
        for offset, row in rows.records(bounds.start, bounds.end)
        if moments(row)[0] > bounds.now_ms
    )
    return _fill(live, max_records, max_size)


def page_of_tag(
    rows: ShardRows, tag: str, bounds: Bounds, max_records: int, max_size: int
) -> list[StoredRecord]:
    return _fill(_tagged(rows, tag, bounds), max_records, max_size)


def _tagged(rows: ShardRows, tag: str, bounds: Bounds) -> Iterator[tuple[int, bytes]]:
    for offset, expires_ms in rows.of_tag(tag, bounds.start, bounds.end):
        if expires_ms > bounds.now_ms:
            row = rows.family.get(rows.keys.record(offset))
            if row is not None:
                yield offset, row


def _fill(live: Iterable[tuple[int, bytes]], max_records: int, max_size: int) -> list[StoredRecord]:
    """Return records until a limit is reached, and the first one in any case."""
    records: list[StoredRecord] = []
    size = 0
    for offset, row in live:
        size += payload_size(row)
        if records and size > max_size:
            break
        records.append(decode_record(offset, row))
        if len(records) == max_records:
            break
    return records


def history(
    rows: ShardRows,
    key: bytes,
    bounds: Bounds,
    begin_ms: int | None,
    end_ms: int | None,
    limit: int,
) -> list[StoredRecord]:
    """Return the live records of `key`, the last written first."""
    records: list[StoredRecord] = []
    for offset, expires_ms, timestamp_ms in rows.of_key_back(key, bounds.start, bounds.end):
        if (
            expires_ms > bounds.now_ms
            and (begin_ms is None or timestamp_ms >= begin_ms)
            and (end_ms is None or timestamp_ms <= end_ms)
        ):
            record = rows.record(offset)
            if record is not None:
                records.append(record[0])
                if len(records) == limit:
                    break
    return records


def first_since(rows: ShardRows, timestamp_ms: int, end: End, bounds: Bounds) -> Offset | None:
    """Return the first live record with a timestamp >= `timestamp_ms`."""
    for first, last in rows.blocks_since(timestamp_ms, end, bounds.start):
        for offset, row in rows.records(max(first, bounds.start), min(last, bounds.end)):
            expires_ms, own_ms = moments(row)
            if own_ms >= timestamp_ms and expires_ms > bounds.now_ms:
                return Offset(offset)
    return None


def superseded(rows: ShardRows, bounds: Bounds) -> Iterator[tuple[bytes, int, int]]:
    """Yield the live records that a later live one of the same key supersedes: what the key's rows
    begin with, the offset of the newest, and their own."""
    newest: tuple[bytes, int] | None = None
    for prefix, offset, expires_ms in rows.of_all_keys_back():
        if not bounds.start <= offset < bounds.end or expires_ms <= bounds.now_ms:
            continue
        if newest is not None and newest[0] == prefix:
            yield prefix, newest[1], offset
        else:
            newest = prefix, offset


def settled_end(rows: ShardRows, bounds: Bounds, rules: CompactionRules) -> tuple[int, int | None]:
    """Return the offset of the first record that compaction leaves alone, and when the store got
    the first of those that are still live. Store times ascend."""
    low, high = bounds.start, bounds.end
    if rules.lag_ms == 0:
        return high, None
    while low < high:
        middle = (low + high) // 2
        entry = next(rows.records(middle, high), None)
        if entry is None or rules.is_young(stored_at(entry[1])):
            high = middle
        else:
            low = entry[0] + 1
    live = (row for _, row in rows.records(low, bounds.end) if moments(row)[0] > bounds.now_ms)
    first = next(live, None)
    return low, None if first is None else stored_at(first)


class OldTombstones(NamedTuple):
    offsets: list[int]
    waiting_ms: int | None
    """When the last of those that stay was stored."""


def old_tombstones(rows: ShardRows, bounds: Bounds, rules: CompactionRules) -> OldTombstones:
    """Return the tombstones that may go: kept for long enough, and alone with their key."""
    offsets: list[int] = []
    waiting_ms: int | None = None
    for offset, row in rows.records(bounds.start, bounds.end):
        if not is_tombstone(row) or moments(row)[0] <= bounds.now_ms:
            continue
        key, stored_ms = decode_record(offset, row).key, stored_at(row)
        if key is None or _holds(rows, key, bounds._replace(start=offset + 1)):
            continue  # one that was written again later goes with what is superseded
        if (
            len(offsets) < TOMBSTONES_PER_PASS
            and rules.may_go(stored_ms)
            and not _holds(rows, key, bounds._replace(end=offset))
        ):
            offsets.append(offset)
        else:
            waiting_ms = max(waiting_ms or 0, stored_ms)
    return OldTombstones(offsets, waiting_ms)


def _holds(rows: ShardRows, key: bytes, bounds: Bounds) -> bool:
    """Say whether there is a live record of `key` within the bounds."""
    entries = rows.of_key_back(key, bounds.start, bounds.end)
    return any(expires_ms > bounds.now_ms for _, expires_ms, _ in entries)


def first_after(rows: ShardRows, bounds: Bounds, size: int) -> int:
    """Return the first offset after records that take `size` bytes together, or more."""
    for offset, row in rows.records(bounds.start, bounds.end):
        if size <= 0:
            return offset
        size -= len(row)
    return bounds.end
