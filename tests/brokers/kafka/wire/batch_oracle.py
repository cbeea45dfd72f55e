"""Kafka batches built slowly: what the native `build_batch` is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.brokers.kafka.wire.batch_header import (
    CHECKED_FROM,
    HEAD,
    HEAD_SIZE,
    MAGIC,
    TRANSACTIONAL,
)
from penstock.codec.pure.read.kafka_batch import crc32c
from penstock.record import StoredRecord

_NO_PRODUCER = (-1, -1, -1)


def batch_of(
    records: Sequence[StoredRecord],
    tag_header: str,
    transaction: tuple[int, int, int] | None = None,
) -> bytes:
    """Return one batch, not compressed, of records with ascending offsets; what lies between them
    are holes, as in a compacted log."""
    first, last = records[0], records[-1]
    base_ms = first.timestamp_ms
    body = bytearray()
    for record in records:
        _put_record(body, record, record.offset - first.offset, base_ms, tag_header)
    newest = max(record.timestamp_ms for record in records)
    out = bytearray(HEAD_SIZE)
    fields = (
        0 if transaction is None else TRANSACTIONAL,
        last.offset - first.offset,
        base_ms,
        newest,
        *(transaction or _NO_PRODUCER),
        len(records),
    )
    size_after = HEAD_SIZE - 12 + len(body)
    epoch = max(0, min(last.leader_epoch, (1 << 31) - 1))
    HEAD.pack_into(out, 0, first.offset, size_after, epoch, MAGIC, 0, *fields)
    out += body
    checksum = crc32c(bytes(out[CHECKED_FROM:]))
    HEAD.pack_into(out, 0, first.offset, size_after, epoch, MAGIC, checksum, *fields)
    return bytes(out)


def _put_record(
    out: bytearray, record: StoredRecord, delta: int, base_ms: int, tag_header: str
) -> None:
    one = bytearray(1)
    put_varint(one, record.timestamp_ms - base_ms)
    put_varint(one, delta)
    _put_blob(one, record.key)
    _put_blob(one, record.value)
    headers = list(record.headers)
    if tag_header and not any(name == tag_header for name, _ in headers):
        headers += [(tag_header, tag.encode()) for tag in record.tags]
    put_varint(one, len(headers))
    for name, value in headers:
        _put_blob(one, name.encode("utf-8", "surrogateescape"))
        _put_blob(one, value)
    put_varint(out, len(one))
    out += one


def _put_blob(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
        return
    put_varint(out, len(data))
    out += data


def put_varint(out: bytearray, value: int) -> None:
    """Append a signed number, zigzag, 7 bits a byte."""
    value = value << 1 ^ value >> 63
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
