"""Syncs whole file systems by syncfs(2): one call instead of thousands of fsync(2).

A checkpoint of ten thousand shards has a file and a directory of each to put on the device. Linux
reports errors of writeback through syncfs since 5.8; older kernels and other systems are not asked,
and every file is synced by itself there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterable
from typing import Final


def _linux_reports_errors() -> bool:
    if sys.platform != "linux":
        return False
    numbers = platform.release().split(".")[:2]
    return all(n.isdigit() for n in numbers) and [int(n) for n in numbers] >= [5, 8]


def _find() -> Callable[[int], int] | None:
    if not _linux_reports_errors():
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int]
    function.restype = ctypes.c_int
    return function


_syncfs: Final = _find()
supported: Final = _syncfs is not None


def sync(directories: Iterable[str]) -> None:
    """Put everything on the device that the file systems of these directories hold. Directories
    that were removed meanwhile are left out. The GIL is free meanwhile."""
    assert _syncfs is not None, "the caller asks `supported`"
    done: set[int] = set()
    for path in directories:
        with contextlib.suppress(FileNotFoundError):
            device = os.stat(path).st_dev
            if device not in done:
                _sync_one(path)
                done.add(device)


def _sync_one(path: str) -> None:
    assert _syncfs is not None
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)
