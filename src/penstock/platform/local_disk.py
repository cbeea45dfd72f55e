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
import itertools
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import Final

from penstock.platform import file_system_sync
from penstock.platform.disk import FileStatus, Usage
from penstock.platform.local_file import LocalFile
from penstock.platform.local_lock import LocalLock, TurnLock

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Records are read by the user who runs the store, and by no other."""
_SYNCS_AT_ONCE: Final = 8
SYNCS_EACH_MAX: Final = 64
"""More files and directories than this are synced with the whole file system they are on."""
_CREATIONS_MAX: Final = 3


def close_to_others(directory: str) -> None:
    """Take the files of a directory from other users. RocksDB makes its own by the process's mask,
    which a library does not change; what it makes later is protected by the directory's mode."""
    # Suppressed is what is not ours, and what RocksDB is just removing.
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & 0o077:
                    os.chmod(entry.path, FILE_MODE)


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
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return FileStatus(status.st_size, status.st_mtime_ns // 1_000_000)

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
                    zip(asides, paths, strict=True), key=lambda pair: _directory_of(pair[1])
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


_asides: Final[set[str]] = set()
_asides_guard: Final = threading.Lock()


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
