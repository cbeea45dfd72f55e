"""Pages of records as Arrow buffers.

    count            int64, little-endian
    offset           values int64
    value, key       validity, offsets int64, data                     large_binary
    tags             list offsets, string offsets, data                large_list<large_utf8>
    headers          list offsets, name offsets, names,                large_list<struct<
                     value validity, value offsets, values              large_utf8, large_binary>>
    timestamp        values int64                                      the producer's time
    expires          validity, values int64
    store_timestamp  values int64
    leader_epoch     values int64

Offsets and validity are always there, also for no rows; bitmaps have their first row in bit 0.
With `FIELD_NARROW`, offsets of cells and lists are int32, and times are microseconds (others are
milliseconds): what is beyond their reach becomes the last one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.codec.codes import (
    FIELD_HEADERS,
    FIELD_KEY,
    FIELD_NARROW,
    FIELD_STORED,
    FIELD_TAGS,
    FIELD_TIMESTAMP,
    FIELD_VALUE,
)
from penstock.codec.format import KIND_BATCH
from penstock.codec.interface import ColumnPage, Columns, DeletedRanges
from penstock.codec.pure.read.reading import read_batches, read_records
from penstock.errors import BadRequestError
from penstock.record import StoredRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FIRST: Final = -(1 << 63)
_LAST: Final = (1 << 63) - 1


def read_columns(
    log: Buffer,
    base: int,
    units: bytes,
    kind: int,
    start_offset: int,
    topic: str,
    queue_id: int,
    max_records: int,
    max_size: int,
    deleted: DeletedRanges,
    now_ms: int,
    tag: str | None,
    fields: int,
    strict: bool = False,
) -> ColumnPage:
    """Read as `read_records` or `read_batches` does, into the columns that `fields` names."""
    read = read_batches if kind == KIND_BATCH else read_records
    records, next_offset, size, damage = read(
        log,
        base,
        units,
        start_offset,
        topic,
        queue_id,
        max_records,
        max_size,
        deleted,
        now_ms,
        tag,
        None,
        strict,
    )
    return columns_of(records, fields), next_offset, size, damage


def columns_of(records: Sequence[StoredRecord], fields: int) -> Columns:
    make = _Layout("<%di", 1000) if fields & FIELD_NARROW else _Layout("<%dq", 1)
    columns: Columns = {
        "count": (_int64s([len(records)]),),
        "offset": (_int64s(record.offset for record in records),),
    }
    if fields & FIELD_VALUE:
        columns["value"] = make.binary([record.value for record in records])
    if fields & FIELD_KEY:
        columns["key"] = make.binary([record.key for record in records])
    if fields & FIELD_TAGS:
        tags = [_encode(tag) for record in records for tag in record.tags]
        lists = make.offsets(len(record.tags) for record in records)
        columns["tags"] = (lists, make.offsets(map(len, tags)), b"".join(tags))
    if fields & FIELD_HEADERS:
        columns["headers"] = make.headers(records)
    if fields & FIELD_TIMESTAMP:
        expires = [record.expires_at_ms for record in records]
        columns["timestamp"] = (make.times(record.timestamp_ms for record in records),)
        columns["expires"] = (
            _validity(expires),
            make.times(expires_ms or 0 for expires_ms in expires),
        )
    if fields & FIELD_STORED:
        columns["store_timestamp"] = (make.times(record.store_timestamp_ms for record in records),)
        columns["leader_epoch"] = (_int64s(record.leader_epoch for record in records),)
    return columns


class _Layout(NamedTuple):
    numbers: str
    """How offsets are packed."""
    per_ms: int

    def offsets(self, sizes: Iterable[int]) -> bytes:
        numbers = tuple(accumulate(sizes, initial=0))
        try:
            return struct.pack(self.numbers % len(numbers), *numbers)
        except struct.error as error:
            reason = f"{numbers[-1]} bytes do not fit in a narrow column"
            raise BadRequestError(reason) from error

    def times(self, moments_ms: Iterable[int]) -> bytes:
        return _int64s(max(_FIRST, min(moment_ms * self.per_ms, _LAST)) for moment_ms in moments_ms)

    def binary(self, cells: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes]:
        contents = [cell or b"" for cell in cells]
        return _validity(cells), self.offsets(map(len, contents)), b"".join(contents)

    def headers(self, records: Sequence[StoredRecord]) -> tuple[bytes, ...]:
        headers = [header for record in records for header in record.headers]
        names = [_encode(name) for name, _ in headers]
        lists = self.offsets(len(record.headers) for record in records)
        values = self.binary([value for _, value in headers])
        return (lists, self.offsets(map(len, names)), b"".join(names), *values)


def _validity(cells: Sequence[bytes | int | None]) -> bytes:
    bitmap = bytearray((len(cells) + 7) // 8)
    for n, cell in enumerate(cells):
        if cell is not None:
            bitmap[n >> 3] |= 1 << (n & 7)
    return bytes(bitmap)


def _int64s(values: Iterable[int]) -> bytes:
    numbers = tuple(values)
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
