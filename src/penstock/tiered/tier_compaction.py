"""Compaction of a tier: what a later record of the same key replaced, and the room it takes.

delete_superseded   one pass over tier and log finds replaced records; they become holes in the
                    manifest, so that no reader sees them any more
rewrite_segments    sealed segments with enough dead bytes are written again without them, as a
                    new generation that takes the old one's place in one change of the manifest
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.engine.contract import Compacted
from penstock.engine.segment.deleted_ranges import DeletedRanges
from penstock.engine.segment.format import BATCH_UNIT, QUEUE_UNIT
from penstock.engine.segment.store import SegmentStore
from penstock.engine.transaction_limits import is_within
from penstock.record import QueueKind, StoredRecord
from penstock.tiered import manifest_changes as changes
from penstock.tiered.chunk import ChunkEntry, ChunkRange, build_chunk, derive_units, read_units
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.fetcher import FetchedChunk
from penstock.tiered.manifest import SegmentEntry, describe_segment
from penstock.tiered.moving import move_record
from penstock.tiered.names import chunk_name

DEAD_RATIO_MIN: Final = 0.5
_PAGE: Final = 4096
_PAGE_SIZE: Final = 64 << 20


def delete_superseded(
    store: SegmentStore,
    flat: CompositeFlatFile,
    until: int | None = None,
    aborted: Sequence[tuple[int, int]] = (),
) -> Compacted:
    """Make records of the tier holes whose key was written again later, in tier or log. Memory
    holds each key once. Records from `until` on, and `aborted` ones, replace nothing."""
    newest: dict[bytes, tuple[int, int]] = {}
    replaced: list[tuple[int, int]] = []
    manifest = flat.current()
    if manifest is None:
        return Compacted(0, 0)
    start_of_log = int(store.bounds(flat.shard).earliest)
    size = 0
    for record in _everything(store, flat, start_of_log):
        if until is not None and record.offset >= until:
            break
        if record.key is None or (aborted and is_within(aborted, record.offset)):
            continue
        before = newest.get(record.key)
        if before is not None and before[0] < start_of_log:
            replaced.append((before[0], before[0] + 1))
            size += before[1]
        newest[record.key] = (record.offset, len(record.value or b"") + len(record.key))
    if replaced:
        flat.upkeep.delete_ranges(replaced)
    return Compacted(len(replaced), size)


def _everything(
    store: SegmentStore, flat: CompositeFlatFile, start_of_log: int
) -> Iterator[StoredRecord]:
    manifest = flat.current()
    if manifest is not None:
        deleted = flat.reader.deleted(manifest)
        now_ms = flat.clock.now_ms()
        for chunk in flat.reader.stream(manifest.start_offset, start_of_log):
            for record in records_of(flat, chunk):
                expired = record.expires_at_ms is not None and record.expires_at_ms <= now_ms
                if record.offset < start_of_log and record.offset not in deleted and not expired:
                    yield record
    offset, end = start_of_log, int(store.bounds(flat.shard).commit)
    while offset < end:
        page = store.read_page(flat.shard, offset, max_records=_PAGE, max_size=_PAGE_SIZE)
        yield from page.records
        if page.next_offset <= offset:
            return
        offset = page.next_offset


def records_of(flat: CompositeFlatFile, chunk: FetchedChunk) -> list[StoredRecord]:
    """Return every record of a chunk, deleted ones too, all checked."""
    entry, footer, data = chunk
    if not footer.units:
        return []
    return read_units(flat.shard, flat.kind, data, entry.position, footer.units, entry.units_offset)


def rewrite_segments(flat: CompositeFlatFile, *, dead_ratio: float = DEAD_RATIO_MIN) -> Compacted:
    """Write sealed segments again that are dead for the most part; the flat file must be
    acquired. A crash leaves objects that nothing refers to."""
    manifest = flat.current()
    records = size = 0
    if manifest is None or flat.epoch is None:
        return Compacted(0, 0)
    deleted = flat.reader.deleted(manifest)
    for segment in manifest.segments:
        ranges = deleted.overlapping(segment.first_offset, segment.end_offset)
        dead = sum(min(b, segment.end_offset) - max(a, segment.first_offset) for a, b in ranges)
        span = segment.end_offset - segment.first_offset
        if not ranges or dead < dead_ratio * span:
            continue
        if sum(chunk.units for chunk in flat.manifest.chunks_of(segment)) <= span - dead:
            continue  # it was written without them already
        freed = _rewrite(flat, segment, deleted)
        if freed:
            records += dead
            size += freed
    return Compacted(records, size)


def _rewrite(flat: CompositeFlatFile, segment: SegmentEntry, deleted: DeletedRanges) -> int:
    old = flat.manifest.chunks_of(segment)
    new: list[ChunkEntry] = []
    for chunk in flat.fetcher.stream(flat.manifest.prefix, old):
        entry = _rewrite_chunk(flat, chunk, deleted)
        if entry is not None:
            new.append(entry)
    kept = {entry.name for entry in new}
    gone = [entry.name for entry in old if entry.name not in kept]
    if not gone:
        return 0
    if not new:
        return 0  # wholly dead: expiry or truncation takes it, positions stay contiguous
    name = flat.upkeep.put_descriptor(flat.epoch or 0, tuple(new))
    now_ms = flat.clock.now_ms()
    described = describe_segment(name, tuple(new), segment.sealed_ms)
    flat.manifest.change(
        lambda found: changes.swap_segment(found, segment, described, gone, now_ms),
        epoch=flat.epoch,
    )
    return segment.size - sum(entry.size for entry in new)


def _rewrite_chunk(
    flat: CompositeFlatFile, chunk: FetchedChunk, deleted: DeletedRanges
) -> ChunkEntry | None:
    """Put a chunk again without its dead records, at its old place; the same entry when none of
    it is dead, None when all of it is. It never grows, so that the tiered log keeps its order."""
    entry, footer, data = chunk
    unit_size = footer.unit_size
    kept: list[bytes] = []
    position = entry.position
    first: int | None = None
    dead = False
    for n in range(entry.units):
        unit = footer.units[n * unit_size : (n + 1) * unit_size]
        start, end = _span(flat.kind, unit, entry.units_offset + n)
        at, size = QUEUE_UNIT.unpack_from(unit)[:2]
        if at == 0 and size == 0x7FFF_FFFF:
            continue
        if all(offset in deleted for offset in range(start, end)):
            dead = True
            continue
        first = start if first is None else first
        raw = data[at - entry.position : at - entry.position + size]
        kept.append(move_record(raw, position))
        position += size
    if not dead:
        return entry
    if first is None:
        return None
    body = b"".join(kept)
    units = derive_units(flat.shard, flat.kind, body, entry.position, first)
    where = ChunkRange(
        entry.first_offset, entry.end_offset, entry.position, flat.epoch or 0, flat.clock.now_ms()
    )
    name = chunk_name(flat.epoch or 0, entry.first_offset)
    whole, rewritten = build_chunk(flat.shard, flat.kind, name, body, units, where)
    flat.provider.put_if_absent(f"{flat.manifest.prefix}{name}", whole)
    return rewritten


def _span(kind: QueueKind, unit: bytes, offset: int) -> tuple[int, int]:
    if kind is QueueKind.SIMPLE:
        return offset, offset + 1
    _, _, _, _, base, count, _, _ = BATCH_UNIT.unpack(unit)
    return int(base), int(base) + int(count)
