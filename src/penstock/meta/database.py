"""RocksDB as this package uses it: families of ordered rows, atomic batches, an explicit sync.

    batch = db.batch(); batch.put("meta", key, value); db.write(batch)   in the page cache
    db.sync()                                                            on the device

Everything that knows rocksdict is here. What it is known to do, and what follows:

  * `write` holds the GIL: a batch holds at most about `BATCH_SIZE_MAX` bytes
  * `flush_wal(True)` lets other threads run: all writes are unsynced, and a sync follows apart
  * a write may stall for seconds inside the GIL: `no_slowdown` refuses instead, and the wait for
    room happens here, outside of it
  * all failures are plain `Exception`s: they are told apart by their text, in one place
  * an iterator that is still alive keeps a closed database open: a scan is read to its end
  * RocksDB reads the upper bound of an iterator where it lies, and rocksdict does not keep it: it
    must stay in the frame of the scan
  * RocksDB that has met a full disk takes nothing more until it is opened again: `check_room`
    refuses (`DiskFullError`) while less than 16 MB are free, before it comes to that

A write survives the end of the process when `write` has returned, and a power cut when a later
`sync` has returned. Batches are kept or lost whole and in order: what survives is a prefix.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, Protocol

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from penstock.clock import Clock, SystemClock
from penstock.disk import Disk
from penstock.disk_local import LocalDisk
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
from penstock.meta.durable_point import DurablePoint

_log: Final = get_logger(__name__)

BATCH_SIZE_MAX: Final = 1 << 20

_STALL_WAIT_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_STALL_SECONDS_MAX: Final = 10.0
_FREE_SIZE_MIN: Final = 16 << 20
ROOM_CHECKED_EVERY: Final = 256 << 10
"""Bytes to be written after which `check_room` looks at the disk again."""
_CACHE_SIZE: Final = 16 << 20

Row = tuple[bytes, bytes]


class Batch:
    """Changes that are written together or not at all."""

    def __init__(self) -> None:
        self.operations: list[tuple[Literal["put", "delete", "delete_range"], str, bytes, bytes]]
        self.operations = []
        self.size = 0

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.operations.append(("put", family, key, value))
        self.size += len(key) + len(value)

    def delete(self, family: str, key: bytes) -> None:
        self.operations.append(("delete", family, key, b""))
        self.size += len(key)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove all rows with start <= key < end."""
        self.operations.append(("delete_range", family, start, end))
        self.size += len(start) + len(end)


class Database(Protocol):
    """What the logs and caches need of a database; `RocksDatabase` is it on a disk."""

    @property
    def path(self) -> str: ...

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[Row]:
        """Yield the rows with start <= key < end, ascending, as they were at the first step."""
        ...

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Write one row: as `write` with a batch of one, and cheaper."""
        ...

    def putter(self, family: str) -> Callable[[bytes, bytes], None]:
        """Return `put` of one family, with as little around it as can be."""
        ...

    def check_room(self, size: int) -> None:
        """Raise `DiskFullError` while there is little room for `size` more bytes. Whoever begins
        something asks; what completes it is written without asking."""
        ...

    def write(self, batch: Batch) -> None: ...

    def sync(self) -> None:
        """Put everything written so far on the device. A failure is final."""
        ...

    def close(self) -> None: ...


class RocksDatabase:
    """A RocksDB instance of this process; safe to use from many threads."""

    def __init__(
        self, path: str, families: Sequence[str], database: Rdict, clock: Clock, disk: Disk
    ) -> None:
        """Use `open`."""
        self._path = path
        self._database = database
        self._clock = clock
        self._disk = disk
        self._families: Final = {name: database.get_column_family(name) for name in families}
        self._handles: Final = {name: database.get_column_family_handle(name) for name in families}
        self._never: Final = threading.Event()
        self._closing = threading.Lock()
        self._is_closed = False
        self._unchecked_size = ROOM_CHECKED_EVERY
        self._options: Final = WriteOptions()
        self._options.no_slowdown = True
        self._point: Final = DurablePoint(disk, path, clock)

    @classmethod
    def open(
        cls,
        path: str,
        families: Sequence[str],
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        in_place: bool = False,
    ) -> RocksDatabase:
        """Open or create the instance in `path`, with exactly these families.

        `in_place`: a row that is written again takes the place of the old one in memory. For few
        rows that change all the time; a scan beside writers then sees no single moment.

        Raises `LockedError`, `NotAStoreError`, or `CorruptionError` when changes are gone that had
        been synced.
        """
        clock = clock if clock is not None else SystemClock()
        disk = disk if disk is not None else LocalDisk()
        options, family_options = _options(in_place=in_place)
        try:
            disk.make_directory(path)
            raw = Rdict(path, options, dict.fromkeys(families, family_options))
        except Exception as error:
            raise _open_error(path, error) from error
        database = cls(path, families, raw, clock, disk)
        try:
            database._point.check(raw.latest_sequence_number())
        except BaseException:
            database.close()
            raise
        return database

    @property
    def path(self) -> str:
        return self._path

    def get(self, family: str, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:
            raise self._error(error) from error
        return value

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[Row]:
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        try:
            rows = self._families[family].iter(options)
            rows.seek(start)
            while rows.valid():
                row: Row = rows.key(), rows.value()
                yield row
                rows.next()
            # A block that cannot be read ends an iteration like the last row does.
            rows.status()
        except Exception as error:
            raise self._error(error) from error

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.putter(family)(key, value)

    def putter(self, family: str) -> Callable[[bytes, bytes], None]:
        raw_put, options = self._families[family].put, self._options

        def put(key: bytes, value: bytes) -> None:
            try:
                raw_put(key, value, options)
            except Exception as error:
                if not _is_stall(error):
                    raise self._error(error) from error
                batch = Batch()
                batch.put(family, key, value)
                self.write(batch)

        return put

    def write(self, batch: Batch) -> None:
        assert batch.size <= 2 * BATCH_SIZE_MAX, f"a batch of {batch.size} bytes holds up all"
        try:
            raw = self._raw(batch)
        except KeyError as error:
            raise self._error(error) from error
        deadline = self._clock.monotonic() + _STALL_SECONDS_MAX
        tries = 0
        while True:
            try:
                self._database.write(raw, self._options)
            except Exception as error:
                if not _is_stall(error):
                    raise self._error(error) from error
                if self._clock.monotonic() > deadline:
                    raise BusyError(f"{self._path}: no room for writes: {error}") from error
            else:
                return
            wait = _STALL_WAIT_SECONDS[min(tries, len(_STALL_WAIT_SECONDS) - 1)]
            self._clock.wait(self._never, wait)
            tries += 1

    def sync(self) -> None:
        try:
            sequence = self._database.latest_sequence_number()
            self._database.flush_wal(True)
        except Exception as error:
            raise self._error(error) from error
        try:
            self._point.move(sequence)
        except OSError as error:
            # The changes are safe; only the check of a later start is weaker.
            _log.warning("durable_point_not_written", path=self._path, reason=str(error))

    def check_room(self, size: int) -> None:
        self._unchecked_size += size
        if self._unchecked_size < ROOM_CHECKED_EVERY:
            return
        try:
            usage = self._disk.usage(self._path)
        except OSError as error:
            raise DiskFailedError(self._path, str(error)) from error
        free = usage.total - usage.used
        if free < _FREE_SIZE_MIN + size:
            self._unchecked_size = ROOM_CHECKED_EVERY  # the next one looks again, however small
            raise DiskFullError(
                f"{self._path}: {free} bytes are free; writes need {_FREE_SIZE_MIN} to spare"
            )
        self._unchecked_size = 0

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        try:
            self._point.write()
        except OSError as error:
            _log.warning("durable_point_not_written", path=self._path, reason=str(error))
        # Handles that are still held would keep the database, and its lock, open.
        self._handles.clear()
        for instance in (*self._families.values(), self._database):
            try:
                instance.close()
            except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
                # It closes all the same. What failed was told to whoever wrote it.
                _log.warning("close_failed", path=self._path, reason=str(error))

    def _raw(self, batch: Batch) -> WriteBatch:
        raw = WriteBatch(raw_mode=True)
        put, handles = raw.put, self._handles
        for kind, family, key, value in batch.operations:
            if kind == "put":
                put(key, value, handles[family])
            elif kind == "delete":
                raw.delete(key, handles[family])
            else:
                raw.delete_range(key, value, handles[family])
        return raw

    def _error(self, error: Exception) -> StoreError:
        if self._is_closed:
            return ClosedError(f"{self._path} is closed")
        reason = str(error)
        if "No space left" in reason or "space limit" in reason:
            return DiskFullError(f"{self._path}: {reason}")
        if reason.startswith("Corruption"):
            return CorruptionError(self._path, position=0, reason=reason)
        return DiskFailedError(self._path, reason)


def _options(*, in_place: bool) -> tuple[Options, Options]:
    """Return the options of the instance and those of each family."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # What follows a gap in the log is dropped, or changes would be applied without those before
    # them; that the gap is where nothing was synced yet is checked by `DurablePoint`.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_max_total_wal_size(64 << 20)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_CACHE_SIZE))
    table.set_bloom_filter(10, False)
    family_options = Options(raw_mode=True)
    family_options.set_write_buffer_size(8 << 20)
    family_options.set_block_based_table_factory(table)
    if in_place:
        for each in (options, family_options):
            each.set_allow_concurrent_memtable_write(False)
            each.set_inplace_update_support(True)
    return options, family_options


def _is_stall(error: Exception) -> bool:
    return str(error).startswith(("Result incomplete", "Incomplete"))


def _open_error(path: str, error: Exception) -> StoreError:
    reason = str(error)
    if "LOCK" in reason and ("lock" in reason or "temporarily unavailable" in reason):
        return LockedError(f"{path} is open already, in this process or another")
    if reason.startswith("Corruption"):
        return CorruptionError(path, position=0, reason=reason)
    if "No space left" in reason:
        return DiskFullError(f"{path}: {reason}")
    return NotAStoreError(f"{path} cannot be opened: {reason}")
