"""The reads of a segment store: by offset, key, tag or time; objects, bytes or columns.

An open store reads its shards through this class, a read-only store those of a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from penstock.codec.interface import Columns
from penstock.engine.contract import RECORDS_PER_READ, SIZE_PER_READ
from penstock.engine.segment.queue.lookup import check_limit, check_limits
from penstock.engine.segment.read.key_reader import Page, Query, ReadableShard, ShardReader
from penstock.engine.segment.read.page_reader import SIZE_UNLIMITED
from penstock.errors import SetupError
from penstock.record import ShardId, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.engine.segment.read.arrow import ColumnReader

LogT = TypeVar("LogT", bound=ReadableShard)
_FoundT_co = TypeVar("_FoundT_co", bound=ReadableShard, covariant=True)
_ReadT_contra = TypeVar("_ReadT_contra", bound=ReadableShard, contravariant=True)


class ShardLookup(Protocol[_FoundT_co]):
    """The shards of a store by name."""

    def get(self, shard: ShardId) -> _FoundT_co:
        """Return the shard; raise `UnknownShardError` when there is none."""
        ...


class PointReads(Protocol[_ReadT_contra]):
    """A short way to one record. None: the ordinary way has to be taken."""

    def read(self, log: _ReadT_contra, offset: int) -> StoredRecord | None: ...
    def newest(self, log: _ReadT_contra, key: bytes) -> StoredRecord | None: ...


class StoreReads(Generic[LogT]):
    """Methods may be called from any thread."""

    def __init__(
        self,
        table: ShardLookup[LogT],
        reader: ShardReader,
        point_reader: PointReads[LogT] | None = None,
        columns: ColumnReader | None = None,
    ) -> None:
        """`columns` is what the batches of `read_arrow` are read with, `reader` if not given."""
        self._table = table
        self._reader: Final = reader
        self._point_reader: Final = point_reader
        self._columns: Final[ColumnReader] = reader if columns is None else columns

    def read(
        self,
        shard: ShardId,
        offset: int,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        """Return records from `offset` on, ascending; empty at the end of the shard."""
        if max_records == 1 and offset >= 0 < max_size and self._point_reader is not None:
            record = self._point_reader.read(self._table.get(shard), offset)
            if record is not None:
                return [record]
        return self.read_page(shard, offset, max_records=max_records, max_size=max_size).records

    def read_page(
        self,
        shard: ShardId,
        offset: int,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        tag: str | None = None,
    ) -> Page:
        """Return records, of one tag if asked for, and the offset at which to go on."""
        log = self._table.get(shard)
        check_limits(offset, max_records, max_size)
        return self._reader.read(log, Query(offset, log.commit, max_records, max_size, tag))

    def read_raw(
        self,
        shard: ShardId,
        offset: int,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[bytes]:
        """Return whole records (batches, in a batch shard) as the log holds them, checked."""
        log = self._table.get(shard)
        check_limits(offset, max_records, max_size)
        return self._reader.read_raw(log, Query(offset, log.commit, max_records, max_size))

    def read_raw_range(
        self, shard: ShardId, offset: int, *, max_size: int, until: int | None = None
    ) -> tuple[bytes, int]:
        """Return whole records (batches, in a batch shard) below `until` one after the other as
        the log holds them, checked, and the offset to go on at."""
        log = self._table.get(shard)
        check_limits(offset, 1, max_size)
        end = log.commit if until is None else until
        return self._reader.read_raw_range(log, Query(offset, end, max_size, max_size))

    def read_arrow(
        self,
        shard: ShardId,
        offset: int = 0,
        *,
        until: int | None = None,
        columns: Sequence[str] | None = None,
        tag: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of [offset, until) as Arrow batches; the default is all there is."""
        require_pyarrow()
        from penstock.engine.segment.read.arrow import ArrowReader

        log = self._table.get(shard)
        end = log.commit if until is None else min(until, log.commit)
        return ArrowReader(self._columns).batches(log, offset, end, columns, tag)

    def read_columns(self, shard: ShardId, query: Query, fields: int) -> tuple[Columns | None, int]:
        """Return the next records as Arrow buffers, and the offset at which to go on."""
        return self._reader.read_columns(self._table.get(shard), query, fields)

    def newest_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        """Return the newest live record of `key`."""
        if self._point_reader is not None:
            record = self._point_reader.newest(self._table.get(shard), key)
            if record is not None:
                return record
        return next(self.by_key(shard, key), None)

    def by_key(self, shard: ShardId, key: bytes) -> Iterator[StoredRecord]:
        """Yield the live records of `key`, newest first."""
        return self._reader.by_key(self._table.get(shard), key)

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        """Return live records of `key` with begin_ms <= timestamp <= end_ms, newest first."""
        check_limit(limit)
        records = (
            record
            for record in self.by_key(shard, key)
            if begin_ms <= record.timestamp_ms and (end_ms is None or record.timestamp_ms <= end_ms)
        )
        return list(islice(records, min(limit, SIZE_UNLIMITED)))

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        """Return the offset of the first live record with a timestamp >= `timestamp_ms`."""
        return self._reader.offset_by_time(self._table.get(shard), timestamp_ms)


def require_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise SetupError("Arrow columns need pyarrow: pip install 'penstock[arrow]'")
