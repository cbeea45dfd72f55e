"""Reads from this node's copy of a partition that another node leads (KIP-392).

A copy that is in sync serves readers up to its own commit offset. It does not know which
transactions are open: for readers of committed records this node asks the leader how far the
partition is stable and which transactions were aborted, and keeps the answer. That stays true:
what is stable and committed does not change when another node leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.fetch.partition_reader import Limits, PartitionReader, Stable
from penstock.brokers.kafka.fetch.request import FetchPartition
from penstock.brokers.kafka.fetch.response import FetchedPartition
from penstock.brokers.kafka.metadata.leadership import epoch_error
from penstock.brokers.kafka.metadata.partitions import Partition
from penstock.brokers.kafka.transactions import participant_rpc
from penstock.brokers.kafka.transactions.interface import AbortedTransaction
from penstock.engine.contract import BatchEngine, Isolation
from penstock.errors import NotLeaderError, StoreError
from penstock.platform.log import get_logger
from penstock.record import Offset, StoredRecord

_ELSEWHERE: Final = int(ErrorCode.not_leader_or_follower)
_log: Final = get_logger(__name__)


class FollowerReader(PartitionReader):
    """Reads partitions that another node leads."""

    _caches_conversions = False
    """Deletes that the leader made appear here without a change that the cache would notice."""

    # Transactions

    def ask_leaders(
        self, fetches: Iterable[tuple[FetchPartition, Partition]]
    ) -> Mapping[str, Stable]:
        """Return what readers of committed records must know of partitions; where it is not known,
        the leaders are asked, each with one request. May block."""
        known: dict[str, Stable] = {}
        firsts_of: dict[int, dict[str, int]] = {}
        partitions: dict[str, Partition] = {}
        for requested, partition in fetches:
            stable, meta = partition.stable, partition.entry.meta
            if isinstance(stable, Stable) and stable.covers(requested.offset):
                known[partition.shard] = stable
            elif meta is not None and meta.leader is not None:
                firsts_of.setdefault(meta.leader, {})[partition.shard] = requested.offset
                partitions[partition.shard] = partition
        for leader, firsts in firsts_of.items():
            for shard, answer in self._ask(leader, firsts).items():
                stable = Stable(firsts[shard], answer.until, answer.aborted)
                known[shard] = partitions[shard].stable = stable
        return known

    def _ask(self, leader: int, firsts: dict[str, int]) -> participant_rpc.StableShards:
        request = participant_rpc.encode(participant_rpc.ReadStable(firsts))
        try:
            answer = self._broker.drivers.run_transaction_step(leader, request)
        except StoreError as error:
            # Without an answer the clients are sent to the leader.
            _log.info("stable_offsets_not_known", leader=leader, reason=str(error))
            return {}
        return participant_rpc.decode_stable(answer)

    def is_held(self, partition: Partition) -> bool:
        """Say whether records are committed here that belonged to an open transaction when the
        leader was asked. No message tells this node of its end."""
        stable = partition.stable
        try:
            return isinstance(stable, Stable) and stable.until < self.bounds(partition)[1]
        except StoreError:
            return False

    # Reading

    def may_wait(self, partition: Partition, offset: int) -> bool:  # noqa: ARG002 - of the interface
        return True

    def try_fast(
        self, partition: Partition, requested: FetchPartition, *, is_committed: bool
    ) -> FetchedPartition | None:
        if self._rejection(partition, requested, is_committed=is_committed):
            return None
        try:
            earliest, end = self.bounds(partition)
        except StoreError:
            return None
        if requested.offset != end or end < earliest:
            return None
        aborted = () if is_committed else None
        return FetchedPartition(
            requested.topic, requested.partition_id, 0, end, end, earliest, aborted
        )

    def read(
        self, partition: Partition, requested: FetchPartition, limits: Limits
    ) -> FetchedPartition:
        response = super().read(partition, requested, limits)
        if response.error_code == ErrorCode.corrupt_message:
            return self.rejected(partition, requested, _ELSEWHERE)  # the leader's copy is whole
        return response._replace(is_followed=True)

    # What is different on a node that leads

    def _rejection(
        self, partition: Partition, requested: FetchPartition, *, is_committed: bool
    ) -> int:
        entry = partition.entry
        code = epoch_error(entry.meta, requested.leader_epoch)
        if code:
            return code
        replica = entry.replica
        if replica is None or not replica.may_serve_readers or entry.offline:
            return _ELSEWHERE
        # Where an abort deletes records, it does so later here than on the leader.
        return _ELSEWHERE if is_committed and not partition.is_raw else 0

    def _ask_for_bounds(self, partition: Partition) -> tuple[int, int]:
        mark, entry = partition.mark, partition.entry
        engine = partition.driver.following_engine(entry)
        if isinstance(engine, BatchEngine):
            bounds = engine.bounds(entry.id)
        else:
            info = engine.shard_info(entry.id)
            bounds = (int(info.earliest), int(info.commit))
        partition.cache_bounds(mark, bounds)
        return bounds

    def _range_error(
        self,
        partition: Partition,
        offset: int,
        earliest: int,
        end: int,  # noqa: ARG002 - of the interface
    ) -> int:
        replica = partition.entry.replica
        if replica is None:
            return _ELSEWHERE
        if offset < earliest:
            return int(ErrorCode.offset_out_of_range)  # the leader's begins no earlier
        if offset < replica.start:
            return _ELSEWHERE  # in a tier, which the leader reads
        # Above the log's end: the leader may have it, or not.
        return 0 if offset <= replica.end else int(ErrorCode.offset_not_available)

    def _stable_until(self, partition: Partition, offset: int, end: int, limits: Limits) -> int:
        if not limits.is_committed or offset >= end:
            return end
        stable = limits.stable.get(partition.shard)
        if stable is None:
            raise NotLeaderError(partition.shard, leader=None)
        return min(stable.until, end)

    def _stable_end(self, partition: Partition, end: int) -> int:  # noqa: ARG002 - of the interface
        return end

    def _aborted(
        self, partition: Partition, first: int, end: int, limits: Limits
    ) -> Sequence[AbortedTransaction]:
        return [
            AbortedTransaction(transaction.producer_id, transaction.first_offset)
            for transaction in limits.stable[partition.shard].aborted
            if transaction.last_offset >= first and transaction.first_offset < end
        ]

    def _batch_reader(self, partition: Partition) -> BatchEngine | None:
        engine = partition.driver.following_engine(partition.entry)
        return engine if partition.is_raw and isinstance(engine, BatchEngine) else None

    def _read_records(
        self, partition: Partition, offset: int, max_records: int, max_size: int
    ) -> list[StoredRecord]:
        engine = partition.driver.following_engine(partition.entry)
        return engine.read_by_offset(
            partition.entry.id,
            Offset(offset),
            max_records=max_records,
            max_size=max_size,
            isolation=Isolation.UNCOMMITTED,
        )
