"""Adds the partitions of a Produce request to the transaction that writes to them, for clients that
leave AddPartitionsToTxn out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.metadata.partitions import Partition
from penstock.brokers.kafka.produce.partition_writer import Result
from penstock.brokers.kafka.transactions.interface import ProducerKey
from penstock.brokers.kafka.wire.batch_header import HEAD, HEAD_SIZE, BatchHead
from penstock.errors import StoreError

FIRST_ENLISTING: Final = 12
"""From this version of Produce on a transactional batch adds its partition to the transaction."""

Newcomers = dict[ProducerKey, list[str]]
"""Shards that a transaction has not written to yet, by producer."""


class PartitionWrite(Protocol):
    @property
    def partition(self) -> Partition | None: ...

    @property
    def records(self) -> memoryview: ...


class TransactionPartitions:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker

    def newcomers(self, transactional_id: str, writes: Iterable[PartitionWrite]) -> Newcomers:
        newcomers: Newcomers = {}
        if self._broker.enlist_shards is None:
            return newcomers
        for write in writes:
            if write.partition is None or len(write.records) < HEAD_SIZE:
                continue
            head = BatchHead._make(HEAD.unpack_from(write.records))
            shard = write.partition.shard
            if (
                head.is_transactional
                and not self._broker.transactions.is_enlisted(
                    shard, head.producer_id, head.producer_epoch
                )
                and _is_led(write.partition)
            ):
                producer = transactional_id, head.producer_id, head.producer_epoch
                newcomers.setdefault(producer, []).append(shard)
        return newcomers

    async def enlist(self, newcomers: Newcomers) -> Result | None:
        """Let transactions write to shards; return the result of their batches if they may not."""
        assert self._broker.enlist_shards is not None, "else there are no newcomers"
        for producer, shards in newcomers.items():
            code = await self._broker.enlist_shards(producer, shards)
            if code:
                return Result(code)
        return None


def _is_led(partition: Partition) -> bool:
    """Say whether the write goes on here; if not, it is refused with the reason."""
    try:
        partition.driver.check_led(partition.entry)
    except StoreError:
        return False
    return True
