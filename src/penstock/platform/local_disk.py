"""The file system of this machine, as a `Disk`.

Guarantees beyond the contract in `platform/disk.py`:

  * reads, writes and syncs release the GIL, and go on after interrupts and partial transfers
  * a durable `replace` is: write aside, sync the file, rename, sync the directory
  * `sync` reaches the device (on macOS only F_FULLFSYNC does), and a failed one raises
  * nothing here retries or hides an `OSError`
"""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import itertools
import mmap
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import Final

from penstock.errors import LockedError
from penstock.platform import file_system_sync
from penstock.platform.disk import FileStatus, Usage

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Records are read by the user who runs the store, and by no other."""
_ZEROS: Final = bytes(1 << 20)
_RANGES_MAX: Final = 1024
_SYNCS_AT_ONCE: Final = 8
SYNCS_EACH_MAX: Final = 64
"""More files and directories than this are synced with the whole file system they are on."""
_CREATIONS_MAX: Final = 3
_NO_SEEK_DATA: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_LET_GO_SIZE: Final = 4 << 20


def close_to_others(directory: str) -> None:
    """Take the files of a directory from other users. RocksDB makes its own by the process's mask,
    which a library does not change; what it makes later is protected by the directory's mode."""
    # Suppressed is what is not ours, and what RocksDB is just removing.
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & 0o077:
                    os.chmod(entry.path, FILE_MODE)


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
        for piece in range(start - start % mmap.PAGESIZE, end, _LET_GO_SIZE):
            size = min(_LET_GO_SIZE, end - piece)
            # It is only a favour to the kernel, and the file may have been unmapped meanwhile.
            with contextlib.suppress(OSError, ValueError):
                self._map.madvise(mmap.MADV_DONTNEED, piece, size)

    def set_readahead(self, start: int, end: int, *, wanted: bool) -> None:
        if self._map is None or sys.platform != "linux":
            return
        start -= start % mmap.PAGESIZE
        advice = mmap.MADV_NORMAL if wanted else mmap.MADV_RANDOM
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
        found: list[tuple[int, int]] = []
        while start < size:
            begin, end = self._next_data(start, size)
            if begin >= size:
                break
            if len(found) == _RANGES_MAX:
                return [*found, (begin, size)]
            found.append((begin, end))
            start = end
        return found

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
        _sync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write_zeros(self, old_size: int, size: int) -> None:
        """Allocate where the file system cannot: zeros that were written have blocks. Holes
        below `old_size` stay holes, which is why files are allocated when they are made."""
        for position in range(old_size, size, len(_ZEROS)):
            self.write_at(position, memoryview(_ZEROS)[: size - position])


class LocalLock:
    """An OS lock on byte 0 of a file, held until `release` or the end of the process."""

    # POSIX locks belong to the process: a second one on the same file would succeed, and closing
    # any descriptor of the file would drop the first. So holders in this process are remembered,
    # by device and inode, and refused before the file is opened again.
    _held: Final[set[tuple[int, int]]] = set()
    _guard: Final = threading.Lock()

    def __init__(self, path: str) -> None:
        with self._guard:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(path)
                if (status.st_dev, status.st_ino) in self._held:
                    raise LockedError(f"{path}: this process has it open already")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as error:
                os.close(descriptor)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise LockedError(f"{path}: {_holder(path)} has it open") from error
            status = os.fstat(descriptor)
            self._identity = (status.st_dev, status.st_ino)
            self._held.add(self._identity)
            self._descriptor: int | None = descriptor

    def release(self) -> None:
        with self._guard:
            if self._descriptor is None:
                return
            os.close(self._descriptor)
            self._descriptor = None
            self._held.discard(self._identity)

    @classmethod
    def forget_all(cls) -> None:
        cls._held.clear()


class TurnLock:
    """An flock on a file, which threads and processes alike wait for."""

    def __init__(self, path: str, mode: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LocalDisk:
    """The `Disk` of production. It holds nothing but modes: any number of them may be used."""

    _file_mode = FILE_MODE
    _directory_mode = DIRECTORY_MODE

    def with_modes_of(self, path: str) -> LocalDisk:
        mode = stat.S_IMODE(os.stat(path).st_mode) & 0o777 | DIRECTORY_MODE
        other = copy.copy(self)
        other._directory_mode, other._file_mode = mode, mode & 0o666
        return other

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> LocalFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        if not create:
            return LocalFile(path, os.open(path, flags))
        for _ in range(_CREATIONS_MAX):
            with contextlib.suppress(FileNotFoundError):
                return LocalFile(path, os.open(path, flags | os.O_CREAT, self._file_mode))
            # Another thread may remove the directory again while it is empty.
            self.make_directory(_directory_of(path))
        return LocalFile(path, os.open(path, flags | os.O_CREAT, self._file_mode))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def walk(self, path: str) -> Iterator[str]:
        for directory, _, names in os.walk(path, onerror=_raise_unless_gone):
            for name in names:
                yield os.path.join(directory, name)

    def status(self, path: str) -> FileStatus | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return FileStatus(found.st_size, found.st_mtime_ns // 1_000_000)

    def local_path(self, path: str) -> str | None:
        return path

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        for _ in range(_CREATIONS_MAX):
            # Another thread may remove the one above again while it is empty.
            with contextlib.suppress(FileNotFoundError):
                return self._make_directory(path, durable=durable)
        return self._make_directory(path, durable=durable)

    def _make_directory(self, path: str, *, durable: bool) -> None:
        if os.path.isdir(path):
            return
        parent = _directory_of(path)
        if parent != path:
            self.make_directory(parent, durable=durable)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, self._directory_mode)
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if durable:
            self.sync_directory(parent)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)
        else:
            self.remove(path)

    def remove_empty(self, path: str) -> bool:
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            return error.errno == errno.ENOENT
        return True

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        with _aside_of(path) as aside:
            try:
                self._write_new(aside, data, durable=durable)
                os.replace(aside, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(aside)
                raise
        if durable:
            self.sync_directory(_directory_of(path))

    def replace_together(self, files: Sequence[tuple[str, bytes]]) -> None:
        if len(files) == 1:
            self.replace(*files[0])
            return
        with contextlib.ExitStack() as stack:
            asides = [stack.enter_context(_aside_of(path)) for path, _ in files]
            try:
                self._write_together(asides, [data for _, data in files])
                paths = [path for path, _ in files]
                for directory, some in groupby(
                    zip(asides, paths, strict=True), key=lambda each: _directory_of(each[1])
                ):
                    for aside, path in some:
                        os.replace(aside, path)
                    self.sync_directory(directory)
            except BaseException:
                for aside in asides:
                    with contextlib.suppress(OSError):
                        os.unlink(aside)
                raise

    def _write_together(self, paths: Sequence[str], contents: Sequence[bytes]) -> None:
        """Write new files; syncs that wait at the same time share the device's."""
        write = partial(self._write_new, durable=True)
        with ThreadPoolExecutor(min(_SYNCS_AT_ONCE, len(paths))) as pool:
            try:
                first = pool.submit(write, paths[0], contents[0])
            except RuntimeError:
                # The interpreter ends, and begins no more threads: a store that was not closed.
                for path, data in zip(paths, contents, strict=True):
                    write(path, data)
                return
            list(pool.map(write, paths[1:], contents[1:]))
            first.result()

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_together(self, files: Sequence[str], directories: Sequence[str]) -> None:
        if len(files) + len(directories) > SYNCS_EACH_MAX and file_system_sync.supported:
            file_system_sync.sync({*map(_directory_of, files), *directories})
            return
        for path in files:
            with (
                contextlib.suppress(FileNotFoundError),
                contextlib.closing(self.open(path, writable=False)) as file,
            ):
                file.sync()
        for path in directories:
            with contextlib.suppress(FileNotFoundError):
                self.sync_directory(path)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def usage(self, path: str) -> Usage:
        status = os.statvfs(path)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        # What only root may use counts as neither, as for df and RocketMQ: a store cannot have it.
        return Usage(total=used + status.f_bavail * status.f_frsize, used=used)

    def lock(self, path: str) -> LocalLock:
        self.make_directory(_directory_of(path))
        return LocalLock(path)

    def wait_for_lock(self, path: str) -> TurnLock:
        return TurnLock(path, self._file_mode)

    def _write_new(self, path: str, data: bytes, *, durable: bool) -> None:
        file = self.open(path, create=True)
        try:
            file.truncate(0)
            file.write_at(0, data)
            if durable:
                file.sync()
        finally:
            file.close()


_NO_FALLOCATE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


_asides: Final[set[str]] = set()
_asides_guard: Final = threading.Lock()

# A lock is not inherited by a child of fork, so the child must not believe that it holds one.
os.register_at_fork(after_in_child=LocalLock.forget_all)


@contextlib.contextmanager
def _aside_of(path: str) -> Iterator[str]:
    """Name a file beside `path` that no other thread of this process writes into.

    The names are few and used again, so that crashes do not pile up forgotten files.
    """
    with _asides_guard:
        names = (f"{path}.{number}.tmp" for number in itertools.count())
        aside = next(name for name in names if name not in _asides)
        _asides.add(aside)
    try:
        yield aside
    finally:
        with _asides_guard:
            _asides.discard(aside)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # another process removed it during the walk
        raise error


def _directory_of(path: str) -> str:
    return os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    elif sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def _holder(path: str) -> str:
    """Name the process that holds the lock, where the operating system tells."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            for line in locks:
                words = line.split()
                if len(words) >= 6 and words[5].endswith(f":{inode}") and words[1] != "->":
                    return f"process {words[4]}"
    except OSError:
        pass
    return "another process"
