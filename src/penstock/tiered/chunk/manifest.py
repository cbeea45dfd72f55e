"""What a tier holds of one shard: the object that decides.

    manifest ──▶ sealed segments ──▶ descriptor objects ──▶ chunks
             └─▶ chunks of the open segment

It is replaced as a whole, by compare-and-set, and carries the epoch of the last uploader: a writer
of a lower epoch is rejected. Descriptors of sealed segments are immutable objects, so that the
manifest stays small: about 150 bytes for every sealed segment, 650 for every chunk not sealed yet.
Offsets in [start_offset, end_offset) are answered for by the tier; `deleted` are holes in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import CorruptionError
from penstock.record import QueueKind
from penstock.tiered.chunk.chunk import ChunkEntry
from penstock.tiered.object_frame import HEAD_SIZE, add_frame, strip_frame

VERSION: Final = 1
_MAGIC: Final = b"PSTKMNFT"
_WHAT: Final = "an object"
_SEGMENT_MAGIC: Final = b"PSTKSGMT"


class SegmentEntry(Struct, frozen=True, array_like=True):
    """What a manifest says of one sealed segment; its chunks are in the object `name`."""

    name: str
    first_offset: int
    end_offset: int
    position: int
    data_size: int
    size: int
    chunks: int
    min_ms: int
    max_ms: int
    created_ms: int
    sealed_ms: int


class Garbage(Struct, frozen=True, array_like=True):
    """An object that nothing refers to any more; it is deleted after the grace period."""

    name: str
    since_ms: int


class Manifest(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    kind: QueueKind
    epoch: int = 0
    writer: str = ""
    """Who wrote this version, and its revision: two manifests with equal bytes are one."""
    revision: int = 0
    start_offset: int = 0
    end_offset: int = 0
    position: int = 0
    """Where the next chunk begins in the tiered log."""
    segments: tuple[SegmentEntry, ...] = ()
    chunks: tuple[ChunkEntry, ...] = ()
    deleted: tuple[tuple[int, int], ...] = ()
    garbage: tuple[Garbage, ...] = ()
    initialized: bool = False
    """Whether the offset of the first record is fixed."""
    destroyed_ms: int | None = None
    """When the topic was deleted; its objects go after the grace period."""
    owner: str = ""
    """The cluster that this shard belongs to; changes by another cluster are rejected."""

    @property
    def data_size(self) -> int:
        sealed = sum(segment.data_size for segment in self.segments)
        return sealed + sum(chunk.data_size for chunk in self.chunks)

    @property
    def object_size(self) -> int:
        return sum(part.size for part in self.segments) + sum(part.size for part in self.chunks)


# Made here, for msgspec must not look at a type for the first time in two threads at a time.
_manifests: Final = msgspec.msgpack.Decoder(Manifest)
_segments: Final = msgspec.msgpack.Decoder(tuple[ChunkEntry, ...])


def chunks_from(
    manifest: Manifest,
    offset: int,
    chunks_of: Callable[[SegmentEntry], tuple[ChunkEntry, ...]],
    since_ms: int | None = None,
) -> Iterator[ChunkEntry]:
    """Yield the chunks that end after `offset`, ascending; those whose records are all older than
    `since_ms` are left out, and `chunks_of` is not called for such segments."""

    def is_chosen(part: ChunkEntry | SegmentEntry) -> bool:
        return part.end_offset > offset and (since_ms is None or part.max_ms >= since_ms)

    for segment in filter(is_chosen, manifest.segments):
        yield from filter(is_chosen, chunks_of(segment))
    yield from filter(is_chosen, manifest.chunks)


def encode_manifest(manifest: Manifest) -> bytes:
    return add_frame(_MAGIC, VERSION, msgspec.msgpack.encode(manifest))


def decode_manifest(name: str, data: bytes) -> Manifest:
    """Return the manifest; `NotSupportedError` for one of a newer version, `CorruptionError` for
    any other content."""
    try:
        return _manifests.decode(strip_frame(_MAGIC, VERSION, data, name=name, what=_WHAT))
    except msgspec.DecodeError as error:
        raise CorruptionError(name, position=HEAD_SIZE, reason=str(error)) from error


def encode_segment(chunks: tuple[ChunkEntry, ...]) -> bytes:
    return add_frame(_SEGMENT_MAGIC, VERSION, msgspec.msgpack.encode(chunks))


def decode_segment(name: str, data: bytes) -> tuple[ChunkEntry, ...]:
    try:
        body = strip_frame(_SEGMENT_MAGIC, VERSION, data, name=name, what=_WHAT)
        return _segments.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptionError(name, position=HEAD_SIZE, reason=str(error)) from error


def describe_segment(name: str, chunks: tuple[ChunkEntry, ...], sealed_ms: int) -> SegmentEntry:
    first, last = chunks[0], chunks[-1]
    return SegmentEntry(
        name=name,
        first_offset=first.first_offset,
        end_offset=last.end_offset,
        position=first.position,
        data_size=sum(chunk.data_size for chunk in chunks),
        size=sum(chunk.size for chunk in chunks),
        chunks=len(chunks),
        min_ms=min(chunk.min_ms for chunk in chunks),
        max_ms=max(chunk.max_ms for chunk in chunks),
        created_ms=first.created_ms,
        sealed_ms=sealed_ms,
    )
