"""Frames of version 2 from a socket that writes into a given buffer.

Small frames are cut out of a buffer of `CHUNK_SIZE`; a large one gets a buffer of its own, so that
its bytes are copied once, whatever number of reads they come in.
"""

from __future__ import annotations

from typing import Final

from penstock.meta.raft.network.messages import FRAME_HEAD_2, check_frame, read_head

CHUNK_SIZE: Final = 256 << 10
_LARGE_SIZE: Final = CHUNK_SIZE // 2
_HEAD_SIZE: Final = FRAME_HEAD_2.size
_VERSION: Final = 2


class FrameAssembler:
    """`buffer` says where the next bytes go, `advance` how many came; then `next_frame` until it
    returns None."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._chunk = bytearray(CHUNK_SIZE)
        self._start = self._end = 0
        self._large: bytearray | None = None
        self._filled = 0
        self._checksum = 0

    def buffer(self) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif CHUNK_SIZE - self._end < _LARGE_SIZE:
            # What is left is at most a small frame without its last byte.
            rest = self._chunk[self._start : self._end]
            self._chunk[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return memoryview(self._chunk)[self._end :]

    def advance(self, size: int) -> None:
        if self._large is None:
            self._end += size
        else:
            self._filled += size

    def next_frame(self) -> bytes | None:
        """Return the next complete frame. Raises `BadRequestError` for a malformed one."""
        if self._large is not None:
            return self._next_large(self._large)
        if self._end - self._start < _HEAD_SIZE:
            return None
        size, checksum = read_head(self._chunk, self._start, _VERSION, self._size_max)
        first = self._start + _HEAD_SIZE
        if self._end - first >= size:
            frame = bytes(memoryview(self._chunk)[first : first + size])
            self._start = first + size
            check_frame(frame, checksum)
            return frame
        if size + _HEAD_SIZE > _LARGE_SIZE:
            self._large, self._checksum = bytearray(size), checksum
            self._filled = self._end - first
            self._large[: self._filled] = memoryview(self._chunk)[first : self._end]
            self._start = self._end = 0
        return None

    def _next_large(self, large: bytearray) -> bytes | None:
        if self._filled < len(large):
            return None
        self._large = None
        frame = bytes(large)
        check_frame(frame, self._checksum)
        return frame
