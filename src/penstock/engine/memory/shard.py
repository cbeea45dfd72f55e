"""One shard in memory: who may write to it, what readers see, and its replica.

See `records` for the indexes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.codec.validation import Checked
from penstock.engine.compaction import CompactionPass, CompactionRules, Removal
from penstock.engine.contract import Compacted, ShardConfig, ShardInfo, Written
from penstock.engine.memory.records import (
    RECORD_OVERHEAD,
    TIME_BLOCK,
    is_live,
    payload_size,
)
from penstock.engine.memory.replica_store import MemoryReplicaStore
from penstock.engine.row_replica import Announce
from penstock.errors import (
    BadRequestError,
    BusyError,
    RecordTooLargeError,
    ShardSealedError,
)
from penstock.platform.clock import Clock
from penstock.record import Offset, Producer, Record, ShardId, StoredRecord


class Bounds(NamedTuple):
    """How much one shard may hold, and whether it makes room by dropping its oldest records."""

    records_max: int
    bytes_max: int
    evict: bool


class MemoryShard(MemoryReplicaStore):
    def __init__(
        self,
        shard: ShardId,
        config: ShardConfig,
        bounds: Bounds,
        clock: Clock,
        announce: Announce,
    ) -> None:
        super().__init__(shard, clock, announce)
        self._config = config
        self._default_bounds: Final = bounds

    @property
    def config(self) -> ShardConfig:
        return self._config

    def delete(self) -> None:
        with self.lock:
            self._mark_deleted()

    def alter(self, config: ShardConfig) -> None:
        with self.lock:
            self.check_exists()
            self._config = config

    def _seal(self) -> None:
        with self.lock:
            self.check_exists()
            self._sealed = True

    def info(self) -> ShardInfo:
        with self.lock:
            return ShardInfo(
                shard=self.shard,
                earliest=Offset(self._records.earliest),
                commit=Offset(self._end),
                latest=Offset(self._end),
                size=self._records.size,
                sealed=self._sealed,
            )

    # Writing

    def append(
        self, records: Sequence[Record], checked: Checked, producer: Producer | None
    ) -> Written:
        count = len(records)
        size = checked.size + count * RECORD_OVERHEAD
        with self.lock:
            self.check_exists()
            replica = self.replica
            epoch = 0 if replica is None else replica.check_leads()
            first = self._records.latest
            now_ms = self._clock.now_ms()
            if producer is not None:
                known = self._producers.check(producer, count, self.shard.name)
                if known is not None:
                    return Written(Offset(known), count, repeated=True)
            if self._sealed:
                raise ShardSealedError(self.shard.name)
            self._make_room(count, size)
            if replica is not None:
                self._log_write(replica, records, producer, now_ms)
            if checked.values is not None:
                self._records.put_values(checked.values, now_ms, epoch)
            else:
                self._records.put(records, now_ms, epoch)
            self._records.count += count
            self._records.size += size
            if producer is not None:
                self._producers.remember(producer, count, first, now_ms)
                if producer.is_transactional:
                    self._add_to_transaction(producer.id, first, first + count)
            return Written(Offset(first), count)

    def _end_transaction(self, producer_id: int, start: int, *, is_commit: bool) -> int:
        with self.lock:
            self.check_exists()
            ranges = self._open_transactions.pop(producer_id, [])
            if is_commit:
                return 0
            records = list(self._transacted(ranges, start))
            self._records.remove(records)
            return len(records)

    def _make_room(self, count: int, size: int) -> None:
        records_max = self.config.memory_records_max or self._default_bounds.records_max
        bytes_max = self.config.memory_bytes_max or self._default_bounds.bytes_max
        if count > records_max:
            raise BadRequestError(
                f"a batch of {count} records; {self.shard.name!r} holds at most {records_max}"
            )
        if size > bytes_max:
            raise RecordTooLargeError("a batch of records", size=size, size_max=bytes_max)
        records = self._records
        if records.count + count <= records_max and records.size + size <= bytes_max:
            return
        if self.replica is None:
            records.drop_expired(self._clock.expiry_ms())
            if records.count + count <= records_max and records.size + size <= bytes_max:
                return
        if not self._default_bounds.evict:
            raise BusyError(f"shard {self.shard.name!r} is full and drops nothing by itself")
        keep_from = records.first_of_last(
            min(records_max * 4 // 5, records_max - count),
            min(bytes_max * 4 // 5, bytes_max - size),
        )
        if self.replica is None:
            records.drop_before(keep_from)
            return
        self.replica.evict_before(keep_from)
        if records.count + count > records_max * 5 // 4 or records.size + size > bytes_max * 5 // 4:
            raise BusyError(
                f"shard {self.shard.name!r} is full until its replicas confirm that the oldest "
                "records go; try again"
            )

    # Reading

    def page(self, start: int, max_records: int, max_size: int) -> list[StoredRecord]:
        with self.lock:
            return self._page(self._records.scan(start, self._end), max_records, max_size)

    def page_of_tag(
        self, tag: str, start: int, max_records: int, max_size: int
    ) -> list[StoredRecord]:
        with self.lock:
            offsets = self._records.by_tag.get(tag, [])
            indexes = range(bisect_left(offsets, start), bisect_left(offsets, self._end))
            record_at = self._records.at
            return self._page((record_at(offsets[i]) for i in indexes), max_records, max_size)

    def history(
        self, key: bytes, begin_ms: int | None, end_ms: int | None, limit: int
    ) -> list[StoredRecord]:
        records: list[StoredRecord] = []
        with self.lock:
            now_ms, end = self._clock.expiry_ms(), self._end
            for offset in reversed(self._records.by_key.get(key, [])):
                if offset >= end:
                    continue
                record = self._records.at(offset)
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
        with self.lock:
            now_ms, end = self._clock.expiry_ms(), self._end
            first = max(start, self._records.earliest)
            for block in range(first // TIME_BLOCK, end // TIME_BLOCK + 1):
                if self._records.newest.get(block, timestamp_ms - 1) < timestamp_ms:
                    continue
                for record in self._records.block(block):
                    if not first <= record.offset < end or record.timestamp_ms < timestamp_ms:
                        continue
                    if is_live(record, now_ms):
                        return record.offset
        return None

    def first_within(self, size: int) -> int:
        with self.lock:
            excess = self._records.size - size
            for record in self._records.scan(self._records.earliest, self._end):
                if excess <= 0:
                    return record.offset
                excess -= payload_size(record) + RECORD_OVERHEAD
            return self._end

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

    def _delete_key(self, key: bytes) -> int:
        with self.lock:
            self.check_exists()
            return self.remove(self._records.by_key.get(key, [])).live

    def _delete_offset(self, offset: int) -> bool:
        with self.lock:
            self.check_exists()
            return self.remove([offset]).live > 0

    def _delete_before(self, offset: int) -> Offset:
        with self.lock:
            self.check_exists()
            self._records.drop_before(min(offset, self._records.latest))
            return Offset(self._records.earliest)

    def _compact(self, stable_until: Callable[[], int | None]) -> Compacted:
        with self.lock:
            self.check_exists()
            result = self._compaction(stable_until)
            removed = self.remove(result.offsets)
            return Compacted(removed.records, removed.size, result.again_ms)

    def _remove_expired(self) -> Compacted:
        with self.lock:
            self.check_exists()
            records = self._records
            count_before, size_before = records.count, records.size
            records.drop_expired(self._clock.expiry_ms())
            return Compacted(count_before - records.count, size_before - records.size)

    def compactable(
        self, stable_until: Callable[[], int | None]
    ) -> tuple[Iterator[int], int | None]:
        with self.lock:
            result = self._compaction(stable_until)
        return iter(result.offsets), result.again_ms

    def _compaction(self, stable_until: Callable[[], int | None]) -> Removal:
        now_ms, end = self._clock.expiry_ms(), self._end
        stable = stable_until()
        until = end if stable is None else min(end, stable)
        compaction = CompactionPass(CompactionRules.of(self.config, now_ms), until)
        for record in self._records.scan(self._records.earliest, end):
            if is_live(record, now_ms) and not compaction.add_record(record):
                break
        return compaction.finish()
