"""Batches of Kafka to records of the store, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.batch_check import BadBatchError
from penstock.brokers.kafka.batch_head import (
    CHECKED_FROM,
    HEAD,
    HEAD_SIZE,
    MAGIC,
    TRANSACTIONAL,
    BatchHead,
)
from penstock.engine.segment.twin import core, native_only
from penstock.errors import BadRequestError
from penstock.record import Record, StoredRecord

_NO_PRODUCER: Final = (-1, -1, -1)
_MAGIC_AT: Final = 16


def records_of(batch: memoryview) -> list[Record]:
    """Return the records of a checked batch; raise `BadBatchError` when it cannot be read."""
    try:
        found = core.decode_inner(bytes(batch), True, 0, 0, 0)
    except (BadRequestError, ValueError) as error:
        raise BadBatchError(ErrorCode.invalid_record, str(error)) from error
    return [_record(one) for one in found]


def _record(found: StoredRecord) -> Record:
    return Record(
        value=found.value,
        key=found.key,
        tags=tuple(dict.fromkeys(found.tags)),
        headers=found.headers,
        timestamp_ms=max(found.timestamp_ms, 0),
    )


def transaction_of(body: bytes) -> tuple[int, int, int] | None:
    """Return the producer's id, epoch and sequence of a batch that belongs to a transaction."""
    if len(body) < HEAD_SIZE or body[_MAGIC_AT] != MAGIC:
        return None
    head = BatchHead._make(HEAD.unpack_from(body))
    if head.size != len(body) or not head.is_transactional:
        return None
    return head.producer_id, head.producer_epoch, head.sequence


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
    checksum = native_only().crc32c(memoryview(out)[CHECKED_FROM:])
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
