"""`FlatFile`: segments in a row, which together are a stream without an end.

Only the last segment takes appends; all before it are sealed. Offsets of a flat file are bytes from
the very beginning; the first segments may be gone. Reading has no side effects: only `append` makes
segments. Expired segments are removed by the owner of the layout (the manifest, in chunks).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from penstock.errors import BadRequestError
from penstock.tiered.rocketmq.append_result import AppendResult
from penstock.tiered.rocketmq.file_segment import FileSegment, FileSegmentMetadata, FileSegmentType

MakeSegment = Callable[[int], FileSegment]
"""Makes the segment that begins at an offset."""


class FlatFile:
    def __init__(
        self,
        path: str,
        type_: FileSegmentType,
        segments: Iterable[FileSegment],
        make: MakeSegment,
        *,
        base_offset: int = 0,
    ) -> None:
        """`base_offset` is where the first segment will begin when there is none yet."""
        self.path: Final = path
        self.type: Final = type_
        self._segments: list[FileSegment] = sorted(
            segments, key=lambda segment: segment.base_offset
        )
        self._make: Final = make
        self._base_offset = base_offset
        self._lock: Final = threading.Lock()
        self._closed = False

    # Offsets

    @property
    def min_offset(self) -> int:
        first = next(iter(self._segments), None)
        return self._base_offset if first is None else first.base_offset

    @property
    def append_offset(self) -> int:
        last = self._last
        return self._base_offset if last is None else last.append_offset

    @property
    def commit_offset(self) -> int:
        """Everything below is in the storage."""
        waiting = self._waiting()
        return waiting[0].commit_offset if waiting else self.append_offset

    def _waiting(self) -> list[FileSegment]:
        """Return the segments that hold something back. They are committed in order, so that these
        are the last ones."""
        waiting: list[FileSegment] = []
        with self._lock:
            for segment in reversed(self._segments):
                if segment.commit_position < segment.append_position:
                    waiting.append(segment)
                elif segment.append_position > 0:
                    break
        waiting.reverse()
        return waiting

    @property
    def segments(self) -> list[FileSegmentMetadata]:
        with self._lock:
            return [segment.metadata for segment in self._segments]

    @property
    def _last(self) -> FileSegment | None:
        return self._segments[-1] if self._segments else None

    def init_offset(self, offset: int) -> None:
        """Let the first segment begin at `offset`; nothing when there is one."""
        with self._lock:
            if not self._segments:
                self._base_offset = offset

    # Writing

    def append(self, data: bytes, timestamp_ms: int = 0, *, now_ms: int = 0) -> AppendResult:
        """Append to the last segment, or to a new one when that is full."""
        with self._lock:
            if self._closed:
                return AppendResult.FILE_CLOSED
            last = self._last
            result = AppendResult.FILE_FULL if last is None else last.append(data, timestamp_ms)
            if result is not AppendResult.FILE_FULL:
                return result
            if last is not None:
                last.seal(now_ms)
            segment = self._make(self.append_offset)
            self._segments.append(segment)
            return segment.append(data, timestamp_ms)

    def commit(self) -> int:
        """Commit every segment that holds something back, in order; return how many bytes."""
        return sum(segment.commit() for segment in self._waiting())

    # Reading

    def read(self, offset: int, size: int) -> bytes:
        """Return committed bytes, across segments."""
        parts: list[bytes] = []
        while size:
            segment = self._segment_at(offset)
            part = min(size, segment.base_offset + segment.commit_position - offset)
            if part <= 0:
                raise BadRequestError(f"{self.path}: {offset} is not committed yet")
            parts.append(segment.read(offset - segment.base_offset, part))
            offset += part
            size -= part
        return b"".join(parts)

    def _segment_at(self, offset: int) -> FileSegment:
        for segment in reversed(self._segments):
            if segment.base_offset <= offset:
                return segment
        raise BadRequestError(f"{self.path} begins at byte {self.min_offset}, after {offset}")

    def shutdown(self) -> None:
        with self._lock:
            self._closed = True
            for segment in self._segments:
                segment.close()
