"""The checks of a caller's arguments that every engine makes alike.

Each raises `BadRequestError` and names the argument. They come first in every operation, so that
nothing has changed when one of them raises.

Text must be what decoding some bytes with `surrogateescape` gives: other text (a lone surrogate
that stands for no byte, or escapes that together spell valid UTF-8) would come back from disk
changed, or could not be written there at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from penstock.errors import BadRequestError, RecordTooLargeError
from penstock.record import Producer, Record, ShardId

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1

_NONE: Final = ()
_RECORDS: Final = {Record}
_BYTES: Final = {bytes}
_MANY: Final = 8
_FIELDS: Final = ("id", "epoch", "sequence")


def check_offset(offset: object, name: str = "offset") -> None:
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise BadRequestError(f"{name} must be an int, not {type(offset).__name__}")
    if offset < 0:
        raise BadRequestError(f"{name} must not be negative, but is {offset}")


def check_limit(limit: object, name: str) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise BadRequestError(f"{name} must be an int, not {type(limit).__name__}")
    if limit < 1:
        raise BadRequestError(f"{name} must be at least 1, but is {limit}")


def check_time(moment_ms: object, name: str) -> None:
    if not isinstance(moment_ms, int) or isinstance(moment_ms, bool):
        raise BadRequestError(f"{name} must be an int, not {type(moment_ms).__name__}")


def check_key(key: object) -> None:
    if not isinstance(key, bytes):
        raise BadRequestError(f"key must be bytes, not {type(key).__name__}")


def check_text(text: object, name: str) -> int:
    """Return how many bytes the text takes."""
    if not isinstance(text, str):
        raise BadRequestError(f"{name} must be text, not {type(text).__name__}")
    if text.isascii():
        return len(text)
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadRequestError(f"{name} holds a lone surrogate: {text!r}") from error
    if encoded.decode("utf-8", "surrogateescape") != text:
        raise BadRequestError(f"{name} escapes bytes that are valid UTF-8: {text!r}")
    return len(encoded)


def check_shard(shard: object) -> None:
    if not isinstance(shard, ShardId):
        raise BadRequestError(f"shard must be a ShardId, not {type(shard).__name__}")
    if check_text(shard.topic, "topic") == 0:
        raise BadRequestError("topic must not be empty")
    check_offset(shard.partition, "partition")
    if shard.partition > PARTITION_MAX:
        raise BadRequestError(
            f"partition must be at most {PARTITION_MAX}, but is {shard.partition}"
        )


def check_producer(producer: object) -> None:
    if not isinstance(producer, Producer):
        raise BadRequestError(f"producer must be a Producer, not {type(producer).__name__}")
    for name, number in zip(_FIELDS, producer, strict=False):
        check_offset(number, f"producer's {name}")
        if number > INT64_MAX:
            raise BadRequestError(f"producer's {name} must fit in 64 bits, but is {number}")


class Checked(NamedTuple):
    """What an engine needs to know of records that may be written."""

    size: int
    """The bytes of all records together."""
    values: list[bytes] | None
    """All that there is in many records that are nothing but values: the commonest case."""


def check_records(records: object, shard: ShardId, size_max: int) -> Checked:
    if not isinstance(records, list | tuple) and (
        not isinstance(records, Sequence) or isinstance(records, str | bytes | bytearray)
    ):
        raise BadRequestError(f"records must be a sequence, not {type(records).__name__}")
    if not records:
        raise BadRequestError("a batch must hold at least one record")
    values = _plain_values(records) if len(records) >= _MANY else None
    sizes = list(map(len, values)) if values is not None else list(map(check_record, records))
    largest = max(sizes)
    if largest > size_max:
        raise RecordTooLargeError(
            f"record of shard {shard.name!r}", size=largest, size_max=size_max
        )
    return Checked(sum(sizes), values)


def _plain_values(records: Sequence[Record]) -> list[bytes] | None:
    """Return the values of records that have nothing else, or None. A pass over them all in one
    expression takes half the time of a loop."""
    if set(map(type, records)) != _RECORDS:
        return None
    values = [
        record.value
        for record in records
        if record.key is None
        and record.tags is _NONE
        and record.headers is _NONE
        and record.timestamp_ms is None
        and record.expires_at_ms is None
    ]
    if len(values) < len(records) or set(map(type, values)) != _BYTES:
        return None
    return cast("list[bytes]", values)


def check_record(record: object) -> int:
    """Return the bytes of the record's value, key, tags and headers."""
    if not isinstance(record, Record):
        raise BadRequestError(f"a record must be a Record, not {type(record).__name__}")
    size = 0
    value = record.value
    if isinstance(value, bytes):
        size = len(value)
    elif value is not None:
        raise BadRequestError(f"value must be bytes or None, not {type(value).__name__}")
    key = record.key
    if key is not None:
        check_key(key)
        size += len(key)
    if record.tags is not _NONE:
        size += _check_tags(record.tags)
    if record.headers is not _NONE:
        size += _check_headers(record.headers)
    if record.timestamp_ms is not None:
        _check_moment(record.timestamp_ms, "timestamp_ms")
    if record.expires_at_ms is not None:
        _check_moment(record.expires_at_ms, "expires_at_ms")
    return size


def _check_moment(moment_ms: object, name: str) -> None:
    check_time(moment_ms, name)
    assert isinstance(moment_ms, int)
    if not INT64_MIN <= moment_ms <= INT64_MAX:
        raise BadRequestError(f"{name} must fit in 64 bits, but is {moment_ms}")


def _check_tags(tags: object) -> int:
    if not isinstance(tags, tuple):
        raise BadRequestError(f"tags must be a tuple, not {type(tags).__name__}")
    return sum(check_text(tag, "tag") for tag in tags)


def _check_headers(headers: object) -> int:
    if not isinstance(headers, tuple):
        raise BadRequestError(f"headers must be a tuple, not {type(headers).__name__}")
    size = 0
    for header in headers:
        if not isinstance(header, tuple) or len(header) != 2:
            raise BadRequestError("a header must be a pair of name and value")
        name, value = header
        size += check_text(name, "header name")
        if isinstance(value, bytes):
            size += len(value)
        elif value is not None:
            raise BadRequestError(f"header value must be bytes, not {type(value).__name__}")
    return size
