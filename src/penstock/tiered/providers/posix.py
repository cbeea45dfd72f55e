"""`file:///directory`: objects as files, created atomically and durable when the call returns.

A new object is written under a name that `list` does not show, synced, linked to its name (a link
fails when the name exists: that is put-if-absent), and the directory is synced. Compare-and-set
holds an OS lock on one file of the directory, so that it holds between processes, too. A crash
leaves at most a hidden temporary file; `remove_leftovers` takes those away when they are old.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from penstock.codec.select import IS_NATIVE, core
from penstock.errors import (
    AlreadyExistsError,
    StaleWriteError,
    TierSetupError,
    TierUnavailableError,
)
from penstock.platform.local_disk import DIRECTORY_MODE
from penstock.tiered.providers.contract import (
    Blocks,
    ObjectBytes,
    ObjectInfo,
    ObjectMissingError,
)
from penstock.tiered.providers.memory import exactly

FILES: Final = 0o666
_HIDDEN: Final = ".penstock-"
_LOCK: Final = f"{_HIDDEN}lock"
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR})


class PosixProvider:
    def __init__(self, directory: str, *, create: bool = True) -> None:
        """Open the tier in `directory`, an absolute path; without `create` it must exist."""
        if not directory.startswith("/"):
            raise TierSetupError(f"file://{directory}: give an absolute path, as file:///var/tier")
        self._root: Final = directory.rstrip("/") or "/"
        self._lock: Final = threading.Lock()
        if create:
            with self._errors(self._root):
                _make_directories(self._root, DIRECTORY_MODE)
        else:
            self._require_root()
        self._mode: Final = self._mode_of_root()

    def _mode_of_root(self) -> int:
        """Return the mode of new directories, and, but for execution, of new files. A tier that
        this store makes is private; one in a directory that was made for several users is
        theirs."""
        with self._errors(self._root):
            return stat.S_IMODE(os.stat(self._root).st_mode) & 0o777 | DIRECTORY_MODE

    def _require_root(self) -> None:
        with self._errors(self._root):
            try:
                is_directory = stat.S_ISDIR(os.stat(self._root).st_mode)
            except FileNotFoundError:
                is_directory = False
        if not is_directory:
            raise TierSetupError(f"{self.url}: there is no such directory")

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    def put_if_absent(self, key: str, data: bytes) -> None:
        path = self.path_of(key)
        with self._errors(path), self._temporary(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise AlreadyExistsError(f"{self.url}: there is an object {key!r}") from None
            _sync_directory(os.path.dirname(path))

    def compare_and_set(self, key: str, data: bytes, expected: str | None) -> str:
        path = self.path_of(key)
        with self._errors(path), self._locked():
            try:
                version = self.get(key).version
            except ObjectMissingError:
                version = None
            if version != expected:
                raise StaleWriteError(f"{self.url}: {key!r} was changed by somebody else")
            with self._temporary(path, data) as temporary:
                os.rename(temporary, path)
                _sync_directory(os.path.dirname(path))
        return _version(data)

    def get(self, key: str) -> ObjectBytes:
        path = self.path_of(key)
        with self._errors(path):
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                raise ObjectMissingError(self.url, key) from None
        return ObjectBytes(data, _version(data))

    def get_range(self, key: str, start: int, size: int) -> bytes:
        with self._opened(key) as descriptor:
            return exactly(os.pread(descriptor, size, start), size, self.url, key)

    def get_range_into(
        self, key: str, start: int, size: int, take: Callable[[], memoryview]
    ) -> None:
        with self._opened(key) as descriptor:
            if os.preadv(descriptor, [take()], start) != size:
                exactly(b"", size, self.url, key)

    def get_range_summed(
        self, key: str, start: int, size: int, take: Callable[[], memoryview], blocks: Blocks
    ) -> bytes:
        path, buffer = self.path_of(key), take()
        try:
            filled, sums = _read_blocks(path, start, buffer, blocks)
        except FileNotFoundError:
            raise ObjectMissingError(self.url, key) from None
        except OSError as error:
            self._raise(path, error)
        if filled != size:
            exactly(b"", size, self.url, key)
        return sums

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        path = self.path_of(key)
        with self._errors(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise ObjectMissingError(self.url, key) from None
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def head(self, key: str) -> ObjectInfo | None:
        path = self.path_of(key)
        with self._errors(path):
            try:
                found = os.stat(path)
            except FileNotFoundError:
                return None
        return ObjectInfo(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        directory = prefix.rpartition("/")[0]
        with self._errors(self._root):
            found = (os.path.relpath(each, self._root) for each in self._walk(directory))
            keys = sorted(
                key
                for key in found
                if key.startswith(prefix) and not os.path.basename(key).startswith(_HIDDEN)
            )
        for key in keys:
            info = self.head(key)
            if info is not None:
                yield info

    def _walk(self, directory: str) -> Iterator[str]:
        """Yield the path of every file. What may not be looked at is an error: who takes it for
        empty would verify nothing and say that all is well."""
        top = os.path.join(self._root, directory) if directory else self._root
        for path, _, names in os.walk(top, onerror=_raise_unless_gone):
            for name in names:
                yield os.path.join(path, name)

    def delete(self, key: str) -> None:
        path = self.path_of(key)
        with self._errors(path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return
            _sync_directory(os.path.dirname(path))
            self._remove_empty(os.path.dirname(path))

    def _remove_empty(self, directory: str) -> None:
        while len(directory) > len(self._root):
            try:
                os.rmdir(directory)
            except OSError:
                return  # not empty, or somebody is creating an object in it
            directory = os.path.dirname(directory)

    def remove_leftovers(self, before_ms: int) -> int:
        """Remove temporary files of writers that were killed; return how many there were."""
        removed = 0
        with self._errors(self._root):
            for path in self._walk(""):
                name = os.path.basename(path)
                if name.startswith(_HIDDEN) and name != _LOCK and _is_older(path, before_ms):
                    with suppress(FileNotFoundError):  # another collector was quicker
                        os.unlink(path)
                        removed += 1
        return removed

    def close(self) -> None:
        """Nothing is kept open."""

    def path_of(self, key: str) -> str:
        parts = key.split("/")
        if any(not part or part.startswith(".") for part in parts):
            raise TierSetupError(f"{self.url}: {key!r} is no key of an object")
        return os.path.join(self._root, *parts)

    @contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[str]:
        """Give the name of a synced file that holds `data`; it is gone at the end."""
        directory = os.path.dirname(path)
        temporary = os.path.join(directory, f"{_HIDDEN}{uuid.uuid4().hex}")
        descriptor = _create(directory, temporary, self._mode)
        try:
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
        finally:
            with suppress(FileNotFoundError):  # when it was renamed
                os.unlink(temporary)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            descriptor = os.open(
                os.path.join(self._root, _LOCK),
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                self._mode & FILES,
            )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

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


def _read_blocks(path: str, start: int, buffer: memoryview, blocks: Blocks) -> tuple[int, bytes]:
    """Fill a buffer; return how many bytes came, and the checksums of its blocks."""
    if IS_NATIVE:
        from penstock import _native

        return _native.read_blocks(path, start, buffer, *blocks)
    with open(path, "rb", buffering=0) as file:
        filled = os.preadv(file.fileno(), [buffer], start)
    return filled, core.block_sums(buffer[: blocks.size], blocks.block_size)


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _create(directory: str, path: str, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(3):
        _make_directories(directory, mode)
        try:
            return os.open(path, flags, mode & FILES)
        except FileNotFoundError:
            continue  # `delete` took the empty directory away between these two calls
    return os.open(path, flags, mode & FILES)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _make_directories(directory: str, mode: int) -> None:
    """Create directories, each durably."""
    missing: list[str] = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for each in reversed(missing):
        try:
            os.mkdir(each, mode)
        except FileExistsError:
            continue
        _sync_directory(os.path.dirname(each))


def _sync_directory(directory: str) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # removed meanwhile, because it was empty
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # removed meanwhile, because it was empty
        raise error


def _is_older(path: str, before_ms: int) -> bool:
    try:
        return os.stat(path).st_mtime_ns // 1_000_000 < before_ms
    except FileNotFoundError:
        return False
