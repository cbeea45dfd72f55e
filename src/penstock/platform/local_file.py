"""Files of this machine, as `Disk` hands them out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
from typing import Final

_ZEROS: Final = bytes(1 << 20)
_RANGES_MAX: Final = 1024
_NO_SEEK_DATA: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_RELEASE_SIZE: Final = 4 << 20
_NO_FALLOCATE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LocalMapping:
    """A file mapped with MAP_SHARED, until `release` finds no view of it.

    Every `buffer` is a separate view, so that `release` detects those that a reader has kept.
    """

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        # An empty file cannot be mapped; its mapping is a buffer of no bytes.
        self._map = mmap.mmap(descriptor, size, access=access) if size else None

    @property
    def buffer(self) -> memoryview:
        return memoryview(self._map) if self._map is not None else memoryview(b"")

    def drop_pages(self, start: int, end: int) -> None:
        if self._map is None or sys.platform != "linux":
            return
        end -= end % mmap.PAGESIZE
        # In pieces: the interpreter is ours meanwhile.
        for piece in range(start - start % mmap.PAGESIZE, end, _RELEASE_SIZE):
            size = min(_RELEASE_SIZE, end - piece)
            # It is only a favour to the kernel, and the file may have been unmapped meanwhile.
            with contextlib.suppress(OSError, ValueError):
                self._map.madvise(mmap.MADV_DONTNEED, piece, size)

    def set_readahead(self, start: int, end: int, *, enabled: bool) -> None:
        if self._map is None or sys.platform != "linux":
            return
        start -= start % mmap.PAGESIZE
        advice = mmap.MADV_NORMAL if enabled else mmap.MADV_RANDOM
        # As above.
        with contextlib.suppress(OSError, ValueError):
            self._map.madvise(advice, start, end - start)

    def release(self) -> bool:
        if self._map is None:
            return True
        try:
            self._map.close()
        except BufferError:
            return False
        return True


class LocalFile:
    """An open file of this machine."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path: Final = path
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, size: int) -> bytes:
        try:
            return self._read_at(position, size)
        except OSError as error:
            error.filename = self._path  # which only `open` says by itself
            raise

    def _read_at(self, position: int, size: int) -> bytes:
        first = os.pread(self._descriptor, size, position)
        if len(first) == size or not first:
            return first
        parts = [first]
        missing = size - len(first)
        while missing > 0:
            part = os.pread(self._descriptor, missing, position + size - missing)
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def read_into(self, position: int, buffer: memoryview) -> int:
        filled = os.preadv(self._descriptor, [buffer], position)
        while 0 < filled < buffer.nbytes:
            step = os.preadv(self._descriptor, [buffer[filled:]], position + filled)
            if step == 0:
                break
            filled += step
        return filled

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        written = os.pwrite(self._descriptor, data, position)
        while written < size:
            # A short write is followed by its reason: the next one raises it.
            rest = memoryview(data).cast("B")[written:]
            step = os.pwrite(self._descriptor, rest, position + written)
            if step == 0:
                raise OSError(errno.EIO, "the device takes no bytes", self._path)
            written += step

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        if size == 0:
            return
        old_size = self.size()
        try:
            try:
                os.posix_fallocate(self._descriptor, 0, size)
            except (AttributeError, OSError) as error:
                # macOS has no such call, and some file systems refuse it.
                if isinstance(error, OSError) and error.errno not in _NO_FALLOCATE:
                    raise
                self._write_zeros(old_size, size)
        except OSError:
            # A failed allocation may leave the file longer than it was.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, old_size)
            raise

    def written_ranges(self, start: int) -> list[tuple[int, int]]:
        size = self.size()
        ranges: list[tuple[int, int]] = []
        while start < size:
            begin, end = self._next_data(start, size)
            if begin >= size:
                break
            if len(ranges) == _RANGES_MAX:
                return [*ranges, (begin, size)]
            ranges.append((begin, end))
            start = end
        return ranges

    def _next_data(self, start: int, size: int) -> tuple[int, int]:
        """Return the next range that the file system takes for data; dirty pages are data, even
        those stored through a mapping."""
        try:
            begin = os.lseek(self._descriptor, start, os.SEEK_DATA)
            return begin, os.lseek(self._descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return size, size
            if error.errno in _NO_SEEK_DATA:
                return start, size
            raise

    def map(self, *, writable: bool) -> LocalMapping:
        return LocalMapping(self._descriptor, self.size(), writable=writable)

    def descriptor(self) -> int | None:
        return self._descriptor if self._descriptor >= 0 else None

    def sync(self) -> None:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        sync_descriptor(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write_zeros(self, old_size: int, size: int) -> None:
        """Allocate where the file system cannot: zeros that were written have blocks. Holes
        below `old_size` stay holes, which is why files are allocated when they are made."""
        for position in range(old_size, size, len(_ZEROS)):
            self.write_at(position, memoryview(_ZEROS)[: size - position])


def sync_descriptor(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    elif sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)
