"""Compaction of a tier: what a later record of the same key replaced, and the room it takes.

delete_superseded   one pass over tier and log finds replaced records, and tombstones that may go;
                    they become holes in the manifest, so that no reader sees them any more
rewrite_segments    sealed segments, and single chunks of the open one, with enough dead records
                    are written again without them, as a new generation that takes the old one's
                    place in one change of the manifest
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.codec.deleted_ranges import DeletedRanges
from penstock.codec.format import BATCH_UNIT, QUEUE_UNIT
from penstock.engine.compaction import CompactionRules
from penstock.engine.contract import Compacted
from penstock.engine.segment import SegmentStore
from penstock.engine.transactions import Ranges, is_within
from penstock.errors import CorruptionError, UnreadableContentError
from penstock.platform.log import get_logger
from penstock.record import QueueKind, StoredRecord
from penstock.tiered.chunk import manifest_changes as changes
from penstock.tiered.chunk.chunk import (
    ChunkEntry,
    ChunkRange,
    build_chunk,
    derive_units,
    key_hash,
)
from penstock.tiered.chunk.manifest import Manifest, SegmentEntry, describe_segment
from penstock.tiered.object_names import chunk_name
from penstock.tiered.providers.contract import ObjectMissingError
from penstock.tiered.read.chunk_stream import FetchedChunk
from penstock.tiered.upload.relocate import relocate_record

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile

DEAD_RATIO_MIN: Final = 0.5
_log: Final = get_logger(__name__)
_BLANK_SIZE: Final = 0x7FFF_FFFF
_PAGE: Final = 4096
_PAGE_SIZE: Final = 64 << 20
TOMBSTONES_MAX: Final = 100_000
"""Of one shard's tier that are remembered; when these are gone, the others are looked for again."""


class TierProgress:
    """How far compaction came in one shard's tier, and which tombstones it found. In memory only:
    after a start the first pass reads all of the tier."""

    def __init__(self) -> None:
        self.since = 0
        """Offsets below have at most one record per key."""
        self.tombstones: list[tuple[int, int]] = []
        """When the store got each, and its offset, ascending."""
        self.has_more = False
        """More tombstones were found than are remembered."""

    def add_tombstone(self, stored_ms: int, offset: int) -> None:
        if len(self.tombstones) < TOMBSTONES_MAX:
            self.tombstones.append((stored_ms, offset))
        else:
            self.has_more = True

    def pop_expired(self, rules: CompactionRules, start_of_log: int) -> list[int]:
        """Take the tombstones out that may go now and that only the tier holds; what they replaced
        went in the passes that found them."""
        expired = [
            offset for ms, offset in self.tombstones if offset < start_of_log and rules.may_go(ms)
        ]
        if expired:
            removed = set(expired)
            self.tombstones = [
                tombstone for tombstone in self.tombstones if tombstone[1] not in removed
            ]
        if not self.tombstones and self.has_more:
            self.since, self.has_more = 0, False
        return expired

    def drop_removed_by_log(self, rules: CompactionRules, start_of_log: int) -> int | None:
        """Drop those that the log has removed; return when the store got the last of
        the others."""
        self.tombstones = [
            (ms, offset)
            for ms, offset in self.tombstones
            if offset < start_of_log or not rules.may_go(ms)
        ]
        return max((ms for ms, _ in self.tombstones), default=None)


def delete_superseded(
    store: SegmentStore,
    flat: CompositeFlatFile,
    rules: CompactionRules,
    progress: TierProgress,
    *,
    until: int,
    aborted: Ranges = (),
) -> Compacted:
    """Make records of the tier holes whose key was written again later, in tier or log, and
    tombstones that were kept for long enough. Records from `until` on, and `aborted` ones, replace
    nothing; the latter go.

    Offsets below the progress have at most one record per key: only later records are read, and
    older ones are looked for by the hashes of their keys, so that a chunk without any of these keys
    costs its footer at most. Memory holds each new key once."""
    manifest = flat.current()
    if manifest is None:
        return Compacted(0, 0)
    start_of_log = int(store.bounds(flat.shard).earliest)
    reached, young_ms = until, None
    superseded = _Superseded(progress, start_of_log, aborted)
    for offset in progress.pop_expired(rules, start_of_log):
        superseded.remove(offset, 0)
    since = progress.since
    for record in _everything(store, flat, since, start_of_log):
        if record.offset >= until:
            break
        if rules.is_young(record.store_timestamp_ms):
            reached, young_ms = record.offset, record.store_timestamp_ms
            break
        superseded.add(record)
    for record in _older(flat, manifest, superseded.newest, since):
        superseded.remove(record.offset, _size(record))
    if superseded.removed:
        flat.upkeep.delete_ranges((offset, offset + 1) for offset in superseded.removed)
    progress.since = max(since, reached)
    return Compacted(superseded.count, superseded.size, rules.again(None, young_ms))


class _Superseded:
    """Takes the records of tier and log, oldest first, and finds those of the tier that go."""

    def __init__(self, progress: TierProgress, start_of_log: int, aborted: Ranges) -> None:
        self._progress: Final = progress
        self._start_of_log: Final = start_of_log
        self._aborted: Final = aborted
        self.newest: Final[dict[bytes, tuple[int, int]]] = {}
        """The offset and the size of the newest record of each key."""
        self.removed: Final[list[int]] = []
        self.count = 0
        """Those of the gone that only the tier holds: the log counts its own."""
        self.size = 0

    def add(self, record: StoredRecord) -> None:
        if self._aborted and is_within(self._aborted, record.offset):
            # Uploads leave these out now; what was uploaded before may hold some.
            self.drop(record.offset, _size(record))
            return
        if record.key is None:
            return
        if record.value is None:
            self._progress.add_tombstone(record.store_timestamp_ms, record.offset)
        before = self.newest.get(record.key)
        if before is not None:
            self.drop(*before)
        self.newest[record.key] = (record.offset, _size(record))

    def drop(self, offset: int, size: int) -> None:
        if offset < self._start_of_log:
            self.remove(offset, size)

    def remove(self, offset: int, size: int) -> None:
        self.removed.append(offset)
        if offset < self._start_of_log:
            self.count += 1
            self.size += size


def _size(record: StoredRecord) -> int:
    return len(record.value or b"") + len(record.key or b"")


def _older(
    flat: CompositeFlatFile, manifest: Manifest, keys: Mapping[bytes, object], until: int
) -> Iterator[StoredRecord]:
    """Yield the live records below `until` that have one of the keys."""
    if until <= manifest.start_offset:
        return
    hashes = {key_hash(key) for key in keys}
    for entry in flat.manifest.chunks_from(manifest.start_offset, manifest):
        if entry.first_offset >= until:
            return
        if entry.keys and not any(entry.may_hold_key(key) for key in keys):
            continue
        footer = flat.fetcher.footer(flat.manifest.prefix, entry)
        for unit in footer.units_of_hashes(hashes):
            for record in flat.reader.in_unit(entry, footer, manifest, unit, until):
                if record.key in keys:
                    yield record


def _everything(
    store: SegmentStore, flat: CompositeFlatFile, since: int, start_of_log: int
) -> Iterator[StoredRecord]:
    """Yield the live records of tier and log from `since` on."""
    manifest = flat.current()
    if manifest is not None and since < start_of_log:
        deleted = flat.reader.deleted(manifest)
        now_ms = flat.clock.expiry_ms()
        begin = max(since, manifest.start_offset)
        for chunk in flat.reader.stream(begin, start_of_log):
            for record in flat.reader.records_of(chunk):
                expired = record.expires_at_ms is not None and record.expires_at_ms <= now_ms
                inside = begin <= record.offset < start_of_log
                if inside and record.offset not in deleted and not expired:
                    yield record
    offset, end = max(since, start_of_log), int(store.bounds(flat.shard).commit)
    while offset < end:
        try:
            page = store.read_page(flat.shard, offset, max_records=_PAGE, max_size=_PAGE_SIZE)
        except UnreadableContentError as error:
            offset = error.next_offset  # it has no keys: it replaces nothing
            continue
        yield from page.records
        if page.next_offset <= offset:
            return
        offset = page.next_offset


def rewrite_segments(flat: CompositeFlatFile, *, dead_ratio: float = DEAD_RATIO_MIN) -> Compacted:
    """Write what is dead for the most part again without the dead records: sealed segments, and
    single chunks of the open one. A crash leaves objects that nothing refers to; of two nodes that
    do this at a time, one finds the other's outcome and changes nothing."""
    manifest = flat.current()
    records = size = 0
    if manifest is None:
        return Compacted(0, 0)
    deleted = flat.reader.deleted(manifest)
    parts: list[SegmentEntry | ChunkEntry] = [*manifest.segments, *manifest.chunks]
    for part in parts:
        ranges = deleted.overlapping(part.first_offset, part.end_offset)
        dead = sum(min(b, part.end_offset) - max(a, part.first_offset) for a, b in ranges)
        if not ranges or dead < dead_ratio * (part.end_offset - part.first_offset):
            continue
        try:
            if isinstance(part, SegmentEntry):
                freed = _rewrite(flat, part, deleted)
            else:
                freed = _rewrite_open(flat, part, deleted)
        except (CorruptionError, ObjectMissingError) as error:
            # One damaged chunk keeps neither the other segments nor the garbage waiting.
            _log.warning("tier_rewrite_failed", shard=flat.shard.name, reason=str(error))
            continue
        if freed:
            records += dead
            size += freed
    return Compacted(records, size)


def _rewrite(flat: CompositeFlatFile, segment: SegmentEntry, deleted: DeletedRanges) -> int:
    """Put a new generation of a segment in its place; chunks without a dead record are not even
    read. Holes that have no bytes any more leave the manifest. When that took so long that a
    collector of garbage may have taken the new chunks for orphans, nothing is changed."""
    begun = flat.clock.monotonic()
    old = flat.manifest.chunks_of(segment)
    touched = [chunk for chunk in old if _has_dead(flat, chunk, deleted)]
    rewritten = {
        chunk.entry.name: _rewrite_chunk(flat, chunk, deleted)
        for chunk in flat.fetcher.stream(flat.manifest.prefix, touched)
    }
    new = [entry for chunk in old if (entry := rewritten.get(chunk.name, chunk)) is not None]
    kept = {entry.name for entry in new}
    replaced = [entry.name for entry in old if entry.name not in kept]
    if not replaced:
        return 0
    now_ms = flat.clock.now_ms()
    described = None
    if new:
        name = flat.upkeep.put_descriptor(_epoch(flat), tuple(new))
        described = describe_segment(name, tuple(new), segment.sealed_ms)
    if _is_late(flat, begun):
        return 0
    drop_holes = deleted if flat.kind is QueueKind.SIMPLE else None
    flat.manifest.change(
        lambda manifest: changes.swap_segment(
            manifest, segment, described, replaced, now_ms, drop_holes=drop_holes
        ),
        epoch=flat.epoch,
    )
    return segment.size - sum(entry.size for entry in new)


def _rewrite_open(flat: CompositeFlatFile, old: ChunkEntry, deleted: DeletedRanges) -> int:
    """Put a chunk of the open segment again without its dead records; return the bytes freed."""
    begun = flat.clock.monotonic()
    if not _has_dead(flat, old, deleted):
        return 0
    new: ChunkEntry | None = None
    for chunk in flat.fetcher.stream(flat.manifest.prefix, [old]):
        new = _rewrite_chunk(flat, chunk, deleted)
    if _is_late(flat, begun):
        return 0
    now_ms = flat.clock.now_ms()
    drop_holes = deleted if flat.kind is QueueKind.SIMPLE else None
    flat.manifest.change(
        lambda manifest: changes.swap_chunk(manifest, old, new, now_ms, drop_holes=drop_holes),
        epoch=flat.epoch,
    )
    return old.size - (0 if new is None else new.size)


def _is_late(flat: CompositeFlatFile, begun: float) -> bool:
    """Say whether a collector of garbage may have taken new chunks for orphans meanwhile."""
    late_s = flat.config.grace_ms / 2000
    return bool(late_s) and flat.clock.monotonic() - begun > late_s


def _epoch(flat: CompositeFlatFile) -> int:
    """Return the epoch under which objects are named: this uploader's, or that of the last one."""
    manifest = flat.current()
    return flat.epoch or (0 if manifest is None else manifest.epoch)


def _has_dead(flat: CompositeFlatFile, entry: ChunkEntry, deleted: DeletedRanges) -> bool:
    """Say whether a chunk has bytes of dead records; by its footer."""
    if not deleted.overlapping(entry.first_offset, entry.end_offset):
        return False
    footer = flat.fetcher.footer(flat.manifest.prefix, entry)
    return any(
        all(offset in deleted for offset in range(start, end))
        for start, end, _, _ in _rows(flat.kind, footer.units, entry.units_offset)
    )


def _rows(kind: QueueKind, units: bytes, offset: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield offsets [start, end), position and size of each record that units point at."""
    unit_size = BATCH_UNIT.size if kind is QueueKind.BATCH else QUEUE_UNIT.size
    for n, start in enumerate(range(0, len(units), unit_size)):
        position, size = QUEUE_UNIT.unpack_from(units, start)[:2]
        if not (position == 0 and size == _BLANK_SIZE):
            yield *_span(kind, units[start : start + unit_size], offset + n), position, size


def _rewrite_chunk(
    flat: CompositeFlatFile, chunk: FetchedChunk, deleted: DeletedRanges
) -> ChunkEntry | None:
    """Put a chunk again without its dead records, at its old place; the same entry when none of
    it is dead, None when all of it is. It never grows, so that the tiered log keeps its order."""
    entry, footer, data = chunk.entry, chunk.footer, chunk.data
    kept: list[bytes] = []
    position = entry.position
    first: int | None = None
    dead = False
    for start, end, source, size in _rows(flat.kind, footer.units, entry.units_offset):
        if all(offset in deleted for offset in range(start, end)):
            dead = True
            continue
        first = start if first is None else first
        raw = bytes(data[source - entry.position : source - entry.position + size])
        kept.append(relocate_record(raw, position))
        position += size
    if not dead:
        return entry
    if first is None:
        return None
    body = b"".join(kept)
    units = derive_units(flat.shard, flat.kind, body, entry.position, first)
    epoch = _epoch(flat)
    where = ChunkRange(
        entry.first_offset, entry.end_offset, entry.position, epoch, flat.clock.now_ms()
    )
    name = chunk_name(epoch, entry.first_offset)
    whole, rewritten = build_chunk(flat.shard, flat.kind, name, body, units, where)
    flat.provider.put_if_absent(f"{flat.manifest.prefix}{name}", whole)
    return rewritten


def _span(kind: QueueKind, unit: bytes, offset: int) -> tuple[int, int]:
    if kind is QueueKind.SIMPLE:
        return offset, offset + 1
    _, _, _, _, base, count, _, _ = BATCH_UNIT.unpack(unit)
    return int(base), int(base) + int(count)
