"""The only module that talks to the file system.

Everything above it takes a `Disk`. Production passes `LocalDisk`; crash tests pass
`penstock.testing.FaultyDisk`, which loses everything that was not synced. Other modules must not
touch data files with `os` or `pathlib`: such code belongs here.

Paths are plain strings with "/" between their parts. Failures of the device and of the file system
come out as `OSError`, untouched: what an ENOSPC or an EIO means is decided by the log above.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Mapping(Protocol):
    """A whole file in memory. Stores into `buffer` are stores into the file."""

    @property
    def buffer(self) -> memoryview: ...

    def drop_pages(self, start: int, end: int) -> None:
        """Take the whole pages of [start, end) out of the mapping before they are synced: the
        next look at one brings it back, and nothing is lost. A page that is written back while
        it is mapped must be protected on every processor, one by one, which costs more than to
        write it."""
        ...

    def set_readahead(self, start: int, end: int, *, enabled: bool) -> None:
        """Say whether a look at a page of [start, end) shall bring those around it, as it does in
        a new mapping. Where bytes are written for the first time it shall not: the kernel
        zeroes megabytes around the first byte of a hole, and keeps them as few large
        pages, each of which is written back as a whole for every byte that changes."""
        ...

    def release(self) -> bool:
        """Unmap; return False, and stay mapped, while a view of `buffer` exists."""
        ...


class File(Protocol):
    """An open file. What was written may be lost by a power cut until `sync` has returned."""

    @property
    def path(self) -> str: ...

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from `position` on; fewer only at the end of the file."""
        ...

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` with the bytes from `position` on; return how many came, fewer than it
        holds only at the end of the file."""
        ...

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write all of `data`, or raise; the file grows as needed."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut the file, or grow it with a hole that reads as zeros."""
        ...

    def allocate(self, size: int) -> None:
        """Grow the file to `size` with zeros that have blocks on the device: a mapping of it
        can then be written without ever meeting a full disk."""
        ...

    def written_ranges(self, start: int) -> list[tuple[int, int]]:
        """Return the ranges from `start` on that may hold other bytes than zeros, ascending. All
        else was allocated, but never written: to read it takes as long as if it had been."""
        ...

    def map(self, *, writable: bool) -> Mapping: ...

    def descriptor(self) -> int | None:
        """Return the operating system's number of the open file, so that native code may sync it;
        None when that must go through this object."""
        ...

    def sync(self) -> None:
        """Put everything written or stored through a mapping on the device (fdatasync)."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Usage(NamedTuple):
    """How full the file system of a path is, in bytes."""

    total: int
    used: int

    @property
    def ratio(self) -> float:
        return self.used / self.total if self.total else 0.0


class FileStatus(NamedTuple):
    size: int
    modified_ms: int


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file. Without `create` a missing one raises `FileNotFoundError`; with it, a
        missing one is created empty, and its directory too."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; a missing directory is empty."""
        ...

    def is_directory(self, path: str) -> bool: ...

    def walk(self, path: str) -> Iterator[str]:
        """Yield the path of every file below a directory; a missing directory is empty, one that
        cannot be listed raises."""
        ...

    def status(self, path: str) -> FileStatus | None:
        """Return size and time of the last change; None for a missing file."""
        ...

    def local_path(self, path: str) -> str | None:
        """Return the path by which native code may open a file; None when every read must go
        through this object."""
        ...

    def with_modes_of(self, path: str) -> Disk:
        """Return a disk whose new files and directories get the permissions of the directory
        `path`, files without execution; its owner may always use them."""
        ...

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        """Create a directory and those above it; do nothing if it exists. When not `durable`, the
        caller syncs the directories above it later."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; do nothing if there is none."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def remove_empty(self, path: str) -> bool:
        """Remove a directory that holds nothing; return False when it holds something."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; raise `FileExistsError`, and change nothing, when the name is
        taken. Survives a power cut when the directory was synced."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file or a directory another name; a file, or an empty directory, of that name is
        replaced in the same step. Survives a power cut when the directory was synced."""
        ...

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Make `path` hold exactly `data`: readers, and a later start, see the old or the new
        bytes, never a mixture. When `durable`, they are on the device when this returns, and that
        holds after a power cut, too; otherwise only while the machine runs."""
        ...

    def replace_together(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Make each path hold its data, durably, for less than a `replace` of each costs. A power
        cut on the way leaves each file old or new, and none new whose predecessor in another
        directory is old."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations and removals in a directory survive a power cut."""
        ...

    def sync_together(self, files: Sequence[str], directories: Sequence[str]) -> None:
        """Put files and directories on the device, for less than a sync of each costs. Those that
        were removed meanwhile need none."""
        ...

    def modified_ms(self, path: str) -> int: ...

    def usage(self, path: str) -> Usage: ...

    def lock(self, path: str) -> Lock:
        """Take the exclusive lock on `path`, created if missing; raise `LockedError` immediately
        when another process (or another holder in this one) has it. RocketMQ takes the same
        one: an OS lock on byte 0."""
        ...

    def wait_for_lock(self, path: str) -> Lock:
        """Wait for the exclusive lock on `path`, created if missing: for a few calls that processes
        take turns with. It is another lock than that of `lock` (flock)."""
        ...


def absolute_path(path: str) -> str:
    """Return the path from the root of the file system, without `..`; links stay links."""
    return os.path.abspath(path)


def process_id() -> int:
    """Return the number of this process, for files that say who uses a directory."""
    return os.getpid()
