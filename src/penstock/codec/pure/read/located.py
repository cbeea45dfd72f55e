"""Finds the parts of a record in a log, and says whether its bytes are what was written.

`find_parts` looks at sizes only; `find_fault` at checksums and at the position in the record.
Neither copies anything, and neither reads outside the bytes it was given, whatever they hold.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from penstock.codec.format import (
    BLANK,
    CHECKSUM,
    CHECKSUM_DIGITS,
    CHECKSUM_MASK,
    CHECKSUM_SIZE,
    CHECKSUM_START,
    FLAG_BORN_IPV6,
    FLAG_STORE_IPV6,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD,
    RECORD_SIZE_MIN,
    RECORD_TAIL,
    VALUE_END,
    Damage,
)
from penstock.codec.properties import parse

_STAMP_SIZE: Final = 8
_LIKENESS_MIN: Final = 15
"""In so many of its 20 bytes a damaged checksum is like one. Five changed bytes leave as many; the
last property of another client, ten digits under a name of eight bytes, has twelve."""


_NO_CHECKSUM: Final = "the record has no checksum, as all others of this store have"


class RecordParts(NamedTuple):
    """A record in a buffer. `start`, `born_host` and the like are indexes into that buffer."""

    start: int
    size: int
    version: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    position: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: int
    store_timestamp_ms: int
    store_host: int
    store_host_end: int
    reconsume_times: int
    prepared_offset: int
    body: int
    body_end: int
    topic: int
    topic_end: int
    properties: int

    @property
    def end(self) -> int:
        return self.start + self.size


def find_parts(log: memoryview, start: int, limit: int) -> RecordParts | str:
    """Return the parts of the record at index `start`, or why there is none before `limit`."""
    left = limit - start
    if left < BLANK.size:
        return f"record head cut short at {max(left, 0)} bytes"
    size, magic = BLANK.unpack_from(log, start)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return "blank record" if magic == MAGIC_BLANK else f"magic is {magic:#010x}"
    if size < RECORD_SIZE_MIN:
        return f"size {size} is impossible"
    if size > left:
        return f"record of {size} bytes cut short at {left}"
    return _unpack_parts(log, start, size, 1 if magic == MAGIC_V1 else 2)


def _unpack_parts(log: memoryview, start: int, size: int, version: int) -> RecordParts | str:
    _, _, body_crc, queue_id, flag, offset, position, sys_flag, born_ms = RECORD_HEAD.unpack_from(
        log, start
    )
    born_host = start + RECORD_HEAD.size
    stamp = born_host + (HOST_SIZE_IPV6 if sys_flag & FLAG_BORN_IPV6 else HOST_SIZE_IPV4)
    store_host = stamp + _STAMP_SIZE
    tail = store_host + (HOST_SIZE_IPV6 if sys_flag & FLAG_STORE_IPV6 else HOST_SIZE_IPV4)
    body = tail + RECORD_TAIL.size
    end = start + size
    if body + version + 2 > end:  # the topic's size takes one byte in version 1, two in 2
        return f"size {size} is too small for the hosts"
    reconsume_times, prepared, body_size = RECORD_TAIL.unpack_from(log, tail)
    topic = body + body_size + version
    if body_size < 0 or topic + 2 > end:
        return f"body of {body_size} bytes does not fit in {size}"
    topic_size = int.from_bytes(log[topic - version : topic], signed=True)
    topic_end = topic + topic_size
    properties = topic_end + 2
    if topic_size < 0 or properties > end:
        return f"topic of {topic_size} bytes does not fit in {size}"
    properties_size = int.from_bytes(log[topic_end:properties], signed=True)
    if properties_size < 0 or properties + properties_size != end:
        return f"properties of {properties_size} bytes do not end with the record"
    return RecordParts(
        start,
        size,
        version,
        body_crc,
        queue_id,
        flag,
        offset,
        position,
        sys_flag,
        born_ms,
        born_host,
        int.from_bytes(log[stamp:store_host], signed=True),
        store_host,
        tail,
        reconsume_times,
        prepared,
        body,
        body + body_size,
        topic,
        topic_end,
        properties,
    )


def check_at(
    log: memoryview, base: int, position: int, limit: int, *, strict: bool
) -> RecordParts | Damage:
    """Return the record at `position` if all of it is before index `limit` and is undamaged."""
    parts = find_parts(log, position - base, limit)
    if isinstance(parts, str):
        return Damage(position, parts)
    fault = find_fault(log, parts, position, strict=strict)
    return parts if fault is None else Damage(position, fault)


def find_fault(log: memoryview, parts: RecordParts, position: int, *, strict: bool) -> str | None:
    """Return what is wrong with a located record that should lie at `position`, or None."""
    if parts.position != position:
        return f"the record says that it is at {parts.position}"
    return find_damaged_part(log, parts, strict=strict)


def find_damaged_part(log: memoryview, parts: RecordParts, *, strict: bool) -> str | None:
    """Return what is wrong with a record wherever it is stored, or None. A `strict` check wants a
    whole-record checksum."""
    if zlib.crc32(log[parts.body : parts.body_end]) & CHECKSUM_MASK != parts.body_crc:
        return "body checksum does not match"
    if parts.properties == parts.end:
        return _NO_CHECKSUM if strict else None
    if log[parts.end - 1] == 0:
        # Without this, a page lost after the body would pass for an old client's properties,
        # which may lack their last 0x02.
        return "properties end in zero bytes"
    digits = checksum_digits(log, parts)
    if digits is None:
        return _find_lost_checksum(log, parts) or (_NO_CHECKSUM if strict else None)
    if not digits.isdigit() or read_checksum(digits) != record_checksum(log, parts):
        return "record checksum does not match"
    return None


def checksum_digits(log: memoryview, parts: RecordParts) -> bytes | None:
    """Return the digits of the record's `__CRC32#`, or None when it has no such trailer."""
    trailer = parts.end - CHECKSUM_SIZE
    if trailer < parts.properties:
        return None
    digits = trailer + len(CHECKSUM_START)
    if log[trailer:digits] != CHECKSUM_START or log[parts.end - 1] != VALUE_END[0]:
        return None
    return bytes(log[digits : digits + CHECKSUM_DIGITS])


def record_checksum(log: memoryview, parts: RecordParts) -> int:
    return zlib.crc32(log[parts.start : parts.end - CHECKSUM_SIZE]) & CHECKSUM_MASK


def write_checksum(checksum: int) -> bytes:
    """Return ten digits, the least significant first, as RocketMQ writes them."""
    return f"{checksum & CHECKSUM_MASK:010d}"[::-1].encode()


def read_checksum(digits: bytes) -> int:
    return int(digits[::-1])


def _find_lost_checksum(log: memoryview, parts: RecordParts) -> str | None:
    """Tell a record that never had a checksum from one whose checksum was hit itself."""
    if parts.end - parts.properties >= CHECKSUM_SIZE:
        trailer = bytes(log[parts.end - CHECKSUM_SIZE : parts.end])
        digits = trailer[len(CHECKSUM_START) : -1]
        is_right = digits.isdigit() and read_checksum(digits) == record_checksum(log, parts)
        if is_right or _likeness(trailer) >= _LIKENESS_MIN:
            return "the record checksum itself is damaged"
    properties = bytes(log[parts.properties : parts.end])
    if CHECKSUM.encode() in properties and any(name == CHECKSUM for name, _ in parse(properties)):
        return "the record checksum is not where it belongs"
    return None


def _likeness(trailer: bytes) -> int:
    """Return in how many bytes `trailer` is as a checksum's."""
    start, digits, end = (
        trailer[: len(CHECKSUM_START)],
        trailer[len(CHECKSUM_START) : -1],
        trailer[-1:],
    )
    return (
        sum(byte == expected for byte, expected in zip(start, CHECKSUM_START, strict=True))
        + sum(byte in b"0123456789" for byte in digits)
        + (end == VALUE_END)
    )
