"""The commit log of a shard in the chunk layout: a `FlatFile` whose bytes are the data of chunks.

Appended data becomes a chunk when the commit log is committed. The units of the consume queue are
derived from the records at that time, once, and stored in the chunk's footer: they need no request
of their own, and they count when the manifest refers to the chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.tiered.chunk.chunk import ChunkEntry
from penstock.tiered.chunk.manifest import Manifest, SegmentEntry
from penstock.tiered.rocketmq.append_result import AppendResult
from penstock.tiered.rocketmq.file_segment import (
    FileSegment,
    FileSegmentMetadata,
    FileSegmentStatus,
    FileSegmentType,
)
from penstock.tiered.rocketmq.flat_file import FlatFile
from penstock.tiered.upload.relocate import relocate_record

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile


class _ChunkData:
    """The data areas of chunks; positions are those of the segment that begins at `base`."""

    def __init__(self, owner: CompositeFlatFile, base: int) -> None:
        self._owner: Final = owner
        self._base: Final = base

    def persist(self, position: int, data: bytes) -> None:
        self._owner.put_chunk(self._base + position, data)

    def read(self, position: int, size: int) -> bytes:
        return self._owner.reads.data(self._base + position, size)


class ChunkFiles:
    def __init__(self, owner: CompositeFlatFile, manifest: Manifest | None) -> None:
        self._owner: Final = owner
        self._path: Final = owner.manifest.prefix.rstrip("/")
        segments = [] if manifest is None else self.describe(manifest)
        start = 0 if manifest is None else manifest.position
        self.commit_log: Final = FlatFile(
            f"{self._path}/COMMIT_LOG",
            FileSegmentType.COMMIT_LOG,
            [self._segment(segment) for segment in segments],
            self._make_segment,
            base_offset=start,
        )

    def append_data(self, message: bytes, position: int, timestamp_ms: int) -> AppendResult:
        return self.commit_log.append(
            relocate_record(message, position), timestamp_ms, now_ms=self._owner.clock.now_ms()
        )

    def _make_segment(self, base: int) -> FileSegment:
        return self._segment(
            FileSegmentMetadata(
                path=f"{self._path}/COMMIT_LOG/{base:020d}",
                type=FileSegmentType.COMMIT_LOG,
                base_offset=base,
                create_ms=self._owner.clock.now_ms(),
            )
        )

    def _segment(self, metadata: FileSegmentMetadata) -> FileSegment:
        return FileSegment(
            metadata,
            _ChunkData(self._owner, metadata.base_offset),
            size_max=self._owner.config.segment_size,
            buffer_max=self._owner.config.chunk_size,
        )

    def describe(self, manifest: Manifest) -> list[FileSegmentMetadata]:
        """Return the segments that a manifest speaks of, sealed ones first."""
        segments = [self._describe(segment) for segment in manifest.segments]
        if manifest.chunks:
            segments.append(self._describe_open(manifest.chunks))
        return segments

    def _describe(self, segment: SegmentEntry) -> FileSegmentMetadata:
        return FileSegmentMetadata(
            path=f"{self._path}/{segment.name}",
            type=FileSegmentType.COMMIT_LOG,
            base_offset=segment.position,
            status=FileSegmentStatus.SEALED,
            size=segment.data_size,
            create_ms=segment.created_ms,
            begin_ms=segment.min_ms,
            end_ms=segment.max_ms,
            seal_ms=segment.sealed_ms,
        )

    def _describe_open(self, chunks: tuple[ChunkEntry, ...]) -> FileSegmentMetadata:
        first = chunks[0]
        return FileSegmentMetadata(
            path=f"{self._path}/open-{first.position:020d}",
            type=FileSegmentType.COMMIT_LOG,
            base_offset=first.position,
            size=sum(chunk.data_size for chunk in chunks),
            create_ms=first.created_ms,
            begin_ms=min(chunk.min_ms for chunk in chunks),
            end_ms=max(chunk.max_ms for chunk in chunks),
        )

    def shutdown(self) -> None:
        self.commit_log.shutdown()
