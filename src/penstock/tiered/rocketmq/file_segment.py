"""`FileSegment`: an append-only stream of bytes in a tier, bounded; sealed, it is immutable.

It knows its path, its type and its positions, and nothing of queues, topics or other segments.
Where bytes go and come from is a `SegmentBytes`: a growing file, or chunks of an object store.

    append     into a bounded buffer           append_position moves
    commit     the buffer to the storage       commit_position moves, only when it is there
    read       committed bytes only            changes nothing
    seal       no more appends; what is buffered can still be committed
"""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import BadRequestError
from penstock.tiered.rocketmq.append_result import AppendResult


class FileSegmentType(IntEnum):
    """The numbers are RocketMQ's."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


class FileSegmentStatus(IntEnum):
    NEW = 0
    SEALED = 1
    DELETED = 2


class FileSegmentMetadata(Struct, frozen=True, kw_only=True):
    """All that is known of a segment, as the metadata store keeps it."""

    path: str
    type: FileSegmentType
    base_offset: int
    status: FileSegmentStatus = FileSegmentStatus.NEW
    size: int = 0
    create_ms: int = 0
    begin_ms: int = 0
    """Time of its oldest record; `end_ms` that of its youngest."""
    end_ms: int = 0
    seal_ms: int = 0
    update_ms: int = 0
    """When the metadata store last stored the segment; 0: never."""


class SegmentBytes(Protocol):
    """Where the bytes of a segment are; positions count from the segment's base."""

    def persist(self, position: int, data: bytes) -> None:
        """Put `data` at `position`, durably, or raise and leave nothing that a reader sees."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Return exactly these bytes, or raise."""
        ...


class FileSegment:
    def __init__(
        self,
        metadata: FileSegmentMetadata,
        storage: SegmentBytes,
        *,
        size_max: int,
        buffer_max: int,
    ) -> None:
        self._metadata = metadata
        self._storage: Final = storage
        self._size_max: Final = size_max
        self._buffer_max: Final = buffer_max
        self._buffer: list[bytes] = []
        self._append_position = metadata.size
        self._commit_position = metadata.size
        self._appending: Final = threading.Lock()
        self._committing: Final = threading.Lock()
        self._closed = False

    @property
    def metadata(self) -> FileSegmentMetadata:
        return replace(self._metadata, size=self._commit_position)

    @property
    def path(self) -> str:
        return self._metadata.path

    @property
    def type(self) -> FileSegmentType:
        return self._metadata.type

    @property
    def base_offset(self) -> int:
        return self._metadata.base_offset

    @property
    def append_position(self) -> int:
        """Bytes appended so far, committed or not."""
        return self._append_position

    @property
    def commit_position(self) -> int:
        """Bytes that are in the storage."""
        return self._commit_position

    @property
    def append_offset(self) -> int:
        return self.base_offset + self._append_position

    @property
    def commit_offset(self) -> int:
        return self.base_offset + self._commit_position

    @property
    def is_sealed(self) -> bool:
        return self._metadata.status is not FileSegmentStatus.NEW

    def append(self, data: bytes, timestamp_ms: int = 0) -> AppendResult:
        """Take `data` into the buffer; see `AppendResult`."""
        with self._appending:
            if self._closed:
                return AppendResult.FILE_CLOSED
            if self.is_sealed or self._is_too_much(len(data)):
                return AppendResult.FILE_FULL
            held = self._append_position - self._commit_position
            if held and held + len(data) > self._buffer_max:
                return AppendResult.BUFFER_FULL
            self._buffer.append(data)
            self._append_position += len(data)
            begin = self._metadata.begin_ms or timestamp_ms
            self._metadata = replace(
                self._metadata,
                begin_ms=min(begin, timestamp_ms) if timestamp_ms else begin,
                end_ms=max(self._metadata.end_ms, timestamp_ms),
            )
            return AppendResult.SUCCESS

    def _is_too_much(self, size: int) -> bool:
        return self._append_position > 0 and self._append_position + size > self._size_max

    def commit(self) -> int:
        """Put what is buffered into the storage; return how many bytes. Appends go on meanwhile;
        when it raises, everything is still buffered."""
        with self._committing:
            with self._appending:
                count = len(self._buffer)
                data = b"".join(self._buffer)
            if not data:
                return 0
            self._storage.persist(self._commit_position, data)
            with self._appending:
                del self._buffer[:count]
                self._commit_position += len(data)
            return len(data)

    def read(self, position: int, size: int) -> bytes:
        """Return committed bytes; raise `BadRequestError` outside of them."""
        if position < 0 or size < 0 or position + size > self._commit_position:
            raise BadRequestError(
                f"{self.path}: [{position}, {position + size}) is not within the "
                f"{self._commit_position} bytes committed"
            )
        return self._storage.read(position, size) if size else b""

    def seal(self, now_ms: int) -> None:
        """Take no more appends. Again: nothing."""
        with self._appending:
            if not self.is_sealed:
                self._metadata = replace(
                    self._metadata, status=FileSegmentStatus.SEALED, seal_ms=now_ms
                )

    def close(self) -> None:
        with self._appending:
            self._closed = True
