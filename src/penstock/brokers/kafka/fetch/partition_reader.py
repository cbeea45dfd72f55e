"""Reads a partition of any engine as Kafka batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from msgspec import Struct

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.fetch.conversion_cache import Converted, ConvertedKey
from penstock.brokers.kafka.fetch.request import FetchPartition
from penstock.brokers.kafka.fetch.response import FetchedPartition, empty_response
from penstock.brokers.kafka.metadata.leadership import leader_error
from penstock.brokers.kafka.metadata.partitions import Partition
from penstock.brokers.kafka.transactions.interface import AbortedTransaction
from penstock.brokers.kafka.transactions.markers import build_filler
from penstock.brokers.kafka.wire.batch_conversion import batch_of, transaction_of
from penstock.engine.contract import BatchEngine, BatchPage, Isolation
from penstock.errors import CorruptionError, StoreError
from penstock.meta import AbortedRange
from penstock.record import Offset, StoredRecord

CONVERTED_MAX: Final = 2_000
"""Records that are converted to one batch."""
HOT_RECORDS: Final = 10_000
"""Records before the end of a partition that count as still in memory."""
_LEADER_CODES: Final = frozenset(
    {int(ErrorCode.not_leader_or_follower), int(ErrorCode.fenced_leader_epoch)}
)


class Stable(Struct, frozen=True):
    """What a leader said of the transactions of a shard: all that have records before `until` are
    over, and `aborted` are those of them with records from `first` on."""

    first: int
    until: int
    aborted: Sequence[AbortedRange]

    def covers(self, offset: int) -> bool:
        return self.first <= offset < self.until


class Limits(NamedTuple):
    is_committed: bool
    size_left: int
    is_first: bool
    """No batch so far: the first one is returned whatever its size."""
    stable: Mapping[str, Stable] = MappingProxyType({})
    """By shard, for those that this node follows."""


class PartitionReader:
    _caches_conversions = True

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker
        self._node_id: Final = broker.node_id
        self._limits: Final = broker.drivers.limits
        self._tag_header: Final = broker.settings.tag_header
        self._conversion_cache: Final = broker.conversion_cache

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the earliest offset and the high watermark."""
        known = partition.cached_bounds()
        return known if known is not None else self._ask_for_bounds(partition)

    def _ask_for_bounds(self, partition: Partition) -> tuple[int, int]:
        mark = partition.mark
        bounds = partition.driver.bounds(partition.entry)
        partition.cache_bounds(mark, bounds)
        return bounds

    def may_wait(self, partition: Partition, offset: int) -> bool:
        """Say whether a read may wait for a device, so that it must not run on the event loop."""
        try:
            if partition.is_raw and self.bounds(partition)[1] - offset <= HOT_RECORDS:
                return False
            return partition.driver.read_may_wait(partition.entry, offset)
        except StoreError:
            return False  # the read reports the error

    def try_fast(
        self, partition: Partition, requested: FetchPartition, *, is_committed: bool
    ) -> FetchedPartition | None:
        """Return the response of a partition without new records; None when it must be read: there
        are records, the offset is out of range, or this node does not lead it any more."""
        known = partition.cached_bounds()
        if known is None:
            try:
                known = self.bounds(partition)
            except StoreError:
                return None
        earliest, end = known
        topic, index, leader_epoch, offset, _ = requested
        stable = end
        if self._limits.holds_any:
            stable = self._stable_end(partition, end)
        if offset != (stable if is_committed else end) or offset < earliest:
            return None
        shard = partition.entry.meta
        if shard is None or shard.leader != self._node_id:
            return None
        if leader_epoch >= 0 and leader_epoch != shard.leader_epoch:
            return None
        kept = partition.empty_response
        if (
            isinstance(kept, FetchedPartition)
            and kept.high_watermark == end
            and kept.stable_until == stable
            and kept.log_start == earliest
            and kept.topic == topic
            and (kept.aborted is None) is not is_committed
        ):
            return kept
        kept = empty_response(topic, index, end, stable, earliest, is_committed=is_committed)
        partition.empty_response = kept
        return kept

    def read(
        self, partition: Partition, requested: FetchPartition, limits: Limits
    ) -> FetchedPartition:
        """Return the response of one partition. May wait for a device."""
        try:
            return self._read(partition, requested, limits)
        except CorruptionError:
            # Not KAFKA_STORAGE_ERROR, which clients retry forever without reporting it.
            return FetchedPartition(
                requested.topic, requested.partition_id, int(ErrorCode.corrupt_message)
            )
        except StoreError as error:
            return self.rejected(partition, requested, int(code_of(error)))

    def _read(
        self, partition: Partition, requested: FetchPartition, limits: Limits
    ) -> FetchedPartition:
        topic, index, offset = requested.topic, requested.partition_id, requested.offset
        rejection = self._rejection(partition, requested, is_committed=limits.is_committed)
        if rejection:
            return self.rejected(partition, requested, rejection)
        # Not the cached bounds: deletions do not invalidate them.
        earliest, end = self._ask_for_bounds(partition)
        outside = self._range_error(partition, offset, earliest, end)
        if outside or offset > end:
            # Without a code: written, but not committed yet.
            stable = self._stable_end(partition, end)
            return FetchedPartition(topic, index, outside, end, stable, earliest)
        stable = self._stable_until(partition, offset, end, limits)
        until = stable if limits.is_committed else end
        aborted: Sequence[AbortedTransaction] | None = () if limits.is_committed else None
        size_max = min(requested.max_bytes, limits.size_left)
        if offset >= until or (size_max <= 0 and not limits.is_first):
            return FetchedPartition(topic, index, 0, end, stable, earliest, aborted)
        with partition.driver.guard_read(partition.entry, offset):
            page = self._read_batches(partition, offset, until, max(size_max, 1))
        if not page.size and page.next_offset >= until and not partition.entry.offline:
            # All remaining records are deleted. A client continues after the last batch that it
            # gets, and many read up to the end: so it gets a batch without records.
            filler = build_filler(until - 1, self._broker.clock.now_ms())
            page = BatchPage([filler], len(filler), until)
        if page.size > size_max and not limits.is_first:
            # The batch exceeds the rest of the limit: it comes with the next request.
            return FetchedPartition(topic, index, 0, end, stable, earliest, aborted)
        if limits.is_committed:
            aborted = self._aborted(partition, offset, page.next_offset, limits)
        return FetchedPartition(
            topic, index, 0, end, stable, earliest, aborted, page.parts, page.size
        )

    @staticmethod
    def rejected(partition: Partition, requested: FetchPartition, code: int) -> FetchedPartition:
        """Return the response with a code, and with the leader where the client should know it."""
        shard = partition.entry.meta
        leader = None
        if shard is not None and shard.leader is not None and code in _LEADER_CODES:
            leader = (shard.leader, shard.leader_epoch)
        return FetchedPartition(requested.topic, requested.partition_id, code, leader=leader)

    # What is different on a node that follows

    def _rejection(
        self,
        partition: Partition,
        requested: FetchPartition,
        *,
        is_committed: bool,  # noqa: ARG002 - of the interface
    ) -> int:
        return leader_error(partition.entry.meta, self._node_id, requested.leader_epoch)

    def _range_error(self, partition: Partition, offset: int, earliest: int, end: int) -> int:
        """Return the code for an offset outside of the partition, 0 to serve it or to wait for it.
        After an election consumers may have read further than the new leader knows to be
        committed."""
        if earliest <= offset <= end:
            return 0
        if offset > end:
            replica = partition.entry.replica
            if replica is not None:
                written = replica.end
            else:
                written = int(partition.driver.shard_info(partition.shard).latest)
            if offset <= written:
                return 0
        return int(ErrorCode.offset_out_of_range)

    def _stable_until(self, partition: Partition, _offset: int, end: int, _limits: Limits) -> int:
        return self._stable_end(partition, end)

    def _stable_end(self, partition: Partition, end: int) -> int:
        stable = self._broker.transactions.stable_until(partition.shard)
        return end if stable is None else min(stable, end)

    def _aborted(
        self, partition: Partition, first: int, end: int, _limits: Limits
    ) -> Sequence[AbortedTransaction]:
        return self._broker.transactions.aborted(partition.shard, first, end)

    def _batch_reader(self, partition: Partition) -> BatchEngine | None:
        return partition.driver.batch_reader(partition.entry) if partition.is_raw else None

    def _read_records(
        self, partition: Partition, offset: int, max_records: int, max_size: int
    ) -> list[StoredRecord]:
        return partition.driver.read_by_offset(
            partition.shard,
            Offset(offset),
            max_records=max_records,
            max_size=max_size,
            isolation=Isolation.UNCOMMITTED,
        )

    # Reading

    def _read_batches(
        self, partition: Partition, offset: int, until: int, max_size: int
    ) -> BatchPage:
        reader = self._batch_reader(partition)
        if reader is None:
            return self._convert(partition, offset, until, max_size)
        while True:
            page = reader.read_batches(partition.entry.id, offset, until, max_size)
            foreign = page.foreign
            if foreign is None:
                return page
            # Only this one: the next may be sent unchanged, or be of another producer.
            end = min(until, foreign.end_offset)
            page = self._convert(partition, page.next_offset, end, max_size, foreign.body)
            if page.size or end >= until:
                return page
            offset = end  # all of it is deleted

    def _convert(
        self, partition: Partition, offset: int, until: int, max_size: int, body: bytes = b""
    ) -> BatchPage:
        """Convert records, or the undeleted rest of the batch `body`, to one batch."""
        header = self._tag_header if partition.tag_header is None else partition.tag_header
        key = ConvertedKey(partition.shard, offset, header, bool(body))
        state = _removal_state(partition)
        kept = None
        if self._caches_conversions:
            kept = self._conversion_cache.find(key, state, until, max_size)
        if kept is not None:
            return BatchPage([kept.batch], len(kept.batch), kept.next_offset)
        records = self._read_records(
            partition, offset, min(CONVERTED_MAX, until - offset), max_size
        )
        records = [record for record in records if record.offset < until]
        if not records:
            return BatchPage([], 0, until)
        batch = batch_of(records, header, transaction_of(body))
        next_offset = records[-1].offset + 1
        is_kept = self._caches_conversions
        if is_kept and all(record.expires_at_ms is None for record in records):
            self._conversion_cache.add(key, Converted(state, batch, next_offset))
        return BatchPage([batch], len(batch), next_offset)


def _removal_state(partition: Partition) -> object:
    """Return a value that changes when records are removed; call it before reading the records."""
    entry = partition.entry
    epoch = None if entry.meta is None else entry.meta.leader_epoch
    return entry.removals, epoch, entry.offline
