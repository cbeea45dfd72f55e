"""File system errors as errors of the store."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import (
    BusyError,
    CorruptionError,
    DiskFailedError,
    DiskFullError,
    NotAStoreError,
    ReadOnlyError,
    StoreError,
)

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_OTHER_KIND: Final = frozenset({errno.ENOTDIR, errno.EISDIR})
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_READS_FAILED: Final = "look at the device; records elsewhere are read, and writes go on"


def is_full(error: OSError) -> bool:
    """Whether there was no room."""
    return error.errno in _FULL


def lacks_descriptors(error: OSError) -> bool:
    """Whether the process, or the machine, has too many open files: the disk is as it was."""
    return error.errno in _NO_DESCRIPTORS


def _descriptors_error(where: str, error: OSError) -> BusyError:
    return BusyError(
        f"{where}: {error.strerror}; close files or sockets, or raise the limit (ulimit -n): "
        "the disk is sound, and the same call succeeds once descriptors are free"
    )


def store_error(path: str, error: OSError) -> StoreError:
    """Return the error of ours that says what `error` means for the file or directory `path`."""
    where = error.filename or path
    if is_full(error):
        return DiskFullError(
            f"no space for {where}; free some, or lower the retention: writes go on by themselves "
            "then, and reads go on meanwhile"
        )
    if lacks_descriptors(error):
        return _descriptors_error(str(where), error)
    if error.errno in _FORBIDDEN:
        return ReadOnlyError(f"{where}: {error.strerror}")
    if error.errno in _OTHER_KIND:
        return NotAStoreError(f"{where}: {error.strerror}")
    return DiskFailedError(str(where), str(error.strerror or error))


def read_error(
    error: OSError, path: str
) -> CorruptionError | ReadOnlyError | DiskFailedError | BusyError:
    """Return the error that readers of `path` get: a file is missing, which can be repaired, or may
    not be read, or the device fails. `error` names the file only when it could not be opened."""
    where = str(error.filename or path)
    if isinstance(error, FileNotFoundError):
        return CorruptionError(where, position=0, reason="the file is missing")
    if lacks_descriptors(error):
        return _descriptors_error(where, error)
    reason = f"cannot be read: {error.strerror or error}"
    if error.errno in _FORBIDDEN:
        return ReadOnlyError(f"{where}: {reason}; let this user read all files of the store")
    return DiskFailedError(where, reason, consequence=_READS_FAILED)


def opening_error(path: str, error: OSError) -> StoreError:
    """Return what `error` means for a caller that opens or creates the store in `path`."""
    where = error.filename or path
    if error.errno == errno.ENOENT:
        return NotAStoreError(
            f"{where}: {error.strerror}, and it cannot be made there; choose another directory, "
            "or bring back what is missing"
        )
    if error.errno == errno.ENOTDIR:
        return NotAStoreError(
            f"{where}: {error.strerror}; a part of this path is a file: choose another directory"
        )
    if error.errno in _FORBIDDEN:
        return ReadOnlyError(
            f"{where}: {error.strerror}; the process that opens a store must be allowed to read "
            "and to write all of its directory"
        )
    failure = store_error(path, error)
    if isinstance(failure, DiskFailedError):
        reason = str(error.strerror or error)
        return DiskFailedError(str(where), reason, consequence="nothing was opened")
    return failure


@contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Let failures of the file system come out as errors of ours."""
    with _translated(path, store_error):
        yield


@contextmanager
def opening_errors(path: str) -> Iterator[None]:
    """The same while a store is opened: nothing goes on then."""
    with _translated(path, opening_error):
        yield


@contextmanager
def _translated(path: str, translate: Callable[[str, OSError], StoreError]) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise  # a deadline is an `OSError`, too
    except OSError as error:
        raise translate(path, error) from error
