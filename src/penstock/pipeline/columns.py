"""The columns that a store has in Spark, and how the store's Arrow buffers become them.

The names and types are those of Spark's Kafka source; `tags` is ours, and more by option. Spark
takes a batch only with exactly the types that its schema says (32-bit offsets, microseconds): the
native code builds such columns directly (`FIELD_NARROW`), others are converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.codes import (
    FIELD_HEADERS,
    FIELD_KEY,
    FIELD_NARROW,
    FIELD_STORED,
    FIELD_TAGS,
    FIELD_TIMESTAMP,
    FIELD_VALUE,
)
from penstock.codec.interface import Columns
from penstock.record import ShardId, StoredRecord

if TYPE_CHECKING:
    from penstock.engine.segment import AnyArray

CREATE_TIME: Final = 0
"""`timestampType` of Kafka: the timestamp is the producer's."""

SPARK_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "tags": "array<string>",
    "tag": "string",
    "store_timestamp": "timestamp",
    "leader_epoch": "bigint",
    "expires": "timestamp",
}
"""Every column, in the order of the schema."""

KAFKA_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
METADATA_COLUMNS: Final = ("tag", "store_timestamp", "leader_epoch", "expires")

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
    "tags": pa.list_(pa.field("element", pa.string())),
    "tag": pa.string(),
    "store_timestamp": _TIME,
    "leader_epoch": pa.int64(),
    "expires": _TIME,
}
_REPEATED: Final = frozenset(("topic", "partition", "timestampType"))
_FIELDS: Final = {
    "key": FIELD_KEY,
    "value": FIELD_VALUE,
    "timestamp": FIELD_TIMESTAMP,
    "headers": FIELD_HEADERS,
    "tags": FIELD_TAGS,
    "tag": FIELD_TAGS,
    "store_timestamp": FIELD_STORED,
    "leader_epoch": FIELD_STORED,
    "expires": FIELD_TIMESTAMP,
}


def spark_schema(columns: Sequence[str]) -> str:
    """Return the schema of these columns as Spark's DDL."""
    return ", ".join(f"`{name}` {SPARK_TYPES[name]}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, _ARROW_TYPES[name]) for name in columns])


def fields_of(columns: Iterable[str]) -> int:
    """Return the fields that `BatchMaker.from_columns` makes these columns of."""
    bits = FIELD_NARROW
    for name in columns:
        bits |= _FIELDS.get(name, 0)
    return bits


class BatchMaker:
    """Makes Spark's batches of the records of one shard."""

    def __init__(self, shard: ShardId, columns: Sequence[str]) -> None:
        self.shard: Final = shard
        self._schema: Final = arrow_schema(columns)
        self.columns: Final = tuple(columns)
        self._stored: Final = tuple(dict.fromkeys(_stored_names(columns)))
        self._repeated: Final[dict[str, AnyArray]] = {}
        """Columns with the same value in every row, as long as the longest batch so far."""

    def from_columns(self, columns: Columns) -> pa.RecordBatch:
        """Wrap what the byte loops give for `fields_of`, without a copy."""
        count = len(columns["offset"][0]) // 8
        arrays = [self._narrow_array(name, columns, count) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    @property
    def stored_names(self) -> tuple[str, ...]:
        """The columns of the store that the batches are made of."""
        return self._stored

    def from_stored(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Convert columns of the store, `stored_names`."""
        return self._convert(stored)

    def from_records(self, records: Sequence[StoredRecord]) -> pa.RecordBatch:
        """Convert single records, as a look-up by key finds them."""
        arrays = [_record_array(name, records) for name in self._stored]
        return self._convert(pa.RecordBatch.from_arrays(arrays, names=list(self._stored)))

    def _convert(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        count = stored.num_rows
        arrays = [self._array(name, stored, count) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, stored: pa.RecordBatch, count: int) -> AnyArray:
        if name in _REPEATED:
            return self._repeat(name, count)
        if name == "tag":
            return _only_tag(stored.column("tags")).cast(pa.string())
        array = stored.column(name)
        arrow_type = _ARROW_TYPES[name]
        return array if array.type == arrow_type else array.cast(arrow_type)

    def _narrow_array(self, name: str, columns: Columns, count: int) -> AnyArray:
        if name in _REPEATED:
            return self._repeat(name, count)
        if name == "tag":
            return _only_tag(_narrow_lists("tags", columns["tags"], count))
        parts = columns[name]
        if name in ("tags", "headers"):
            return _narrow_lists(name, parts, count)
        buffers: list[pa.Buffer | None] = [pa.py_buffer(part) for part in parts]
        if len(buffers) == 1:
            buffers.insert(0, None)
        return pa.Array.from_buffers(_ARROW_TYPES[name], count, buffers)

    def _repeat(self, name: str, count: int) -> AnyArray:
        array = self._repeated.get(name)
        if array is None or len(array) < count:
            array = self._repeated_array(name, count)
            self._repeated[name] = array
        return array if len(array) == count else array.slice(0, count)

    def _repeated_array(self, name: str, count: int) -> AnyArray:
        if name == "topic":
            return pa.repeat(pa.scalar(self.shard.topic), count)
        number = self.shard.partition if name == "partition" else CREATE_TIME
        return pa.repeat(pa.scalar(number, pa.int32()), count)


def _narrow_lists(name: str, parts: tuple[bytes, ...], count: int) -> AnyArray:
    """Return lists of tags, or of headers."""
    buffers = [pa.py_buffer(part) for part in parts]
    items = int.from_bytes(parts[0][-4:], "little")
    cells: AnyArray
    if name == "tags":
        cells = pa.Array.from_buffers(pa.string(), items, [None, *buffers[1:]])
    else:
        cells = pa.StructArray.from_arrays(
            [
                pa.Array.from_buffers(pa.string(), items, [None, *buffers[1:3]]),
                pa.Array.from_buffers(pa.binary(), items, [*buffers[3:6]]),
            ],
            fields=list(_HEADER),
        )
    return pa.Array.from_buffers(
        _ARROW_TYPES[name], count, [None, buffers[0]], null_count=0, children=[cells]
    )


def _stored_names(columns: Iterable[str]) -> Iterable[str]:
    yield "offset"
    for name in columns:
        if name == "tag":
            yield "tags"
        elif name in _FIELDS:
            yield name


def _only_tag(tags: AnyArray) -> AnyArray:
    """Return the tag of each row that has exactly one, else null."""
    assert isinstance(tags, (pa.ListArray, pa.LargeListArray))
    firsts = tags.offsets.slice(0, len(tags))
    single = pc.equal(pc.list_value_length(tags), pa.scalar(1))
    return tags.values.take(pc.if_else(single, firsts, pa.scalar(None, firsts.type)))


def _record_array(name: str, records: Sequence[StoredRecord]) -> AnyArray:
    if name == "tags":
        texts = pa.array(
            [tag.encode("utf-8", "surrogateescape") for row in records for tag in row.tags],
            pa.large_binary(),
        )
        offsets = _list_offsets(len(row.tags) for row in records)
        return pa.LargeListArray.from_arrays(offsets, texts.view(pa.large_utf8()))
    if name == "headers":
        pairs = [pair for row in records for pair in row.headers]
        names = pa.array(
            [key.encode("utf-8", "surrogateescape") for key, _ in pairs], pa.large_binary()
        )
        values = pa.array([value for _, value in pairs], pa.large_binary())
        items = pa.StructArray.from_arrays(
            [names.view(pa.large_utf8()), values], names=["key", "value"]
        )
        return pa.LargeListArray.from_arrays(
            _list_offsets(len(row.headers) for row in records), items
        )
    return _plain_array(name, records)


def _plain_array(name: str, records: Sequence[StoredRecord]) -> AnyArray:
    time = pa.timestamp("ms", tz="UTC")
    if name == "key":
        return pa.array([row.key for row in records], pa.large_binary())
    if name == "value":
        return pa.array([row.value for row in records], pa.large_binary())
    if name == "offset":
        return pa.array([row.offset for row in records], pa.int64())
    if name == "leader_epoch":
        return pa.array([row.leader_epoch for row in records], pa.int64())
    if name == "timestamp":
        return pa.array([row.timestamp_ms for row in records], pa.int64()).cast(time)
    if name == "store_timestamp":
        return pa.array([row.store_timestamp_ms for row in records], pa.int64()).cast(time)
    assert name == "expires", name
    return pa.array([row.expires_at_ms for row in records], pa.int64()).cast(time)


def _list_offsets(sizes: Iterable[int]) -> pa.Int64Array:
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    array = pa.array(offsets, pa.int64())
    assert isinstance(array, pa.Int64Array)
    return array
