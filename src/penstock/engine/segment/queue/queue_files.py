"""The files of one shard's queue: fixed-size units, addressed by their number.

    consumequeue/<topic>/<queue>/%020d     20-byte units     (name = byte address of the first unit)
    batchconsumequeue/<topic>/<queue>/...  46-byte units

Files are created with their first unit, sparse, and written with plain writes: thousands of shards
must not each hold allocated space, and a mapping with holes would be fatal on a full disk.

Everything here is derived from the commit log. So nothing is repaired: what is missing or fails its
checksum is rebuilt from the log by the reader that finds out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from penstock.codec.format import BATCH_UNIT, PRE_BLANK, QUEUE_UNIT
from penstock.engine.segment.control.shard_directories import sync_removal
from penstock.engine.segment.log.disk_errors import lacks_descriptors
from penstock.engine.segment.log.log_files import file_name, is_file_name
from penstock.platform.disk import Disk, File
from penstock.record import QueueKind, ShardId

Unsynced = tuple[list[str], list[str]]
"""Files, and directories, that are to be synced."""


class _Held:
    """An open file that closes when the last thread releases it: eviction from the cache
    must not close a file under a reader. So a user of `file` keeps this object meanwhile."""

    __slots__ = ("file",)

    def __init__(self, file: File) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()


class OpenFiles:
    """Open files by path, the least recently used are closed beyond a bound."""

    def __init__(self, disk: Disk, count_max: int, *, writable: bool = True) -> None:
        self.disk: Final = disk
        self._writable: Final = writable
        self._count_max: Final = count_max
        self._files: OrderedDict[str, _Held] = OrderedDict()
        self._lock: Final = threading.Lock()

    def get(self, path: str, *, create: bool = False) -> _Held:
        """Return the file; `FileNotFoundError` when it is missing and not to be created."""
        with self._lock:
            held = self._files.get(path)
            if held is None:
                file = self._open(path, create=create)
                held = self._files[path] = _Held(file)
                if len(self._files) > self._count_max:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return held

    def _open(self, path: str, *, create: bool) -> File:
        try:
            return self.disk.open(path, create=create, writable=self._writable)
        except OSError as error:
            if not self._files or not lacks_descriptors(error):
                raise
            self._files.clear()  # they can be opened again
            return self.disk.open(path, create=create, writable=self._writable)

    def evict(self, path: str) -> None:
        with self._lock:
            self._files.pop(path, None)

    def close(self) -> None:
        with self._lock:
            self._files.clear()


class UnitFiles:
    """The unit files of one shard. The caller serialises calls."""

    __slots__ = (
        "_changes",
        "_checksums_root",
        "_created",
        "_dirty",
        "_files",
        "_filled",
        "_first",
        "_root",
        "_shard",
        "file_units",
        "unit_size",
    )

    def __init__(
        self,
        files: OpenFiles,
        root: str,
        shard: ShardId,
        kind: QueueKind,
        file_size: int,
        sums_root: str | None = None,
    ) -> None:
        """`root` is the directory of all queues of this kind; below `sums_root` lie the files' page
        checksums, which go with the files. Paths are put together when they are needed: an idle
        shard needs none."""
        self._files = files
        self._root = root
        self._shard = shard
        self._checksums_root = sums_root
        self.unit_size = (QUEUE_UNIT if kind is QueueKind.SIMPLE else BATCH_UNIT).size
        self.file_units = _units_in(file_size, self.unit_size)
        self._dirty: set[str] | None = None
        self._filled: set[str] | None = None
        self._created = False
        self._changes = 0
        self._first: tuple[int, int | None] | None = None
        """The first unit, as it was found after that many changes."""

    @property
    def directory(self) -> str:
        return f"{self._root}/{self._shard.topic}/{self._shard.partition}"

    def path_of(self, unit: int) -> str:
        first = unit - unit % self.file_units
        return f"{self.directory}/{file_name(first * self.unit_size)}"

    def names(self) -> list[str]:
        return [n for n in self._files.disk.list(self.directory) if is_file_name(n)]

    def first_units(self) -> list[int]:
        """The number of the first unit of each file, ascending."""
        return [int(name) // self.unit_size for name in self.names()]

    def first_unit(self) -> int | None:
        """The number of the first unit of the first file. Any thread may ask: what is remembered
        is what was found when no file came or went before, and none after."""
        first = self._first
        if first is None or first[0] != self._changes:
            changes = self._changes
            firsts = self.first_units()
            first = self._first = (changes, firsts[0] if firsts else None)
        return first[1]

    def read(self, unit: int, count: int) -> bytes:
        """Return `count` units from `unit` on; raise `FileNotFoundError` when a file is missing,
        and return fewer when one is short."""
        if unit % self.file_units + count <= self.file_units:  # in one file, as most reads are
            return self._read_in_file(unit, count)
        return b"".join(self._read_in_file(start, n) for start, n in self._spans(unit, count))

    def _read_in_file(self, unit: int, count: int) -> bytes:
        held = self._files.get(self.path_of(unit))
        return held.file.read_at(unit % self.file_units * self.unit_size, count * self.unit_size)

    def read_in(self, path: str, unit: int) -> bytes:
        """Return one unit of the file at `path`."""
        position = unit % self.file_units * self.unit_size
        held = self._files.get(path)
        return held.file.read_at(position, self.unit_size)

    def write(self, unit: int, data: bytes) -> None:
        """Put whole units at `unit`; a new file is filled with pre-blank units before them."""
        done = 0
        for start, n in self._spans(unit, len(data) // self.unit_size):
            path = self.path_of(start)
            held = self._open_for_writing(path, start)
            size = n * self.unit_size
            held.file.write_at(start % self.file_units * self.unit_size, data[done : done + size])
            self._mark_written(path, filled=(start + n) % self.file_units == 0)
            done += size

    def _mark_written(self, path: str, *, filled: bool) -> None:
        # Most shards are idle: the sets exist only while there is something in them.
        self._dirty = {path} if self._dirty is None else self._dirty | {path}
        if filled:
            self._filled = {path} if self._filled is None else self._filled | {path}

    @property
    def filled_and_synced(self) -> list[str]:
        """The files that were filled to their last unit, are on the device, and not sealed yet."""
        return sorted((self._filled or set()) - (self._dirty or set()))

    def is_filled(self, path: str) -> bool:
        return self._filled is not None and path in self._filled

    def discard_filled(self, path: str) -> None:
        if self._filled is not None:
            self._filled = (self._filled - {path}) or None

    def _open_for_writing(self, path: str, unit: int) -> _Held:
        held = self._get_or_create(path)
        file = held.file
        if file.size() == self.file_units * self.unit_size:
            return held
        self._created = True
        self._changes += 1
        gap = unit % self.file_units
        if gap and self.unit_size == QUEUE_UNIT.size and file.size() == 0:
            file.write_at(0, PRE_BLANK * gap)
        file.truncate(self.file_units * self.unit_size)
        return held

    def _get_or_create(self, path: str) -> _Held:
        try:
            return self._files.get(path)
        except FileNotFoundError:
            # `drain_unsynced` names the directories: one sync of a topic's does for all its shards.
            self._files.disk.make_directory(self.directory, durable=False)
            return self._files.get(path, create=True)

    def _spans(self, unit: int, count: int) -> Iterator[tuple[int, int]]:
        """Split [unit, unit + count) at file borders."""
        while count > 0:
            n = min(count, self.file_units - unit % self.file_units)
            yield unit, n
            unit += n
            count -= n

    def goes_on_at(self, unit: int) -> bool:
        """Return whether the files hold something at `unit`, or there are files after it."""
        if any(first > unit for first in self.first_units()):
            return True  # of a shard of this name that was dropped, and was longer
        try:
            data = self.read(unit, 1)
        except FileNotFoundError:
            return False
        return data.count(0) != len(data)

    def cut(self, unit: int) -> None:
        """Clear everything from `unit` on."""
        for first in reversed(self.first_units()):
            path = self.path_of(first)
            if first >= unit:
                self.remove_file(path)
            elif first + self.file_units > unit:
                held = self._files.get(path)
                position = (unit - first) * self.unit_size
                # A fresh hole reads as zeros without writing them.
                held.file.truncate(position)
                held.file.truncate(self.file_units * self.unit_size)
                self._mark_written(path, filled=False)
                self.discard_filled(path)
                self._remove_checksums(path)

    def reopen(self, unit: int) -> None:
        """Units are about to be written again from `unit` on: those files are not filled."""
        for path in sorted(self._filled or ()):
            if int(path.rpartition("/")[2]) // self.unit_size + self.file_units > unit:
                self.discard_filled(path)

    def remove_before(self, unit: int) -> None:
        """Remove the files that hold only units below `unit`."""
        for first in self.first_units():
            if first + self.file_units <= unit:
                self.remove_file(self.path_of(first))

    def remove_file(self, path: str) -> None:
        self._files.evict(path)
        if self._dirty is not None:
            self._dirty -= {path}
        self.discard_filled(path)
        self._changes += 1  # a check from here on may find it, or not
        self._files.disk.remove(path)
        self._changes += 1
        self._remove_checksums(path)
        self._created = True

    def _remove_checksums(self, path: str) -> None:
        if self._checksums_root is not None:
            shard, name = self._shard, path.rpartition("/")[2]
            self._files.disk.remove(
                f"{self._checksums_root}/{shard.topic}/{shard.partition}/{name}"
            )

    def remove_all(self) -> None:
        """Remove the files and their directory; the caller syncs the one above, if it must."""
        for name in self.names():
            self.remove_file(f"{self.directory}/{name}")
        self._files.disk.remove_tree(self.directory)
        if self._checksums_root is not None:
            shard = self._shard
            self._files.disk.remove_tree(f"{self._checksums_root}/{shard.topic}/{shard.partition}")
        self._dirty = self._filled = None
        self._created = False

    def sync_removal(self) -> None:
        """Put it on the device that there is no directory."""
        sync_removal(self._files.disk, self.directory.rpartition("/")[0])

    def drain_unsynced(self) -> Unsynced:
        """Return the files that were written since the last call, and the directories that changed,
        the innermost first. The caller syncs them, or gives them back by `return_unsynced`."""
        directories = []
        if self._created:
            topic = f"{self._root}/{self._shard.topic}"
            directories = [self.directory, topic, self._root, self._root.rpartition("/")[0]]
        taken = sorted(self._dirty or ()), directories
        self._dirty, self._created = None, False
        return taken

    def return_unsynced(self, taken: Unsynced) -> None:
        files, directories = taken
        self._dirty = (set(files) | (self._dirty or set())) or None
        self._created |= bool(directories)


@lru_cache(16)
def _units_in(file_size: int, unit_size: int) -> int:
    """The same object for all shards."""
    return file_size // unit_size
