"""One shard in memory, and its four indexes.

    records      the primary index: offset - earliest → the record, None where it was deleted
    by_tag       tag → offsets, ascending
    by_key       key → offsets, ascending
    newest       offset // TIME_BLOCK → a timestamp that none of those records exceeds

Invariants: `by_tag` and `by_key` hold exactly the offsets of the records that are there; no list in
them is empty. Why maxima of blocks and not an index sorted by time: timestamps come in any order,
and the question is for the first offset. A block below the wanted time cannot hold the answer; the
first one that reaches it is searched, and so is the next when its only young records are gone,
for deletions leave the maxima as they are.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from penstock.codec.validation import INT64_MAX, Checked
from penstock.engine.compaction import CompactionPass, CompactionRules
from penstock.engine.contract import Compacted, ShardConfig, ShardInfo, Written
from penstock.engine.producer_table import ProducerTable
from penstock.errors import (
    BadRequestError,
    BusyError,
    RecordTooLargeError,
    ShardSealedError,
    UnknownShardError,
)
from penstock.platform.clock import Clock
from penstock.record import Offset, Producer, Record, ShardId, StoredRecord

TIME_BLOCK: Final = 1024
RECORD_OVERHEAD: Final = 200
"""Bytes that Python takes for a record besides its contents, about."""


class Bounds(NamedTuple):
    """How much one shard may hold, and whether it makes room by dropping its oldest records."""

    records_max: int
    bytes_max: int
    evict: bool


class MemoryShard:
    def __init__(self, shard: ShardId, config: ShardConfig, bounds: Bounds, clock: Clock) -> None:
        self.config = config
        self._shard: Final = shard
        self._default_bounds: Final = bounds
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._sealed = False
        self._deleted = False
        self._producers: Final = ProducerTable()
        self._earliest = 0
        self._count = 0
        self._size = 0
        self._store_timestamp_ms = 0
        self._next_expiry_ms = INT64_MAX  # no record expires before
        self._records: list[StoredRecord | None] = []
        self._by_tag: dict[str, list[int]] = {}
        self._by_key: dict[bytes, list[int]] = {}
        self._newest: dict[int, int] = {}
        self._open_transactions: dict[int, list[tuple[int, int]]] = {}
        """What producers wrote in transactions that are open: by producer id, ranges."""

    def forget(self) -> None:
        with self._lock:
            self._deleted = True

    def alter(self, config: ShardConfig) -> None:
        with self._lock:
            self._check_exists()
            self.config = config

    def seal(self) -> None:
        with self._lock:
            self._check_exists()
            self._sealed = True

    def info(self) -> ShardInfo:
        with self._lock:
            return ShardInfo(
                shard=self._shard,
                earliest=Offset(self._earliest),
                commit=Offset(self._latest),
                latest=Offset(self._latest),
                size=self._size,
                sealed=self._sealed,
            )

    # Writing

    def append(
        self, records: Sequence[Record], checked: Checked, producer: Producer | None
    ) -> Written:
        count = len(records)
        size = checked.size + count * RECORD_OVERHEAD
        with self._lock:
            self._check_exists()
            first = self._latest
            now_ms = self._clock.now_ms()
            if producer is not None:
                known = self._producers.check(producer, count, self._shard.name)
                if known is not None:
                    return Written(Offset(known), count, repeated=True)
            if self._sealed:
                raise ShardSealedError(self._shard.name)
            self._make_room(count, size)
            if checked.values is not None:
                self._put_values(checked.values, now_ms)
            else:
                self._put(records, now_ms)
            self._count += count
            self._size += size
            if producer is not None:
                self._producers.remember(producer, count, first, now_ms)
                if producer.is_transactional:
                    self._add_to_transaction(producer.id, first, first + count)
            return Written(Offset(first), count)

    def _add_to_transaction(self, producer_id: int, first: int, end: int) -> None:
        ranges = self._open_transactions.setdefault(producer_id, [])
        if ranges and ranges[-1][1] == first:
            first = ranges.pop()[0]
        ranges.append((first, end))

    def end_transaction(self, producer_id: int, start: int, *, is_commit: bool) -> int:
        with self._lock:
            self._check_exists()
            ranges = self._open_transactions.pop(producer_id, [])
            if is_commit:
                return 0
            start = max(start, self._earliest)
            records = [
                record
                for first, end in ranges
                for record in self._records[
                    max(first, start) - self._earliest : max(end, start) - self._earliest
                ]
                if record is not None
            ]
            self._remove(records)
            return len(records)

    def _put_values(self, values: list[bytes], now_ms: int) -> None:
        """`_put` of records that are nothing but values, without a step of Python for each."""
        stored_ms = self._store_timestamp_ms = max(now_ms, self._store_timestamp_ms)
        first = self._latest
        last = first + len(values) - 1
        for block in range(first // TIME_BLOCK, last // TIME_BLOCK + 1):
            self._newest[block] = max(self._newest.get(block, now_ms), now_ms)
        none, empty = itertools.repeat(None), itertools.repeat(())
        now, stored, epoch = map(itertools.repeat, (now_ms, stored_ms, 0))
        offsets = cast("Iterator[Offset]", itertools.count(first))
        self._records.extend(
            map(StoredRecord, offsets, values, none, empty, empty, now, none, stored, epoch)
        )

    def _put(self, records: Sequence[Record], now_ms: int) -> None:
        append, newest = self._records.append, self._newest
        stored_ms = self._store_timestamp_ms = max(now_ms, self._store_timestamp_ms)
        # `Offset` is a call, and this loop is what an append costs.
        offsets = cast("Iterator[Offset]", itertools.count(self._latest))
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
                    0,
                )
            )
            if timestamp_ms > block_ms or offset >= block_end:
                block = offset // TIME_BLOCK
                block_end = (block + 1) * TIME_BLOCK
                block_ms = newest[block] = max(newest.get(block, timestamp_ms), timestamp_ms)
            if key is not None:
                self._by_key.setdefault(key, []).append(offset)
            if tags:
                for tag in tags if len(tags) == 1 else set(tags):
                    self._by_tag.setdefault(tag, []).append(offset)
            if expires is not None:
                self._next_expiry_ms = min(expires, self._next_expiry_ms)

    def _make_room(self, count: int, size: int) -> None:
        records_max = self.config.memory_records_max or self._default_bounds.records_max
        bytes_max = self.config.memory_bytes_max or self._default_bounds.bytes_max
        if count > records_max:
            raise BadRequestError(
                f"a batch of {count} records; {self._shard.name!r} holds at most {records_max}"
            )
        if size > bytes_max:
            raise RecordTooLargeError("a batch of records", size=size, size_max=bytes_max)
        if self._count + count <= records_max and self._size + size <= bytes_max:
            return
        self._drop_expired(self._clock.expiry_ms())
        if self._count + count <= records_max and self._size + size <= bytes_max:
            return
        if not self._default_bounds.evict:
            raise BusyError(f"shard {self._shard.name!r} is full and drops nothing by itself")
        self._drop_oldest(
            min(records_max * 4 // 5, records_max - count),
            min(bytes_max * 4 // 5, bytes_max - size),
        )

    # Reading

    def page(self, start: int, max_records: int, max_size: int) -> list[StoredRecord]:
        with self._lock:
            return self._page(self._from(start), max_records, max_size)

    def page_of_tag(
        self, tag: str, start: int, max_records: int, max_size: int
    ) -> list[StoredRecord]:
        with self._lock:
            offsets = self._by_tag.get(tag, [])
            indexes = range(bisect_left(offsets, start), len(offsets))
            return self._page((self._at(offsets[i]) for i in indexes), max_records, max_size)

    def history(
        self, key: bytes, begin_ms: int | None, end_ms: int | None, limit: int
    ) -> list[StoredRecord]:
        records: list[StoredRecord] = []
        with self._lock:
            now_ms = self._clock.expiry_ms()
            for offset in reversed(self._by_key.get(key, [])):
                record = self._at(offset)
                if (
                    is_live(record, now_ms)
                    and (begin_ms is None or begin_ms <= record.timestamp_ms)
                    and (end_ms is None or record.timestamp_ms <= end_ms)
                ):
                    records.append(record)
                    if len(records) == limit:
                        break
        return records

    def first_since(self, timestamp_ms: int, start: int = 0) -> Offset | None:
        with self._lock:
            now_ms = self._clock.expiry_ms()
            first = max(start, self._earliest)
            for block in range(first // TIME_BLOCK, self._latest // TIME_BLOCK + 1):
                if self._newest.get(block, timestamp_ms - 1) < timestamp_ms:
                    continue
                for record in self._block(block):
                    if record.offset < first or record.timestamp_ms < timestamp_ms:
                        continue
                    if is_live(record, now_ms):
                        return record.offset
        return None

    def _page(
        self, records: Iterable[StoredRecord], max_records: int, max_size: int
    ) -> list[StoredRecord]:
        page: list[StoredRecord] = []
        now_ms, size = self._clock.expiry_ms(), 0
        for record in records:
            if is_live(record, now_ms):
                size += payload_size(record)
                if page and size > max_size:
                    break
                page.append(record)
                if len(page) == max_records:
                    break
        return page

    # Deleting

    def delete_key(self, key: bytes) -> int:
        with self._lock:
            self._check_exists()
            now_ms = self._clock.expiry_ms()
            records = [self._at(offset) for offset in self._by_key.get(key, [])]
            self._remove(records)
            return sum(is_live(record, now_ms) for record in records)

    def delete_offset(self, offset: int) -> bool:
        with self._lock:
            self._check_exists()
            index = offset - self._earliest
            record = self._records[index] if 0 <= index < len(self._records) else None
            if record is None:
                return False
            self._remove([record])
            return is_live(record, self._clock.expiry_ms())

    def delete_before(self, offset: int) -> Offset:
        with self._lock:
            self._check_exists()
            self._drop_before(min(offset, self._latest))
            return Offset(self._earliest)

    def compact(self, stable_until: Callable[[], int | None]) -> Compacted:
        with self._lock:
            self._check_exists()
            if not self.config.cleanup.compacts:
                return Compacted(0, 0)
            now_ms, size_before = self._clock.expiry_ms(), self._size
            stable = stable_until()
            until = self._latest if stable is None else stable
            compaction = CompactionPass(CompactionRules.of(self.config, now_ms), until)
            for record in self._from(self._earliest):
                if is_live(record, now_ms) and not compaction.add_record(record):
                    break
            result = compaction.finish()
            self._remove([self._at(offset) for offset in result.offsets])
            return Compacted(len(result.offsets), size_before - self._size, result.again_ms)

    def remove_expired(self) -> Compacted:
        with self._lock:
            self._check_exists()
            count_before, size_before = self._count, self._size
            self._drop_expired(self._clock.expiry_ms())
            return Compacted(count_before - self._count, size_before - self._size)

    def first_within(self, size: int) -> int:
        with self._lock:
            excess = self._size - size
            for record in self._from(self._earliest):
                if excess <= 0:
                    return record.offset
                excess -= payload_size(record) + RECORD_OVERHEAD
            return self._latest

    def _drop_before(self, offset: int) -> None:
        if offset <= self._earliest:
            return
        dropped = self._records[: offset - self._earliest]
        self._remove([record for record in dropped if record is not None])
        del self._records[: len(dropped)]
        for block in range(self._earliest // TIME_BLOCK, offset // TIME_BLOCK):
            self._newest.pop(block, None)
        self._earliest = offset

    def _drop_oldest(self, count_left: int, size_left: int) -> None:
        count, size, dropped = self._count, self._size, 0
        while dropped < len(self._records) and (count > count_left or size > size_left):
            block = self._records[dropped : dropped + TIME_BLOCK]
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
        self._drop_before(self._earliest + dropped)

    def _drop_expired(self, now_ms: int) -> None:
        if self._next_expiry_ms > now_ms:
            return
        records = [record for record in self._records if record is not None]
        self._remove([record for record in records if not is_live(record, now_ms)])
        self._next_expiry_ms = min(
            (r.expires_at_ms for r in records if r.expires_at_ms and r.expires_at_ms > now_ms),
            default=INT64_MAX,
        )

    def _remove(self, records: Sequence[StoredRecord]) -> None:
        keys: dict[bytes, list[int]] = {}
        tags: dict[str, list[int]] = {}
        self._size -= sum(stored_sizes(records))
        self._count -= len(records)
        for record in records:
            self._records[record.offset - self._earliest] = None
            if record.key is not None:
                keys.setdefault(record.key, []).append(record.offset)
            if record.tags:
                for tag in set(record.tags):
                    tags.setdefault(tag, []).append(record.offset)
        _remove_offsets(self._by_key, keys)
        _remove_offsets(self._by_tag, tags)

    # The primary index

    @property
    def _latest(self) -> int:
        return self._earliest + len(self._records)

    def _at(self, offset: int) -> StoredRecord:
        record = self._records[offset - self._earliest]
        assert record is not None, "an index names a record that is gone"
        return record

    def _from(self, start: int) -> Iterator[StoredRecord]:
        for index in range(max(0, start - self._earliest), len(self._records)):
            record = self._records[index]
            if record is not None:
                yield record

    def _block(self, block: int) -> Iterator[StoredRecord]:
        start = max(0, block * TIME_BLOCK - self._earliest)
        end = max(0, (block + 1) * TIME_BLOCK - self._earliest)
        return (record for record in self._records[start:end] if record is not None)

    def _check_exists(self) -> None:
        if self._deleted:
            raise UnknownShardError(self._shard.name)


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
