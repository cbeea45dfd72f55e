"""The reads of an open segment store: by offset, key, tag or time; objects, bytes or columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.codec.codes import FIELD_KEY, FIELD_STORED, FIELD_VALUE
from penstock.codec.interface import Columns
from penstock.engine.contract import RECORDS_PER_READ, SIZE_PER_READ
from penstock.engine.segment.queue.lookup import check_limits
from penstock.engine.segment.queue.shard_table import ShardTable
from penstock.engine.segment.read.key_reader import Page, Query, ShardReader
from penstock.engine.segment.read.point_reader import PointReader
from penstock.errors import SetupError
from penstock.record import ShardId, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa


class StoreReads:
    """The base of `SegmentStore`; methods may be called from any thread."""

    def __init__(self, table: ShardTable, reader: ShardReader, point_reader: PointReader) -> None:
        self._table: Final = table
        self._reader: Final = reader
        self._point_reader: Final = point_reader

    def read(
        self,
        shard: ShardId,
        offset: int,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        """Return records from `offset` on, ascending."""
        if max_records == 1 and offset >= 0 < max_size:
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
        """Return whole records (batches, in a batch shard) as the log holds them."""
        log = self._table.get(shard)
        check_limits(offset, max_records, max_size)
        return self._reader.read_raw(log, Query(offset, log.commit, max_records, max_size))

    def read_raw_range(
        self, shard: ShardId, offset: int, *, max_size: int, until: int | None = None
    ) -> tuple[bytes, int]:
        """Return whole records (batches, in a batch shard) below `until` one after the other as
        the log holds them, checked, and the offset to go on at."""
        log = self._table.get(shard)
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
        return ArrowReader(self._reader).batches(log, offset, end, columns, tag)

    def read_columns(
        self, shard: ShardId, offset: int, *, until: int, max_records: int, max_size: int
    ) -> tuple[Columns | None, int]:
        """Return buffers of the next keys, values and store times, and where to go on."""
        log = self._table.get(shard)
        query = Query(max(offset, log.earliest), until, max_records, max_size)
        return self._reader.read_columns(log, query, FIELD_KEY | FIELD_VALUE | FIELD_STORED)

    def newest_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        log = self._table.get(shard)
        return self._point_reader.newest(log, key) or self._reader.newest_by_key(log, key)

    def by_key(self, shard: ShardId, key: bytes) -> Iterator[StoredRecord]:
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
        return self._reader.query(self._table.get(shard), key, begin_ms, end_ms, limit)

    def offset_by_timestamp(self, shard: ShardId, timestamp_ms: int) -> int | None:
        """Return the offset of the first live record with a timestamp >= `timestamp_ms`."""
        return self._reader.offset_by_time(self._table.get(shard), timestamp_ms)


def require_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise SetupError("Arrow columns need pyarrow: pip install 'penstock[arrow]'")
