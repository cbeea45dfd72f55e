"""Records to bytes and back, one at a time, and the checks of a whole log file."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

from penstock.codec.format import (
    BLANK,
    CHECKSUM,
    CHECKSUM_MASK,
    CHECKSUM_SIZE,
    CHECKSUM_START,
    FLAG_BORN_IPV6,
    FLAG_STORE_IPV6,
    HOLE_MARK,
    HOLE_REASON,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_SIZE_MAX,
    RECORD_HEAD,
    RECORD_TAIL,
    TOPIC_SIZE_MAX,
    TOPIC_SIZE_V1_MAX,
    VALUE_END,
    Damage,
    RawRecord,
)
from penstock.codec.properties import join, parse
from penstock.codec.pure.read.located import (
    RecordParts,
    check_at,
    find_fault,
    find_parts,
    write_checksum,
)
from penstock.errors import BadRequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_U16: Final = struct.Struct(">H")
_I64: Final = struct.Struct(">q")
_FRESH: Final = bytes(BLANK.size)
_CHUNK_SIZE: Final = 1 << 20
_MAGIC_START: Final = MAGIC_V1.to_bytes(4)[:3]
_MAGIC_AT: Final = BLANK.position_of("magic")


def view_of(buffer: Buffer) -> memoryview:
    return memoryview(buffer).cast("B")


# -------------------------------------------------------------------------------- one record


def encode_raw(raw: RawRecord, checksum: bool) -> bytes:
    """Return the bytes of `raw`: sizes, checksums and the address flags are computed, everything
    else is taken as it is. `checksum` puts `__CRC32#` at the end."""
    properties = join(tuple(entry for entry in raw.properties if entry[0] != CHECKSUM))
    properties_size = len(properties) + (CHECKSUM_SIZE if checksum else 0)
    if properties_size > PROPERTIES_SIZE_MAX:
        raise BadRequestError(f"properties take {properties_size} bytes, over 32767")
    topic = sized_topic(raw.topic, raw.version)
    hosts_size = len(raw.born_host) + _I64.size + len(raw.store_host)
    fixed_size = RECORD_HEAD.size + hosts_size + RECORD_TAIL.size
    size = fixed_size + len(raw.body) + len(topic) + _U16.size + properties_size
    data = b"".join(
        (
            RECORD_HEAD.pack(
                size,
                MAGIC_V1 if raw.version == 1 else MAGIC_V2,
                zlib.crc32(raw.body) & CHECKSUM_MASK,
                raw.queue_id,
                raw.flag,
                raw.queue_offset,
                raw.position,
                raw.sys_flag & ~(FLAG_BORN_IPV6 | FLAG_STORE_IPV6)
                | host_flags(raw.born_host, raw.store_host),
                raw.born_timestamp_ms,
            ),
            raw.born_host,
            _I64.pack(raw.store_timestamp_ms),
            raw.store_host,
            RECORD_TAIL.pack(raw.reconsume_times, raw.prepared_transaction_offset, len(raw.body)),
            raw.body,
            topic,
            _U16.pack(properties_size),
            properties,
        )
    )
    return data + checksum_trailer(zlib.crc32(data)) if checksum else data


def checksum_trailer(checksum: int) -> bytes:
    return CHECKSUM_START + write_checksum(checksum) + VALUE_END


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the flags that say how many bytes the hosts take."""
    for name, host in (("born_host", born_host), ("store_host", store_host)):
        if len(host) not in (HOST_SIZE_IPV4, HOST_SIZE_IPV6):
            raise BadRequestError(f"{name} has {len(host)} bytes, expected 8 (IPv4) or 20 (IPv6)")
    return (FLAG_BORN_IPV6 if len(born_host) == HOST_SIZE_IPV6 else 0) | (
        FLAG_STORE_IPV6 if len(store_host) == HOST_SIZE_IPV6 else 0
    )


def sized_topic(topic: str, version: int) -> bytes:
    """Return the topic with its size in front, one byte in version 1, two in version 2."""
    data = topic.encode("utf-8", "surrogateescape")
    size_max = TOPIC_SIZE_V1_MAX if version == 1 else TOPIC_SIZE_MAX
    if len(data) > size_max:
        raise BadRequestError(f"topic takes {len(data)} bytes; the limit is {size_max}")
    return len(data).to_bytes(1 if version == 1 else 2) + data


def decode_raw(
    log: Buffer, base: int, position: int, check: bool, strict: bool = False
) -> RawRecord | Damage:
    """Return the record at `position`. With `check`, its checksums and its own position must be
    right, and with `strict` it must have a whole-record checksum; its sizes must add up in any
    case."""
    view = view_of(log)
    if not base <= position <= base + len(view):
        return Damage(position, "position is outside this file")
    parts = find_parts(view, position - base, len(view))
    if isinstance(parts, str):
        return Damage(position, parts)
    fault = find_fault(view, parts, position, strict=strict) if check else None
    return raw_from_parts(view, parts) if fault is None else Damage(position, fault)


def raw_from_parts(log: memoryview, parts: RecordParts) -> RawRecord:
    properties = bytes(log[parts.properties : parts.end])
    return RawRecord(
        topic=topic_of(log, parts),
        queue_id=parts.queue_id,
        queue_offset=parts.queue_offset,
        position=parts.position,
        size=parts.size,
        version=parts.version,
        flag=parts.flag,
        sys_flag=parts.sys_flag,
        born_timestamp_ms=parts.born_timestamp_ms,
        born_host=bytes(log[parts.born_host : parts.store_host - _I64.size]),
        store_timestamp_ms=parts.store_timestamp_ms,
        store_host=bytes(log[parts.store_host : parts.store_host_end]),
        reconsume_times=parts.reconsume_times,
        prepared_transaction_offset=parts.prepared_offset,
        body=bytes(log[parts.body : parts.body_end]),
        body_crc=parts.body_crc,
        properties=parse(properties),
        raw_properties=properties,
    )


def topic_of(log: memoryview, parts: RecordParts) -> str:
    return str(log[parts.topic : parts.topic_end], "utf-8", "surrogateescape")


# ------------------------------------------------------------------------------- whole files


def check_log(
    log: Buffer, base: int, start: int, end: int, strict: bool = False
) -> tuple[int, int, Damage | None]:
    """Check every record from `start` on; return where it stopped, the records seen, and why.

    It stops without damage at `end`, at the blank record (the end of the file is returned then)
    and at fresh space, which is zero.
    """
    view = view_of(log)
    limit = min(end - base, len(view))
    records = 0
    position = start
    while position - base < limit:
        stop = end_of_log(view, base, position, limit)
        if isinstance(stop, int):
            return stop, records, None
        parts = stop or check_at(view, base, position, limit, strict=strict)
        if isinstance(parts, Damage):
            return position, records, parts
        records += 1
        position += parts.size
    return position, records, None


def end_of_log(log: memoryview, base: int, position: int, limit: int) -> int | Damage | None:
    """Return where reading goes on when the log ends at `position`: there, when the space is fresh;
    after the file, when a blank record fills it. None: there is something to decode."""
    index = position - base
    if index < 0 or limit - index < BLANK.size:
        return Damage(position, "record head cut short")
    if log[index : index + BLANK.size] == _FRESH:
        return position
    size, magic = BLANK.unpack_from(log, index)
    if magic != MAGIC_BLANK:
        return None
    left = len(log) - index
    if size != left:
        return Damage(position, f"blank record says {size} bytes, {left} are left")
    if bytes(log[index + BLANK.size : index + BLANK.size + len(HOLE_MARK)]) == HOLE_MARK:
        return Damage(position, HOLE_REASON)
    return base + len(log)


def find_record(log: Buffer, base: int, start: int, end: int, strict: bool = False) -> int:
    """Return the first position from `start` on that holds a wholly valid record, or -1."""
    view = view_of(log)
    limit = min(end - base, len(view))
    chunk_start = max(start - base, 0)
    while chunk_start + BLANK.size <= limit:
        # Chunks overlap by one record head, so that a magic number on their border is seen.
        chunk = bytes(view[chunk_start : min(chunk_start + _CHUNK_SIZE + BLANK.size, limit)])
        match_at = chunk.find(_MAGIC_START, _MAGIC_AT)
        while match_at >= 0:
            index = chunk_start + match_at - _MAGIC_AT
            if isinstance(check_at(view, base, base + index, limit, strict=strict), RecordParts):
                return base + index
            match_at = chunk.find(_MAGIC_START, match_at + 1)
        chunk_start += _CHUNK_SIZE
    return -1


def prefault(log: Buffer, start_index: int, size: int) -> None:
    """Touch pages ahead of the writer. Only native code can do that without a race: no-op here."""


# --------------------------------------------------------------------------------- checksums


def crc_patch(checksum: int, size_after: int, delta: bytes) -> int:
    """Return the CRC-32 of a message after some of its bytes were XORed with `delta`, `size_after`
    bytes before its end; `checksum` is the one it had.

    CRC-32 is linear: the difference of two checksums is the plain remainder of the difference of
    the messages. So a patched record gets its new checksum without its bytes being read, and
    damage that was there before stays detectable.
    """
    remainder = zlib.crc32(delta, 0xFFFF_FFFF)
    while size_after > 0:
        zeros = bytes(min(size_after, _CHUNK_SIZE))
        remainder = zlib.crc32(zeros, remainder)
        size_after -= len(zeros)
    return checksum ^ remainder ^ 0xFFFF_FFFF
