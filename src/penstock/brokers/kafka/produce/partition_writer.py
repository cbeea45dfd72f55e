"""Checks a batch and appends it to a partition of any engine.

segment, batch queues    the bytes unchanged
other topics             the decoded records
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from msgspec.structs import replace

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.metadata.partitions import Partition
from penstock.brokers.kafka.produce.decompression import batch_limit, quick_limit
from penstock.brokers.kafka.produce.pending_commits import WAIT_FOR_ALL, Commit
from penstock.brokers.kafka.wire.batch_conversion import records_of, timestamps_of
from penstock.brokers.kafka.wire.batch_header import CODEC_MASK
from penstock.brokers.kafka.wire.batch_validation import (
    BadBatchError,
    Checked,
    check_head,
    check_records,
)
from penstock.codec.select import native_only
from penstock.engine.contract import Written
from penstock.errors import NotLeaderError, StoreError
from penstock.record import Producer

NO_PRODUCER: Final = -1
NO_TIMESTAMP: Final = -1
RECORD_ERRORS_MAX: Final = 1_000

Verdict = Checked | BadBatchError
"""The result of checking a batch."""


class Result(NamedTuple):
    """The Produce response of a partition."""

    code: int
    base_offset: int = -1
    message: str | None = None
    indexes: tuple[int, ...] = ()
    """Indexes of the rejected records."""
    append_ms: int = -1
    """The append time, on topics with LogAppendTime; else -1."""


class PartitionWriter:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker
        self._size_max: Final = broker.all_settings.engine.record_size_max
        self._inflated_size_max: Final = broker.settings.batch_inflated_size_max
        self._check_plain: Final = native_only().check_plain
        self._check: Final = native_only().check_batch
        self._rewrite: Final = native_only().rewrite_batch

    # Checking

    def check_quickly(
        self, partition: Partition, records: memoryview, budget: int
    ) -> Verdict | None:
        """Check a batch on the event loop; None when its check would inflate more bytes than the
        event loop may, or than `budget`."""
        plain = self._check_plain(records, self._size_max, partition.checks_keys)
        if plain is not None:
            return Checked(*plain)
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
        """Check a batch that `check_quickly` left; `budget` is how many bytes its request may
        still inflate. May take long."""
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
        commit: Commit = WAIT_FOR_ALL,
    ) -> Result:
        """Write a batch that passed the check. The commit's `on_committed` is called when the
        replicas have it, unless the result has an error; without one this waits for them."""
        if isinstance(verdict, BadBatchError):
            return Result(verdict.code, message=str(verdict), indexes=verdict.indexes)
        now_ms = self._broker.clock.now_ms()
        settings = partition.settings
        producer_id = verdict.producer_id
        try:
            if not settings.has_append_time and not settings.is_timely(
                verdict.oldest_ms, verdict.newest_ms, now_ms
            ):
                self._check_times(partition, records, now_ms)
            if verdict.is_transactional:
                # First: only the leader knows the transactions of a shard.
                partition.driver.check_led(partition.entry)
                code = self._broker.transactions.check_write(
                    partition.shard, producer_id, verdict.producer_epoch, transactional_id
                )
                if code:
                    return Result(code)
                written = self._append_in_transaction(partition, verdict, records, now_ms, commit)
            elif producer_id != NO_PRODUCER and self._broker.transactions.is_open(
                partition.shard, producer_id
            ):
                # As in Kafka: the batch would be part of the open transaction.
                return Result(int(ErrorCode.invalid_txn_state))
            else:
                written = self._append(partition, verdict, records, now_ms, commit)
        except BadBatchError as error:
            return Result(error.code, message=str(error), indexes=error.indexes)
        except NotLeaderError:
            return Result(int(ErrorCode.not_leader_or_follower))
        except StoreError as error:
            return Result(int(code_of(error)), message=str(error))
        if settings.has_append_time:
            return Result(0, written.first, append_ms=now_ms)
        return Result(0, written.first)

    @staticmethod
    def _check_times(partition: Partition, body: memoryview, now_ms: int) -> None:
        """Reject records whose timestamps are too far from the node's clock."""
        settings = partition.settings
        times = timestamps_of(body)
        late = [
            index
            for index, time_ms in enumerate(times)
            if time_ms != NO_TIMESTAMP and not settings.is_timely(time_ms, time_ms, now_ms)
        ]
        if late:
            raise BadBatchError(
                ErrorCode.invalid_timestamp,
                f"{len(late)} records have timestamps more than {settings.before_max_ms} ms before "
                f"or {settings.after_max_ms} ms after the broker's clock, {now_ms}",
                tuple(late[:RECORD_ERRORS_MAX]),
            )

    def _append_in_transaction(
        self,
        partition: Partition,
        checked: Checked,
        body: memoryview,
        now_ms: int,
        commit: Commit,
    ) -> Written:
        first: int | None = None
        try:
            written = self._append(partition, checked, body, now_ms, commit)
            if not written.repeated:
                first = written.first
        finally:
            self._broker.transactions.finish_write(partition.shard, checked.producer_id, first)
        return written

    def _append(
        self,
        partition: Partition,
        checked: Checked,
        body: memoryview,
        now_ms: int,
        commit: Commit,
    ) -> Written:
        producer = _producer_of(checked)
        if not partition.is_raw:
            if checked.largest > self._size_max:
                raise BadBatchError(
                    ErrorCode.message_too_large,
                    f"a record has {checked.largest} bytes; the limit is {self._size_max}",
                )
            records = records_of(body, partition.tag_header)
            if partition.settings.has_append_time:
                records = [replace(record, timestamp_ms=now_ms) for record in records]
            return partition.driver.batch_write(
                partition.shard,
                records,
                producer=producer,
                acks=commit.acks,
                on_committed=commit.on_committed,
                is_local=True,
            )
        stored: bytes | memoryview = body
        newest = checked.newest_ms
        if not partition.settings.keeps_batches or newest != checked.head_max_ms:
            stored, newest = self._stored_form(partition, checked, body, now_ms)
        if newest < 0:
            newest = now_ms
        return partition.driver.write_batch(
            partition.entry,
            stored,
            checked.record_count,
            timestamp_ms=newest,
            producer=producer,
            acks=commit.acks,
            on_committed=commit.on_committed,
        )

    def _stored_form(
        self, partition: Partition, checked: Checked, body: memoryview, now_ms: int
    ) -> tuple[bytes | memoryview, int]:
        """Return a batch as its topic stores it, and its newest timestamp."""
        settings, newest = partition.settings, checked.newest_ms
        codec = settings.codec
        if codec == checked.codec:
            codec = None
        append_ms = now_ms if settings.has_append_time else None
        if append_ms is not None:
            newest = append_ms
        if codec is None and newest == checked.head_max_ms and append_ms is None:
            return body, newest
        # The newest timestamp of the records, as in Kafka: retention and searches use it, not the
        # header's claim.
        try:
            stored = self._rewrite(body, codec, append_ms, newest)
        except ValueError as error:
            raise BadBatchError(ErrorCode.invalid_record, str(error)) from error
        return stored, newest


def _producer_of(checked: Checked) -> Producer | None:
    if checked.producer_id == NO_PRODUCER:
        return None
    return Producer(
        checked.producer_id, checked.producer_epoch, checked.sequence, checked.is_transactional
    )
