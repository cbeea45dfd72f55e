"""Records that RocketMQ's properties cannot hold, and what any stored record means.

An envelope is a body that carries everything: key, tags, headers and value, each with its size in
front, so that any bytes fit. It is used for null values, several tags, odd bytes, repeated or
reserved header names, and properties beyond 32 KB; `PSTK_ENV` in the record says so.

    head 6 · key · tag count u16 · (size u32 · tag)*
    · header count u32 · (name size u32 · name · value size i32, -1: null · value)* · value

`stored_from_parts` turns either form, and any record of a RocketMQ broker, into a `StoredRecord`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.codec.format import (
    ENVELOPE_HAS_KEY,
    ENVELOPE_HEAD,
    ENVELOPE_NULL_VALUE,
    ENVELOPE_VERSION,
    FLAG_TRANSACTION,
    KEYS,
    TAGS,
    UNIQ_KEY,
)
from penstock.codec.properties import (
    Properties,
    expires_at_ms,
    headers_of,
    is_envelope,
    lookup,
)
from penstock.errors import BadRequestError
from penstock.record import Header, Offset, StoredRecord

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_I32: Final = struct.Struct(">i")
_TAGS_MAX: Final = 0xFFFF
_NULL: Final = -1


class Contents(NamedTuple):
    """What a producer handed over, wherever the record keeps it."""

    key: bytes | None
    tags: tuple[str, ...]
    headers: tuple[Header, ...]
    value: bytes | None


class Stamps(NamedTuple):
    """What the store knows about a record besides its contents."""

    offset: int
    timestamp_ms: int
    store_timestamp_ms: int
    leader_epoch: int


def encode_text(field: str, text: str) -> bytes:
    """Return UTF-8 with surrogate escapes, or refuse text that would not come back the same."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadRequestError(f"{field} holds text that no bytes stand for: {error}") from error
    if not text.isprintable() and data.decode("utf-8", "surrogateescape") != text:
        raise BadRequestError(f"{field} holds surrogate escapes that spell valid UTF-8")
    return data


def encode_envelope(contents: Contents) -> bytes:
    key, tags, headers, value = contents
    if len(tags) > _TAGS_MAX:
        raise BadRequestError(f"a record has {len(tags)} tags; the limit is {_TAGS_MAX}")
    flags = (ENVELOPE_HAS_KEY if key is not None else 0) | (
        ENVELOPE_NULL_VALUE if value is None else 0
    )
    parts = [ENVELOPE_HEAD.pack(ENVELOPE_VERSION, flags, len(key or b"")), key or b""]
    parts.append(_U16.pack(len(tags)))
    for tag in tags:
        data = encode_text("a tag", tag)
        parts += (_U32.pack(len(data)), data)
    parts.append(_U32.pack(len(headers)))
    for name, content in headers:
        data = encode_text("a header's name", name)
        parts += (_U32.pack(len(data)), data)
        parts.append(_I32.pack(_NULL if content is None else len(content)))
        parts.append(content or b"")
    parts.append(value or b"")
    return b"".join(parts)


def decode_envelope(body: bytes) -> Contents:
    """Return what `encode_envelope` was given; raise `ValueError` when `body` is not an
    envelope."""
    cursor = _Cursor(body)
    version, flags, key_size = ENVELOPE_HEAD.unpack(cursor.read(ENVELOPE_HEAD.size))
    if version != ENVELOPE_VERSION or flags & ~(ENVELOPE_HAS_KEY | ENVELOPE_NULL_VALUE):
        raise ValueError(f"envelope version {version}, flags {flags} is not readable")
    key = cursor.read(key_size)
    tags = tuple(cursor.read_text() for _ in range(cursor.read_int(_U16)))
    header_count = cursor.read_int(_U32)
    headers: list[Header] = []
    for _ in range(header_count):
        name = cursor.read_text()
        size = cursor.read_int(_I32)
        headers.append((name, None if size == _NULL else cursor.read(size)))
    value = cursor.read(cursor.left)
    if flags & ENVELOPE_NULL_VALUE and value:
        raise ValueError("envelope holds a value and says that it is null")
    return Contents(
        key if flags & ENVELOPE_HAS_KEY else None,
        tags,
        tuple(headers),
        None if flags & ENVELOPE_NULL_VALUE else value,
    )


class _Cursor:
    """Reads sized parts of a body, never past its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._body) - self._at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise ValueError(f"envelope is cut short: {size} bytes wanted, {self.left} left")
        start = self._at
        self._at += size
        return self._body[start : self._at]

    def read_int(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack(self.read(kind.size))
        assert isinstance(value, int)
        return value

    def read_text(self) -> str:
        return self.read(self.read_int(_U32)).decode("utf-8", "surrogateescape")


def leader_epoch_of(sys_flag: int, prepared_offset: int) -> int:
    """Return the epoch that an ordinary record carries; transactions use its field otherwise."""
    return 0 if sys_flag & FLAG_TRANSACTION else prepared_offset


def stored_from_parts(body: bytes, properties: Properties, stamps: Stamps) -> StoredRecord:
    """Return the message that a body and its properties hold; `ValueError` when the body claims
    to be an envelope and is not one."""
    property_map = lookup(properties)
    if is_envelope(property_map):
        key, tags, headers, value = decode_envelope(body)
    else:
        keys = property_map.get(KEYS)
        key = None if keys is None else keys.encode("utf-8", "surrogateescape")
        tags = (property_map[TAGS],) if TAGS in property_map else ()
        headers = headers_of(properties)
        value = body
    return StoredRecord(
        Offset(stamps.offset),
        value,
        key,
        tags,
        headers,
        stamps.timestamp_ms,
        expires_at_ms(property_map),
        stamps.store_timestamp_ms,
        stamps.leader_epoch,
    )


def has_key(stored: StoredRecord, properties: Properties, key: bytes) -> bool:
    """Say whether a query for `key` finds this record: by its key, or, for a record of a RocketMQ
    broker, by one of the words in KEYS or by UNIQ_KEY."""
    return stored.key == key or names_key(properties, key)


def names_key(properties: Properties, key: bytes) -> bool:
    """Say whether the properties of a record of a RocketMQ broker name `key`: as a word of KEYS, or
    as UNIQ_KEY."""
    property_map = lookup(properties)
    if is_envelope(property_map):
        return False
    words = property_map.get(KEYS, "").encode("utf-8", "surrogateescape").split(b" ")
    unique = property_map.get(UNIQ_KEY, "").encode("utf-8", "surrogateescape")
    return bool(key) and (key in words or key == unique)
