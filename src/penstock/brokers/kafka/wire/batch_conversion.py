"""Batches of Kafka to records of the store, and back."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.wire.batch_header import HEAD, HEAD_SIZE, MAGIC, BatchHead
from penstock.brokers.kafka.wire.batch_validation import BadBatchError
from penstock.codec.select import core, native_only
from penstock.errors import BadRequestError
from penstock.record import Record, StoredRecord

_MAGIC_AT: Final = 16


def records_of(batch: memoryview, tag_header: str | None = None) -> list[Record]:
    """Return the records of a checked batch; raise `BadBatchError` when it cannot be read. The
    values of `tag_header` are tags; None: the process's header."""
    try:
        records = core.decode_inner(bytes(batch), True, 0, 0, 0)
    except (BadRequestError, ValueError) as error:
        raise BadBatchError(ErrorCode.invalid_record, str(error)) from error
    return [_record(record, tag_header) for record in records]


def timestamps_of(batch: memoryview) -> list[int]:
    """Return the times of the records of a checked batch, as its producer gave them."""
    return [record.timestamp_ms for record in core.decode_inner(bytes(batch), True, 0, 0, 0)]


def _record(stored: StoredRecord, tag_header: str | None) -> Record:
    tags = stored.tags
    if tag_header is not None:
        tags = tuple(
            value.decode("utf-8", "surrogateescape")
            for name, value in stored.headers
            if tag_header and name == tag_header and value
        )
    return Record(
        value=stored.value,
        key=stored.key,
        tags=tuple(dict.fromkeys(tags)),
        headers=stored.headers,
        timestamp_ms=max(stored.timestamp_ms, 0),
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
    records: list[StoredRecord],
    tag_header: str,
    transaction: tuple[int, int, int] | None = None,
) -> bytes:
    """Return one batch, not compressed, of records with ascending offsets; gaps between them
    stay, as in a compacted log."""
    return native_only().build_batch(records, tag_header, transaction)
