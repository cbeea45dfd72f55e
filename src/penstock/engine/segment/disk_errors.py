"""What a failure of the file system means to whoever asked for something."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import (
    DiskFailedError,
    DiskFullError,
    NotAStoreError,
    ReadOnlyError,
    StoreError,
)

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_OTHER_KIND: Final = frozenset({errno.ENOTDIR, errno.EISDIR})


def is_full(error: OSError) -> bool:
    """Whether there was no room."""
    return error.errno in _FULL


def store_error(path: str, error: OSError) -> StoreError:
    """Return the error of ours that says what `error` means for the file or directory `path`."""
    where = error.filename or path
    if is_full(error):
        return DiskFullError(
            f"no space for {where}; free some, or lower the retention: writes go on by themselves "
            "then, and reads go on meanwhile"
        )
    if error.errno in _FORBIDDEN:
        return ReadOnlyError(f"{where}: {error.strerror}")
    if error.errno in _OTHER_KIND:
        return NotAStoreError(f"{where}: {error.strerror}")
    return DiskFailedError(str(where), str(error.strerror or error))


@contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Let failures of the file system come out as errors of ours."""
    try:
        yield
    except OSError as error:
        raise store_error(path, error) from error
