"""Reads of a shard whose older records only the tier holds; a page may end in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.codec.validation import INT64_MAX, INT64_MIN
from penstock.engine.contract import BatchPage
from penstock.engine.segment import SegmentStore
from penstock.errors import CorruptionError, UnreadableContentError
from penstock.record import ShardId, StoredRecord
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.read.cold_batches import read_cold_batches
from penstock.tiered.read.tier_query import TierQuery
from penstock.tiered.shard_tiers import ShardTiers

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile

READ_FAILURES: Final = (CorruptionError, UnreadableContentError)
"""Why a read ends before a record."""
_RECORD_OVERHEAD: Final = 100
_UNLIMITED: Final = 1 << 60


class TwoTierReader:
    def __init__(self, store: SegmentStore, tiers: ShardTiers, metrics: TierMetrics) -> None:
        self._store: Final = store
        self._tiers: Final = tiers
        self._metrics: Final = metrics

    def read(self, shard: ShardId, query: TierQuery) -> list[StoredRecord]:
        """Read from the tier, and continue in the log where the tier ends. Offsets that retention
        removes from the log meanwhile are read from the tier."""
        records: list[StoredRecord] = []
        offset, size_left = query.offset, min(query.max_size, _UNLIMITED)
        count_left = min(query.max_records, _UNLIMITED)
        while size_left > 0 and count_left > 0:
            start = self._start_of_log(shard)
            rest = query._replace(
                offset=offset, until=start, max_records=count_left, max_size=size_left
            )
            try:
                page, after = self._read_one_tier(shard, rest)
            except READ_FAILURES:
                if not records:
                    raise
                return records  # the next read begins at the failure and raises it
            if after is None:
                if self._start_of_log(shard) > max(offset, start):
                    continue
                over = records and page and _size(page[0]) > size_left
                return records if over else records + page
            if records and page and _size(page[0]) > size_left:
                return records
            records += page
            size_left -= sum(_size(record) for record in page)
            count_left -= len(page)
            if after < start:
                return records
            offset = after
        return records

    def _read_one_tier(
        self, shard: ShardId, query: TierQuery
    ) -> tuple[list[StoredRecord], int | None]:
        """Return records of the tier and the offset to continue at; of the log, and None."""
        flat = self._tiers.flat(shard) if query.until > 0 else None
        if flat is not None and query.offset < min(query.until, self._tiers.bounds(shard)[1]):
            self._metrics.cold_reads.inc()
            page = flat.reader.read(query)
            at_end = page.next_offset >= self._tiers.bounds(shard)[1]
            return page.records, query.until if at_end else page.next_offset
        page_of_log = self._store.read_page(
            shard,
            query.offset,
            max_records=query.max_records,
            max_size=query.max_size,
            tag=query.tag,
        )
        return page_of_log.records, None

    def read_batches(
        self, shard: ShardId, offset: int, until: int, max_size: int
    ) -> BatchPage | None:
        """Return batches that only the tier holds; None when it has none at `offset`."""
        start = self._start_of_log(shard)
        flat = self._tiers.flat(shard) if offset < start else None
        if flat is None:
            return None
        self._metrics.cold_reads.inc()
        return read_cold_batches(flat, offset, min(start, until), max_size)

    def read_raw(self, shard: ShardId, query: TierQuery) -> list[bytes]:
        """Return whole records (batches) that only the tier holds."""
        start = self._start_of_log(shard)
        flat = self._tiers.flat(shard) if query.offset < start else None
        if flat is None:
            return []
        self._metrics.cold_reads.inc()
        return flat.reader.read_raw(query._replace(until=start))

    def offset_by_time(
        self, shard: ShardId, flat: CompositeFlatFile, timestamp_ms: int
    ) -> int | None:
        """Return the offset of the first live record that is not older than a time; the log is
        searched only when the tier has none below the log's start."""
        start = self._start_of_log(shard)
        offset = flat.reader.offset_by_time(timestamp_ms, start)
        if offset is not None or timestamp_ms > INT64_MAX:
            return offset
        offset = self._store.offset_by_timestamp(shard, max(INT64_MIN, timestamp_ms))
        moved = self._start_of_log(shard)
        if moved == start:
            return offset
        # Retention moved the log's start meanwhile.
        cold = flat.reader.offset_by_time(timestamp_ms, moved)
        return offset if cold is None else cold

    def _start_of_log(self, shard: ShardId) -> int:
        return int(self._store.bounds(shard).earliest)


def _size(record: StoredRecord) -> int:
    return _RECORD_OVERHEAD + len(record.value or b"") + len(record.key or b"")
