"""Checking a batch and writing it to a partition, whatever engine keeps it.

segment, batch queues    the bytes as they are
anything else            the records one by one, through the storage contract
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.batch_check import BadBatchError, Checked, check_head, check_records
from penstock.brokers.kafka.batch_head import CODEC_MASK, BatchHead
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.inflation import batch_limit, quick_limit
from penstock.brokers.kafka.partitions import Partition
from penstock.brokers.kafka.records import records_of
from penstock.engine.contract import Written
from penstock.engine.segment.twin import native_only
from penstock.errors import NotLeaderError, StoreError
from penstock.record import Producer

NO_PRODUCER: Final = -1

Verdict = Checked | BadBatchError
"""What came of the check of a batch."""


class Result(NamedTuple):
    """What Produce answers for a partition."""

    code: int
    base_offset: int = -1
    message: str | None = None
    indexes: tuple[int, ...] = ()
    """Records at fault, counted from 0."""
    append_ms: int = -1
    """When it was stored, on topics that keep that time."""


class PartitionWriter:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker
        self._handler: Final = broker.handler
        self._size_max: Final = broker.all_settings.engine.record_size_max
        self._inflated_size_max: Final = broker.settings.batch_inflated_size_max
        self._check: Final = native_only().check_batch
        self._rewrite: Final = native_only().rewrite_batch

    # Checking

    def check_quickly(
        self, partition: Partition, records: memoryview, budget: int
    ) -> Verdict | None:
        """Check a batch on the event loop; None when it must be inflated further than that, or
        than `budget`."""
        try:
            head = check_head(records, self._size_max)
            codec = head.attributes & CODEC_MASK
            limit = quick_limit(len(records), codec)
            if codec and limit > budget:
                return None
            return check_records(
                records, head, limit, self._check, needs_keys=partition.checks_keys
            )
        except BadBatchError as error:
            return error

    def check_fully(self, partition: Partition, records: memoryview, budget: int) -> Verdict:
        """Check a batch that `check_quickly` left; `budget` is what its request may still grow to.
        Takes its time."""
        limit = min(batch_limit(len(records), self._inflated_size_max), budget)
        try:
            head = check_head(records, self._size_max)
            checked = check_records(
                records, head, limit, self._check, needs_keys=partition.checks_keys
            )
        except BadBatchError as error:
            return error
        if checked is None:
            return BadBatchError(
                ErrorCode.message_too_large,
                f"a batch of {len(records)} bytes inflates to more than {limit}; send fewer "
                "records in a batch, or raise kafka.batch_inflated_size_max",
            )
        return checked._replace(is_heavy=True)

    # Writing

    def write(
        self,
        partition: Partition,
        verdict: Verdict,
        records: memoryview,
        transactional_id: str | None,
    ) -> Result:
        """Write a batch that passed the check."""
        if isinstance(verdict, BadBatchError):
            return Result(verdict.code, message=str(verdict), indexes=verdict.indexes)
        head = verdict.head
        try:
            if head.is_transactional:
                code = self._broker.transactions.check_write(
                    partition.shard, head, transactional_id
                )
                if code:
                    return Result(code)
                written = self._append_in_transaction(partition, verdict, records)
            elif head.producer_id != NO_PRODUCER and self._broker.transactions.is_open(
                partition.shard, head.producer_id
            ):
                # As Kafka: what it writes meanwhile would end with the transaction.
                return Result(int(ErrorCode.invalid_txn_state))
            else:
                written = self._append(partition, verdict, records)
        except BadBatchError as error:
            return Result(error.code, message=str(error), indexes=error.indexes)
        except NotLeaderError:
            return Result(int(ErrorCode.not_leader_or_follower))
        except StoreError as error:
            return Result(int(code_of(error)), message=str(error))
        return Result(0, written.first)

    def _append_in_transaction(
        self, partition: Partition, checked: Checked, body: memoryview
    ) -> Written:
        first: int | None = None
        try:
            written = self._append(partition, checked, body)
            if not written.repeated:
                first = written.first
        finally:
            self._broker.transactions.note_written(partition.shard, checked.head, first)
        return written

    def _append(self, partition: Partition, checked: Checked, body: memoryview) -> Written:
        head = checked.head
        producer = _producer_of(head)
        if not partition.is_raw:
            if checked.largest > self._size_max:
                raise BadBatchError(
                    ErrorCode.message_too_large,
                    f"a record has {checked.largest} bytes; the limit is {self._size_max}",
                )
            records = records_of(body, partition.tag_header)
            self._handler.check_led(partition.entry)
            return self._handler.batch_write(partition.shard, records, producer=producer)
        newest = checked.newest_ms
        stored: bytes | memoryview = body
        if newest != head.max_ms:
            # As Kafka: retention and searches by time go by the records, not by this claim.
            stored = self._rewrite(body, None, None, newest)
        if newest < 0:
            newest = self._broker.clock.now_ms()
        return self._handler.write_batch(
            partition.entry, stored, head.record_count, timestamp_ms=newest, producer=producer
        )


def _producer_of(head: BatchHead) -> Producer | None:
    if head.producer_id == NO_PRODUCER:
        return None
    return Producer(head.producer_id, head.producer_epoch, head.sequence, head.is_transactional)
