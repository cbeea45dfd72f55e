"""A disk in memory that behaves as badly as a real one is allowed to.

Allowed, and injected:

  * a power cut (`crash`) keeps, of everything not synced, any part: file pages one by one and in
    no order, file sizes, and the creations, removals and renames in a directory
  * a file replaced without `durable` may hold the old bytes, the new ones, or torn new ones after
    a power cut, as on every file system that was not asked to sync
  * a killed process (`kill`) loses its handles, mappings and locks, and no byte it wrote
  * any call fails with any error, once, n times or from then on; a write may land in part first
  * after a failed sync the pages count as clean: the next sync succeeds and does not write them
  * the disk is full, for writes, allocations and replacements
  * a bit flips, in a page that was synced too

Not injected, because the store does not claim to survive it: losing bytes that `sync` returned
for; tearing inside a page (`page_size=512` makes pages as small as sectors); a failing store into
a mapping, which on a real machine is a signal. Storing through a mapping into a hole when there
is no room for it would be such a signal: it is an `AssertionError` at the next sync, when a
capacity is set.

Simplifications: mapped files cannot grow; the space of a removed file is free immediately.
"""

from __future__ import annotations

import errno
import random
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Final

from penstock.errors import LockedError
from penstock.platform.clock import Clock
from penstock.platform.disk import FileStatus, Usage
from penstock.testing.faults import FOREVER, OPERATIONS, Call, Faults, Operation, Rule
from penstock.testing.faulty_file import FaultyFile, FaultyLock, os_error
from penstock.testing.manual_clock import ManualClock
from penstock.testing.memory_tree import MemoryDirectory, MemoryFile

_UNLIMITED: Final = 1 << 40
_SURVIVALS: Final = (0.0, 0.1, 0.5, 0.9, 1.0)


class FaultyDisk:
    """A `Disk` in memory. Safe to use from many threads; one seed is one sequence of crashes."""

    def __init__(
        self,
        seed: int = 0,
        *,
        capacity: int | None = None,
        page_size: int = 4096,
        clock: Clock | None = None,
    ) -> None:
        self.guard: Final = threading.RLock()
        self.faults: Final = Faults()
        self.capacity = capacity
        self.life = 0
        self._choose = random.Random(seed)
        self._page_size: Final = page_size
        self._clock: Final[Clock] = clock if clock is not None else ManualClock()
        self._root = MemoryDirectory()
        self._locks: dict[str, FaultyLock] = {}
        self._lock_released: Final = threading.Condition(self.guard)
        self._occupied = 0

    # The contract of `Disk`.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FaultyFile:
        with self.guard:
            self.faults.enter("open", path)
            entry = self._find(path)
            if isinstance(entry, MemoryDirectory):
                raise os_error(errno.EISDIR, path)
            if entry is None:
                if not create:
                    raise os_error(errno.ENOENT, path)
                entry = MemoryFile(self._page_size, self.now_ms())
                directory, name = _split(path)
                self._make_directory(directory)
                self._directory(directory).entries[name] = entry
            return FaultyFile(self, path, entry, writable=writable)

    def exists(self, path: str) -> bool:
        with self.guard:
            self.faults.check_running(path)
            return self._find(path) is not None

    def list(self, path: str) -> list[str]:
        with self.guard:
            self.faults.check_running(path)
            if self._find(path) is None:
                return []
            return sorted(self._directory(path).entries)

    def is_directory(self, path: str) -> bool:
        with self.guard:
            self.faults.check_running(path)
            return isinstance(self._find(path), MemoryDirectory)

    def walk(self, path: str) -> Iterator[str]:
        with self.guard:
            self.faults.check_running(path)
            if self._find(path) is None:
                return
            below = [name for name, _ in self._directory(path).files()]
        yield from (f"{path.rstrip('/')}/{name}" for name in below)

    def status(self, path: str) -> FileStatus | None:
        with self.guard:
            self.faults.check_running(path)
            entry = self._find(path)
            if isinstance(entry, MemoryFile):
                return FileStatus(entry.size, entry.modified_ms)
            return None if entry is None else FileStatus(0, 0)

    def local_path(self, path: str) -> None:
        """None: every read must come past the faults."""

    def with_modes_of(self, path: str) -> FaultyDisk:  # noqa: ARG002 - files have no modes here
        return self

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        with self.guard:
            self.faults.enter("make_directory", path)
            self._make_directory(path, durable=durable)

    def remove(self, path: str) -> None:
        with self.guard:
            self.faults.enter("remove", path)
            entry = self._find(path)
            if isinstance(entry, MemoryDirectory):
                raise os_error(errno.EISDIR, path)
            self._unlink(path)

    def remove_tree(self, path: str) -> None:
        with self.guard:
            self.faults.enter("remove", path)
            entry = self._find(path)
            if isinstance(entry, MemoryDirectory):
                entry.clear()
            self._unlink(path)

    def remove_empty(self, path: str) -> bool:
        with self.guard:
            self.faults.enter("remove", path)
            entry = self._find(path)
            if entry is not None and not isinstance(entry, MemoryDirectory):
                raise os_error(errno.ENOTDIR, path)
            if entry is not None and entry.entries:
                return False
            self._unlink(path)
            return True

    def link(self, source: str, target: str) -> None:
        with self.guard:
            self.faults.enter("link", target)
            file = self._file(source)
            if self._find(target) is not None:
                raise os_error(errno.EEXIST, target)
            directory, name = _split(target)
            self._directory(directory).entries[name] = file

    def rename(self, source: str, target: str) -> None:
        with self.guard:
            self.faults.enter("rename", target)
            entry = self._find(source)
            if entry is None:
                raise os_error(errno.ENOENT, source)
            replaced = self._find(target)
            if isinstance(replaced, MemoryDirectory) and replaced.entries:
                raise os_error(errno.ENOTEMPTY, target)
            directory, name = _split(target)
            self._directory(directory).entries[name] = entry
            self._unlink(source)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        with self.guard:
            self._replace(path, data, durable=durable)
            if durable:
                # A call of its own, as on the local disk: when it fails the new bytes are there.
                self.sync_directory(_split(path)[0])

    def replace_together(self, files: Sequence[tuple[str, bytes]]) -> None:
        with self.guard:
            for directory, some in groupby(files, key=lambda file: _split(file[0])[0]):
                for path, data in some:
                    self._replace(path, data, durable=True)
                self.sync_directory(directory)

    def _replace(self, path: str, data: bytes, *, durable: bool) -> None:
        self.faults.enter("replace", path)
        if isinstance(self._find(path), MemoryDirectory):
            raise os_error(errno.EISDIR, path)
        file = MemoryFile(self._page_size, self.now_ms())
        if self.fitting_size(file, 0, len(data)) < len(data):
            raise os_error(errno.ENOSPC, path)
        file.write(0, data)
        if durable:
            file.sync()
        directory, name = _split(path)
        self._make_directory(directory)
        self._directory(directory).entries[name] = file

    def sync_directory(self, path: str) -> None:
        with self.guard:
            self.faults.enter("sync_directory", path)
            self._directory(path).sync()

    def sync_together(self, files: Sequence[str], directories: Sequence[str]) -> None:
        with self.guard:
            for path in files:
                entry = self._find(path)
                if isinstance(entry, MemoryFile):
                    FaultyFile(self, path, entry, writable=False).sync()
            for path in directories:
                if self._find(path) is not None:
                    self.sync_directory(path)

    def modified_ms(self, path: str) -> int:
        with self.guard:
            return self._file(path).modified_ms

    def usage(self, path: str) -> Usage:
        with self.guard:
            self.faults.check_running(path)
            total = self.capacity if self.capacity is not None else _UNLIMITED
            return Usage(total=total, used=min(total, self._used()))

    def lock(self, path: str) -> FaultyLock:
        with self.guard:
            self.faults.enter("lock", path)
            name = "/".join(_parts(path))
            if name in self._locks:
                raise LockedError(f"{path}: this process has it open already")
            return self._acquire(path, name)

    def wait_for_lock(self, path: str) -> FaultyLock:
        with self.guard:
            self.faults.enter("lock", path)
            name, life = "/".join(_parts(path)), self.life
            while name in self._locks:
                self._lock_released.wait()
                self.faults.check_running(path)
                if life != self.life:
                    raise os_error(errno.ESTALE, path)
            return self._acquire(path, name)

    def _acquire(self, path: str, name: str) -> FaultyLock:
        if self._find(path) is None:
            directory, last = _split(path)
            self._make_directory(directory)
            file = MemoryFile(self._page_size, self.now_ms())
            self._directory(directory).entries[last] = file
        return self._locks.setdefault(name, FaultyLock(self, name))

    # What goes wrong.

    def crash(self, choose: random.Random | None = None) -> None:
        """Cut the power: what was not synced survives in parts. Every handle becomes stale."""
        with self.guard:
            chooser = choose if choose is not None else self._choose
            self._root.lose_power(chooser, chooser.choice(_SURVIVALS))
            self._restart()

    def kill(self) -> None:
        """Kill the process: every byte stays, handles, mappings and locks go."""
        with self.guard:
            for _, file in self._root.files():
                file.detach()
            self._restart()

    def fail(
        self,
        operation: Operation,
        path_glob: str = "*",
        error_number: int = errno.EIO,
        *,
        after: int = 0,
        times: float = 1,
        landed: int = 0,
    ) -> Rule:
        """Let calls of `operation` on paths like `path_glob` fail, once `after` of them passed,
        `times` times (or `FOREVER`). Of a failing write the first `landed` bytes arrive.

        The rule that is returned counts its `failures`.
        """
        rule = Rule(frozenset({operation}), path_glob, error_number, after, times, landed)
        with self.guard:
            return self.faults.add(rule)

    def fail_at_call(
        self,
        number: int,
        error_number: int = errno.EIO,
        *,
        times: float = 1,
        operations: Collection[Operation] = OPERATIONS,
    ) -> Rule:
        """Let the call number `number` from now on fail, counting those of `operations` from 0."""
        rule = Rule(frozenset(operations), "*", error_number, after=number, times=times)
        with self.guard:
            return self.faults.add(rule)

    def stop_at_call(self, number: int, *, operations: Collection[Operation] = OPERATIONS) -> Rule:
        """Stop the machine at a call: it and all later ones raise `PowerCut`, and do nothing,
        until the test calls `crash` or `kill`."""
        rule = Rule(frozenset(operations), "*", None, after=number, times=FOREVER)
        with self.guard:
            return self.faults.add(rule)

    def heal(self) -> None:
        """Forget all rules."""
        with self.guard:
            self.faults.clear()

    def flip_bit(self, path: str, bit_index: int) -> None:
        """Damage a file: bit `bit_index % 8` of byte `bit_index // 8`, on the device too."""
        with self.guard:
            self._file(path).flip_bit(bit_index)

    def occupy(self, size: int) -> None:
        """Let other files take `size` bytes of the capacity."""
        with self.guard:
            self._occupied = size

    # What a test looks at.

    @property
    def calls(self) -> Sequence[Call]:
        """The calls so far, oldest first; the last 100 000."""
        with self.guard:
            return self.faults.calls

    @property
    def counts(self) -> Counter[Operation]:
        """How often each operation was called so far."""
        with self.guard:
            return Counter(self.faults.counts)

    def call_count(self, operations: Collection[Operation] = OPERATIONS) -> int:
        with self.guard:
            return self.faults.count(operations)

    def files(self) -> dict[str, bytes]:
        """Every file as programs see it now, by its path."""
        with self.guard:
            return {path: bytes(file.data[: file.size]) for path, file in self._root.files()}

    def copy(self, seed: int = 0) -> FaultyDisk:
        """Return another disk with the files as they are now, all synced; no rules, no handles.

        One store, written once, can so be damaged in a thousand ways.
        """
        with self.guard:
            other = FaultyDisk(
                seed, capacity=self.capacity, page_size=self._page_size, clock=self._clock
            )
            other._root = self._root.copy()
            return other

    # What files and locks of this disk need of it.

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def fitting_size(self, file: MemoryFile, position: int, size: int) -> int:
        """Return how many bytes of a write find room."""
        if self.capacity is None:
            return size
        missing = file.blocks_missing(position, size)
        room = max(0, self.capacity - self._used()) // self._page_size
        if len(missing) <= room:
            return size
        return max(0, missing[room] * self._page_size - position)

    def check_holes(self, file: MemoryFile, path: str) -> None:
        if self.capacity is not None:
            room = max(0, self.capacity - self._used()) // self._page_size
            assert file.holes_stored() <= room, f"{path}: a store into a hole on a full disk"

    def drop_lock(self, name: str, lock: FaultyLock) -> None:
        if self._locks.get(name) is lock:
            del self._locks[name]
            self._lock_released.notify_all()

    def _restart(self) -> None:
        self.life += 1
        self._locks.clear()
        self._lock_released.notify_all()
        self.faults.restart()

    def _used(self) -> int:
        blocks = sum(file.blocks for _, file in self._root.files())
        return blocks * self._page_size + self._occupied

    def _find(self, path: str) -> MemoryFile | MemoryDirectory | None:
        entry: MemoryFile | MemoryDirectory | None = self._root
        for name in _parts(path):
            if not isinstance(entry, MemoryDirectory):
                raise os_error(errno.ENOTDIR, path)
            entry = entry.entries.get(name)
            if entry is None:
                return None
        return entry

    def _file(self, path: str) -> MemoryFile:
        entry = self._find(path)
        if not isinstance(entry, MemoryFile):
            raise os_error(errno.ENOENT if entry is None else errno.EISDIR, path)
        return entry

    def _directory(self, path: str) -> MemoryDirectory:
        entry = self._find(path)
        if not isinstance(entry, MemoryDirectory):
            raise os_error(errno.ENOENT if entry is None else errno.ENOTDIR, path)
        return entry

    def _make_directory(self, path: str, *, durable: bool = True) -> None:
        directory = self._root
        for name in _parts(path):
            entry = directory.entries.get(name)
            if entry is None:
                entry = directory.entries[name] = MemoryDirectory()
                if durable:
                    directory.sync()
            if not isinstance(entry, MemoryDirectory):
                raise os_error(errno.ENOTDIR, path)
            directory = entry

    def _unlink(self, path: str) -> None:
        if self._find(path) is not None:
            directory, name = _split(path)
            del self._directory(directory).entries[name]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _split(path: str) -> tuple[str, str]:
    *directory, name = _parts(path)
    return "/".join(directory), name
