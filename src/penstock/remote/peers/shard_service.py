"""`ShardService`: this node's shards for the other nodes of its cluster.

Only shards that this node leads: a request for another one ends with `NotLeaderError`, it is never
passed on a second time. What counts segments, wakes readers and hides open transactions happens
here, as for a request that came straight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias

import grpc
import msgspec
from google.protobuf.message import Message as WireMessage

from penstock.adapter import ShardDrivers, ShardHandle
from penstock.engine.contract import ShardConfig
from penstock.engine.replication.runtime.shard_replica import ReplicaPosition
from penstock.errors import DeadlineError, NotLeaderError, NotSupportedError, UnknownShardError
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.routing import begin_packed, pack
from penstock.platform.calls.grpc import WaitingPools, attribute_of, service_handlers
from penstock.platform.calls.parked_calls import Steps
from penstock.platform.calls.wakeup import Pause, Wakeup
from penstock.platform.clock_guard import GuardedClock
from penstock.record import ShardId
from penstock.remote import shards_pb2 as pb
from penstock.remote import storage_pb2
from penstock.remote.peers.forward_calls import Serve
from penstock.remote.wire import records as wire
from penstock.remote.wire.errors import failure_of
from penstock.remote.wire.fields import arguments_of
from penstock.remote.wire.packed_write import WRITE_PACKED, unpack_write
from penstock.remote.wire.shard_calls import FORWARDED, SERVICE, SHARD_CALLS, WRITE, ServedCall

KNOWN_WITHIN_S: Final = 3.0
"""How long after another node this one may learn of a shard."""

ShardMessage: TypeAlias = (
    pb.ShardName
    | pb.ShardWrite
    | pb.ShardRead
    | pb.ShardTagRead
    | pb.ShardKey
    | pb.ShardPlace
    | pb.ShardMoment
)


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
        for call in SHARD_CALLS:
            setattr(self, attribute_of(call.method), partial(self._serve, call))

    def clock(self, _: pb.ClockRequest) -> storage_pb2.JsonReply:
        return storage_pb2.JsonReply(json=msgspec.json.encode(self._clock.status()).decode())

    def open(self, request: pb.ShardNames) -> storage_pb2.Nothing:
        self._await_revision(request.revision)
        cache = self._drivers.storage_cache
        names = [ShardId(request.topic_id, partition).name for partition in request.partitions]
        cache.wait_until_led(names, self._node_id, KNOWN_WITHIN_S)
        for name in names:
            handle = self._led(name)
            handle.driver.open_shard(handle.entry)
        return storage_pb2.Nothing()

    def alter(self, request: pb.ShardAlteration) -> storage_pb2.Nothing:
        if request.revision:
            # Another alteration may have been faster: what the metadata say now counts.
            self._await_revision(request.revision)
            handle = self._led(request.shard)
            handle.driver.alter_entry(handle.entry)
            return storage_pb2.Nothing()
        handle = self._led(request.shard)
        entry, config = handle.entry, arguments_of(request)["config"]
        assert isinstance(config, ShardConfig)
        handle.driver.alter_shard(entry.id, entry.topic.storage_type, config)
        return storage_pb2.Nothing()

    def _await_revision(self, revision: int) -> None:
        cache = self._drivers.storage_cache
        if not cache.wait_for_revision(revision, KNOWN_WITHIN_S):
            raise DeadlineError(
                f"node {self._node_id} knows the metadata up to {cache.revision}, and not "
                f"up to {revision} within {KNOWN_WITHIN_S:g} s"
            )

    def _serve(
        self, call: ServedCall, message: ShardMessage
    ) -> WireMessage | Iterator[WireMessage]:
        handle = self._led(message.shard)
        reply = call.run(handle.driver, handle.name, message)
        if isinstance(reply, storage_pb2.RecordsReply) and call.is_paged:
            return wire.pages_to_wire(reply.records)
        return reply

    def serve_packed(self, call: ServedCall, data: bytes) -> WireMessage:
        """Serve a call with one reply whose message is serialized."""
        message = call.message.FromString(data)
        assert isinstance(message, ShardMessage)
        handle = self._led(message.shard)
        return call.run(handle.driver, handle.name, message)

    def write_packed(self, data: bytes) -> WireMessage:
        """Serve a write in the form of `packed_write`."""
        write = unpack_write(data)
        handle = self._led(write.shard)
        written = handle.driver.batch_write(
            handle.name, write.records, producer=write.producer, acks=write.acks
        )
        return WRITE.reply.to_wire(written, None)

    def transact(self, request: pb.TransactionStep) -> storage_pb2.JsonReply:
        return storage_pb2.JsonReply(
            json=self._drivers.run_transaction_step(self._node_id, request.json)
        )

    def describe_replicas(self, request: pb.ShardNames) -> storage_pb2.JsonReply:
        positions: dict[int, ReplicaPosition] = {}
        for partition in request.partitions:
            entry = self._drivers.storage_cache.shards.get(
                ShardId(request.topic_id, partition).name
            )
            if entry is not None and entry.replica is not None:
                positions[partition] = entry.replica.position
        return storage_pb2.JsonReply(json=msgspec.json.encode(positions).decode())

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


def forwarded_methods(service: ShardService) -> dict[str, Serve]:
    """Return what the channel `forward` serves: the same calls, with the same answers."""
    calls: tuple[ServedCall, ...] = FORWARDED
    methods: dict[str, Serve] = {call.method: partial(service.serve_packed, call) for call in calls}
    return methods | {WRITE_PACKED: service.write_packed}
