"""Is this a record batch that may be stored? Checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.batch_head import (
    CHECKED_FROM,
    CODEC_MASK,
    CONTROL,
    HEAD,
    HEAD_SIZE,
    MAGIC,
    BatchHead,
)

COUNT_MAX: Final = 32_767
"""Messages that one record of the log can hold; clients split a larger batch when told so."""
_CODECS: Final = 5

_unpack: Final = HEAD.unpack_from


class BadBatchError(Exception):
    """The batch is refused, with an error code for the client."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = int(code)


def check_batch(
    records: memoryview, size_max: int, crc32c: Callable[[memoryview], int]
) -> BatchHead:
    """Return the head of the one batch that `records` must be; raise `BadBatchError`."""
    size = len(records)
    if size < HEAD_SIZE:
        raise BadBatchError(ErrorCode.corrupt_message, "a batch is longer than its head")
    head = BatchHead._make(_unpack(records))
    if head.magic != MAGIC:
        raise BadBatchError(
            ErrorCode.unsupported_for_message_format, "only record batches of version 2 are taken"
        )
    if head.size_after + 12 != size:
        raise BadBatchError(ErrorCode.invalid_record, "a partition takes one whole batch at a time")
    if size > size_max:
        raise BadBatchError(ErrorCode.message_too_large, f"{size} bytes; {size_max} are taken")
    if crc32c(records[CHECKED_FROM:]) != head.checksum:
        raise BadBatchError(ErrorCode.corrupt_message, "the checksum of the batch does not match")
    _check_head(head)
    return head


def _check_head(head: BatchHead) -> None:
    if head.attributes & CODEC_MASK >= _CODECS:
        raise BadBatchError(ErrorCode.unsupported_compression_type, "unknown compression")
    if head.attributes & CONTROL:
        raise BadBatchError(ErrorCode.invalid_record, "clients write no control batches")
    if not 0 < head.record_count == head.last_delta + 1:
        raise BadBatchError(ErrorCode.invalid_record, "offsets and count do not agree")
    if head.record_count > COUNT_MAX:
        raise BadBatchError(ErrorCode.message_too_large, f"more than {COUNT_MAX} messages")
    if head.producer_id >= 0 and (head.producer_epoch < 0 or head.sequence < 0):
        raise BadBatchError(ErrorCode.invalid_record, "a producer without epoch or sequence")
