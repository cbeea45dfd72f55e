"""The open files and locks of a `FaultyDisk`."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from penstock.testing.memory_tree import MemoryFile, MemoryMapping

if TYPE_CHECKING:
    from penstock.testing.faulty_disk import FaultyDisk


class FaultyFile:
    """An open file; stale (ESTALE) once its disk has crashed or its process was killed."""

    def __init__(self, disk: FaultyDisk, path: str, file: MemoryFile, *, writable: bool) -> None:
        self._disk: Final = disk
        self._path: Final = path
        self._file: Final = file
        self._writable: Final = writable
        self._life: Final = disk.life
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, size: int) -> bytes:
        with self._disk.guard:
            self._check()
            if position < 0 or size < 0:
                raise os_error(errno.EINVAL, self._path)
            self._disk.faults.enter("read", self._path)
            return bytes(self._file.data[position : min(position + size, self._file.size)])

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read_at(position, buffer.nbytes)
        buffer[: len(data)] = data
        return len(data)

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        content = bytes(data)
        with self._disk.guard:
            self._check(writing=True)
            if position < 0:
                raise os_error(errno.EINVAL, self._path)
            rule = self._disk.faults.striking("write", self._path)
            if rule is not None:
                if rule.landed:
                    self._put(position, content[: rule.landed])
                raise self._disk.faults.error_of(rule, self._path)
            fits = self._disk.fitting_size(self._file, position, len(content))
            self._put(position, content[:fits])
            if fits < len(content):
                raise os_error(errno.ENOSPC, self._path)

    def size(self) -> int:
        with self._disk.guard:
            self._check()
            return self._file.size

    def truncate(self, size: int) -> None:
        with self._disk.guard:
            self._check(writing=True)
            self._disk.faults.enter("truncate", self._path)
            self._file.resize(size)
            self._file.modified_ms = self._disk.now_ms()

    def allocate(self, size: int) -> None:
        with self._disk.guard:
            self._check(writing=True)
            self._disk.faults.enter("allocate", self._path)
            if self._disk.fitting_size(self._file, 0, size) < size:
                raise os_error(errno.ENOSPC, self._path)
            self._file.allocate(0, size)

    def written_ranges(self, start: int) -> list[tuple[int, int]]:
        with self._disk.guard:
            self._check()
            return self._file.written_ranges(start)

    def map(self, *, writable: bool) -> MemoryMapping:
        with self._disk.guard:
            self._check()
            if writable and not self._writable:
                raise os_error(errno.EACCES, self._path)
            self._disk.faults.enter("map", self._path)
            return MemoryMapping(self._file, writable=writable)

    def descriptor(self) -> None:
        """None: every sync must come past the faults."""

    def sync(self) -> None:
        with self._disk.guard:
            self._check()
            rule = self._disk.faults.striking("sync", self._path)
            if rule is not None:
                self._file.sync_failed()
                raise self._disk.faults.error_of(rule, self._path)
            self._disk.check_holes(self._file, self._path)
            if self._file.sync():
                self._file.modified_ms = self._disk.now_ms()

    def close(self) -> None:
        self._closed = True

    def _put(self, position: int, content: bytes) -> None:
        if content:
            self._file.write(position, content)
            self._file.modified_ms = self._disk.now_ms()

    def _check(self, *, writing: bool = False) -> None:
        self._disk.faults.check_running(self._path)
        if self._life != self._disk.life:
            raise os_error(errno.ESTALE, self._path)
        if self._closed or (writing and not self._writable):
            raise os_error(errno.EBADF, self._path)


class FaultyLock:
    def __init__(self, disk: FaultyDisk, name: str) -> None:
        self._disk: Final = disk
        self._name: Final = name

    def release(self) -> None:
        with self._disk.guard:
            self._disk.drop_lock(self._name, self)


def os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
