"""The rows of one family of a database, in the order of their keys.

A damaged block raises `CorruptionError`; it never ends a scan early. That is why scans use the
binding's lowest iterator: its `items()`, `keys()` and `values()` take damage for the end of the
data. Two more of its traps are avoided here, each where it is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocksdict import Rdict, RdictIter, ReadOptions

from penstock.errors import CorruptionError, DiskFailedError, StoreError
from penstock.platform.log import get_logger
from penstock.platform.rocksdb.changes import Changes

if TYPE_CHECKING:
    from penstock.platform.rocksdb.database import Database

_log = get_logger(__name__)


class Family:
    def __init__(self, database: Database, name: str) -> None:
        self.name: Final = name
        self._database: Final = database

    def prepare(self) -> int:
        """As `Database.prepare`."""
        return self._database.prepare()

    def write(self, changes: Changes, *, patient: bool = False, frees_room: bool = False) -> None:
        """As `Database.write`."""
        self._database.write(self.name, changes, patient=patient, frees_room=frees_room)

    def get(self, key: bytes) -> bytes | None:
        rows = self._rows()
        try:
            row: bytes | None = rows.get(key)
        except Exception as error:  # the binding raises nothing more precise
            raise self._explain(error) from error
        return row

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with start <= key < end, ascending, as they are at this call."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        iterator = self._rows().iter(options)
        iterator.seek(start)
        return self._walk(iterator, end)

    def scan_back(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the same rows descending."""
        iterator = self._rows().iter()
        iterator.seek_for_prev(end)
        if iterator.valid() and iterator.key() == end:
            iterator.prev()
        return self._walk_back(iterator, start)

    def _walk(self, iterator: RdictIter, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        # RocksDB reads the bound in place, and the binding does not keep it: without `end` in
        # this frame, which lives as long as the iterator, the scan would stop anywhere.
        valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.next
        while valid():
            row_key = key()
            assert row_key < end, "RocksDB went past the upper bound"
            yield row_key, value()
            step()
        self._check_end(iterator)

    def _walk_back(self, iterator: RdictIter, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Compared here, because the binding takes a lower bound for an upper one.
        valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.prev
        while valid():
            row_key = key()
            if row_key < start:
                return
            yield row_key, value()
            step()
        self._check_end(iterator)

    def _check_end(self, iterator: RdictIter) -> None:
        try:
            iterator.status()
        except Exception as error:  # the binding raises nothing more precise
            raise self._explain(error) from error

    def _rows(self) -> Rdict:
        return self._database.opened().families[self.name]

    def _explain(self, error: Exception) -> StoreError:
        path, reason = self._database.path, str(error)
        _log.error("read_failed", path=path, reason=reason)
        if reason.startswith("Corruption"):
            return CorruptionError(path, position=0, reason=reason)
        return DiskFailedError(path, reason)
