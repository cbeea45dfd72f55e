"""The database below the logs: families of ordered rows, atomic batches, an explicit sync.

    batch = Batch(); batch.put("meta", key, value); db.write(batch)   in the page cache
    db.sync()                                                         on the device

A write survives the end of the process when `write` has returned, and a power cut when a later
`sync` has returned. Batches are kept or lost whole and in order: what survives is a prefix.

`RocksDatabase` stores it on a disk; see `penstock.platform.rocksdb`. It writes and syncs only on
request. Once the disk was full it rejects writes until it is opened again: the contents of the logs
must then be read again. `check_room` rejects new work before that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from penstock.platform.clock import Clock
from penstock.platform.disk import Disk
from penstock.platform.rocksdb import CHANGES_SIZE_MAX, ROOM_CHECKED_EVERY, Batch, DatabaseSettings
from penstock.platform.rocksdb import Database as SharedDatabase

__all__ = ["BATCH_SIZE_MAX", "ROOM_CHECKED_EVERY", "Batch", "Database", "RocksDatabase", "Row"]

BATCH_SIZE_MAX: Final = CHANGES_SIZE_MAX

_SETTINGS: Final = DatabaseSettings(
    block_cache_size=16 << 20,
    write_buffer_size=8 << 20,
    write_buffers_max=2,
    flush_interval_ms=None,
    free_size_min=16 << 20,
)
_IN_PLACE: Final = replace(_SETTINGS, in_place=True)

Row = tuple[bytes, bytes]


class Database(Protocol):
    """What the logs and caches need of a database."""

    @property
    def path(self) -> str: ...

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[Row]:
        """Yield the rows with start <= key < end, ascending, as they were at one moment."""
        ...

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Write one row: as `write` with a batch of one, and cheaper."""
        ...

    def putter(self, family: str) -> Callable[[bytes, bytes], None]:
        """Return `put` of one family, with as little around it as can be."""
        ...

    def check_room(self, size: int) -> None:
        """Raise `DiskFullError` while there is little room for `size` more bytes. Called before an
        operation starts; the writes that complete it are not checked."""
        ...

    def write(self, batch: Batch) -> None: ...

    def sync(self) -> None:
        """Put everything written so far on the device. A failure is final."""
        ...

    def close(self) -> None: ...


class RocksDatabase:
    """A RocksDB instance of this process; safe to use from many threads."""

    def __init__(self, database: SharedDatabase, families: Sequence[str]) -> None:
        """Use `open`."""
        self._database: Final = database
        self._families: Final = {name: database.family(name) for name in families}
        self._putters: Final = {name: database.putter(name) for name in families}

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
        """Open or create the instance in `path`, with these families.

        `in_place`: as in `DatabaseSettings`. Raises `LockedError`, `NotAStoreError`, or
        `CorruptionError` when changes are gone that had been synced.
        """
        settings = _SETTINGS if not in_place else _IN_PLACE
        return cls(
            SharedDatabase(path, families, settings=settings, disk=disk, clock=clock), families
        )

    @property
    def path(self) -> str:
        return self._database.path

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._families[family].get(key)

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[Row]:
        return self._families[family].scan(start, end)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self._putters[family](key, value)

    def putter(self, family: str) -> Callable[[bytes, bytes], None]:
        return self._putters[family]

    def check_room(self, size: int) -> None:
        self._database.check_room(size)

    def write(self, batch: Batch) -> None:
        assert batch.size <= 2 * BATCH_SIZE_MAX, f"a batch of {batch.size} bytes holds up all"
        self._database.write_batch(batch)

    def sync(self) -> None:
        self._database.sync()

    def close(self) -> None:
        """Close the database; again: nothing."""
        self._database.close()
