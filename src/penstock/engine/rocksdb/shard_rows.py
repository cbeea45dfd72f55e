"""All rows of one shard, written and removed together.

A record has one row of its own, one for its key, one for each different tag and one for its expiry:
`add` and `remove` are the only places that know this. Rows outside [earliest, latest) may exist
(what a sweep has not reached, what a write that did not end left); readers pass bounds and
never see them.

Finding a record by time: every finished block of 1,024 offsets has a row with its newest timestamp,
every finished group of 1,024 blocks another, and the shard's end holds those of the unfinished
ones. A block whose newest timestamp is too old cannot hold the answer, whatever the order of the
timestamps; the first that is not too old is searched record by record. Deletions and expiry leave
these rows as they are: they then promise too much, never too little, and the search goes on to the
next block. A shard of 100 million records costs at most 100 + 1,024 rows and one block, but for
blocks that promised too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.codec.validation import INT64_MAX, INT64_MIN
from penstock.engine.record_rows import decode_record, encode_record, moments, stored_at
from penstock.engine.rocksdb.keys import ShardKeys, offset_of
from penstock.engine.rocksdb.rows import (
    BLOCK_ROW,
    KEY_ROW,
    TAG_ROW,
    TRANSACTED_ROW,
    End,
)
from penstock.platform.rocksdb import Changes, Family
from penstock.record import Record, StoredRecord

BLOCK_BITS: Final = 10
GROUP_BITS: Final = 20
_BLOCKS, _GROUPS = 0, 1  # levels of block rows


class ShardRows:
    __slots__ = ("family", "keys")

    def __init__(self, family: Family, keys: ShardKeys) -> None:
        self.family: Final = family
        self.keys: Final = keys

    def add(
        self,
        changes: Changes,
        offset: int,
        record: Record,
        now_ms: int,
        stored_ms: int,
        epoch: int = 0,
    ) -> tuple[int, int]:
        """Put a record's rows; return its timestamp and the size of its own row."""
        timestamp_ms = record.timestamp_ms
        if timestamp_ms is None:
            timestamp_ms = now_ms
        row = encode_record(record, timestamp_ms, stored_ms, epoch)
        self.put(changes, offset, record, timestamp_ms, row)
        return timestamp_ms, len(row)

    def put(
        self,
        changes: Changes,
        offset: int,
        record: Record | StoredRecord,
        timestamp_ms: int,
        row: bytes,
    ) -> None:
        """Put a record's own row, and those of its indexes."""
        keys, expires = self.keys, record.expires_at_ms
        changes.put(keys.record(offset), row)
        expires_ms = INT64_MAX if expires is None else expires
        if record.key is not None:
            key_row = keys.named(keys.of_key(record.key), offset)
            changes.put(key_row, KEY_ROW.pack(expires_ms, timestamp_ms))
        for tag in record.tags:  # the same one twice is the same row twice
            changes.put(keys.named(keys.of_tag(tag), offset), TAG_ROW.pack(expires_ms))
        if expires is not None:
            changes.put(keys.expiry(expires, offset), b"")

    def remove(self, changes: Changes, record: StoredRecord) -> None:
        keys, offset = self.keys, record.offset
        changes.delete(keys.record(offset))
        if record.key is not None:
            changes.delete(keys.named(keys.of_key(record.key), offset))
        for tag in record.tags:
            changes.delete(keys.named(keys.of_tag(tag), offset))
        if record.expires_at_ms is not None:
            changes.delete(keys.expiry(record.expires_at_ms, offset))

    def add_time(self, changes: Changes, offset: int, newest: int, group: int) -> tuple[int, int]:
        """Put the row of a block when `offset` is its last; return what the next one begins with.

        `newest` and `group` are the newest timestamps of the block and of its group so far.
        """
        following = offset + 1
        if following & ((1 << BLOCK_BITS) - 1):
            return newest, group
        changes.put(self.keys.block(_BLOCKS, offset >> BLOCK_BITS), BLOCK_ROW.pack(newest))
        group = max(group, newest)
        if following & ((1 << GROUP_BITS) - 1):
            return INT64_MIN, group
        changes.put(self.keys.block(_GROUPS, offset >> GROUP_BITS), BLOCK_ROW.pack(group))
        return INT64_MIN, INT64_MIN

    def skip_times(
        self, changes: Changes, start: int, end: int, newest: int, group: int
    ) -> tuple[int, int]:
        """As `add_time`, for offsets that have no records."""
        while start < end:
            last = min(end, (start | ((1 << BLOCK_BITS) - 1)) + 1) - 1
            newest, group = self.add_time(changes, last, newest, group)
            start = last + 1
        return newest, group

    def cut(self, changes: Changes, offset: int, end: End) -> End:
        """Delete the rows of blocks that do not end before `offset`; return the shard's end with
        `offset` as the next one. Rows of records are left; those from `offset` on take room until
        the next write."""
        for level, bits in ((_BLOCKS, BLOCK_BITS), (_GROUPS, GROUP_BITS)):
            changes.delete_range(
                self.keys.block(level, offset >> bits), self.keys.block(level + 1, 0)
            )
        block = offset >> BLOCK_BITS
        rows = [row for _, row in self.records(max(end.earliest, block << BLOCK_BITS), offset)]
        first = self.keys.block(_BLOCKS, offset >> GROUP_BITS << (GROUP_BITS - BLOCK_BITS))
        blocks = self.family.scan(first, self.keys.block(_BLOCKS, block))
        start, stop = self.keys.record(end.earliest), self.keys.record(offset)
        last = next(self.family.scan_back(start, stop), None)
        return end._replace(
            latest=offset,
            store_timestamp_ms=0 if last is None else stored_at(last[1]),
            newest_in_block=max((moments(row)[1] for row in rows), default=INT64_MIN),
            newest_in_group=max((BLOCK_ROW.unpack(row)[0] for _, row in blocks), default=INT64_MIN),
        )

    def remove_indexes(self, changes: Changes, offset: int) -> None:
        """Delete the rows of keys, tags and expiry from `offset` on, whose records cannot be
        read."""
        for kind in (b"K", b"T", b"X"):
            for key, _ in self.family.scan(*self.keys.every(kind)):
                if offset_of(key) >= offset:
                    changes.delete(key)

    def remove_times(self, changes: Changes, start: int, end: int) -> None:
        """Delete the rows of blocks and groups that lie wholly below `end`; those below `start`
        are gone already."""
        for level, bits in ((_BLOCKS, BLOCK_BITS), (_GROUPS, GROUP_BITS)):
            if start >> bits < end >> bits:
                first, last = (self.keys.block(level, o >> bits) for o in (start, end))
                changes.delete_range(first, last)

    def add_transacted(self, changes: Changes, producer_id: int, first: int, count: int) -> None:
        """Note a write of an open transaction, with its records."""
        changes.put(self.keys.transacted(producer_id, first), TRANSACTED_ROW.pack(count))

    def transacted(self, producer_id: int) -> list[range]:
        """Return the offsets of the writes that were noted, ascending."""
        first, last = self.keys.transacted(producer_id, 0), self.keys.transacted(producer_id + 1, 0)
        writes = [
            (offset_of(key), TRANSACTED_ROW.unpack(row)[0])
            for key, row in self.family.scan(first, last)
        ]
        return [range(offset, offset + count) for offset, count in writes]

    def delete_transacted(self, changes: Changes, producer_id: int) -> None:
        changes.delete_range(
            self.keys.transacted(producer_id, 0), self.keys.transacted(producer_id + 1, 0)
        )

    def record(self, offset: int) -> tuple[StoredRecord, int] | None:
        """Return a record and the size of its row."""
        row = self.family.get(self.keys.record(offset))
        return None if row is None else (decode_record(offset, row), len(row))

    def records(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield offsets and rows of the records of [start, end), ascending."""
        for key, row in self.family.scan(self.keys.record(start), self.keys.record(end)):
            yield offset_of(key), row

    def of_key_back(self, key: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield offset, expiry and timestamp of the records of `key`, descending."""
        prefix, named = self.keys.of_key(key), self.keys.named
        for row_key, row in self.family.scan_back(named(prefix, start), named(prefix, end)):
            yield offset_of(row_key), *KEY_ROW.unpack(row)

    def of_tag(self, tag: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield offset and expiry of the records that carry `tag`, ascending."""
        prefix, named = self.keys.of_tag(tag), self.keys.named
        for row_key, row in self.family.scan(named(prefix, start), named(prefix, end)):
            yield offset_of(row_key), *TAG_ROW.unpack(row)

    def of_all_keys_back(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield every key row without its offset, the offset and the expiry: the records of one
        key together, descending."""
        for row_key, row in self.family.scan_back(*self.keys.every_key):
            yield row_key[:-8], offset_of(row_key), KEY_ROW.unpack(row)[0]

    def expired(self, now_ms: int) -> Iterator[tuple[bytes, int]]:
        """Yield the expiry rows up to now, and the offsets in them."""
        first, last = self.keys.expiry(INT64_MIN, 0), self.keys.expiry(now_ms + 1, 0)
        for row_key, _ in self.family.scan(first, last):
            yield row_key, offset_of(row_key)

    def blocks_since(self, timestamp_ms: int, end: End, start: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of offsets from that of `start` on that may hold a record with such a
        timestamp, ascending."""
        last_block, last_group = end.latest >> BLOCK_BITS, end.latest >> GROUP_BITS
        for group in range(start >> GROUP_BITS, last_group + 1):
            newest = end.newest_in_group if group == last_group else self._newest(group)
            if newest < timestamp_ms:
                continue
            first = max(group << (GROUP_BITS - BLOCK_BITS), start >> BLOCK_BITS)
            stop = min((group + 1) << (GROUP_BITS - BLOCK_BITS), last_block)
            block = self.keys.block
            for key, row in self.family.scan(block(_BLOCKS, first), block(_BLOCKS, stop)):
                if BLOCK_ROW.unpack(row)[0] >= timestamp_ms:
                    number = offset_of(key)
                    yield number << BLOCK_BITS, (number + 1) << BLOCK_BITS
        if end.newest_in_block >= timestamp_ms:
            yield last_block << BLOCK_BITS, end.latest

    def _newest(self, group: int) -> int:
        row = self.family.get(self.keys.block(_GROUPS, group))
        # Swept meanwhile: then its blocks are, too.
        newest: int = INT64_MIN if row is None else BLOCK_ROW.unpack(row)[0]
        return newest
