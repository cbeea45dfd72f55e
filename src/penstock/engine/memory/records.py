"""The records of one shard in memory, and their indexes. The caller holds the shard's lock.

    slots    the primary index: offset - earliest → the record, None where there is none
    by_tag   tag → offsets, ascending
    by_key   key → offsets, ascending
    newest   offset // TIME_BLOCK → a timestamp that none of those records exceeds

Invariants: `by_tag` and `by_key` hold exactly the offsets of the records that are there; no list in
them is empty. Why maxima of blocks and not an index sorted by time: timestamps come in any order,
and the question is for the first offset. A block below the wanted time cannot hold the answer; the
first one that reaches it is searched, and so is the next when its only young records are gone,
for deletions leave the maxima as they are.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar, cast

from penstock.codec.validation import INT64_MAX
from penstock.record import Offset, Record, StoredRecord

TIME_BLOCK: Final = 1024
RECORD_OVERHEAD: Final = 200
"""Bytes that Python takes for a record besides its contents, about."""


class MemoryRecords:
    def __init__(self) -> None:
        self.slots: list[StoredRecord | None] = []
        self.by_tag: dict[str, list[int]] = {}
        self.by_key: dict[bytes, list[int]] = {}
        self.newest: dict[int, int] = {}
        self.earliest = 0
        self.count = 0
        self.size = 0
        self.store_timestamp_ms = 0
        self.next_expiry_ms = INT64_MAX  # no record expires before

    @property
    def latest(self) -> int:
        return self.earliest + len(self.slots)

    # Adding

    def put_values(self, values: list[bytes], now_ms: int, epoch: int) -> None:
        """`put` of records that are nothing but values, without a step of Python for each."""
        stored_ms = self.store_timestamp_ms = max(now_ms, self.store_timestamp_ms)
        first = self.latest
        last = first + len(values) - 1
        for block in range(first // TIME_BLOCK, last // TIME_BLOCK + 1):
            self.newest[block] = max(self.newest.get(block, now_ms), now_ms)
        none, empty = itertools.repeat(None), itertools.repeat(())
        now, stored, leader = map(itertools.repeat, (now_ms, stored_ms, epoch))
        offsets = cast("Iterator[Offset]", itertools.count(first))
        self.slots.extend(
            map(StoredRecord, offsets, values, none, empty, empty, now, none, stored, leader)
        )

    def put(self, records: Sequence[Record], now_ms: int, epoch: int) -> None:
        append, newest = self.slots.append, self.newest
        stored_ms = self.store_timestamp_ms = max(now_ms, self.store_timestamp_ms)
        # `Offset` is a call, and this loop is what an append costs.
        offsets = cast("Iterator[Offset]", itertools.count(self.latest))
        block_ms, block_end = INT64_MAX, 0
        for record, offset in zip(records, offsets, strict=False):
            timestamp_ms = record.timestamp_ms
            if timestamp_ms is None:
                timestamp_ms = now_ms
            key, tags, expires = record.key, record.tags, record.expires_at_ms
            append(
                StoredRecord(
                    offset,
                    record.value,
                    key,
                    tags,
                    record.headers,
                    timestamp_ms,
                    expires,
                    stored_ms,
                    epoch,
                )
            )
            if timestamp_ms > block_ms or offset >= block_end:
                block = offset // TIME_BLOCK
                block_end = (block + 1) * TIME_BLOCK
                block_ms = newest[block] = max(newest.get(block, timestamp_ms), timestamp_ms)
            if key is not None:
                self.by_key.setdefault(key, []).append(offset)
            if tags:
                for tag in tags if len(tags) == 1 else set(tags):
                    self.by_tag.setdefault(tag, []).append(offset)
            if expires is not None:
                self.next_expiry_ms = min(expires, self.next_expiry_ms)

    def copy(self, first: int, count: int, records: Sequence[StoredRecord]) -> None:
        """Add the offsets of a write of another replica, and those of its records that exist."""
        assert first == self.latest, "a copied write follows the last one"
        self.slots.extend(itertools.repeat(None, count))
        for record in records:
            offset = record.offset
            self.slots[offset - self.earliest] = record
            block = offset // TIME_BLOCK
            self.newest[block] = max(
                self.newest.get(block, record.timestamp_ms), record.timestamp_ms
            )
            if record.key is not None:
                self.by_key.setdefault(record.key, []).append(offset)
            for tag in set(record.tags):
                self.by_tag.setdefault(tag, []).append(offset)
            if record.expires_at_ms is not None:
                self.next_expiry_ms = min(record.expires_at_ms, self.next_expiry_ms)
            self.store_timestamp_ms = max(record.store_timestamp_ms, self.store_timestamp_ms)
        self.count += len(records)
        self.size += sum(stored_sizes(records))

    # Removing

    def remove(self, records: Sequence[StoredRecord]) -> None:
        keys: dict[bytes, list[int]] = {}
        tags: dict[str, list[int]] = {}
        self.size -= sum(stored_sizes(records))
        self.count -= len(records)
        for record in records:
            self.slots[record.offset - self.earliest] = None
            if record.key is not None:
                keys.setdefault(record.key, []).append(record.offset)
            if record.tags:
                for tag in set(record.tags):
                    tags.setdefault(tag, []).append(record.offset)
        _remove_offsets(self.by_key, keys)
        _remove_offsets(self.by_tag, tags)

    def drop_before(self, offset: int) -> None:
        if offset <= self.earliest:
            return
        dropped = self.slots[: offset - self.earliest]
        self.remove([record for record in dropped if record is not None])
        del self.slots[: len(dropped)]
        for block in range(self.earliest // TIME_BLOCK, offset // TIME_BLOCK):
            self.newest.pop(block, None)
        self.earliest = offset

    def cut(self, offset: int) -> None:
        """Forget the offsets from `offset` on."""
        end = self.latest
        self.remove(list(self.scan(offset, end)))
        del self.slots[offset - self.earliest :]
        for block in range(offset // TIME_BLOCK, end // TIME_BLOCK + 1):
            self.newest.pop(block, None)
        last = list(self.block(offset // TIME_BLOCK))
        if last:
            self.newest[offset // TIME_BLOCK] = max(record.timestamp_ms for record in last)
        before = next((r for r in reversed(self.slots) if r is not None), None)
        self.store_timestamp_ms = 0 if before is None else before.store_timestamp_ms

    def drop_expired(self, now_ms: int) -> None:
        if self.next_expiry_ms > now_ms:
            return
        records = [record for record in self.slots if record is not None]
        self.remove([record for record in records if not is_live(record, now_ms)])
        self.next_expiry_ms = min(
            (r.expires_at_ms for r in records if r.expires_at_ms and r.expires_at_ms > now_ms),
            default=INT64_MAX,
        )

    def first_of_last(self, count_left: int, size_left: int) -> int:
        """Return the first offset of the newest records within both limits."""
        count, size, dropped = self.count, self.size, 0
        while dropped < len(self.slots) and (count > count_left or size > size_left):
            block = self.slots[dropped : dropped + TIME_BLOCK]
            sizes = stored_sizes([record for record in block if record is not None])
            if count - len(sizes) > count_left or size - sum(sizes) > size_left:
                # All of it, and more.
                count, size, dropped = count - len(sizes), size - sum(sizes), dropped + len(block)
                continue
            left = iter(sizes)
            for record in block:
                if count <= count_left and size <= size_left:
                    break
                dropped += 1
                if record is not None:
                    count -= 1
                    size -= next(left)
        return self.earliest + dropped

    # The primary index

    def at(self, offset: int) -> StoredRecord:
        record = self.slots[offset - self.earliest]
        assert record is not None, "an index names a record that is gone"
        return record

    def find(self, offset: int) -> StoredRecord | None:
        index = offset - self.earliest
        return self.slots[index] if 0 <= index < len(self.slots) else None

    def scan(self, start: int, end: int) -> Iterator[StoredRecord]:
        slots = self.slots
        for index in range(max(0, start - self.earliest), min(len(slots), end - self.earliest)):
            record = slots[index]
            if record is not None:
                yield record

    def block(self, block: int) -> Iterator[StoredRecord]:
        start = max(0, block * TIME_BLOCK - self.earliest)
        end = max(0, (block + 1) * TIME_BLOCK - self.earliest)
        return (record for record in self.slots[start:end] if record is not None)


def is_live(record: StoredRecord, now_ms: int) -> bool:
    return record.expires_at_ms is None or record.expires_at_ms > now_ms


def stored_sizes(records: Sequence[StoredRecord]) -> list[int]:
    """Return what each record counts for."""
    # Records that are nothing but values, the commonest, are dropped by the hundred thousand.
    values = [
        record.value
        for record in records
        if record.value is not None
        and record.key is None
        and not record.tags
        and not record.headers
    ]
    if len(values) == len(records):
        return [len(value) + RECORD_OVERHEAD for value in values]
    return [payload_size(record) + RECORD_OVERHEAD for record in records]


def payload_size(record: StoredRecord) -> int:
    """Return the bytes of value, key, tags and headers."""
    size = len(record.value or b"") + len(record.key or b"")
    if record.tags:
        size += sum(_text_size(tag) for tag in record.tags)
    if record.headers:
        size += sum(_text_size(name) + len(value or b"") for name, value in record.headers)
    return size


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


Name = TypeVar("Name", str, bytes)


def _remove_offsets(index: dict[Name, list[int]], gone: dict[Name, list[int]]) -> None:
    """Remove the offsets in `gone` from an index of ascending offsets."""
    for name, removed in gone.items():
        offsets = index[name]
        if len(removed) == 1:
            del offsets[bisect_left(offsets, removed[0])]
        else:
            # One pass: taking them out singly would move the rest of the list every time.
            missing = set(removed)
            offsets[:] = [offset for offset in offsets if offset not in missing]
        if not offsets:
            del index[name]
