"""ListOffsets and OffsetForLeaderEpoch: bounds of partitions, offsets by time and by epoch."""

from __future__ import annotations

from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.adapter import ShardHandle
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.metadata.leadership import leader_error
from penstock.brokers.kafka.registry import ApiRegistry
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.engine.contract import AdapterOffsetStrategy, Isolation
from penstock.errors import BusyError, StoreError
from penstock.record import Offset, StoredRecord

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_NONE: Final = (-1, -1)
_PAGE: Final = 10_000


class OffsetFinder:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker

    async def list_offsets(self, _context: RequestContext, request: Fields) -> Response:
        is_committed = request.number("isolation_level") == 1
        topics = [
            {
                "name": topic.text("name"),
                "partitions": [
                    await self._respond(topic.text("name"), partition, is_committed=is_committed)
                    for partition in topic.items_of("partitions")
                ],
            }
            for topic in request.items_of("topics")
        ]
        return {"topics": topics}

    async def _respond(self, topic: str, requested: Fields, *, is_committed: bool) -> Response:
        index = requested.number("partition_index")
        response = {"partition_index": index, "timestamp": -1, "offset": -1, "leader_epoch": -1}
        handle = self._find(topic, index)
        code = self._leader_error(handle, requested)
        if handle is None or code:
            return response | {"error_code": code}
        timestamp = requested.number("timestamp")
        try:
            call = partial(self._find_offset, handle, timestamp, is_committed=is_committed)
            if timestamp in {LATEST, EARLIEST}:
                found_ms, offset = call()
            else:
                found_ms, offset = await self._broker.run_blocking(call)
        except StoreError as error:
            return response | {"error_code": code_of(error)}
        shard = handle.entry.meta
        epoch = shard.leader_epoch if shard is not None and offset >= 0 else -1
        return response | {
            "error_code": ErrorCode.none,
            "timestamp": found_ms,
            "offset": offset,
            "leader_epoch": epoch,
        }

    def _find(self, topic: str, index: int) -> ShardHandle | None:
        drivers = self._broker.drivers
        known = drivers.broker_cache.topics.get((self._broker.namespace, topic))
        if known is None or not 0 <= index < known.partitions:
            return None
        return drivers.open_partition(known, index)

    def _leader_error(self, handle: ShardHandle | None, requested: Fields) -> ErrorCode:
        shard = None if handle is None else handle.entry.meta
        epoch = requested.number("current_leader_epoch", -1)
        return ErrorCode(leader_error(shard, self._broker.node_id, epoch))

    def _find_offset(
        self, handle: ShardHandle, timestamp_ms: int, *, is_committed: bool
    ) -> tuple[int, int]:
        """Return a timestamp and an offset; -1 for each that does not exist."""
        earliest, end = handle.driver.bounds(handle.entry)
        stable = self._broker.transactions.stable_until(handle.name)
        until = end if stable is None or not is_committed else min(end, stable)
        if timestamp_ms == LATEST:
            replica = handle.entry.replica
            if replica is not None and not replica.is_settled:
                # As Kafka's leaders: what the last one showed as the end is not known here yet.
                raise BusyError(f"the end of {handle.name!r} is not known yet; ask again")
            return -1, until
        if timestamp_ms == EARLIEST:
            return -1, earliest
        if timestamp_ms == MAX_TIMESTAMP:
            return self._newest(handle, earliest, until)
        if timestamp_ms in {EARLIEST_LOCAL, LATEST_TIERED}:
            return self._local_bound(handle, timestamp_ms, earliest)
        if timestamp_ms < 0:
            return _NONE
        offset = self._first_since(handle, timestamp_ms)
        if offset >= until:
            return _NONE
        records = self._read(handle, offset, 1)
        return (records[0].timestamp_ms, records[0].offset) if records else _NONE

    @staticmethod
    def _local_bound(handle: ShardHandle, timestamp_ms: int, earliest: int) -> tuple[int, int]:
        local = handle.driver.shard_info(handle.name).log_start
        if timestamp_ms == EARLIEST_LOCAL:
            return -1, earliest if local is None else local
        # Records that are both in the log and in the tier count as local.
        return (-1, local - 1) if local is not None and local > earliest else _NONE

    # As in Kafka, the search covers all records, also aborted ones, which consumers of committed
    # records then skip.

    def _first_since(self, handle: ShardHandle, timestamp_ms: int) -> Offset:
        return handle.driver.get_offset_by_timestamp(
            handle.name,
            timestamp_ms,
            AdapterOffsetStrategy.LATEST,
            isolation=Isolation.UNCOMMITTED,
        )

    def _read(self, handle: ShardHandle, offset: Offset, count: int) -> list[StoredRecord]:
        return handle.driver.read_by_offset(
            handle.name, offset, max_records=count, isolation=Isolation.UNCOMMITTED
        )

    def _newest(self, handle: ShardHandle, earliest: int, until: int) -> tuple[int, int]:
        """Find the record with the greatest timestamp: take that of a page, search a later one."""
        low, best = earliest, _NONE
        while low < until:
            records = [
                record for record in self._read(handle, Offset(low), _PAGE) if record.offset < until
            ]
            if not records:
                break
            newest = max(records, key=lambda record: (record.timestamp_ms, -record.offset))
            if newest.timestamp_ms > best[0]:
                best = (newest.timestamp_ms, newest.offset)
            # The search by time skips blocks of older records.
            low = self._first_since(handle, best[0] + 1)
        return best

    async def for_leader_epoch(self, _context: RequestContext, request: Fields) -> Response:
        topics = [
            {
                "topic": topic.text("topic"),
                "partitions": [
                    self._epoch_end(topic.text("topic"), partition)
                    for partition in topic.items_of("partitions")
                ],
            }
            for topic in request.items_of("topics")
        ]
        return {"topics": topics}

    def _epoch_end(self, topic: str, requested: Fields) -> Response:
        index = requested.number("partition")
        response = {"partition": index, "leader_epoch": -1, "end_offset": -1}
        handle = self._find(topic, index)
        code = self._leader_error(handle, requested)
        shard = None if handle is None else handle.entry.meta
        if handle is None or shard is None or code:
            return response | {"error_code": code}
        epoch = requested.number("leader_epoch")
        if epoch > shard.leader_epoch or epoch < 0:
            return response | {"error_code": ErrorCode.none}
        try:
            leader_epoch, end = handle.driver.epoch_end(handle.entry, epoch)
        except StoreError as error:
            return response | {"error_code": code_of(error)}
        return response | {
            "error_code": ErrorCode.none,
            "leader_epoch": leader_epoch,
            "end_offset": end,
        }


def register(registry: ApiRegistry, broker: KafkaBroker) -> None:
    finder = OffsetFinder(broker)
    registry.add(2, 1, 10, finder.list_offsets)
    registry.add(23, 2, 4, finder.for_leader_epoch)
