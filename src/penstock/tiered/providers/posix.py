"""`file:///directory`: objects as files, created atomically and durable when the call returns.

A new object is written under a name that `list` does not show, synced, linked to its name (a link
fails when the name exists: that is put-if-absent), and the directory is synced. Compare-and-set
holds an OS lock on one file of the directory, so that it holds between processes, too. A crash
leaves at most a hidden temporary file; `remove_leftovers` takes those away when they are old.

All file access goes through `Disk`, so that power-cut tests cover a local tier. An object whose
directory could not be synced is visible and may be lost: `UnsyncedWriteError` says so, and a
repeated call syncs the directory again before it answers.
"""

from __future__ import annotations

import errno
import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final, NoReturn

from penstock.codec.select import IS_NATIVE, core
from penstock.errors import (
    AlreadyExistsError,
    StaleWriteError,
    TierSetupError,
    TierUnavailableError,
)
from penstock.platform.disk import Disk, File, Lock
from penstock.platform.local_disk import LocalDisk
from penstock.tiered.providers.contract import (
    Blocks,
    ObjectBytes,
    ObjectInfo,
    ObjectMissingError,
    UnsyncedWriteError,
)
from penstock.tiered.providers.memory import exactly

_HIDDEN: Final = ".penstock-"
_LOCK: Final = f"{_HIDDEN}lock"
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR})


class PosixProvider:
    def __init__(self, directory: str, *, create: bool = True, disk: Disk | None = None) -> None:
        """Open the tier in `directory`, an absolute path; without `create` it must exist. A tier
        that Penstock creates is private to its user; in a directory made for several users, new
        files and directories get that directory's mode."""
        if not directory.startswith("/"):
            raise TierSetupError(
                f"file://{directory}: the path must be absolute, as in file:///var/lib/tier"
            )
        self._root: Final = directory.rstrip("/") or "/"
        self._lock: Final = threading.Lock()
        disk = disk or LocalDisk()
        with self._errors(self._root):
            if create:
                disk.make_directory(self._root)
            elif disk.status(self._root) is None or not disk.is_directory(self._root):
                raise TierSetupError(f"{self.url}: there is no such directory")
            self._disk: Final = disk.with_modes_of(self._root)

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    def put_if_absent(self, key: str, data: bytes) -> None:
        path = self._path_of(key)
        with self._errors(path), self._temporary(path, data) as temporary:
            try:
                self._disk.link(temporary, path)
            except FileExistsError:
                self._sync_directory(path)  # it may be this writer's, not synced by then
                raise AlreadyExistsError(f"{self.url}: object {key!r} exists already") from None
            self._sync_directory(path)

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        path = self._path_of(key)
        with self._errors(path), self._locked():
            try:
                version = self.get(key).version
            except ObjectMissingError:
                version = None
            if version != expected:
                if version is not None:
                    self._sync_directory(path)  # it may be this writer's, not synced by then
                raise StaleWriteError(f"{self.url}: another writer has changed {key!r}")
            with self._temporary(path, data) as temporary:
                self._disk.rename(temporary, path)
                self._sync_directory(path)
        return _version(data)

    def _sync_directory(self, path: str) -> None:
        directory = _directory_of(path)
        try:
            self._disk.sync_directory(directory)
        except OSError as error:
            raise UnsyncedWriteError(
                f"{self.url}: {directory}: cannot sync: {error.strerror or error}"
            ) from error

    def get(self, key: str) -> ObjectBytes:
        with self._opened(key) as file:
            data = file.read_at(0, file.size())
        return ObjectBytes(data, _version(data))

    def get_range(self, key: str, start: int, size: int) -> bytes:
        with self._opened(key) as file:
            return exactly(file.read_at(start, size), size, self.url, key)

    def get_range_into(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview]
    ) -> None:
        with self._opened(key) as file:
            if file.read_into(start, get_buffer()) != size:
                exactly(b"", size, self.url, key)

    def get_range_summed(
        self, key: str, start: int, size: int, get_buffer: Callable[[], memoryview], blocks: Blocks
    ) -> bytes:
        local_path = self.path_of(key)
        if not IS_NATIVE or local_path is None:
            self.get_range_into(key, start, size, get_buffer)
            return core.block_checksums(get_buffer()[: blocks.size], blocks.block_size)
        from penstock import _native

        try:
            filled, sums = _native.read_blocks(local_path, start, get_buffer(), *blocks)
        except FileNotFoundError:
            raise ObjectMissingError(self.url, key) from None
        except OSError as error:
            self._raise(local_path, error)
        if filled != size:
            exactly(b"", size, self.url, key)
        return sums

    @contextmanager
    def _opened(self, key: str) -> Iterator[File]:
        path = self._path_of(key)
        with self._errors(path):
            try:
                file = self._disk.open(path, writable=False)
            except FileNotFoundError:
                raise ObjectMissingError(self.url, key) from None
            with closing(file):
                yield file

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path_of(key)
        with self._errors(path):
            status = self._disk.status(path)
        return None if status is None else ObjectInfo(key, *status)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        directory = prefix.rpartition("/")[0]
        with self._errors(self._root):
            keys = sorted(
                key
                for key in map(self._key_of, self._walk(directory))
                if key.startswith(prefix) and not _is_hidden(key)
            )
        for key in keys:
            info = self.head(key)
            if info is not None:
                yield info

    def _walk(self, directory: str) -> Iterator[str]:
        """Yield the path of every file. A directory that cannot be listed is an error: taken for
        an empty one, it would pass every check."""
        return self._disk.walk(f"{self._root}/{directory}" if directory else self._root)

    def _key_of(self, path: str) -> str:
        return path[len(self._root) :].lstrip("/")

    def delete(self, key: str) -> None:
        path = self._path_of(key)
        with self._errors(path):
            if self._disk.status(path) is None:
                return
            self._disk.remove(path)
            directory = _directory_of(path)
            with suppress(FileNotFoundError):  # another process has removed the empty directory
                self._disk.sync_directory(directory)
            self._remove_empty(directory)

    def _remove_empty(self, directory: str) -> None:
        while len(directory) > len(self._root):
            try:
                if not self._disk.remove_empty(directory):
                    return
            except OSError:
                return  # it stays; the next delete tries again
            directory = _directory_of(directory)

    def remove_leftovers(self, before_ms: int) -> int:
        """Remove temporary files of writers that were killed; return how many there were."""
        removed = 0
        with self._errors(self._root):
            for path in self._walk(""):
                name = path.rpartition("/")[2]
                if not _is_hidden(name) or name == _LOCK:
                    continue
                status = self._disk.status(path)
                if status is not None and status.modified_ms < before_ms:
                    self._disk.remove(path)
                    removed += 1
        return removed

    def close(self) -> None:
        """Does nothing: no file stays open between calls."""

    def path_of(self, key: str) -> str | None:
        return self._disk.local_path(self._path_of(key))

    def _path_of(self, key: str) -> str:
        parts = key.split("/")
        if any(not part or part.startswith(".") for part in parts):
            raise TierSetupError(f"{self.url}: {key!r} cannot be the key of an object")
        return f"{self._root.rstrip('/')}/{key}"

    @contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[str]:
        """Give the name of a synced file that holds `data`; it is gone at the end."""
        temporary = f"{_directory_of(path)}/{_HIDDEN}{uuid.uuid4().hex}"
        try:
            with closing(self._disk.open(temporary, create=True)) as file:
                file.write_at(0, data)
                file.sync()
            yield temporary
        finally:
            self._disk.remove(temporary)  # nothing when it was renamed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock, _released(self._disk.wait_for_lock(f"{self._root}/{_LOCK}")):
            yield

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._raise(path, error)

    def _raise(self, path: str, error: OSError) -> NoReturn:
        sentence = f"{self.url}: {error.filename or path}: {error.strerror or error}"
        if error.errno in _FORBIDDEN:
            raise TierSetupError(sentence) from error
        raise TierUnavailableError(sentence) from error


@contextmanager
def _released(lock: Lock) -> Iterator[None]:
    try:
        yield
    finally:
        lock.release()


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _is_hidden(key: str) -> bool:
    return key.rpartition("/")[2].startswith(_HIDDEN)
