"""The commit log's files: fixed size, really allocated, named after their first position.

    commitlog/00000000000000000000   [0, size)
    commitlog/00000000000067108864   [size, 2 * size)          <- the writer is here
    commitlog/00000000000134217728   prepared ahead, all zero

Invariants:

  * files are contiguous: each begins where the one before it ends
  * a file in the list has its full size and its name is durable before a record goes into it
  * at most `mapped_bytes_max` are mapped, apart from files in use at this moment
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import closing
from typing import Final

from penstock.errors import CorruptionError, NotAStoreError
from penstock.platform.disk import Disk, File, Mapping

_ZEROS: Final = bytes(1 << 20)
_LET_GO_SIZE_MIN: Final = 1 << 20
"""Of less, the pages are few, and soon wanted again."""


def file_name(position: int) -> str:
    """Return the name of the file that starts at `position`, as RocketMQ writes it."""
    return f"{position:020d}"


def is_file_name(name: str) -> bool:
    return len(name) == 20 and name.isascii() and name.isdigit()


def _what_to_do(store: str) -> str:
    return (
        f"bring it back from a copy, or run `penstock store repair {store}`, which says what is "
        "lost and, with --yes, goes on without it"
    )


class _Open:
    __slots__ = ("file", "mapping", "syncs", "writable")

    def __init__(self, file: File, mapping: Mapping, *, writable: bool) -> None:
        self.file = file
        self.mapping = mapping
        self.writable = writable
        self.syncs = 0
        """How many are putting it on the device at the moment."""

    def release(self) -> bool:
        """Unmap and close it, unless it is in use."""
        if self.syncs or not self.mapping.release():
            return False
        self.file.close()
        return True


class FileSet:
    """The files of one log, mapped on demand."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file_size: int,
        mapped_bytes_max: int,
        *,
        strict: bool = False,
    ) -> None:
        self._disk: Final = disk
        self.directory: Final = directory
        self.file_size: Final = file_size
        self.strict: Final = strict
        """Every record in the files has a checksum of its own: one without is damaged."""
        self._mapped_max: Final = max(2, mapped_bytes_max // file_size)
        self._bases: list[int] = []
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._used: set[int] = set()
        """Asked for since `unmap_idle` last looked."""
        self._leaving: list[_Open] = []
        """Not ours any more, and still in use when they were to be released."""
        self._lock: Final = threading.RLock()

    @property
    def bases(self) -> list[int]:
        """The first positions of all files, ascending; a copy."""
        with self._lock:
            return list(self._bases)

    @property
    def start(self) -> int:
        return self._bases[0] if self._bases else 0

    @property
    def stop(self) -> int:
        """The position after the last file."""
        return self._bases[-1] + self.file_size if self._bases else 0

    def base_of(self, position: int) -> int:
        return position - position % self.file_size

    def path_of(self, position: int) -> str:
        return f"{self.directory}/{file_name(self.base_of(position))}"

    def holds(self, position: int) -> bool:
        return self.start <= position < self.stop

    def load(self, *, repair: bool, synced: int = 0, store: str = "DIR") -> None:
        """Find the files. A last file that a crash left short, while it was being allocated, is
        completed when `repair`; any other file of a wrong size is refused, and one that lacks
        bytes below position `synced`, which were on the device. So is a log that lacks a file with
        such bytes: records written now would be in the way when the file is back. `store` is for
        the errors: where the store is."""
        names = [name for name in self._disk.list(self.directory) if is_file_name(name)]
        bases = [int(name) for name in names]
        if synced > 0 and not bases:
            raise CorruptionError(
                self.directory,
                position=0,
                reason=f"the log was on the device up to position {synced}, and none of its files "
                "is here; is its disk mounted, and commit_log_path what it was? If they are gone: "
                f"{_what_to_do(store)}",
            )
        for index, base in enumerate(bases):
            path = f"{self.directory}/{file_name(base)}"
            if base % self.file_size:
                raise NotAStoreError(
                    f"{path} does not begin at a multiple of the file size {self.file_size}; "
                    "was the store written with another commit_log_file_size?"
                )
            if index and base != bases[index - 1] + self.file_size:
                raise self._missing(bases[index - 1] + self.file_size, store)
            is_last = index == len(bases) - 1
            self._check_size(path, last=is_last, repair=repair, synced=synced - base, store=store)
        if bases and synced > bases[-1] + self.file_size:
            raise self._missing(bases[-1] + self.file_size, store)
        self._bases = bases

    def _missing(self, base: int, store: str) -> CorruptionError:
        return CorruptionError(
            self.path_of(base),
            position=0,
            reason=f"this file of the commit log is missing; {_what_to_do(store)}",
        )

    def adopt_unchecked(self, bases: list[int]) -> None:
        """Have these files as they are, unchecked: to look at a log that `load` refuses."""
        self._bases = sorted(bases)

    def _check_size(self, path: str, *, last: bool, repair: bool, synced: int, store: str) -> None:
        file = self._disk.open(path, writable=False)
        size = file.size()
        file.close()
        if size == self.file_size:
            return
        if not (last and size < self.file_size):
            raise NotAStoreError(
                f"{path} has {size} bytes, the configured file size is {self.file_size}; was the "
                "store written with another commit_log_file_size? If the file was cut: "
                f"{_what_to_do(store)}"
            )
        if size < synced:
            raise CorruptionError(
                path,
                position=size,
                reason=f"this file was cut: it has {size} bytes, of which {synced} were synced; "
                f"{_what_to_do(store)}",
            )
        if repair:
            file = self._disk.open(path)
            file.allocate(self.file_size)
            file.sync()
            file.close()

    def create(self, base: int) -> None:
        """Add the file that starts at `base`, allocated and durable in its directory."""
        assert base % self.file_size == 0
        with self._lock:
            assert not self._bases or base == self.stop, "files are contiguous"
            file = self._disk.open(self.path_of(base), create=True)
            try:
                file.allocate(self.file_size)
                file.sync()
            except OSError:
                # A short file would stop RocketMQ from loading the directory.
                file.close()
                self._disk.remove(self.path_of(base))
                raise
            file.close()
            self._disk.sync_directory(self.directory)
            self._bases.append(base)

    def buffer(self, base: int, *, writable: bool = False) -> memoryview:
        """Return the whole file at `base`; the view must be dropped when done with it."""
        with self._lock:
            opened = self._open.get(base)
            if opened is None or (writable and not opened.writable):
                opened = self._map(base, writable=writable)
            else:
                self._open.move_to_end(base)
            self._used.add(base)
            return opened.mapping.buffer

    def descriptor(self, base: int) -> int | None:
        """Return the operating system's number of the file at `base`, which is mapped for writing
        and stays open while a view of it is held; None when only the disk may sync it."""
        with self._lock:
            opened = self._open.get(base)
            return opened.file.descriptor() if opened is not None and opened.writable else None

    def point_buffer(self, base: int) -> memoryview:
        """Return the whole file at `base` as `buffer` does, without a lock when it is mapped."""
        opened = self._open.get(base)
        if opened is not None:
            self._used.add(base)
            try:
                return opened.mapping.buffer
            except ValueError:
                pass  # unmapped at this moment
        return self.buffer(base)

    def _map(self, base: int, *, writable: bool) -> _Open:
        file = self._disk.open(self.path_of(base), writable=writable)
        try:
            opened = _Open(file, file.map(writable=writable), writable=writable)
        except OSError:
            file.close()
            raise
        old = self._open.pop(base, None)
        if old is not None:
            self._leave(old)
        self._open[base] = opened
        self._unmap_beyond(self._mapped_max)
        return opened

    def _unmap_beyond(self, count: int) -> None:
        for base in list(self._open)[: max(0, len(self._open) - count)]:
            if self._open[base].release():
                del self._open[base]

    def sync(self, start: int, end: int) -> None:
        """Put the bytes [start, end) on the device."""
        if start >= end:
            return
        base = self.base_of(start)
        while base < end:
            with self._lock:
                opened = self._open.get(base)
                if opened is not None and opened.writable:
                    # Released meanwhile, its number may be another file's.
                    opened.syncs += 1
                else:
                    opened = None
            if opened is None:
                with closing(self._disk.open(self.path_of(base))) as file:
                    file.sync()
            else:
                try:
                    if end - start >= _LET_GO_SIZE_MIN:
                        first, last = max(start - base, 0), min(end - base, self.file_size)
                        opened.mapping.drop_pages(first, last)
                    opened.file.sync()
                finally:
                    self._end_sync(opened)
            base += self.file_size

    def _end_sync(self, opened: _Open) -> None:
        with self._lock:
            opened.syncs -= 1
            self._release_leaving()

    def _release_leaving(self) -> None:
        if self._leaving:
            self._leaving = [opened for opened in self._leaving if not opened.release()]

    def _leave(self, opened: _Open) -> None:
        if not opened.release():
            self._leaving.append(opened)

    def set_readahead(self, start: int, end: int, *, enabled: bool) -> None:
        """See `Mapping.set_readahead`; for what is mapped of the bytes [start, end)."""
        with self._lock:
            for base, opened in self._open.items():
                first, last = max(start - base, 0), min(end - base, self.file_size)
                if first < last:
                    opened.mapping.set_readahead(first, last, enabled=enabled)

    def zero(self, start: int) -> None:
        """Clear everything from `start` on: the rest of its file, and the files after it."""
        with self._lock:
            base = self.base_of(start)
            self.remove_from(base + self.file_size)
            if base not in self._bases:
                return
            view = self.buffer(base, writable=True)
            for begin, end in self.written_ranges(start):
                for position in range(begin - base, end - base, len(_ZEROS)):
                    until = min(position + len(_ZEROS), end - base)
                    view[position:until] = _ZEROS[: until - position]
            self.sync(base, base + self.file_size)

    def written_ranges(self, start: int) -> list[tuple[int, int]]:
        """Return what may hold other bytes than zeros, from `start` to the end of its file."""
        base = self.base_of(start)
        with closing(self._disk.open(self.path_of(base), writable=False)) as file:
            return [(base + a, base + b) for a, b in file.written_ranges(start - base)]

    def remove_from(self, base: int) -> None:
        """Remove the files at and after `base`, newest first, so that no gap can appear."""
        with self._lock:
            for victim in [b for b in reversed(self._bases) if b >= base]:
                self._drop(victim)
                self._bases.remove(victim)
            self._disk.sync_directory(self.directory)

    def remove_first(self) -> int:
        """Remove the oldest file; return the position at which the log now starts."""
        with self._lock:
            assert len(self._bases) > 1, "the file being written stays"
            self._drop(self._bases[0])
            del self._bases[0]
            self._disk.sync_directory(self.directory)
            return self._bases[0]

    def _drop(self, base: int) -> None:
        opened = self._open.pop(base, None)
        if opened is not None:
            self._leave(opened)
        self._disk.remove(self.path_of(base))

    def unmap_idle(self) -> None:
        """Unmap the files that were not used since the last call and have no views."""
        with self._lock:
            for base in [base for base in self._open if base not in self._used]:
                if self._open[base].release():
                    del self._open[base]
            self._used.clear()
            self._release_leaving()

    @property
    def mapped_bytes(self) -> int:
        return len(self._open) * self.file_size

    def close(self) -> None:
        with self._lock:
            for opened in self._open.values():
                self._leave(opened)
            self._open.clear()
            self._release_leaving()
