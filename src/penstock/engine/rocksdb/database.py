"""One RocksDB instance, its families, and the rules by which everybody writes to it.

    Changes ──▶ write: in the write-ahead log and visible ──▶ sync: on the device

Guarantees:

  * one `Changes` is applied whole or not at all, also when the process dies
  * `sync` returns when everything written before the call is on the device; callers share syncs
  * a failed sync or write of the device is final: from then on every write and sync raises
    `DiskFailedError`, reads go on. A sync that is tried again may succeed without the lost bytes
  * a full disk is not final: writes raise `DiskFullError`, reads go on. Writes are refused while
    little room is left, before RocksDB meets the end of it; if it does meet it, it needs to be
    opened again, which `prepare` does when there is room
  * while RocksDB is stalled by its own compactions, writers wait here; waiting inside it would
    stop every thread of the process, because its binding holds the interpreter's lock
  * a damaged block raises `CorruptionError`, it never ends a scan early

Why `Changes` and not the binding's own batch: that one is used up by a write that RocksDB refuses,
and could not be tried again. Why scans use the binding's lowest iterator: its `items()`, `keys()`
and `values()` take a damaged block for the end of the data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from penstock.clock import Clock, SystemClock
from penstock.disk import Disk
from penstock.disk_local import LocalDisk
from penstock.engine.rocksdb.group_sync import GroupSync
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
from penstock.log import get_logger

CHANGES_SIZE_MAX: Final = 1 << 20
"""Callers keep `Changes` below this where they can: a write holds the interpreter's lock, about
3 ms for so much."""

_ROW_OVERHEAD: Final = 16
_ROOM_CHECKED_EVERY: Final = 256 << 10
_STALL_SECONDS: Final = (0.001, 0.1)
_REOPEN_TRIES: Final = 100
_REOPEN_SECONDS: Final = 0.01
_log = get_logger(__name__)


class DatabaseSettings(Struct, frozen=True):
    """Memory is bounded by `write_buffer_size * write_buffers_max` for each family, and the cache
    for all of them."""

    block_cache_size: int = 32 << 20
    write_buffer_size: int = 16 << 20
    write_buffers_max: int = 4
    open_files_max: int = 256
    background_jobs: int = 2
    free_size_min: int = 128 << 20
    """Writes are refused while the file system has less room than this."""
    stall_seconds_max: float = 10.0
    """How long a write waits for RocksDB's compactions before it raises `BusyError`."""


class Changes:
    """Rows to put and to delete in one family, together."""

    __slots__ = ("deletes", "puts", "ranges", "size")

    def __init__(self) -> None:
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.ranges: list[tuple[bytes, bytes]] = []
        self.size = 0

    def put(self, key: bytes, row: bytes) -> None:
        self.puts.append((key, row))
        self.size += len(key) + len(row) + _ROW_OVERHEAD

    def delete(self, key: bytes) -> None:
        self.deletes.append(key)
        self.size += len(key) + _ROW_OVERHEAD

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every row with start <= key < end that was there before these changes."""
        self.ranges.append((start, end))
        self.size += len(start) + len(end) + _ROW_OVERHEAD


class _Opened(NamedTuple):
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
        self._never: Final = threading.Event()
        self._opening: Final = threading.Lock()  # held while `_opened` changes
        self._failed: DiskFailedError | None = None
        self._full = False  # RocksDB has met the end of the disk, and must be opened again
        self._times_opened = 1
        self._closed = False
        self._unchecked_size = _ROOM_CHECKED_EVERY
        self._disk.make_directory(path)
        self._opened: _Opened | None = self._open()

    def family(self, name: str) -> Family:
        assert name in self._names, f"{name} was not asked for when the database was opened"
        return Family(self, name)

    def prepare(self) -> int:
        """Make ready for writes if need be; return how often the instance was opened so far.

        After a full disk RocksDB is opened again here. A write that failed may then be there all
        the same: whoever sees the number grow must read again what it last wrote.
        """
        if self._full:
            self._check_room(0)
            self._open_again()
        return self._times_opened

    def write(
        self, family: str, changes: Changes, *, patient: bool = False, frees_room: bool = False
    ) -> None:
        """Apply `changes`. A `patient` write waits for RocksDB as long as it takes: it completes
        what an earlier write began. One that `frees_room` may use the room that is kept back."""
        if self._failed is not None:
            raise self._failed
        if self._full:
            raise DiskFullError(f"{self.path}: the disk was full and has not been looked at since")
        if not frees_room:
            self._check_room(changes.size)
        deadline = self._clock.monotonic() + self.settings.stall_seconds_max
        pause_seconds, pause_max = _STALL_SECONDS
        while not self._try_write(family, changes):
            if not patient and self._clock.monotonic() >= deadline:
                raise BusyError(f"{self.path}: RocksDB's compactions are behind; try again later")
            self._clock.wait(self._never, pause_seconds)
            pause_seconds = min(2 * pause_seconds, pause_max)

    def sync(self) -> None:
        """Put everything written before this call on the device."""
        self._group.wait()

    def close(self) -> None:
        """Put everything on the device and let go; doing it again does nothing."""
        if self._closed:
            return
        try:
            if self._failed is None and not self._full:
                self.sync()
        finally:
            with self._opening:
                self._closed = True
                self._opened = None

    def opened(self) -> _Opened:
        """Return the open instance; whoever keeps a reference keeps it from closing."""
        opened = self._opened
        if opened is None:
            with self._opening:  # it may be being opened again just now
                opened = self._opened
        if opened is None:
            if self._closed:
                raise ClosedError(f"{self.path}: this database was closed")
            raise DiskFullError(f"{self.path}: could not be opened again after the disk was full")
        return opened

    # Writing

    def _try_write(self, family: str, changes: Changes) -> bool:
        """Return False when RocksDB would have to wait."""
        opened = self.opened()
        handle = opened.handles[family]
        batch = WriteBatch(raw_mode=True)
        for start, end in changes.ranges:
            batch.delete_range(start, end, handle)
        for key in changes.deletes:
            batch.delete(key, handle)
        for key, row in changes.puts:
            batch.put(key, row, handle)
        try:
            opened.database.write(batch, self._write_options)
        except Exception as error:  # the binding raises nothing more precise
            if "Write stall" in str(error):
                return False
            raise self._explain_write(error) from error
        return True

    def _sync_once(self) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            self._flush_log()
        except StoreError:
            raise
        except Exception as error:  # the binding raises nothing more precise
            # After a failed sync the kernel may drop the dirty pages and report success the next
            # time. Trying again would acknowledge records that are gone.
            raise self._explain_write(error) from error

    def _flush_log(self) -> None:
        self.opened().database.flush_wal(True)

    def _explain_write(self, error: Exception) -> StoreError:
        reason = str(error)
        if "No space left" in reason or "quota exceeded" in reason or self._full:
            if not self._full:
                _log.error("disk_full", path=self.path, reason=reason)
            self._full = True
            return DiskFullError(f"{self.path}: {reason}")
        if self._failed is None:
            self._failed = DiskFailedError(self.path, reason)
            _log.error("disk_failed", path=self.path, reason=reason)
        return self._failed

    def _check_room(self, size: int) -> None:
        self._unchecked_size += size
        if self._unchecked_size < _ROOM_CHECKED_EVERY and not self._full:
            return
        usage = self._disk.usage(self.path)
        free = usage.total - usage.used
        if free < self.settings.free_size_min + size:
            # The next write looks again, whatever its size.
            self._unchecked_size = _ROOM_CHECKED_EVERY
            raise DiskFullError(
                f"{self.path}: {free} bytes are free; "
                f"writes need {self.settings.free_size_min} besides their own"
            )
        self._unchecked_size = 0

    # Opening

    def _open_again(self) -> None:
        with self._opening:
            if not self._full or self._closed:
                return
            self._opened = None
            for attempt in range(_REOPEN_TRIES):
                try:
                    self._opened = self._open()
                    break
                except LockedError:
                    # Readers that are under way hold the old instance open a moment longer.
                    if attempt == _REOPEN_TRIES - 1:
                        raise DiskFullError(f"{self.path}: still in use, try again") from None
                    self._clock.wait(self._never, _REOPEN_SECONDS)
            self._full = False
            self._times_opened += 1
            _log.info("opened_again", path=self.path)

    def _open(self) -> _Opened:
        options = self._options()
        try:
            present = Rdict.list_cf(self.path, options) if self._is_there() else []
            names = dict.fromkeys(["default", *self._names, *present])
            database = Rdict(self.path, options, dict.fromkeys(names, options))
            return _Opened(
                database,
                {name: database.get_column_family(name) for name in names},
                {name: database.get_column_family_handle(name) for name in names},
            )
        except Exception as error:  # the binding raises nothing more precise
            raise self._explain_open(str(error)) from error

    def _is_there(self) -> bool:
        return self._disk.exists(f"{self.path}/CURRENT")

    def _explain_open(self, reason: str) -> StoreError:
        if "LOCK" in reason:
            return LockedError(f"{self.path}: another process, or this one, has it open")
        if "No space left" in reason:
            return DiskFullError(f"{self.path}: {reason}")
        if reason.startswith("Corruption"):
            return CorruptionError(self.path, position=0, reason=reason)
        return NotAStoreError(f"{self.path}: {reason}")

    def _options(self) -> Options:
        settings = self.settings
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_write_buffer_size(settings.write_buffer_size)
        options.set_max_write_buffer_number(settings.write_buffers_max)
        options.set_max_total_wal_size(settings.write_buffer_size * settings.write_buffers_max)
        options.set_max_background_jobs(settings.background_jobs)
        options.set_max_open_files(settings.open_files_max)
        # What RocksDB writes about itself.
        options.set_keep_log_file_num(4)
        options.set_max_log_file_size(1 << 20)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        return options


class Family:
    """The rows of one family, in the order of their keys."""

    def __init__(self, database: Database, name: str) -> None:
        self.name: Final = name
        self._database: Final = database

    def write(self, changes: Changes, *, patient: bool = False, frees_room: bool = False) -> None:
        """As `Database.write`."""
        self._database.write(self.name, changes, patient=patient, frees_room=frees_room)

    def prepare(self) -> int:
        """As `Database.prepare`."""
        return self._database.prepare()

    def get(self, key: bytes) -> bytes | None:
        rows = self._database.opened().families[self.name]
        try:
            row: bytes | None = rows.get(key)
        except Exception as error:  # the binding raises nothing more precise
            raise self._explain(error) from error
        return row

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with start <= key < end, ascending, as they are at this call."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        iterator = self._database.opened().families[self.name].iter(options)
        iterator.seek(start)
        return self._walk(iterator, end)

    def scan_back(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the same rows descending."""
        iterator = self._database.opened().families[self.name].iter()
        iterator.seek_for_prev(end)
        if iterator.valid() and iterator.key() == end:
            iterator.prev()
        return self._walk_back(iterator, start)

    def _walk(self, iterator: RdictIter, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        # RocksDB reads the bound where it lies, and the binding does not keep it: without `end` in
        # this frame, which must outlive the iterator, the scan would stop anywhere.
        valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.next
        while valid():
            found = key()
            assert found < end, "RocksDB went past the upper bound"
            yield found, value()
            step()
        self._check_end(iterator)

    def _walk_back(self, iterator: RdictIter, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Compared here, because the binding takes a lower bound for an upper one.
        valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.prev
        while valid():
            found = key()
            if found < start:
                return
            yield found, value()
            step()
        self._check_end(iterator)

    def _check_end(self, iterator: RdictIter) -> None:
        try:
            iterator.status()
        except Exception as error:  # the binding raises nothing more precise
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> StoreError:
        path = self._database.path
        _log.error("read_failed", path=path, reason=str(error))
        if str(error).startswith("Corruption"):
            return CorruptionError(path, position=0, reason=str(error))
        return DiskFailedError(path, str(error))
