"""Records as Arrow arrays: appending columns, and reading batches of columns.

The byte loops build and read Arrow's buffers themselves; here they are only wrapped, without a
copy. This module is imported when it is needed: programs that read objects do not pay for pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from msgspec import Struct

from penstock.codec.codes import (
    FIELD_HEADERS,
    FIELD_KEY,
    FIELD_STORED,
    FIELD_TAGS,
    FIELD_TIMESTAMP,
    FIELD_VALUE,
)
from penstock.codec.interface import Columns
from penstock.engine.segment.read.key_reader import Query, ReadableShard
from penstock.errors import BadRequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.codec.append_interface import Column

    AnyArray = pa.Array[pa.Scalar[pa.DataType]]
    AnyRows = AnyArray | pa.ChunkedArray[pa.Scalar[pa.DataType]]

ROWS_PER_BATCH: Final = 4_096
SIZE_PER_BATCH: Final = 16 << 20

_FIELDS: Final = {
    "offset": 0,
    "key": FIELD_KEY,
    "value": FIELD_VALUE,
    "tags": FIELD_TAGS,
    "headers": FIELD_HEADERS,
    "timestamp": FIELD_TIMESTAMP,
    "expires": FIELD_TIMESTAMP,
    "store_timestamp": FIELD_STORED,
    "leader_epoch": FIELD_STORED,
}
COLUMN_NAMES: Final = ("offset", "key", "value", "tags", "headers", "timestamp")
"""The columns of a batch unless others are asked for."""


class ColumnReader(Protocol):
    """Where the columns come from: `ShardReader`, or a view that reads beside a writer."""

    def read_columns(
        self, log: ReadableShard, query: Query, fields: int
    ) -> tuple[Columns | None, int]: ...


class ArrowReader:
    def __init__(self, reader: ColumnReader) -> None:
        self._reader: Final = reader

    def batches(
        self,
        log: ReadableShard,
        offset: int,
        until: int,
        columns: Sequence[str] | None,
        tag: str | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of [offset, until) as batches of at most `ROWS_PER_BATCH` rows."""
        names = COLUMN_NAMES if columns is None else tuple(columns)
        fields = 0
        for name in names:
            if name not in _FIELDS:
                raise BadRequestError(f"there is no column {name!r}; there are {list(_FIELDS)}")
            fields |= _FIELDS[name]
        offset = max(offset, log.earliest)
        while offset < until:
            query = Query(offset, until, ROWS_PER_BATCH, SIZE_PER_BATCH, tag)
            buffers, after = self._reader.read_columns(log, query, fields)
            if buffers is not None:
                batch = to_batch(buffers, names)
                if batch.num_rows:
                    yield batch
            if after <= offset:
                return
            offset = after


def to_batch(columns: Columns, names: Sequence[str]) -> pa.RecordBatch:
    """Wrap ready buffers as a batch, without a copy."""
    count = len(columns["offset"][0]) // 8
    arrays = [_array(pa_name, columns[pa_name], count) for pa_name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _array(name: str, parts: tuple[bytes, ...], count: int) -> AnyArray:
    buffers = [pa.py_buffer(part) for part in parts]
    if name in ("value", "key"):
        return pa.Array.from_buffers(pa.large_binary(), count, [*buffers])
    if name == "tags":
        items = _item_count(parts[0])
        texts = pa.Array.from_buffers(pa.large_utf8(), items, [None, *buffers[1:]])
        return pa.LargeListArray.from_arrays(_offsets(buffers[0], count), texts)
    if name == "headers":
        return _headers(parts, buffers, count)
    nulls: list[pa.Buffer | None] = [*buffers]
    if name != "expires":
        nulls.insert(0, None)
    if name in ("offset", "leader_epoch"):
        return pa.Array.from_buffers(pa.int64(), count, nulls)
    return pa.Array.from_buffers(pa.timestamp("ms", tz="UTC"), count, nulls)


def _headers(parts: tuple[bytes, ...], buffers: list[pa.Buffer], count: int) -> AnyArray:
    items = _item_count(parts[0])
    names = pa.Array.from_buffers(pa.large_utf8(), items, [None, *buffers[1:3]])
    values = pa.Array.from_buffers(pa.large_binary(), items, [*buffers[3:6]])
    pairs = pa.StructArray.from_arrays([names, values], names=["key", "value"])
    return pa.LargeListArray.from_arrays(_offsets(buffers[0], count), pairs)


def _offsets(buffer: pa.Buffer, count: int) -> pa.Int64Array:
    offsets = pa.Int64Array.from_buffers(pa.int64(), count + 1, [None, buffer])
    assert isinstance(offsets, pa.Int64Array)
    return offsets


def _item_count(list_offsets: bytes) -> int:
    return int.from_bytes(list_offsets[-8:], "little") if list_offsets else 0


class RowColumns(Struct):
    """Arrow arrays as the appender takes them."""

    rows: int
    values: Column
    keys: Column | None
    tags: Column | None
    timestamps: Buffer | None


def columns_of(
    values: AnyRows,
    keys: AnyRows | None,
    tags: AnyRows | None,
    timestamps: AnyRows | None,
) -> RowColumns:
    """Check arrays that are to be appended, and take their buffers."""
    given = {"values": values, "keys": keys, "tags": tags, "timestamps": timestamps}
    arrays = {name: _in_one_piece(name, rows) for name, rows in given.items() if rows is not None}
    if "values" not in arrays:
        raise BadRequestError("values must be an Arrow array, got None")
    count = len(arrays["values"])
    for name, array in arrays.items():
        if len(array) != count:
            raise BadRequestError(f"{name} has {len(array)} rows, values has {count}")
    return RowColumns(
        count,
        _column("values", arrays["values"]),
        _column("keys", arrays["keys"]) if "keys" in arrays else None,
        _column("tags", arrays["tags"]) if "tags" in arrays else None,
        _timestamps(arrays["timestamps"]) if "timestamps" in arrays else None,
    )


def _in_one_piece(name: str, rows: AnyRows) -> AnyArray:
    """Return an array as it is, and a column of a table, which may be in chunks, as one array."""
    if isinstance(rows, pa.ChunkedArray):
        return rows.combine_chunks()
    if not isinstance(rows, pa.Array):
        raise BadRequestError(f"{name} must be an Arrow array, got {type(rows).__name__}")
    return rows


def _timestamps(array: AnyArray) -> memoryview:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms"))
    elif not pa.types.is_int64(array.type):
        raise BadRequestError(f"timestamps is {array.type}, expected timestamp or int64")
    if array.null_count:
        raise BadRequestError("timestamps holds nulls; leave the column out to stamp rows now")
    data = array.buffers()[1]
    first = array.offset * 8
    return memoryview(b"" if data is None else data)[first : first + len(array) * 8]


def _column(name: str, array: AnyArray) -> Column:
    kind = array.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        width = 8
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        width = 4
    else:
        raise BadRequestError(f"{name} is an array of {kind}, expected binary or string")
    validity, offsets, data = array.buffers()
    return (
        b"" if data is None else data,
        b"" if offsets is None else offsets,
        width,
        validity if array.null_count else None,
        array.offset,
    )
