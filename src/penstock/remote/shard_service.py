"""`ShardService`: this node's shards for the other nodes of its cluster.

Only shards that this node leads: a request for another one ends with `NotLeaderError`, it is never
passed on a second time. What counts segments, wakes readers and hides open transactions happens
here, as for a request that came straight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, TypeVar

import grpc
import msgspec

from penstock.adapter.shard_drivers import ShardDrivers
from penstock.adapter.shard_handle import ShardHandle
from penstock.engine.contract import AdapterOffsetStrategy, Isolation, ShardConfig
from penstock.errors import (
    BadRequestError,
    DeadlineError,
    NotLeaderError,
    NotSupportedError,
    UnknownShardError,
)
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.routing import begin_packed, pack
from penstock.platform.clock_guard import GuardedClock
from penstock.platform.grpc import WaitingPools, service_handlers
from penstock.platform.parked_calls import Steps
from penstock.platform.wakeup import Pause, Wakeup
from penstock.record import Offset, Producer, ShardId, StoredRecord
from penstock.remote import shards_pb2 as pb
from penstock.remote import storage_pb2, wire
from penstock.remote.wire_errors import failure_of

SERVICE: Final = "penstock.storage.v1.ShardService"
KNOWN_WITHIN_S: Final = 3.0
"""How long after another node this one may learn of a shard."""
# Made here, for msgspec must not look at a type for the first time in two threads at once.
_configs: Final = msgspec.json.Decoder(ShardConfig)


RunStep = Callable[[str], str]
"""Does what another node asks of this one as the coordinator of a consumer group."""


def _no_offsets(_step: str) -> str:
    raise NotSupportedError("this node does not belong to a cluster and coordinates no offsets")


class ShardService:
    def __init__(
        self,
        drivers: ShardDrivers,
        clock: GuardedClock,
        groups: GroupCoordinator | None = None,
        run_offset_step: RunStep | None = None,
    ) -> None:
        self._drivers: Final = drivers
        self._node_id: Final = drivers.node_id
        self._clock: Final = clock
        self._groups: Final = groups
        self._run_offset_step: Final = run_offset_step or _no_offsets

    def clock(self, _: pb.ClockRequest) -> storage_pb2.JsonReply:
        return storage_pb2.JsonReply(json=msgspec.json.encode(self._clock.status()).decode())

    def open(self, request: pb.ShardNames) -> storage_pb2.Nothing:
        cache = self._drivers.storage_cache
        if not cache.wait_for_revision(request.revision, KNOWN_WITHIN_S):
            raise DeadlineError(
                f"node {self._node_id} knows the metadata up to {cache.revision}, and not "
                f"up to {request.revision} within {KNOWN_WITHIN_S:g} s"
            )
        for partition in request.partitions:
            handle = self._led(ShardId(request.topic_id, partition).name)
            handle.driver.open_shard(handle.entry)
        return storage_pb2.Nothing()

    def alter(self, request: pb.ShardAlteration) -> storage_pb2.Nothing:
        handle = self._led(request.shard)
        try:
            config = _configs.decode(request.config)
        except msgspec.DecodeError as error:
            raise BadRequestError(f"invalid shard configuration: {error}") from error
        entry = handle.entry
        handle.driver.alter_shard(entry.id, entry.topic.storage_type, config)
        return storage_pb2.Nothing()

    def seal(self, request: pb.ShardName) -> storage_pb2.Nothing:
        handle = self._led(request.shard)
        handle.driver.seal_shard(handle.name)
        return storage_pb2.Nothing()

    def info(self, request: pb.ShardName) -> storage_pb2.JsonReply:
        # Only this node knows which records open transactions hide here.
        handle = self._led(request.shard)
        info = handle.driver.stable_info(handle.name)
        return storage_pb2.JsonReply(json=msgspec.json.encode(info).decode())

    def write(self, request: pb.ShardWrite) -> pb.ShardWritten:
        handle = self._led(request.shard)
        records = [wire.record_from_wire(record) for record in request.records]
        producer = None
        if request.HasField("producer"):
            who = request.producer
            producer = Producer(who.id, who.epoch, who.sequence)
        written = handle.driver.batch_write(handle.name, records, producer=producer)
        return pb.ShardWritten(
            first=written.first, count=written.count, repeated_write=written.repeated
        )

    def read(self, request: pb.ShardRead) -> storage_pb2.RecordsReply:
        handle = self._led(request.shard)
        found = handle.driver.read_by_offset(
            handle.name,
            Offset(request.offset),
            max_records=request.max_records,
            max_size=request.max_size,
            isolation=_word(Isolation, request.isolation),
        )
        return _records(found)

    def read_by_tag(self, request: pb.ShardTagRead) -> storage_pb2.RecordsReply:
        handle = self._led(request.shard)
        found = handle.driver.read_by_tag(
            handle.name,
            wire.to_text(request.tag),
            start_offset=Offset(request.start_offset),
            max_records=request.max_records,
            max_size=request.max_size,
        )
        return _records(found)

    def read_by_key(self, request: pb.ShardKey) -> storage_pb2.RecordsReply:
        handle = self._led(request.shard)
        found = handle.driver.read_by_key(handle.name, request.key)
        return _records([] if found is None else [found])

    def query_by_key(self, request: pb.ShardKey) -> Iterator[storage_pb2.RecordsReply]:
        handle = self._led(request.shard)
        found = handle.driver.query_by_key(
            handle.name,
            request.key,
            begin_ms=request.begin_ms,
            end_ms=request.end_ms if request.HasField("end_ms") else None,
            limit=request.limit,
        )
        return wire.pages_to_wire(wire.stored_to_wire(record) for record in found)

    def delete_by_key(self, request: pb.ShardKey) -> storage_pb2.CountReply:
        handle = self._led(request.shard)
        count = handle.driver.delete_by_key(handle.name, request.key)
        return storage_pb2.CountReply(count=count)

    def delete_by_offset(self, request: pb.ShardPlace) -> storage_pb2.CountReply:
        handle = self._led(request.shard)
        is_deleted = handle.driver.delete_by_offset(handle.name, Offset(request.offset))
        return storage_pb2.CountReply(count=int(is_deleted))

    def delete_before(self, request: pb.ShardPlace) -> storage_pb2.CountReply:
        handle = self._led(request.shard)
        earliest = handle.driver.delete_records_before(handle.name, Offset(request.offset))
        return storage_pb2.CountReply(count=earliest)

    def offset_at(self, request: pb.ShardMoment) -> storage_pb2.CountReply:
        handle = self._led(request.shard)
        offset = handle.driver.get_offset_by_timestamp(
            handle.name,
            request.timestamp_ms,
            _word(AdapterOffsetStrategy, request.strategy),
        )
        return storage_pb2.CountReply(count=offset)

    def compact(self, request: pb.ShardName) -> storage_pb2.CompactReply:
        handle = self._led(request.shard)
        done = handle.driver.compact(handle.name)
        return storage_pb2.CompactReply(records=done.records, size=done.size)

    def transact(self, request: pb.TransactionStep) -> storage_pb2.JsonReply:
        return storage_pb2.JsonReply(
            json=self._drivers.run_transaction_step(self._node_id, request.json)
        )

    def coordinate_offsets(self, request: pb.OffsetStep) -> storage_pb2.JsonReply:
        return storage_pb2.JsonReply(json=self._run_offset_step(request.json))

    def ask_group(self, request: pb.GroupQuestion) -> Steps:
        if self._groups is None:
            raise NotSupportedError("this node coordinates no groups")
        wakeup = Wakeup()
        pending, seconds = begin_packed(self._groups, request.packed, wakeup.set)
        if not pending.is_there and seconds > 0:
            yield Pause(wakeup, seconds)
        yield pb.GroupAnswer(packed=pack(pending.now()))

    def _led(self, shard: str) -> ShardHandle:
        try:
            handle = self._drivers.open_shard(shard)
        except UnknownShardError:
            # Deleted, or not known here yet: the calling node has newer metadata, or will have.
            raise NotLeaderError(shard, leader=None) from None
        handle.check_led()
        return handle


W = TypeVar("W", bound=Enum)


def _word(kind: type[W], text: str) -> W:
    try:
        return kind(text)
    except ValueError as error:
        raise BadRequestError(f"{text!r} is no {kind.__name__}") from error


def _records(found: Sequence[StoredRecord]) -> storage_pb2.RecordsReply:
    return storage_pb2.RecordsReply(records=[wire.stored_to_wire(record) for record in found])


def shard_handlers(
    drivers: ShardDrivers,
    clock: GuardedClock,
    groups: GroupCoordinator | None = None,
    run_offset_step: RunStep | None = None,
    pools: WaitingPools | None = None,
) -> grpc.GenericRpcHandler:
    """Return the service as a gRPC server takes it."""
    service = ShardService(drivers, clock, groups, run_offset_step)
    return service_handlers(pb, SERVICE, service, failure_of, pools)
