"""Writing a checked batch to a partition, whatever engine keeps it.

segment, batch queues    the bytes as they are
anything else            the records one by one, through the storage contract
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.batch_check import BadBatchError, check_batch
from penstock.brokers.kafka.batch_head import BatchHead
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.partitions import Partition
from penstock.brokers.kafka.records import records_of
from penstock.engine.contract import Written
from penstock.engine.segment.twin import native_only
from penstock.errors import NotLeaderError, StoreError
from penstock.record import Producer

NO_PRODUCER: Final = -1


class PartitionWriter:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker
        self._handler: Final = broker.handler
        self._size_max: Final = broker.all_settings.engine.record_size_max
        self._crc32c: Final = native_only().crc32c

    def write(
        self, partition: Partition, records: memoryview, transactional_id: str | None
    ) -> tuple[int, int, str | None]:
        """Return an error code, the base offset and a message for people."""
        try:
            head = check_batch(records, self._size_max, self._crc32c)
            if head.is_transactional:
                code = self._broker.transactions.check_write(
                    partition.shard, head, transactional_id
                )
                if code:
                    return code, -1, None
                written = self._append_in_transaction(partition, head, records)
            elif head.producer_id != NO_PRODUCER and self._broker.transactions.is_open(
                partition.shard, head.producer_id
            ):
                # As Kafka: what it writes meanwhile would end with the transaction.
                return int(ErrorCode.invalid_txn_state), -1, None
            else:
                written = self._append(partition, head, records)
        except BadBatchError as error:
            return error.code, -1, str(error)
        except NotLeaderError:
            return int(ErrorCode.not_leader_or_follower), -1, None
        except StoreError as error:
            return int(code_of(error)), -1, str(error)
        return 0, written.first, None

    def _append_in_transaction(
        self, partition: Partition, head: BatchHead, body: memoryview
    ) -> Written:
        first: int | None = None
        try:
            written = self._append(partition, head, body)
            if not written.repeated:
                first = written.first
        finally:
            self._broker.transactions.note_written(partition.shard, head, first)
        return written

    def _append(self, partition: Partition, head: BatchHead, body: memoryview) -> Written:
        producer = None
        if head.producer_id != NO_PRODUCER:
            producer = Producer(
                head.producer_id, head.producer_epoch, head.sequence, head.is_transactional
            )
        if partition.checks_keys or not partition.is_raw:
            records = records_of(body, partition.tag_header)
            if partition.checks_keys and any(record.key is None for record in records):
                raise BadBatchError(
                    ErrorCode.invalid_record, "records of a compacted topic have a key"
                )
            if not partition.is_raw:
                self._handler.check_led(partition.entry)
                return self._handler.batch_write(partition.shard, records, producer=producer)
        newest = head.max_ms if head.max_ms >= 0 else self._broker.clock.now_ms()
        return self._handler.write_batch(
            partition.entry, body, head.record_count, timestamp_ms=newest, producer=producer
        )
