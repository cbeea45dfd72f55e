"""The flat files of a shard in the chunk layout: the data and the units of the same chunks.

The commit log's bytes are the data areas of the chunks, the consume queue's are the units of their
footers. Appended data goes up as a chunk when the commit log is committed; units need no request of
their own, for the chunk has them and the manifest decides when they count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.codec.format import BATCH_UNIT, QUEUE_UNIT
from penstock.record import QueueKind
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
from penstock.tiered.upload.relocate import move_record

if TYPE_CHECKING:
    from penstock.tiered.composite_flat_file import CompositeFlatFile

_UNBOUNDED: Final = 1 << 62


class _DataBytes:
    """The data areas of chunks; positions are those of the segment that begins at `base`."""

    def __init__(self, owner: CompositeFlatFile, base: int) -> None:
        self._owner: Final = owner
        self._base: Final = base

    def persist(self, position: int, data: bytes) -> None:
        self._owner.put_chunk(self._base + position, data)

    def read(self, position: int, size: int) -> bytes:
        return self._owner.reads.data(self._base + position, size)


class _UnitBytes:
    """The units of chunks: they are in the chunk that the commit log has put."""

    def __init__(self, owner: CompositeFlatFile, base: int) -> None:
        self._owner: Final = owner
        self._base: Final = base

    def persist(self, position: int, data: bytes) -> None:
        """Nothing to do: the manifest was put before."""

    def read(self, position: int, size: int) -> bytes:
        unit = BATCH_UNIT.size if self._owner.kind is QueueKind.BATCH else QUEUE_UNIT.size
        return self._owner.reads.units((self._base + position) // unit, size // unit)


class ChunkFiles:
    def __init__(self, owner: CompositeFlatFile, manifest: Manifest | None) -> None:
        self._owner: Final = owner
        self._path: Final = owner.manifest.prefix.rstrip("/")
        found = [] if manifest is None else self.describe(manifest)
        start = 0 if manifest is None else manifest.position
        queue = 0 if manifest is None else manifest.end_offset * self._unit_size
        self.commit_log: Final = FlatFile(
            f"{self._path}/COMMIT_LOG",
            FileSegmentType.COMMIT_LOG,
            [self._segment(one) for one in found if one.type is FileSegmentType.COMMIT_LOG],
            self._make_data,
            base_offset=start,
        )
        self.consume_queue = FlatFile(
            f"{self._path}/CONSUME_QUEUE",
            FileSegmentType.CONSUME_QUEUE,
            [],
            self._make_units,
            base_offset=queue,
        )

    @property
    def _unit_size(self) -> int:
        return BATCH_UNIT.size if self._owner.kind is QueueKind.BATCH else QUEUE_UNIT.size

    def append_data(self, message: bytes, position: int, timestamp_ms: int) -> AppendResult:
        return self.commit_log.append(
            move_record(message, position), timestamp_ms, now_ms=self._owner.clock.now_ms()
        )

    def restart_queue(self, position: int) -> None:
        """Let the consume queue go on at `position`: what lies before it is a hole."""
        self.consume_queue = FlatFile(
            self.consume_queue.path,
            FileSegmentType.CONSUME_QUEUE,
            [],
            self._make_units,
            base_offset=position,
        )

    def _make_data(self, base: int) -> FileSegment:
        return self._segment(self._metadata(FileSegmentType.COMMIT_LOG, base))

    def _make_units(self, base: int) -> FileSegment:
        return self._segment(self._metadata(FileSegmentType.CONSUME_QUEUE, base))

    def _metadata(self, type_: FileSegmentType, base: int) -> FileSegmentMetadata:
        return FileSegmentMetadata(
            path=f"{self._path}/{type_.name}/{base:020d}",
            type=type_,
            base_offset=base,
            create_ms=self._owner.clock.now_ms(),
        )

    def _segment(self, metadata: FileSegmentMetadata) -> FileSegment:
        if metadata.type is FileSegmentType.COMMIT_LOG:
            return FileSegment(
                metadata,
                _DataBytes(self._owner, metadata.base_offset),
                size_max=self._owner.config.segment_size,
                buffer_max=self._owner.config.chunk_size,
            )
        return FileSegment(
            metadata,
            _UnitBytes(self._owner, metadata.base_offset),
            size_max=_UNBOUNDED,
            buffer_max=_UNBOUNDED,
        )

    def describe(self, manifest: Manifest) -> list[FileSegmentMetadata]:
        """Return the segments that a manifest speaks of, sealed ones first."""
        found = [self._describe(segment) for segment in manifest.segments]
        if manifest.chunks:
            found.append(self._describe_open(manifest.chunks))
        return found

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
        self.consume_queue.shutdown()
