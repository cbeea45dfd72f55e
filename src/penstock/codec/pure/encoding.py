"""What a record of a producer becomes: a body, properties, and the texts it is found by.

A record that RocketMQ's properties can hold is stored plainly, so that its consumers and tools see
key, tag and headers as their own. Any other becomes an envelope; nothing is ever refused for odd
bytes, only for text that no bytes stand for and for arguments of a wrong type.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from penstock.codec.envelope import Contents, encode_envelope
from penstock.codec.format import (
    CHECKSUM_SIZE,
    ENVELOPE,
    EXPIRES,
    GROUP,
    GROUP_DIGITS,
    INNER_BASE,
    INNER_NUM,
    KAFKA,
    KEYS,
    MULTI_TAG,
    PRODUCER,
    PROPERTIES_SIZE_MAX,
    TAG_HEADER,
    TAGS,
    TRANSACTION,
    is_reserved,
    key_token,
)
from penstock.errors import BadRequestError
from penstock.record import Header, Record

_KEYS_START: Final = f"{KEYS}\x01".encode()
_TAGS_START: Final = f"{TAGS}\x01".encode()
_ENVELOPE_MARK: Final = f"{ENVELOPE}\x011\x02".encode()
_KAFKA_MARK: Final = f"{KAFKA}\x011\x02".encode()
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class Draft(NamedTuple):
    """A record without its head: everything that does not depend on where it will lie."""

    body: bytes
    properties: bytes  # without the checksum; a group's size is filled in later
    key: str | None  # as it stands in KEYS
    tag: str | None  # as it stands in TAGS
    born_timestamp_ms: int | None


def draft_record(record: Record, more: bytes) -> Draft:
    """Return what `record` becomes when `more` (properties of ours) follows its own."""
    check_record(record)
    if record.expires_at_ms is not None:
        more = f"{EXPIRES}\x01{record.expires_at_ms}\x02".encode() + more
    plain = _plain_properties(record)
    value = record.value
    if plain is not None and value is not None and _fits(len(plain), more):
        key = None if record.key is None else record.key.decode()
        tag = record.tags[0] if record.tags else None
        return Draft(value, plain + more, key, tag, record.timestamp_ms)
    return _draft_envelope(record, more)


def _draft_envelope(record: Record, more: bytes) -> Draft:
    body = encode_envelope(Contents(record.key, record.tags, record.headers, record.value))
    key = None if record.key is None else key_token(record.key)
    own = b"" if key is None else _KEYS_START + key.encode() + b"\x02"
    tag: str | None = None
    if record.tags:
        tag = MULTI_TAG
        entry = _tag_entry(record.tags[0]) if len(record.tags) == 1 else None
        if entry is not None and _fits(len(own) + len(entry) + len(_ENVELOPE_MARK), more):
            tag = record.tags[0]
        own += _TAGS_START + tag.encode() + b"\x02"
    own += _ENVELOPE_MARK
    if not _fits(len(own), more):
        raise BadRequestError(f"properties take {len(own) + len(more)} bytes, over 32767")
    return Draft(body, own + more, key, tag, record.timestamp_ms)


def _fits(size: int, more: bytes) -> bool:
    return size + len(more) + CHECKSUM_SIZE <= PROPERTIES_SIZE_MAX


# ---------------------------------------------------------------------------- plain or not


def _plain_properties(record: Record) -> bytes | None:
    """Return the record's own properties, or None when it needs an envelope."""
    parts: list[bytes] = []
    key = record.key
    if key is not None:
        if b" " in key or not _is_plain_value(key):
            return None
        parts += (_KEYS_START, key, b"\x02")
    if record.tags:
        entry = _tag_entry(record.tags[0]) if len(record.tags) == 1 else None
        if entry is None:
            return None
        parts.append(entry)
    if record.headers:
        headers = _plain_headers(record.headers)
        if headers is None:
            return None
        parts.append(headers)
    return b"".join(parts)


def _plain_headers(headers: tuple[Header, ...]) -> bytes | None:
    parts: list[bytes] = []
    for name, value in headers:
        encoded = _plain_text(name)
        if encoded is None or is_reserved(name) or value is None or not _is_plain_value(value):
            return None
        parts += (encoded, b"\x01", value, b"\x02")
    is_unique = len({name for name, _ in headers}) == len(headers)
    return b"".join(parts) if is_unique else None


def _is_plain_value(value: bytes) -> bool:
    if not value or b"\x01" in value or b"\x02" in value:
        return False
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain_text(text: str) -> bytes | None:
    if not text or "\x01" in text or "\x02" in text:
        return None
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


@lru_cache(maxsize=4096)
def _tag_entry(tag: str) -> bytes | None:
    """Return the property TAGS, or None when it cannot hold `tag`."""
    data = _plain_text(tag)
    return None if data is None else _TAGS_START + data + b"\x02"


# ------------------------------------------------------------------- properties of our own


def inner_properties(base: int, count: int, *, kafka: bool) -> bytes:
    """Return what makes RocketMQ's batch queues take a record."""
    mark = _KAFKA_MARK if kafka else b""
    return f"{INNER_NUM}\x01{count}\x02{INNER_BASE}\x01{base}\x02".encode() + mark


def tag_header_property(name: str | None) -> bytes:
    if name is None:
        return b""
    if not _is_a(name, str):
        raise BadRequestError(f"tag_header must be a str, not {type(name).__name__}")
    data = _plain_text(f"={name}")
    if data is None:
        raise BadRequestError(f"tag_header {name!r} cannot stand in a property")
    return f"{TAG_HEADER}\x01".encode() + data + b"\x02"


def producer_property(producer: str | None) -> bytes:
    return _text_property(PRODUCER, "producer", producer)


def transaction_property(producer: str | None) -> bytes:
    return _text_property(TRANSACTION, "transaction", producer)


def _text_property(name: str, argument: str, text: str | None) -> bytes:
    if text is None:
        return b""
    if not _is_a(text, str):
        raise BadRequestError(f"{argument} must be a str, not {type(text).__name__}")
    data = _plain_text(text)
    if data is None:
        raise BadRequestError(f"{argument} {text!r} cannot stand in a property")
    return f"{name}\x01".encode() + data + b"\x02"


def group_property(size: int) -> bytes:
    """Return the property that says how many bytes a group takes; its size does not depend on
    `size`, so that it can be filled in last."""
    return f"{GROUP}\x01{size:0{GROUP_DIGITS}d}\x02".encode()


# ---------------------------------------------------------------------------------- types


def check_record(record: Record) -> None:
    """Raise `BadRequestError` naming the field that has a wrong type."""
    if (
        type(record) is Record
        and type(record.value) is bytes
        and (record.key is None or type(record.key) is bytes)
        and type(record.tags) is tuple
        and (not record.tags or (type(record.tags[0]) is str and len(record.tags) == 1))
        and record.headers == ()
        and (type(record.timestamp_ms) is int and 0 <= record.timestamp_ms <= _INT64_MAX)
        and record.expires_at_ms is None
    ):
        return  # by far the most
    if not _is_a(record, Record):
        raise BadRequestError(f"expected a Record, not {type(record).__name__}")
    for field, content in (("value", record.value), ("key", record.key)):
        if content is not None and not _is_a(content, bytes):
            raise BadRequestError(f"{field} must be bytes or None, not {type(content).__name__}")
    if not _is_a(record.tags, tuple) or not all(_is_a(tag, str) for tag in record.tags):
        raise BadRequestError("tags must be a tuple of str")
    if not _are_headers(record.headers):
        raise BadRequestError("headers must be a tuple of (str, bytes or None) tuples")
    check_int64("timestamp_ms", record.timestamp_ms)
    check_int64("expires_at_ms", record.expires_at_ms)


def check_int64(field: str, value: int | None) -> None:
    if value is not None and not (_is_a(value, int) and _INT64_MIN <= value <= _INT64_MAX):
        raise BadRequestError(f"{field} must be a 64-bit int, not {value!r}")


def _is_a(value: object, kind: type) -> bool:
    """`isinstance`, of values whose annotations promise what this is here to check."""
    return isinstance(value, kind)


def _are_headers(headers: object) -> bool:
    return isinstance(headers, tuple) and all(
        isinstance(header, tuple)
        and len(header) == 2
        and isinstance(header[0], str)
        and (header[1] is None or isinstance(header[1], bytes))
        for header in headers
    )
