"""The part of a read from a tier that runs in Spark's workers: chunks become Arrow batches.

Whole chunks are fetched ahead, several at a time; of a chunk that is wanted in part, only the
blocks that hold the part. Chunks that the filters rule out are not fetched. A chunk that is gone,
because the tier was compacted or has expired since, is looked for once more in the newest manifest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.codec.deleted_ranges import cover
from penstock.codec.format import (
    BATCH_UNIT,
    KIND_BATCH,
    KIND_SIMPLE,
    PRE_BLANK,
    QUEUE_UNIT,
    Damage,
)
from penstock.codec.select import core
from penstock.engine.segment import UnitsRead, find_unreadable
from penstock.errors import CorruptionError
from penstock.pipeline.columns import BatchMaker, fields_of
from penstock.pipeline.read.ranges import ShardRange, available_part
from penstock.pipeline.read.tier_source import may_pass
from penstock.pipeline.read.tiers import shared_tier
from penstock.platform.clock import SystemClock
from penstock.record import QueueKind
from penstock.tiered import ChunkEntry, Footer, Manifest
from penstock.tiered.providers import ObjectMissingError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipeline.read.reading import Counts, Scan

ROWS_PER_BATCH: Final = 4096
SIZE_PER_BATCH: Final = 8 << 20
_UNLIMITED: Final = 1 << 62


class _Data(NamedTuple):
    """Bytes of a chunk that hold the records of the units [first, stop), and their position."""

    entry: ChunkEntry
    footer: Footer
    data: bytes | memoryview
    position: int
    first: int
    stop: int


class TierRangeReader:
    """Reads one range of offsets from a tier."""

    def __init__(
        self, scan: Scan, url: str, shard_range: ShardRange, make: BatchMaker, counts: Counts
    ) -> None:
        self._scan: Final = scan
        self._shard: Final = shard_range.shard
        self._make: Final = make
        self._fields: Final = fields_of(make.columns)
        self._tag: Final = scan.tag if scan.tag is not None else scan.filters.tag
        self._counts: Final = counts
        tier = shared_tier(url, scan.query)
        self._fetcher: Final = tier.fetcher
        self._flat: Final = tier.flat(shard_range.shard)
        self._prefix: Final = self._flat.manifest.prefix
        self._now_ms: Final = SystemClock().now_ms()
        self._manifest, self._start, self._end = self._bounds(shard_range)

    def _bounds(self, shard_range: ShardRange) -> tuple[Manifest | None, int, int]:
        manifest = self._flat.current()
        if (
            manifest is None
            or not manifest.start_offset
            <= shard_range.start
            < shard_range.end
            <= manifest.end_offset
        ):
            manifest = self._flat.refresh()
        first, end = (0, 0) if manifest is None else (manifest.start_offset, manifest.end_offset)
        fail = self._scan.fail_on_data_loss
        first, end, lost = available_part(shard_range, first, end, fail=fail)
        self._counts.records_lost += lost
        return manifest, first, end

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range."""
        offset, tries = self._start, 0
        while offset < self._end and self._manifest is not None:
            try:
                for data in self._fetched(self._entries(offset)):
                    yield from self._whole(data, offset)
                    offset, tries = data.entry.end_offset, 0
                    del data  # a chunk that waits for the next one is one too many in memory
                return
            except ObjectMissingError as error:
                if tries:
                    raise self._gone(error, offset) from error
                tries += 1
                self._manifest, offset, _ = self._bounds(ShardRange(self._shard, offset, self._end))
            except CorruptionError:
                if not self._scan.skip_damage:
                    raise
                entry = self._entry_at(offset)
                yield from self._without_damage(entry, offset)
                offset = entry.end_offset

    def by_key(self) -> Iterator[pa.RecordBatch]:
        """Yield the records that the wanted keys' hashes point at; others of the same hash among
        them are left to the filters."""
        keys = sorted(self._scan.filters.keys or ())
        for entry in self._entries(self._start):
            footer = self._fetcher.footer(self._prefix, entry)
            units = sorted({unit for key in keys for unit in footer.units_of_key(key)})
            for unit in units:
                for data in self._part(entry, footer, unit, unit + 1):
                    yield from self._decoded(data, self._start)

    # Fetching

    def _entries(self, offset: int) -> list[ChunkEntry]:
        chunks = self._flat.manifest.chunks_from(offset, self._manifest)
        entries = []
        for entry in chunks:
            if entry.first_offset >= self._end:
                break
            if may_pass(entry, self._scan.filters):
                entries.append(entry)
        return entries

    def _entry_at(self, offset: int) -> ChunkEntry:
        """Return the chunk whose reading failed: the first one that was not done."""
        return self._entries(offset)[0]

    def _fetched(self, entries: list[ChunkEntry]) -> Iterator[_Data]:
        """Yield what is wanted of each chunk, in order."""
        last = len(entries)
        if len(entries) > 1 and self._is_part(entries[-1]):
            last -= 1
        first = 1 if entries and self._is_part(entries[0]) else 0
        for entry in entries[:first]:
            yield from self._part_of(entry)
        for chunk in self._fetcher.stream(self._prefix, entries[first:last]):
            entry, footer = chunk.entry, chunk.footer
            self._count(entry.size)
            yield _Data(entry, footer, chunk.data, entry.position, *self._units(entry, footer))
        for entry in entries[max(first, last) :]:
            yield from self._part_of(entry)

    def _is_part(self, entry: ChunkEntry) -> bool:
        """Say whether less than half of a chunk is wanted."""
        needed = min(entry.end_offset, self._end) - max(entry.first_offset, self._start)
        return 2 * needed < entry.end_offset - entry.first_offset

    def _part_of(self, entry: ChunkEntry) -> Iterator[_Data]:
        footer = self._fetcher.footer(self._prefix, entry)
        yield from self._part(entry, footer, *self._units(entry, footer))

    def _part(self, entry: ChunkEntry, footer: Footer, first: int, stop: int) -> Iterator[_Data]:
        """Fetch the records of some units; nothing when there are none."""
        start, end = _span(footer, first, stop)
        if start < end:
            blocks = self._fetcher.read(self._prefix, entry, start, end)
            self._count(end - start)
            yield _Data(entry, footer, blocks.data, blocks.position, first, stop)

    def _units(self, entry: ChunkEntry, footer: Footer) -> tuple[int, int]:
        """Return the units [first, stop) that hold the offsets of the range."""
        if footer.kind is QueueKind.SIMPLE:
            first = self._start - entry.units_offset
            stop = self._end - entry.units_offset
            return max(0, first), max(0, min(entry.units, stop))
        bases = _bases(footer)
        return max(0, bisect_right(bases, self._start) - 1), bisect_right(bases, self._end - 1)

    def _count(self, size: int) -> None:
        self._counts.chunks_read += 1
        self._counts.bytes_read += size

    # Decoding

    def _decoded(self, data: _Data, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of fetched units from `offset` on, in batches."""
        entry, footer, buffer, position, first, stop = data
        simple = footer.kind is QueueKind.SIMPLE
        bases = [] if simple else _bases(footer)
        if first >= stop:
            return
        offset = max(offset, self._start, entry.units_offset + first if simple else bases[first])
        end = min(self._end, entry.units_offset + stop) if simple else self._end
        while offset < end:
            unit = offset - entry.units_offset if simple else bisect_right(bases, offset) - 1
            if not simple and bases[unit] + _count_of(footer, unit) <= offset:
                unit += 1  # these batches were removed
            if unit >= stop:
                return
            units = footer.units[max(unit, first) * footer.unit_size : stop * footer.unit_size]
            columns, after, _, damage = core.read_columns(
                buffer,
                position,
                units,
                KIND_SIMPLE if simple else KIND_BATCH,
                offset,
                self._shard.topic,
                self._shard.partition,
                ROWS_PER_BATCH,
                SIZE_PER_BATCH,
                self._hidden(offset, simple=simple),
                self._now_ms,
                self._tag,
                self._fields,
            )
            if damage is not None and after <= offset:
                read = UnitsRead(buffer, position, units, offset)
                offset = self._after_failure(entry, footer.kind, read, damage)
                continue
            batch = self._make.from_columns(columns)
            self._counts.rows_read += batch.num_rows
            if batch.num_rows:
                yield batch
            if after <= offset:
                return
            offset = after

    def _after_failure(
        self, entry: ChunkEntry, kind: QueueKind, read: UnitsRead, damage: Damage
    ) -> int:
        """Return the offset to continue at after an undecodable record; raise if it is damaged or
        requested. Such a record has no tag and may be deleted."""
        failure = find_unreadable(self._shard, kind, read, damage)
        if failure is None:
            raise CorruptionError(self._name(entry), position=damage.position, reason=damage.reason)
        end = min(failure.next_offset, self._end)
        hidden = self._hidden(read.offset, simple=kind is QueueKind.SIMPLE)
        if self._tag is None and not cover(hidden, max(read.offset, failure.offset), end):
            raise failure
        return failure.next_offset

    def _whole(self, data: _Data, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of fetched units; where damage is skipped, all of them or none."""
        if not self._scan.skip_damage:
            yield from self._decoded(data, offset)
            return
        before = self._counts.rows_read
        try:
            batches = list(self._decoded(data, offset))
        except CorruptionError:
            self._counts.rows_read = before
            raise
        yield from batches

    def _hidden(self, offset: int, *, simple: bool) -> list[tuple[int, int]]:
        """The deleted ranges; a batch that reaches past the end is cut there, too."""
        assert self._manifest is not None
        deleted = self._flat.reader.deleted(self._manifest).overlapping(offset, self._end)
        return deleted if simple else [*deleted, (self._end, _UNLIMITED)]

    # Damage

    def _without_damage(self, entry: ChunkEntry, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield what can still be read of a damaged chunk; count the rest."""
        try:
            footer = self._fetcher.footer(self._prefix, entry)
        except CorruptionError:
            begin, end = max(offset, entry.first_offset), min(self._end, entry.end_offset)
            self._counts.records_damaged += end - begin
            return
        yield from self._halves(entry, footer, offset, *self._units(entry, footer))

    def _halves(
        self, entry: ChunkEntry, footer: Footer, offset: int, first: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """Read units; when that fails, read each half by itself, down to the damaged ones."""
        if first >= stop:
            return
        try:
            parts = self._part(entry, footer, first, stop)
            batches = [batch for data in parts for batch in self._whole(data, offset)]
        except CorruptionError:
            if stop - first == 1:
                self._counts.records_damaged += _count_of(footer, first)
                return
            middle = (first + stop) // 2
            yield from self._halves(entry, footer, offset, first, middle)
            yield from self._halves(entry, footer, offset, middle, stop)
        else:
            yield from batches

    def _name(self, entry: ChunkEntry) -> str:
        return f"{self._fetcher.provider.url.rstrip('/')}/{self._prefix}{entry.name}"

    def _gone(self, error: ObjectMissingError, offset: int) -> CorruptionError:
        return CorruptionError(
            f"{self._fetcher.provider.url.rstrip('/')}/{error.key}",
            position=0,
            reason=f"the object is missing, although the manifest names it (offset {offset})",
        )


def _bases(footer: Footer) -> list[int]:
    """Return the first offset of each batch."""
    return [int(unit[4]) for unit in BATCH_UNIT.iter_unpack(footer.units)]


def _count_of(footer: Footer, unit: int) -> int:
    """Return how many offsets a unit stands for."""
    if footer.kind is QueueKind.SIMPLE:
        return 1
    return int(BATCH_UNIT.unpack_from(footer.units, unit * BATCH_UNIT.size)[5])


def _span(footer: Footer, first: int, stop: int) -> tuple[int, int]:
    """Return the byte range of the records of the queue entries [first, stop) in the tiered log."""
    start = end = 0
    for unit in range(first, stop):
        packed = footer.units[unit * footer.unit_size : (unit + 1) * footer.unit_size]
        if packed == PRE_BLANK:
            continue
        position, size = QUEUE_UNIT.unpack_from(packed)[:2]
        start = position if end == 0 else start
        end = position + size
    return start, end
