"""What the getters of `CompositeAccess` return: units and bytes of a shard, within its bounds.

Offsets below the start of the tier and from its end on are rejected. A deleted message is never
returned: its unit reads as an empty one (`PRE_BLANK`), and its bytes of the commit log are zeros
when they are between live messages; a range without any live message is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVarTuple

from penstock.codec.deleted_ranges import DeletedRanges
from penstock.codec.format import PRE_BLANK, QUEUE_UNIT
from penstock.errors import BadRequestError, ClosedError
from penstock.record import QueueKind
from penstock.tiered.chunk.chunk import ChunkEntry, Footer
from penstock.tiered.chunk.manifest import Manifest
from penstock.tiered.read.unit_selection import first_unit, offsets_of
from penstock.tiered.rocketmq.append_result import BoundaryType

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile
    from penstock.tiered.read.async_reads import IsCancelled

UNITS_MAX: Final = 1 << 20
"""Units that one call returns, at most."""
DATA_SIZE_MAX: Final = 256 << 20
"""Bytes of the commit log that one call returns, at most."""


_Args = TypeVarTuple("_Args")


class _Row(NamedTuple):
    """A record of a chunk: offsets [first, end), where it is, and its unit."""

    first: int
    end: int
    position: int
    size: int
    unit: bytes


def never() -> bool:
    """The caller waits for the outcome."""
    return False


class CompositeReads:
    def __init__(self, owner: CompositeFlatFile) -> None:
        self._owner: Final = owner

    def submit(self, read: Callable[[*_Args, IsCancelled], bytes], *args: *_Args) -> Future[bytes]:
        """Run a read in another thread."""

        def read_if_open(is_cancelled: IsCancelled) -> bytes:
            if self._owner.is_closed:
                raise ClosedError(f"the flat file of {self._owner.shard.name!r} was shut down")
            return read(*args, is_cancelled)

        return self._owner.fetcher.reads.submit(read_if_open)

    def message(self, offset: int, is_cancelled: IsCancelled = never) -> bytes:
        """Return the record (batch) that holds an offset."""
        manifest = self._checked(offset)
        for entry in self._owner.reader.chunks.chunks_from(offset, manifest):
            if is_cancelled() or entry.first_offset > offset:
                break
            for row in self._rows(entry, offset):
                if row.first <= offset < row.end and offset not in self._deleted(manifest):
                    return self._bytes(entry, row.position, row.size)
                break
            break
        raise BadRequestError(
            f"offset {offset} of {self._owner.shard.name!r} holds no message: it was deleted"
        )

    def units(self, offset: int, count: int, is_cancelled: IsCancelled = never) -> bytes:
        """Return the units from an offset on, as many as there are, at most `UNITS_MAX`; of a
        simple queue one for each offset, of a batch queue those of batches that are not deleted."""
        if count < 1:
            raise BadRequestError(f"count is {count}; it must be at least 1")
        manifest = self._checked(offset)
        count = min(count, UNITS_MAX)
        if self._owner.kind is QueueKind.BATCH:
            return self._batch_units(manifest, offset, count, is_cancelled)
        return self._simple_units(manifest, offset, count, is_cancelled)

    def _simple_units(
        self, manifest: Manifest, offset: int, count: int, is_cancelled: IsCancelled
    ) -> bytes:
        end = min(offset + count, manifest.end_offset)
        result = bytearray(PRE_BLANK * (end - offset))
        size = QUEUE_UNIT.size
        for entry in self._owner.reader.chunks.chunks_from(offset, manifest):
            if entry.first_offset >= end or is_cancelled():
                break
            units = self._footer(entry).units
            first = max(offset, entry.units_offset)
            last = min(end, entry.units_offset + len(units) // size)
            if first < last:
                begin = (first - entry.units_offset) * size
                part = units[begin : begin + (last - first) * size]
                result[(first - offset) * size : (last - offset) * size] = part
        for start, stop in self._deleted(manifest).overlapping(offset, end):
            first, last = max(start, offset), min(stop, end)
            result[(first - offset) * size : (last - offset) * size] = PRE_BLANK * (last - first)
        return bytes(result)

    def _batch_units(
        self, manifest: Manifest, offset: int, count: int, is_cancelled: IsCancelled
    ) -> bytes:
        units: list[bytes] = []
        deleted = self._deleted(manifest)
        for entry in self._owner.reader.chunks.chunks_from(offset, manifest):
            if len(units) >= count or is_cancelled():
                break
            for row in self._rows(entry, offset):
                if len(units) < count and _is_live(row, manifest, deleted):
                    units.append(row.unit)
        if not units:
            raise BadRequestError(
                f"{self._owner.shard.name!r}: the tier has no message from offset {offset} on"
            )
        return b"".join(units)

    def data(self, position: int, length: int, is_cancelled: IsCancelled = never) -> bytes:
        """Return bytes of the tiered log, across chunks."""
        if not 1 <= length <= DATA_SIZE_MAX:
            raise BadRequestError(f"length is {length}; it must be between 1 and {DATA_SIZE_MAX}")
        manifest = self._manifest()
        parts: list[bytes] = []
        end, is_live = position + length, False
        entries = self._owner.reader.chunks.chunks_from(manifest.start_offset, manifest)
        for entry in entries:
            stop = entry.position + entry.data_size
            if is_cancelled() or position >= end:
                break
            if entry.position <= position < stop:
                part, has_live = self._live_bytes(manifest, entry, position, min(end, stop))
                parts.append(part)
                is_live = is_live or has_live
                position += len(part)
        if position < end or not is_live:
            raise BadRequestError(
                f"{self._owner.shard.name!r}: the tiered log has no live message at byte {position}"
            )
        return b"".join(parts)

    def _live_bytes(
        self, manifest: Manifest, entry: ChunkEntry, start: int, end: int
    ) -> tuple[bytes, bool]:
        """Return bytes [start, end) of a chunk, zeros where messages are dead; and whether any is
        live."""
        deleted = self._deleted(manifest)
        is_whole = entry.first_offset >= manifest.start_offset
        if is_whole and not deleted.overlapping(entry.first_offset, entry.end_offset):
            return self._bytes(entry, start, end - start), True
        dead: list[tuple[int, int]] = []
        is_live = False
        for row in self._rows(entry, entry.units_offset):
            first, stop = max(row.position, start), min(row.position + row.size, end)
            if first >= stop:
                continue
            if _is_live(row, manifest, deleted):
                is_live = True
            else:
                dead.append((first - start, stop - start))
        if not is_live:
            return bytes(end - start), False
        data = bytearray(self._bytes(entry, start, end - start))
        for first, stop in dead:
            data[first:stop] = bytes(stop - first)
        return bytes(data), True

    def offset_by_time(self, timestamp_ms: int, boundary: BoundaryType) -> int:
        """Return the first offset that is not older (lower), or the last one that is not younger
        (upper); the end, or the beginning, of the tier when there is none."""
        owner = self._owner
        if boundary is BoundaryType.LOWER:
            offset = owner.reader.offset_by_time(timestamp_ms)
            return owner.commit_offset if offset is None else offset
        younger = owner.reader.offset_by_time(timestamp_ms + 1)
        last = self.last_before(owner.commit_offset if younger is None else younger)
        return owner.min_offset if last is None else last

    def last_before(self, offset: int) -> int | None:
        """Return the last offset below `offset` that holds a message."""
        manifest = self._owner.current()
        if manifest is None:
            return None
        deleted = self._deleted(manifest)
        for entry in self._owner.reader.chunks.chunks_back(manifest):
            if entry.first_offset >= offset:
                continue
            if entry.end_offset <= manifest.start_offset:
                return None
            rows = list(self._rows(entry, max(entry.units_offset, manifest.start_offset)))
            for row in reversed(rows):
                inner = range(max(row.first, manifest.start_offset), min(row.end, offset))
                for candidate in reversed(inner):
                    if candidate not in deleted:
                        return candidate
        return None

    # Parts

    def _manifest(self) -> Manifest:
        manifest = self._owner.current()
        if manifest is None or not manifest.initialized:
            raise BadRequestError(f"the tier holds nothing of {self._owner.shard.name!r}")
        return manifest

    def _checked(self, offset: int) -> Manifest:
        manifest = self._manifest()
        if not manifest.start_offset <= offset < manifest.end_offset:
            raise BadRequestError(
                f"offset {offset} of {self._owner.shard.name!r} is not in the tier, which holds "
                f"[{manifest.start_offset}, {manifest.end_offset})"
            )
        return manifest

    def _deleted(self, manifest: Manifest) -> DeletedRanges:
        return self._owner.reader.deleted(manifest)

    def _footer(self, entry: ChunkEntry) -> Footer:
        return self._owner.reader.chunks.footer(entry)

    def _rows(self, entry: ChunkEntry, offset: int) -> Iterator[_Row]:
        """Yield the records of a chunk from that of an offset on."""
        footer = self._footer(entry)
        size = footer.unit_size
        for number in range(first_unit(footer, entry, offset), entry.units):
            unit = footer.units[number * size : (number + 1) * size]
            if unit != PRE_BLANK:
                position, length = QUEUE_UNIT.unpack_from(unit)[:2]
                yield _Row(*offsets_of(footer, entry, number), position, length, unit)

    def _bytes(self, entry: ChunkEntry, position: int, size: int) -> bytes:
        offsets = (entry.first_offset, entry.end_offset)
        fetched = self._owner.reader.chunks.fetch(entry, position, position + size, offsets)
        start = position - fetched.position
        return bytes(fetched.data[start : start + size])


def _is_live(row: _Row, manifest: Manifest, deleted: DeletedRanges) -> bool:
    first = max(row.first, manifest.start_offset)
    return any(offset not in deleted for offset in range(first, row.end))
