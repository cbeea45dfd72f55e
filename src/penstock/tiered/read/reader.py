"""Reading one shard from the tier: by offset, tag, key and time, with the store's own byte loops.

Nothing here changes anything. A manifest that names an object which is gone is an old one: it is
read anew, once, before the reader gives up. A damaged or missing object raises `TierDamageError`
(`chunk_access.py`); what comes before it in a page is returned first.

A record that is whole and cannot be decoded is not damage: reads of records raise
`UnreadableContentError`, and lookups by key or tag skip it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from penstock.codec.deleted_ranges import DeletedRanges, cover
from penstock.codec.format import PRE_BLANK, QUEUE_UNIT, Damage
from penstock.codec.select import core
from penstock.engine.segment import UnitsRead, find_unreadable
from penstock.errors import CorruptionError, UnreadableContentError
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger
from penstock.record import QueueKind, ShardId, StoredRecord
from penstock.tiered.chunk.chunk import ChunkEntry, Footer
from penstock.tiered.chunk.chunk_access import FAILURES, ChunkAccess, OldManifestError
from penstock.tiered.chunk.chunk_records import OnUnreadable, read_units
from penstock.tiered.chunk.manifest import Manifest
from penstock.tiered.chunk.shard_manifest import ShardManifest
from penstock.tiered.providers.contract import ObjectMissingError
from penstock.tiered.read.chunk_stream import FetchedChunk
from penstock.tiered.read.fetcher import FetchedRange, Fetcher
from penstock.tiered.read.tier_query import UNLIMITED, TierPage, TierQuery
from penstock.tiered.read.unit_selection import (
    UnitRange,
    first_unit,
    is_blank,
    offsets_of,
    select_units,
)

_UNITS_PER_STEP: Final = 4096
_log: Final = get_logger(__name__)


class _Page:
    """A page that is being filled."""

    def __init__(self, offset: int, size_left: int) -> None:
        self.records: Final[list[StoredRecord]] = []
        self.offset = offset
        self.size_left = size_left

    def add(self, records: list[StoredRecord], next_offset: int, size: int) -> None:
        self.records.extend(records)
        self.offset = next_offset
        self.size_left -= size


class TierReader:
    def __init__(
        self, manifest: ShardManifest, fetcher: Fetcher, clock: Clock | None = None
    ) -> None:
        self._manifest: Final = manifest
        self._fetcher: Final = fetcher
        self._clock: Final = clock or SystemClock()
        self._shard: Final[ShardId] = manifest.shard
        self.chunks: Final = ChunkAccess(manifest, fetcher)
        self._expected_next = -1
        self._deleted: tuple[tuple[tuple[int, int], ...], DeletedRanges] = ((), DeletedRanges())

    def manifest(self) -> Manifest | None:
        """Return the manifest as last seen, read if it never was."""
        return self._manifest.known()

    def read(self, query: TierQuery) -> TierPage:
        """Return the records that `query` asks for, ascending, as far as the tier holds them."""
        try:
            return self._read(query)
        except OldManifestError:
            return self._read(query)

    def _read(self, query: TierQuery) -> TierPage:
        manifest = self.manifest()
        if manifest is None:
            return TierPage([], query.offset)
        page = _Page(max(query.offset, manifest.start_offset), query.max_size)
        try:
            self._fill(page, query, manifest)
        except (CorruptionError, UnreadableContentError):
            # What was read first; the next read, which begins there, raises it.
            if not page.records:
                raise
        self._expected_next = page.offset
        return TierPage(page.records, page.offset)

    def _fill(self, page: _Page, query: TierQuery, manifest: Manifest) -> None:
        until = min(query.until, manifest.end_offset)
        sequential = page.offset == self._expected_next
        for entry in self.chunks.chunks_from(page.offset, manifest):
            if entry.first_offset >= until:
                break
            page.offset = max(page.offset, entry.first_offset)
            if sequential:
                self._read_ahead(page.offset, manifest)
            while page.offset < min(until, entry.end_offset):
                count_left = query.max_records - len(page.records)
                if count_left <= 0 or page.size_left <= 0:
                    return
                step = query._replace(
                    offset=page.offset,
                    until=until,
                    max_records=count_left,
                    max_size=page.size_left,
                )
                records, after, size = self._step(entry, manifest, step, first=not page.records)
                if after == page.offset or (page.records and size > page.size_left):
                    # The first record of a step comes whatever its size; here it is not the first.
                    return
                page.add(records, after, size)
        page.offset = max(page.offset, until)

    def _read_ahead(self, offset: int, manifest: Manifest) -> None:
        chunks = self._manifest.chunks_from(offset, manifest)
        with suppress(*FAILURES):  # raised when it is its turn
            self._fetcher.read_ahead(self._manifest.prefix, chunks)

    def _step(
        self, entry: ChunkEntry, manifest: Manifest, query: TierQuery, *, first: bool
    ) -> tuple[list[StoredRecord], int, int]:
        """Read from one chunk; return records, the next offset and the bytes taken."""
        footer = self.chunks.footer(entry)
        count_max = _UNITS_PER_STEP
        while True:
            units = select_units(footer, entry, query, first=first, count_max=count_max)
            if units is None:
                return [], min(entry.end_offset, query.until), 0
            if not units.units:
                return [], query.offset, 0
            if units.start == units.end:
                return [], entry.end_offset if units.is_last else units.end_offset, 0
            try:
                return self._decode_units(entry, units, manifest, query)
            except FAILURES as error:
                # Fewer of them, down to the one that is damaged: those before it are sound.
                count_max = len(units.units) // footer.unit_size // 2
                if count_max == 0 or isinstance(error, ObjectMissingError):
                    offsets = (units.offset, units.end_offset)
                    raise self.chunks.damaged(entry, error, *offsets) from error

    def _decode_units(
        self, entry: ChunkEntry, units: UnitRange, manifest: Manifest, query: TierQuery
    ) -> tuple[list[StoredRecord], int, int]:
        fetched = self._fetcher.read(self._manifest.prefix, entry, units.start, units.end)
        records, after, size = self.decode(fetched, units.units, units.offset, manifest, query)
        if units.is_last and after >= units.end_offset:
            after = entry.end_offset
        return records, min(max(after, query.offset), query.until), size

    def decode(
        self,
        fetched: FetchedRange,
        units: bytes,
        offset: int,
        manifest: Manifest,
        query: TierQuery,
    ) -> tuple[list[StoredRecord], int, int]:
        batch = manifest.kind is QueueKind.BATCH
        read = core.read_batches if batch else core.read_records
        records, after, size, damage = read(
            fetched.data,
            fetched.position,
            units,
            query.offset if batch else offset,
            self._shard.topic,
            self._shard.partition,
            query.max_records,
            query.max_size,
            self._hidden(manifest, query, batch=batch),
            self._clock.expiry_ms(),
            query.tag,
            query.key,
        )
        if damage is not None and not records:
            failed = UnitsRead(fetched.data, fetched.position, units, offset)
            after = self._offset_after_failure(failed, manifest, query, damage)
        return records, after, size

    def _offset_after_failure(
        self, read: UnitsRead, manifest: Manifest, query: TierQuery, damage: Damage
    ) -> int:
        """Return where to continue after a record that cannot be decoded; raise when it is
        damaged, or when the caller wants the error."""
        failure = find_unreadable(self._shard, manifest.kind, read, damage)
        if failure is None:
            raise CorruptionError(
                f"{self._fetcher.provider.url}/{self._manifest.prefix}",
                position=damage.position,
                reason=damage.reason,
            )
        start, end = max(query.offset, failure.offset), min(query.until, failure.next_offset)
        is_wanted = query.key is None and query.tag is None
        deleted = self.deleted(manifest).overlapping(start, end)
        if is_wanted and not cover(deleted, start, end):
            raise failure
        return failure.next_offset

    def _hidden(
        self, manifest: Manifest, query: TierQuery, *, batch: bool
    ) -> list[tuple[int, int]]:
        deleted = self.deleted(manifest).overlapping(query.offset, query.until)
        return [*deleted, (query.until, UNLIMITED)] if batch else deleted

    def deleted(self, manifest: Manifest) -> DeletedRanges:
        if self._deleted[0] is not manifest.deleted:
            self._deleted = (manifest.deleted, DeletedRanges.from_list(manifest.deleted))
        return self._deleted[1]

    # Keys, times, whole chunks

    def by_key(
        self, key: bytes, until: int = UNLIMITED, begin_ms: int = 0, end_ms: int | None = None
    ) -> Iterator[StoredRecord]:
        """Yield the live records of `key` below `until`, newest first; chunks without a record of
        the time from `begin_ms` to `end_ms` are left out."""
        manifest = self.manifest()
        if manifest is None:
            return
        for entry in self.chunks.chunks_back(manifest):
            if entry.first_offset >= until or entry.end_offset <= manifest.start_offset:
                continue
            if entry.max_ms < begin_ms or (end_ms is not None and entry.min_ms > end_ms):
                continue
            if not entry.may_hold_key(key):
                continue
            footer = self.chunks.footer(entry)
            for unit in footer.units_of_key(key):
                yield from self.in_unit(entry, footer, manifest, unit, until, key)

    def in_unit(
        self,
        entry: ChunkEntry,
        footer: Footer,
        manifest: Manifest,
        unit: int,
        until: int,
        key: bytes | None = None,
    ) -> Iterator[StoredRecord]:
        """Yield the live records below `until` of one unit, the newest first; those of a key."""
        size = footer.unit_size
        units = footer.units[unit * size : (unit + 1) * size]
        first, end = offsets_of(footer, entry, unit)
        first = max(first, manifest.start_offset)
        end = min(end, until)
        if first >= end or units == PRE_BLANK:
            return
        position, length = QUEUE_UNIT.unpack_from(units)[:2]
        fetched = self.chunks.fetch(entry, position, position + length, (first, end))
        query = TierQuery(first, end, UNLIMITED, UNLIMITED, key=key)
        try:
            records, _, _ = self.decode(fetched, units, first, manifest, query)
        except CorruptionError as error:
            raise self.chunks.damaged(entry, error, first, end) from error
        yield from reversed(records)

    def offset_by_time(self, timestamp_ms: int, until: int = UNLIMITED) -> int | None:
        """Return the offset of the first live record with a timestamp >= `timestamp_ms`."""
        manifest = self.manifest()
        if manifest is None:
            return None
        for entry in self.chunks.chunks_from(manifest.start_offset, manifest, timestamp_ms):
            if entry.first_offset >= until:
                return None
            start = max(entry.first_offset, manifest.start_offset)
            for offset, found_ms in self._times(start, min(entry.end_offset, until)):
                if found_ms >= timestamp_ms:
                    return offset
        return None

    def _times(self, offset: int, until: int) -> Iterator[tuple[int, int]]:
        """Yield offsets and timestamps; messages that cannot be decoded have that of their
        batch."""
        while offset < until:
            try:
                page = self.read(TierQuery(offset, until))
            except UnreadableContentError as error:
                yield max(offset, error.offset), error.timestamp_ms
                offset = error.next_offset
                continue
            for record in page.records:
                yield record.offset, record.timestamp_ms
            if page.next_offset <= offset:
                return
            offset = page.next_offset

    def stream(self, start: int = 0, until: int = UNLIMITED) -> Iterator[FetchedChunk]:
        """Yield the whole chunks of [start, until), in order, prefetched."""
        manifest = self.manifest()
        if manifest is None:
            return
        begin = max(start, manifest.start_offset)
        chosen = (c for c in self.chunks.chunks_from(begin, manifest) if c.first_offset < until)
        yield from self.chunks.stream(chosen)

    def records_of(
        self, chunk: FetchedChunk, on_unreadable: OnUnreadable | None = None
    ) -> list[StoredRecord]:
        """Return every record of a fetched chunk, deleted ones too, all checked; `on_unreadable`
        gets those that are whole and cannot be decoded."""
        entry, footer = chunk.entry, chunk.footer
        if not footer.units:
            return []
        read = UnitsRead(chunk.data, entry.position, footer.units, entry.units_offset)
        return read_units(self._shard, footer.kind, read, on_unreadable)

    def live_records(self, chunk: FetchedChunk, manifest: Manifest) -> list[StoredRecord]:
        """Return the records of a fetched chunk that are not deleted; a warning names those that
        cannot be decoded."""
        deleted = self.deleted(manifest)
        return [
            record
            for record in self.records_of(chunk, self._warn)
            if record.offset >= manifest.start_offset and record.offset not in deleted
        ]

    def _warn(self, error: UnreadableContentError) -> None:
        _log.warning("content_passed_over", shard=self._shard.name, error=str(error))

    def read_raw(self, query: TierQuery) -> list[bytes]:
        """Return whole records (batches) as the tier holds them, from `offset` on; at most up to a
        damaged one, which raises `TierDamageError` when it is the first."""
        try:
            return self._read_raw(query)
        except OldManifestError:
            return self._read_raw(query)

    def _read_raw(self, query: TierQuery) -> list[bytes]:
        manifest = self.manifest()
        records: list[bytes] = []
        if manifest is None:
            return records
        size_left = query.max_size
        try:
            for entry, position, size, offsets in self._live_units(query, manifest):
                if records and (size > size_left or len(records) >= query.max_records):
                    return records
                fetched = self.chunks.fetch(entry, position, position + size, offsets)
                start = position - fetched.position
                records.append(bytes(fetched.data[start : start + size]))
                size_left -= size
        except CorruptionError:
            if not records:
                raise
        return records

    def _live_units(
        self, query: TierQuery, manifest: Manifest
    ) -> Iterator[tuple[ChunkEntry, int, int, tuple[int, int]]]:
        """Yield chunk, position, size and offsets of every record of a query that is not wholly
        deleted."""
        deleted = self.deleted(manifest)
        until = min(query.until, manifest.end_offset)
        for entry in self.chunks.chunks_from(query.offset, manifest):
            if entry.first_offset >= until:
                return
            footer = self.chunks.footer(entry)
            for unit in range(first_unit(footer, entry, query.offset), entry.units):
                first, end = offsets_of(footer, entry, unit)
                position, size = QUEUE_UNIT.unpack_from(footer.units, unit * footer.unit_size)[:2]
                if first >= query.until or (is_blank(position, size)):
                    continue
                if not all(offset in deleted for offset in range(first, end)):
                    yield entry, position, size, (first, end)
