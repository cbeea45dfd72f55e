"""One RocksDB instance, its families, and the rules for writing to it.

    Changes, Batch ──▶ write: in the write-ahead log and visible ──▶ sync: on the device

Guarantees:

  * one `Changes` or `Batch` is applied whole or not at all, also when the process dies
  * `sync` returns when everything written before the call is on the device; callers share syncs,
    and writes without a waiting caller are synced every `flush_interval_ms`, if it is set
  * a failed sync or write of the device is final: from then on every write and sync raises
    `DiskFailedError`, reads go on. A sync that is tried again may succeed without the lost bytes
  * a full disk is not final: writes raise `DiskFullError`, reads go on. Writes are refused while
    little room is left, before RocksDB meets the end of it; if it does meet it, it needs to be
    opened again, which `prepare` does when there is room
  * while RocksDB is stalled by its own compactions, writers wait here; waiting inside it would
    stop every thread of the process, because its binding holds the interpreter's lock
  * synced changes that are missing at a start raise `CorruptionError`
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rocksdict import AccessType, Cache, ColumnFamily, Rdict, WriteBatch, WriteOptions

from penstock.errors import (
    BusyError,
    ClosedError,
    CorruptionError,
    DiskFailedError,
    DiskFullError,
    LockedError,
    NotAStoreError,
    StoreError,
)
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk, close_to_others
from penstock.platform.log import get_logger
from penstock.platform.rocksdb.changes import Batch, Changes, Fill
from penstock.platform.rocksdb.durable_point import DurablePoint
from penstock.platform.rocksdb.family import Family
from penstock.platform.rocksdb.group_sync import GroupSync
from penstock.platform.rocksdb.settings import DatabaseSettings, build_options

ROOM_CHECKED_EVERY: Final = 256 << 10
"""Bytes to be written after which `check_room` looks at the disk again."""
_STALL_SECONDS: Final = (0.001, 0.1)
_CAUSE_SECONDS: Final = 1.0
_REOPEN_SECONDS: Final = 1.0
_REOPEN_TRIES: Final = 100
_REOPEN_PAUSE_SECONDS: Final = 0.01
_log = get_logger(__name__)


class Opened(NamedTuple):
    """An open instance. RocksDB closes when the last reference into it is dropped."""

    database: Rdict
    families: dict[str, Rdict]
    handles: dict[str, ColumnFamily]


class Database:
    def __init__(
        self,
        path: str,
        families: Sequence[str],
        *,
        settings: DatabaseSettings | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open the instance at `path`, created if missing, with at least these families."""
        self.path: Final = path
        self.settings: Final = settings if settings is not None else DatabaseSettings()
        self._names: Final = tuple(families)
        self._disk: Final = disk if disk is not None else LocalDisk()
        self._clock: Final = clock if clock is not None else SystemClock()
        self._cache: Final = Cache(self.settings.block_cache_size)
        self._write_options: Final = WriteOptions()
        self._write_options.no_slowdown = True
        self._group: Final = GroupSync(self._sync_once)
        self._opening: Final = threading.Lock()  # held while `_opened` changes
        self._closing: Final = threading.Event()
        # Why the device failed. Not the error itself: its traceback would keep an instance open.
        self._failed: str | None = None
        self._full = False  # RocksDB has met the end of the disk, and must be opened again
        self._troubled: Final = threading.Event()  # one of the two is known
        self._times_opened = 1
        self._next_opening = 0.0
        self._unsynced = False
        self._unchecked_size = ROOM_CHECKED_EVERY
        self._opened: Opened | None = self._open()
        self._point: Final = DurablePoint(self._disk, path, self._clock)
        try:
            self._point.check(self._opened.database.latest_sequence_number())
        except CorruptionError:
            self._opened = None  # the traceback would keep the instance, and its lock
            raise
        self._flusher: threading.Thread | None = None
        if self.settings.flush_interval_ms is not None:
            self._flusher = threading.Thread(
                target=self._flush_repeatedly,
                args=(self.settings.flush_interval_ms / 1000,),
                name="rocksdb-flusher",
                daemon=True,
            )
            self._flusher.start()

    @property
    def failure(self) -> DiskFailedError | None:
        """Why the device failed, which is for good; or None."""
        return None if self._failed is None else DiskFailedError(self.path, self._failed)

    def family(self, name: str) -> Family:
        assert name in self._names, f"{name} was not asked for when the database was opened"
        return Family(self, name)

    def prepare(self) -> int:
        """Make ready for writes if need be; return how often the instance was opened so far.

        After a full disk RocksDB is opened again here. A write that failed may then be there all
        the same: a caller that sees the number grow must read again what it last wrote.
        """
        if self._full:
            self.check_room(0)
            self._open_again()
        return self._times_opened

    def write(
        self, family: str, changes: Changes, *, patient: bool = False, frees_room: bool = False
    ) -> None:
        """Apply `changes`. A `patient` write waits for RocksDB as long as it takes: it completes
        what an earlier write began. One that `frees_room` may use the room that is kept back."""
        self._check_device()
        if not frees_room:
            self.check_room(changes.size)
        self._write(changes.fill(family), patient=patient)

    def write_batch(self, batch: Batch) -> None:
        """Apply `batch`. The caller has checked the room with `check_room` before it began; what
        completes it is written without asking."""
        self._check_device()
        self._write(batch.fill, patient=False)

    def putter(self, family: str) -> Callable[[bytes, bytes], None]:
        """Return a function that writes one row, as `write_batch` does, with as little around it as
        can be."""
        options = self._write_options

        def put(key: bytes, row: bytes) -> None:
            opened = self._opened
            if opened is not None and self._failed is None and not self._full:
                try:
                    opened.families[family].put(key, row, options)
                except Exception as error:  # the binding raises nothing more precise
                    if not _is_stall(str(error)):
                        del opened
                        raise self._explain_write(str(error)) from error
                else:
                    self._unsynced = True
                    return
            batch = Batch()
            batch.put(family, key, row)
            self.write_batch(batch)

        return put

    def check_room(self, size: int) -> None:
        """Raise `DiskFullError` while there is little room for `size` more bytes."""
        self._unchecked_size += size
        if self._unchecked_size < ROOM_CHECKED_EVERY and not self._full:
            return
        try:
            usage = self._disk.usage(self.path)
        except OSError as error:
            raise DiskFailedError(self.path, str(error)) from error
        free = usage.total - usage.used
        if free < self.settings.free_size_min + size:
            # The next write looks again, whatever its size.
            self._unchecked_size = ROOM_CHECKED_EVERY
            raise DiskFullError(
                f"{self.path}: {free} bytes are free; "
                f"writes need {self.settings.free_size_min} besides their own"
            )
        self._unchecked_size = 0

    def sync(self) -> None:
        """Put everything written before this call on the device."""
        self._group.wait()

    def close(self) -> None:
        """Sync everything and close the database. Closing twice does nothing."""
        with self._opening:
            if self._closing.is_set():
                return
            self._closing.set()
        if self._flusher is not None:
            self._flusher.join()
        try:
            if self._failed is None and not self._full:
                self.sync()
                self._point.write()
        finally:
            with self._opening:
                self._opened = None
            close_to_others(self.path)

    def opened(self) -> Opened:
        """Return the open instance; a kept reference prevents it from closing."""
        opened = self._opened
        if opened is None:
            with self._opening:  # it may be being opened again just now
                opened = self._opened
        if opened is None:
            if self._closing.is_set():
                raise ClosedError(f"{self.path}: this database was closed")
            raise DiskFullError(f"{self.path}: could not be opened again after the disk was full")
        return opened

    # Writing

    def _write(self, fill: Fill, *, patient: bool) -> None:
        if self._full:
            raise DiskFullError(f"{self.path}: the disk was full and has not been looked at since")
        deadline = self._clock.monotonic() + self.settings.stall_seconds_max
        pause_seconds, pause_max = _STALL_SECONDS
        while not self._try_write(fill):
            if not patient and self._clock.monotonic() >= deadline:
                raise BusyError(f"{self.path}: RocksDB's compactions lag; try again later")
            self._clock.wait(self._closing, pause_seconds)
            pause_seconds = min(2 * pause_seconds, pause_max)

    def _try_write(self, fill: Fill) -> bool:
        """Return False when RocksDB would have to wait."""
        opened = self.opened()
        batch = WriteBatch(raw_mode=True)
        fill(batch, opened.handles)
        try:
            opened.database.write(batch, self._write_options)
        except Exception as error:  # the binding raises nothing more precise
            if _is_stall(str(error)):
                return False
            del opened, batch  # a kept traceback must not keep them open
            raise self._explain_write(str(error)) from error
        self._unsynced = True
        return True

    def _flush_repeatedly(self, interval_seconds: float) -> None:
        while not self._clock.wait(self._closing, interval_seconds):
            if self._unsynced and self._failed is None and not self._full:
                try:
                    self.sync()
                except StoreError as error:
                    # The next writer gets the error.
                    _log.warning("flush_failed", path=self.path, reason=str(error))

    def _sync_once(self) -> None:
        self._check_device()
        database = self.opened().database
        sequence = database.latest_sequence_number()
        self._unsynced = False
        try:
            self._flush_log(database)
        except Exception as error:  # the binding raises nothing more precise
            # After a failed sync the kernel may drop the dirty pages and report success the next
            # time. Trying again would acknowledge records that are gone.
            del database
            raise self._explain_write(str(error)) from error
        self._point.move(sequence)

    def _flush_log(self, database: Rdict) -> None:
        database.flush_wal(True)

    def _explain_write(self, reason: str) -> StoreError:
        if "previous error" in reason:
            # Another thread has met the cause, and is about to say which it was.
            self._clock.wait(self._troubled, _CAUSE_SECONDS)
        if "No space left" in reason or "quota exceeded" in reason or self._full:
            if not self._full:
                _log.error("disk_full", path=self.path, reason=reason)
            self._full = True
            self._troubled.set()
            return DiskFullError(f"{self.path}: {reason}")
        if self._failed is None:
            self._failed = reason
            self._troubled.set()
            _log.error("disk_failed", path=self.path, reason=reason)
        return DiskFailedError(self.path, self._failed)

    def _check_device(self) -> None:
        if self._failed is not None:
            raise DiskFailedError(self.path, self._failed)

    # Opening

    def _open_again(self) -> None:
        with self._opening:
            if not self._full or self._closing.is_set():
                return
            now = self._clock.monotonic()
            if now < self._next_opening:
                raise DiskFullError(f"{self.path}: the disk was full a moment ago")
            self._next_opening = now + _REOPEN_SECONDS
            self._opened = None
            try:
                self._opened = self._open_when_free()
            except DiskFullError:
                # Nothing is written this way, so that reads at least go on.
                self._opened = self._open(AccessType.read_only(False))
                raise
            self._troubled.clear()
            self._full = False
            self._times_opened += 1
            _log.info("opened_again", path=self.path)

    def _open_when_free(self) -> Opened:
        """Readers that are under way hold the old instance open a moment longer."""
        for _ in range(_REOPEN_TRIES):
            try:
                return self._open()
            except LockedError:
                self._clock.wait(self._closing, _REOPEN_PAUSE_SECONDS)
        raise DiskFullError(f"{self.path}: still in use; it will be opened again later")

    def _open(self, access: AccessType | None = None) -> Opened:
        options = build_options(self.settings, self._cache)
        try:
            self._disk.make_directory(self.path)
            there = self._disk.exists(f"{self.path}/CURRENT")
            present = Rdict.list_cf(self.path, options) if there else []
            names = dict.fromkeys(["default", *self._names, *present])
            access = AccessType.read_write() if access is None else access
            database = Rdict(self.path, options, dict.fromkeys(names, options), access)
            close_to_others(self.path)
            return Opened(
                database,
                {name: database.get_column_family(name) for name in names},
                {name: database.get_column_family_handle(name) for name in names},
            )
        except Exception as error:  # the binding raises nothing more precise
            raise self._explain_open(str(error)) from error

    def _explain_open(self, reason: str) -> StoreError:
        if f"{self.path}/LOCK" in reason:
            return LockedError(f"{self.path} is open already, in this process or another")
        if "No space left" in reason:
            return DiskFullError(f"{self.path}: {reason}")
        if reason.startswith("Corruption"):
            return CorruptionError(self.path, position=0, reason=reason)
        return NotAStoreError(f"{self.path} cannot be opened: {reason}")


def _is_stall(reason: str) -> bool:
    return "Write stall" in reason
