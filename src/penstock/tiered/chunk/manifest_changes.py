"""What can happen to a manifest, as functions from one to the next.

They are pure, so that a change can be made again on what another writer has put meanwhile. Objects
that lose their last reference become garbage with the moment at which that happened; they are
deleted only after the grace period, counted from then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from penstock.codec.deleted_ranges import DeletedRanges, coalesce
from penstock.errors import StaleWriteError
from penstock.tiered.chunk.chunk import ChunkEntry
from penstock.tiered.chunk.manifest import Garbage, Manifest, SegmentEntry

ChunksOf = dict[str, tuple[ChunkEntry, ...]]
"""The chunks of sealed segments, by the name of their descriptor."""


def add_chunks(manifest: Manifest, entries: Sequence[ChunkEntry]) -> Manifest:
    """Append chunks that follow on what is there."""
    if not entries:
        return manifest
    first, last = entries[0], entries[-1]
    if manifest.initialized and first.first_offset != manifest.end_offset:
        raise StaleWriteError(
            f"the tier ends at {manifest.end_offset}, a chunk begins at {first.first_offset}"
        )
    if first.position != manifest.position:
        raise StaleWriteError(
            f"the tiered log ends at {manifest.position}, a chunk begins at {first.position}"
        )
    return replace(
        manifest,
        initialized=True,
        start_offset=manifest.start_offset if manifest.initialized else first.first_offset,
        end_offset=last.end_offset,
        position=last.position + last.data_size,
        chunks=(*manifest.chunks, *entries),
    )


def advance(manifest: Manifest, offset: int) -> Manifest:
    """Answer for offsets up to `offset` that hold no record any more."""
    if not manifest.initialized:
        return replace(manifest, initialized=True, start_offset=offset, end_offset=offset)
    return replace(manifest, end_offset=max(manifest.end_offset, offset))


def seal(manifest: Manifest, segment: SegmentEntry) -> Manifest:
    """Replace the chunks of the open segment by its descriptor."""
    return replace(manifest, segments=(*manifest.segments, segment), chunks=())


def delete_ranges(manifest: Manifest, ranges: Iterable[tuple[int, int]]) -> Manifest | None:
    """Make offsets holes; None when they were."""
    bounded = [
        (max(start, manifest.start_offset), min(end, manifest.end_offset)) for start, end in ranges
    ]
    added = [(start, end) for start, end in bounded if start < end]
    deleted = tuple(coalesce([*manifest.deleted, *added]))
    return None if deleted == manifest.deleted else replace(manifest, deleted=deleted)


def truncate_before(
    manifest: Manifest, offset: int, chunks_of: ChunksOf, now_ms: int
) -> Manifest | None:
    """Let the tier begin at `offset`; chunks before it become garbage."""
    offset = min(offset, manifest.end_offset)
    if offset <= manifest.start_offset:
        return None
    dropped: list[str] = []
    segments = []
    for segment in manifest.segments:
        if segment.end_offset <= offset:
            dropped += [segment.name, *(chunk.name for chunk in chunks_of[segment.name])]
        else:
            segments.append(segment)
    dropped += [chunk.name for chunk in manifest.chunks if chunk.end_offset <= offset]
    deleted = [(max(start, offset), end) for start, end in manifest.deleted if end > offset]
    return replace(
        manifest,
        start_offset=offset,
        segments=tuple(segments),
        chunks=tuple(chunk for chunk in manifest.chunks if chunk.end_offset > offset),
        deleted=tuple(deleted),
        garbage=(*manifest.garbage, *(Garbage(name, now_ms) for name in dropped)),
    )


def expired_until(manifest: Manifest, expire_ms: int, chunks_of: ChunksOf) -> int:
    """Return the offset before which every chunk holds older records only."""
    offset = manifest.start_offset
    for segment in manifest.segments:
        if segment.max_ms < expire_ms:
            offset = max(offset, segment.end_offset)
            continue
        for chunk in chunks_of[segment.name]:
            if chunk.max_ms >= expire_ms:
                return offset
            offset = max(offset, chunk.end_offset)
    for chunk in manifest.chunks:
        if chunk.max_ms >= expire_ms:
            return offset
        offset = max(offset, chunk.end_offset)
    return offset


def size_until(manifest: Manifest, size_max: int, chunks_of: ChunksOf) -> int:
    """Return the offset from which on chunks hold at most `size_max` bytes of records."""
    chunks = [chunk for segment in manifest.segments for chunk in chunks_of[segment.name]]
    left = size_max
    for chunk in reversed((*chunks, *manifest.chunks)):
        left -= chunk.data_size
        if left < 0:
            return chunk.end_offset
    return manifest.start_offset


def swap_segment(
    manifest: Manifest,
    old: SegmentEntry,
    new: SegmentEntry | None,
    replaced: Iterable[str],
    now_ms: int,
    *,
    drop_holes: DeletedRanges | None = None,
) -> Manifest | None:
    """Put a rewritten segment in the place of an old one (none: all of it was dead); None when
    that is not there any more. Holes of `drop_holes` have no bytes in it and are dropped."""
    if old not in manifest.segments:
        return None
    segments = tuple(
        segment if segment != old else new
        for segment in manifest.segments
        if segment != old or new is not None
    )
    garbage = (Garbage(name, now_ms) for name in (old.name, *replaced))
    return replace(
        manifest,
        segments=tuple(segment for segment in segments if segment is not None),
        deleted=_holes_left(manifest, old, drop_holes),
        garbage=(*manifest.garbage, *garbage),
    )


def _holes_left(
    manifest: Manifest, old: SegmentEntry | ChunkEntry, drop_holes: DeletedRanges | None
) -> tuple[tuple[int, int], ...]:
    """Return the holes without those of `drop_holes` that have no bytes any more."""
    if drop_holes is None:
        return manifest.deleted
    written = drop_holes.overlapping(old.first_offset, old.end_offset)
    inside = [(max(a, old.first_offset), min(b, old.end_offset)) for a, b in written]
    return tuple(_without(manifest.deleted, inside))


def swap_chunk(
    manifest: Manifest,
    old: ChunkEntry,
    new: ChunkEntry | None,
    now_ms: int,
    *,
    drop_holes: DeletedRanges | None = None,
) -> Manifest | None:
    """Put another chunk in the place of one of the open segment (none: nothing of it is left);
    None when that is not there any more. `drop_holes` as for `swap_segment`."""
    if old not in manifest.chunks:
        return None
    chunks = (chunk if chunk != old else new for chunk in manifest.chunks)
    return replace(
        manifest,
        chunks=tuple(chunk for chunk in chunks if chunk is not None),
        deleted=_holes_left(manifest, old, drop_holes),
        garbage=(*manifest.garbage, Garbage(old.name, now_ms)),
    )


def _without(
    ranges: Iterable[tuple[int, int]], holes: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield ranges without the holes; both ascend."""
    for start, end in ranges:
        start_left = start
        for hole_start, hole_end in holes:
            if hole_end <= start_left or hole_start >= end:
                continue
            if start_left < hole_start:
                yield start_left, hole_start
            start_left = hole_end
        if start_left < end:
            yield start_left, end


def drop_garbage(manifest: Manifest, names: frozenset[str]) -> Manifest | None:
    kept = tuple(dead_object for dead_object in manifest.garbage if dead_object.name not in names)
    return None if kept == manifest.garbage else replace(manifest, garbage=kept)


def destroy(manifest: Manifest, now_ms: int) -> Manifest | None:
    return None if manifest.destroyed_ms is not None else replace(manifest, destroyed_ms=now_ms)


def start_over(manifest: Manifest, chunks_of: ChunksOf, now_ms: int) -> Manifest:
    """Start an empty shard of the same name after the old one was destroyed."""
    names = [segment.name for segment in (*manifest.segments,)]
    names += [chunk.name for chunks in chunks_of.values() for chunk in chunks]
    names += [chunk.name for chunk in manifest.chunks]
    return Manifest(
        topic=manifest.topic,
        partition=manifest.partition,
        kind=manifest.kind,
        epoch=manifest.epoch,
        revision=manifest.revision,
        garbage=(*manifest.garbage, *(Garbage(name, now_ms) for name in names)),
    )
