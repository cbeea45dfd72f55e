"""A record as one row of bytes: what RocksDB holds, and what replicas of row shards send.

A head of fixed size, then what it counts:

    head · key · (size u32 · tag)* · (size u32 · name · size i32 · value)* · value

The head comes first and has a fixed size so that an expired record is skipped without decoding the
rest. A record's value comes last and takes what remains. Text is UTF-8 with surrogate escapes.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.codec.validation import INT64_MAX
from penstock.platform.layout import Field, Layout
from penstock.record import Header, Offset, Record, StoredRecord

VERSION: Final = 1
HAS_KEY: Final = 1
VALUE_IS_NULL: Final = 2
EXPIRES: Final = 4

RECORD_HEAD: Final = Layout(
    "RocksDB record head",
    Field("version", "u8", "1"),
    Field("flags", "u8", "1 has a key, 2 value is null, 4 expires"),
    Field("expires_at_ms", "i64", "when the record expires; the largest number: never"),
    Field("timestamp_ms", "i64", "producer's time, milliseconds since 1970"),
    Field("store_timestamp_ms", "i64", "when the store took the record"),
    Field("leader_epoch", "i32", "epoch of the leader that took the record"),
    Field("key_size", "u32", "bytes of the key"),
    Field("tag_count", "u32", "tags"),
    Field("header_count", "u32", "headers"),
    size=42,
)

_U32: Final = struct.Struct(">I")
_I32: Final = struct.Struct(">i")
_NULL: Final = _I32.pack(-1)

# Parts of a record's head, for readers that may not need the rest.
_MOMENTS: Final = struct.Struct(">qq")
_STORED: Final = struct.Struct(">q")
_COUNTS: Final = struct.Struct(">II")
_MOMENTS_AT: Final = RECORD_HEAD.position_of("expires_at_ms")
_STORED_AT: Final = RECORD_HEAD.position_of("store_timestamp_ms")
_FLAGS_AT: Final = RECORD_HEAD.position_of("flags")
_COUNTS_AT: Final = RECORD_HEAD.position_of("tag_count")
assert RECORD_HEAD.position_of("timestamp_ms") == _MOMENTS_AT + 8
assert RECORD_HEAD.position_of("header_count") == _COUNTS_AT + 4


def encode_record(
    record: Record | StoredRecord,
    timestamp_ms: int,
    store_timestamp_ms: int,
    leader_epoch: int = 0,
) -> bytes:
    value, key, expires = record.value, record.key, record.expires_at_ms
    tags, headers = record.tags, record.headers
    flags = (
        (0 if key is None else HAS_KEY)
        | (VALUE_IS_NULL if value is None else 0)
        | (0 if expires is None else EXPIRES)
    )
    head = RECORD_HEAD.pack(
        VERSION,
        flags,
        INT64_MAX if expires is None else expires,
        timestamp_ms,
        store_timestamp_ms,
        leader_epoch,
        0 if key is None else len(key),
        len(tags),
        len(headers),
    )
    middle = _encode_names(tags, headers) if tags or headers else b""
    return head + (key or b"") + middle + (value or b"")


def _encode_names(tags: tuple[str, ...], headers: tuple[Header, ...]) -> bytes:
    parts: list[bytes] = []
    for tag in tags:
        text = tag.encode("utf-8", "surrogateescape")
        parts += (_U32.pack(len(text)), text)
    for name, value in headers:
        text = name.encode("utf-8", "surrogateescape")
        parts += (_U32.pack(len(text)), text)
        parts += (_NULL,) if value is None else (_I32.pack(len(value)), value)
    return b"".join(parts)


def moments(row: bytes) -> tuple[int, int]:
    """Return when a record expires, and its timestamp."""
    expires_at_ms, timestamp_ms = _MOMENTS.unpack_from(row, _MOMENTS_AT)
    return expires_at_ms, timestamp_ms


def stored_at(row: bytes) -> int:
    """Return when the store got a record."""
    stored_ms: int = _STORED.unpack_from(row, _STORED_AT)[0]
    return stored_ms


def is_tombstone(row: bytes) -> bool:
    return bool(row[_FLAGS_AT] & VALUE_IS_NULL)


def payload_size(row: bytes) -> int:
    """Return the bytes of a record's value, key, tags and headers."""
    tag_count, header_count = _COUNTS.unpack_from(row, _COUNTS_AT)
    size: int = len(row) - RECORD_HEAD.size - 4 * tag_count - 8 * header_count
    return size


def row_size(record: Record) -> int:
    """Return the size of a record's row, and a little more for text that is not ASCII."""
    size = RECORD_HEAD.size + len(record.key or b"") + len(record.value or b"")
    for tag in record.tags:
        size += 4 + 4 * len(tag)
    for name, value in record.headers:
        size += 8 + 4 * len(name) + len(value or b"")
    return size


def decode_record(offset: int, row: bytes) -> StoredRecord:
    version, flags, expires, timestamp, stored, epoch, key_size, tag_count, header_count = (
        RECORD_HEAD.unpack_from(row)
    )
    assert version == VERSION, f"record row of version {version}"
    index = RECORD_HEAD.size + key_size
    tags: tuple[str, ...] = ()
    headers: tuple[Header, ...] = ()
    key = row[RECORD_HEAD.size : index] if flags & HAS_KEY else None
    if tag_count:
        tags, index = _decode_tags(row, index, tag_count)
    if header_count:
        headers, index = _decode_headers(row, index, header_count)
    return StoredRecord(
        Offset(offset),
        None if flags & VALUE_IS_NULL else row[index:],
        key,
        tags,
        headers,
        timestamp,
        expires if flags & EXPIRES else None,
        stored,
        epoch,
    )


def _decode_tags(row: bytes, index: int, count: int) -> tuple[tuple[str, ...], int]:
    tags: list[str] = []
    for _ in range(count):
        start = index + 4
        index = start + _U32.unpack_from(row, index)[0]
        tags.append(row[start:index].decode("utf-8", "surrogateescape"))
    return tuple(tags), index


def _decode_headers(row: bytes, index: int, count: int) -> tuple[tuple[Header, ...], int]:
    headers: list[Header] = []
    for _ in range(count):
        start = index + 4
        index = start + _U32.unpack_from(row, index)[0]
        name = row[start:index].decode("utf-8", "surrogateescape")
        size = _I32.unpack_from(row, index)[0]
        index += 4
        headers.append((name, None if size < 0 else row[index : index + size]))
        index += max(size, 0)
    return tuple(headers), index
