"""Arrow in and out: buffers that pyarrow takes as they are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.record_strategies import any_records
from tests.codec.test_batches import append_kafka
from tests.codec.workbench import LIMIT, NOW, Workbench

from penstock.codec.codes import FIELD_NARROW
from penstock.codec.format import KIND_BATCH, KIND_SIMPLE
from penstock.codec.interface import ColumnPage, Columns
from penstock.codec.select import Core
from penstock.errors import BadRequestError
from penstock.record import Offset, Record, StoredRecord

ALL = 63
LONG_AGO = -(1 << 63)

if TYPE_CHECKING:
    AnyArray = pa.Array[pa.Scalar[pa.DataType]]


def read_columns(
    bench: Workbench, fields: int = ALL, *, max_records: int = 1 << 30, tag: str | None = None
) -> ColumnPage:
    return bench.core.read_columns(
        bench.log,
        bench.base,
        bench.units,
        bench.kind,
        bench.first_offset,
        bench.topic,
        0,
        max_records,
        LIMIT,
        (),
        LONG_AGO,
        tag,
        fields,
    )


def int64s(data: bytes) -> list[int]:
    return memoryview(data).cast("q").tolist()


def cells(validity: bytes, offsets: bytes, data: bytes) -> list[bytes | None]:
    bounds = int64s(offsets)
    return [
        data[bounds[n] : bounds[n + 1]] if validity[n >> 3] >> (n & 7) & 1 else None
        for n in range(len(bounds) - 1)
    ]


def texts(offsets: bytes, data: bytes) -> list[str]:
    bounds = int64s(offsets)
    return [
        data[bounds[n] : bounds[n + 1]].decode("utf-8", "surrogateescape")
        for n in range(len(bounds) - 1)
    ]


def rows(columns: Columns) -> list[StoredRecord]:
    """Return the records that full columns hold."""
    tag_lists = int64s(columns["tags"][0])
    tags = texts(*columns["tags"][1:])
    header_lists = int64s(columns["headers"][0])
    names = texts(*columns["headers"][1:3])
    contents = cells(columns["headers"][3], columns["headers"][4], columns["headers"][5])
    headers = list(zip(names, contents, strict=True))
    validity, moments = columns["expires"]
    expires = [
        each if validity[n >> 3] >> (n & 7) & 1 else None for n, each in enumerate(int64s(moments))
    ]
    return [
        StoredRecord(
            Offset(offset),
            value,
            key,
            tuple(tags[tag_lists[n] : tag_lists[n + 1]]),
            tuple(headers[header_lists[n] : header_lists[n + 1]]),
            timestamp,
            expires[n],
            store,
            epoch,
        )
        for n, (offset, value, key, timestamp, store, epoch) in enumerate(
            zip(
                int64s(columns["offset"][0]),
                cells(*columns["value"]),
                cells(*columns["key"]),
                int64s(columns["timestamp"][0]),
                int64s(columns["store_timestamp"][0]),
                int64s(columns["leader_epoch"][0]),
                strict=True,
            )
        )
    ]


@given(
    records=st.lists(any_records, max_size=12),
    kind=st.sampled_from([KIND_SIMPLE, KIND_BATCH]),
    tag=st.sampled_from([None, "TagA"]),
    max_records=st.integers(0, 12),
)
def test_columns_hold_what_records_hold(
    core: Core, records: list[Record], kind: int, tag: str | None, max_records: int
) -> None:
    bench = Workbench(core, kind=kind, first_offset=5)
    for record in records:
        bench.append(record)
    columns, *rest = read_columns(bench, tag=tag, max_records=max_records)
    expected, *page = bench.read(max_records=max_records, tag=tag, now_ms=LONG_AGO)
    assert rows(columns) == expected
    assert int64s(columns["count"][0]) == [len(expected)]
    assert rest == page
    assert all(len(columns[name][0]) == -(-len(expected) // 8) for name in ("value", "expires"))


def test_narrow_columns_hold_the_same_with_half_the_offsets_and_microseconds(core: Core) -> None:
    bench = Workbench(core)
    headers = (("h", b"x"), ("i", None))
    bench.append(Record(value=b"v1", key=b"k", tags=("a", "bc"), headers=headers))
    bench.append(Record(value=None, expires_at_ms=NOW + 9))
    bench.append(Record(value=b"", timestamp_ms=1 << 60))
    wide, *rest = read_columns(bench)
    narrow, *same = read_columns(bench, ALL | FIELD_NARROW)
    assert same == rest

    def halved(data: bytes) -> bytes:
        return struct.pack(f"<{len(data) // 8}i", *int64s(data))

    for name, at in (("value", [1]), ("key", [1]), ("tags", [0, 1]), ("headers", [0, 1, 4])):
        expected = [halved(part) if n in at else part for n, part in enumerate(wide[name])]
        assert [*narrow[name]] == expected
    for name in ("timestamp", "expires", "store_timestamp"):
        times = [min(each * 1000, (1 << 63) - 1) for each in int64s(wide[name][-1])]
        assert int64s(narrow[name][-1]) == times
    assert int64s(narrow["timestamp"][0])[2] == (1 << 63) - 1
    assert all(narrow[name] == wide[name] for name in ("count", "offset", "leader_epoch"))


def test_kafka_batches_come_as_columns(core: Core) -> None:
    bench = Workbench(core, kind=KIND_BATCH)
    append_kafka(bench, [Record(value=b"a", headers=(("h", None),)), Record(value=None)])
    columns, next_offset, _, damage = read_columns(bench)
    assert (next_offset, damage) == (2, None)
    assert rows(columns) == bench.records()


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (0, "count offset"),
        (1, "count offset value"),
        (2, "count key offset"),
        (4, "count offset tags"),
        (8, "count headers offset"),
        (16, "count expires offset timestamp"),
        (32, "count leader_epoch offset store_timestamp"),
    ],
)
def test_only_the_fields_asked_for_come(core: Core, fields: int, names: str) -> None:
    bench = Workbench(core)
    bench.append(Record(value=b"v", key=b"k", tags=("t",), headers=(("h", b"x"),)))
    assert " ".join(sorted(read_columns(bench, fields)[0])) == names


def test_pyarrow_takes_the_buffers_as_they_are(core: Core) -> None:
    bench = Workbench(core)
    bench.append(Record(value=b"v1", key=b"k", tags=("a", "b"), headers=(("h", b"x"), ("i", None))))
    bench.append(Record(value=None, expires_at_ms=NOW + 9))
    columns, *_ = read_columns(bench)
    count = int64s(columns["count"][0])[0]

    def buffers(*data: bytes | None) -> list[pa.Buffer | None]:
        return [None if each is None else pa.py_buffer(each) for each in data]

    value = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers(*columns["value"]))
    assert value.tolist() == [b"v1", None]
    lists, offsets, data = columns["tags"]
    strings = pa.Array.from_buffers(pa.large_utf8(), 2, buffers(None, offsets, data))
    tags = pa.LargeListArray.from_buffers(
        pa.large_list(pa.large_utf8()), count, buffers(None, lists), children=[strings]
    )
    assert [each.as_py() for each in tags] == [["a", "b"], []]
    expires = pa.Array.from_buffers(pa.int64(), count, buffers(*columns["expires"]))
    assert expires.tolist() == [None, NOW + 9]


# ------------------------------------------------------------------------------------ writing


def column(array: AnyArray, width: int) -> tuple[pa.Buffer, pa.Buffer, int, pa.Buffer | None, int]:
    validity, offsets, data = array.buffers()
    assert offsets is not None
    return data or pa.py_buffer(b""), offsets, width, validity, array.offset


def append_columns(
    bench: Workbench,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    tags: Sequence[str | None] | None = None,
    *,
    skip: int = 0,
    large: bool = False,
) -> int:
    """Append rows from arrays that hold `skip` other rows in front."""
    width = 8 if large else 4
    binary = pa.large_binary() if large else pa.binary()
    text = pa.large_utf8() if large else pa.utf8()

    def cut(cells: Sequence[bytes | None] | Sequence[str | None], kind: pa.DataType) -> AnyArray:
        return pa.array([*[None] * skip, *cells], kind)[skip:]

    return bench.appender.append_columns(
        bench.handle,
        len(values),
        column(cut(values, binary), width),
        None if keys is None else column(cut(keys, binary), width),
        None if tags is None else column(cut(tags, text), width),
        None,
        NOW,
        2,
        None,
    )


@given(
    table=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=8),
            st.none() | st.binary(max_size=8),
            st.none() | st.text(max_size=4),
        ),
        min_size=1,
        max_size=10,
    ),
    skip=st.integers(0, 9),
    large=st.booleans(),
    kind=st.sampled_from([KIND_SIMPLE, KIND_BATCH]),
)
def test_rows_are_appended_as_records_would_be(
    core: Core,
    table: list[tuple[bytes | None, bytes | None, str | None]],
    skip: int,
    large: bool,
    kind: int,
) -> None:
    values, keys, tags = zip(*table, strict=True)
    bench, other = Workbench(core, kind=kind), Workbench(core, kind=kind)
    assert append_columns(bench, values, keys, tags, skip=skip, large=large) == 0
    records = [
        Record(value=value, key=key, tags=() if tag is None else (tag,))
        for value, key, tag in table
    ]
    other.append(*records, epoch=2)
    assert bench.log == other.log
    assert bench.units == other.units
    assert bench.indexes == other.indexes


def test_timestamps_are_the_producers(core: Core) -> None:
    bench = Workbench(core)
    values = column(pa.array([b"a", b"b"], pa.binary()), 4)
    times = memoryview(bytearray(24)).cast("q")
    times[0], times[1], times[2] = 5, -6, 7
    args = (None, None, times, NOW, 0, "1,0,0,2")
    assert bench.appender.append_columns(bench.handle, 2, values, *args) == 0
    assert [record.timestamp_ms for record in bench.records()] == [5, -6]
    assert dict(bench.raw(0).properties)["PSTK_PRD"] == "1,0,0,2"


BAD_COLUMNS = {
    "offsets too short": (b"abc", bytes(4), 4, None, 0),
    "offset past the data": (b"abc", bytes(4) + (9).to_bytes(4, "little"), 4, None, 0),
    "offset below zero": (b"abc", (-1).to_bytes(4, "little", signed=True) + bytes(4), 4, None, 0),
    "offsets backwards": (b"abc", (3).to_bytes(4, "little") + bytes(4), 4, None, 0),
    "strange width": (b"abc", bytes(64), 5, None, 0),
    "validity too short": (b"", bytes(64), 4, b"", 0),
    "first row below zero": (b"", bytes(64), 4, None, -1),
}


@pytest.mark.parametrize("bad", BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
def test_columns_that_make_no_sense_are_refused(
    core: Core, bad: tuple[bytes, bytes, int, bytes | None, int]
) -> None:
    bench = Workbench(core)
    good = (b"", bytes(64), 4, None, 0)
    for values, keys, tags in ((bad, None, None), (good, bad, None), (good, None, bad)):
        with pytest.raises(BadRequestError):
            bench.appender.append_columns(bench.handle, 1, values, keys, tags, None, NOW, 0, None)
    with pytest.raises(BadRequestError):
        bench.appender.append_columns(bench.handle, 2, good, None, None, bytes(8), NOW, 0, None)
    for count in (0, -1, 1 << 40):
        with pytest.raises(BadRequestError):
            bench.appender.append_columns(bench.handle, count, good, None, None, None, NOW, 0, None)
    assert bench.end == 0
