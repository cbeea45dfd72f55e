"""Validates record batches before anything is written.

Every consumer can read a batch that passes: the checksum and the head agree with the bytes, the
content inflates, and each record is whole and in its place.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.wire.batch_header import (
    CODEC_MASK,
    CONTROL,
    HEAD,
    HEAD_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHead,
)
from penstock.codec.kafka_interface import BatchFlaw, CheckBatch

COUNT_MAX: Final = 32_767
"""Messages that one record of the log can hold; clients split a batch after MESSAGE_TOO_LARGE."""
_CODECS: Final = 5

_unpack: Final = HEAD.unpack_from


class BadBatchError(Exception):
    """The batch is rejected, with an error code for the client."""

    def __init__(self, code: ErrorCode, reason: str, indexes: tuple[int, ...] = ()) -> None:
        """`indexes` are those of the invalid records; empty: the batch as a whole is invalid."""
        super().__init__(reason)
        self.code = int(code)
        self.indexes = indexes


class Checked(NamedTuple):
    """A batch that may be stored, with the properties of its records."""

    attributes: int
    record_count: int
    head_max_ms: int
    """The newest time, as the head claims."""
    producer_id: int
    producer_epoch: int
    sequence: int
    size: int
    """Bytes of all records, inflated."""
    largest: int
    """Bytes of the largest record."""
    oldest_ms: int
    newest_ms: int
    is_heavy: bool = False
    """Whether it grew too much to be handled on the event loop."""

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0


def check_head(records: memoryview, size_max: int) -> BatchHead:
    """Return the head of the one batch that `records` must be; raise `BadBatchError`."""
    size = len(records)
    if size < HEAD_SIZE:
        raise BadBatchError(
            ErrorCode.corrupt_message, f"{size} bytes are not a batch: its head has {HEAD_SIZE}"
        )
    head = BatchHead._make(_unpack(records))
    if head.magic != MAGIC:
        raise BadBatchError(
            ErrorCode.unsupported_for_message_format,
            f"the batch has version {head.magic}; only version {MAGIC} is taken",
        )
    if head.size_after + 12 != size:
        raise BadBatchError(ErrorCode.invalid_record, "a partition takes one whole batch at a time")
    if size > size_max:
        raise BadBatchError(
            ErrorCode.message_too_large, f"the batch has {size} bytes; the limit is {size_max}"
        )
    _check_fields(head)
    return head


def _check_fields(head: BatchHead) -> None:
    attributes, count = head.attributes, head.record_count
    if attributes & CODEC_MASK >= _CODECS:
        raise BadBatchError(
            ErrorCode.unsupported_compression_type,
            f"the batch has unknown compression {attributes & CODEC_MASK}",
        )
    if attributes & CONTROL:
        raise BadBatchError(ErrorCode.invalid_record, "clients may not write control batches")
    if attributes & LOG_APPEND_TIME:
        raise BadBatchError(
            ErrorCode.invalid_timestamp, "producers may not set the timestamp type LogAppendTime"
        )
    if not 0 < count == head.last_delta + 1:
        raise BadBatchError(
            ErrorCode.invalid_record,
            f"the batch counts {count} records, and offsets up to {head.last_delta}",
        )
    if count > COUNT_MAX:
        raise BadBatchError(
            ErrorCode.message_too_large, f"the batch has {count} records; the limit is {COUNT_MAX}"
        )
    if head.base_offset != 0:
        raise BadBatchError(
            ErrorCode.invalid_record,
            f"the base offset of a batch from a producer is 0, not {head.base_offset}",
        )
    if head.producer_id >= 0 and (head.producer_epoch < 0 or head.sequence < 0):
        raise BadBatchError(
            ErrorCode.invalid_record,
            f"producer {head.producer_id} gave epoch {head.producer_epoch} and sequence "
            f"{head.sequence}; both count from 0",
        )


def check_records(
    records: memoryview, head: BatchHead, limit: int, check: CheckBatch, *, needs_keys: bool
) -> Checked | None:
    """Return what the records are; None when they inflate to more than `limit` bytes. Raises
    `BadBatchError`."""
    outcome = check(records, limit, needs_keys)
    flaw, reason, indexes, size, largest, oldest_ms, newest_ms = outcome
    if flaw == BatchFlaw.NONE:
        return Checked(
            *(head.attributes, head.record_count, head.max_ms),
            *(head.producer_id, head.producer_epoch, head.sequence),
            *(size, largest, oldest_ms, newest_ms),
        )
    if flaw == BatchFlaw.TOO_LARGE:
        return None
    code = ErrorCode.invalid_record
    if flaw == BatchFlaw.CHECKSUM:
        code = ErrorCode.corrupt_message
    raise BadBatchError(code, reason, tuple(indexes))
