"""Locks of this machine, on files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from typing import Final

from penstock.errors import LockedError

_LOCK_MODE: Final = 0o600


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
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _LOCK_MODE)
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
    def drop_all(cls) -> None:
        cls._held.clear()


# A lock is not inherited by a child of fork, so the child must not believe that it holds one.
os.register_at_fork(after_in_child=LocalLock.drop_all)


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
