"""Rows of Arrow columns as records.

A column is (data, offsets, bytes per offset, validity bitmap or None, index of the first row), the
buffers of a binary or string array as they lie in memory. Nothing in them is trusted: an offset
outside the data is a `BadRequestError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

from penstock.codec.pure.read.codec import view_of
from penstock.errors import BadRequestError
from penstock.record import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.codec.append_interface import Column


def records_from_columns(
    count: int,
    values: Column,
    keys: Column | None,
    tags: Column | None,
    timestamps: Buffer | None,
) -> list[Record]:
    """Return `count` records; null stands for a tombstone, no key or no tag."""
    if count < 1:
        raise BadRequestError(f"an append of {count} rows makes no sense")
    rows = zip(
        _cells("values", values, count),
        repeat(None) if keys is None else _cells("keys", keys, count),
        repeat(None) if tags is None else _cells("tags", tags, count),
        repeat(None) if timestamps is None else _timestamps(timestamps, count),
        strict=False,  # the values say how many
    )
    return [
        Record(
            value=value,
            key=key,
            tags=() if tag is None else (tag.decode("utf-8", "surrogateescape"),),
            timestamp_ms=timestamp_ms,
        )
        for value, key, tag, timestamp_ms in rows
    ]


def _cells(name: str, column: Column, count: int) -> Iterator[bytes | None]:
    data_buffer, offsets_buffer, width, validity_buffer, first = column
    if width not in (4, 8) or first < 0:
        raise BadRequestError(f"{name}: offsets of {width} bytes from row {first} make no sense")
    data = view_of(data_buffer)
    last = first + count
    raw_offsets = view_of(offsets_buffer)
    if len(raw_offsets) < (last + 1) * width:
        raise BadRequestError(f"{name}: {len(raw_offsets)} bytes of offsets for {count} rows")
    sized = raw_offsets[: (last + 1) * width]
    offsets = sized.cast("i") if width == 4 else sized.cast("q")
    validity = None if validity_buffer is None else view_of(validity_buffer)
    if validity is not None and len(validity) * 8 < last:
        raise BadRequestError(f"{name}: {len(validity)} bytes of validity for {count} rows")
    for row in range(first, last):
        start, end = offsets[row], offsets[row + 1]
        if not 0 <= start <= end <= len(data):
            raise BadRequestError(f"{name}: row {row - first} is at {start} to {end} of its data")
        if validity is not None and not validity[row >> 3] >> (row & 7) & 1:
            yield None
        else:
            yield bytes(data[start:end])


def _timestamps(buffer: Buffer, count: int) -> list[int]:
    view = view_of(buffer)
    if len(view) < 8 * count:
        raise BadRequestError(f"timestamps: {len(view)} bytes for {count} rows")
    return view[: 8 * count].cast("q").tolist()
