"""`NodeForwarder`: the way to shards that other nodes lead, over their `ShardService`.

A request is passed on once, to the node that the metadata names; that node answers for itself or
says that it does not lead. How many may be under way is bounded: whoever waits for another node
holds a thread, and some must stay free for what the others ask of this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message as WireMessage

from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    Capabilities,
    Compacted,
    Isolation,
    ShardConfig,
    ShardInfo,
    StorageEngine,
    Written,
)
from penstock.errors import BusyError, DeadlineError, NotSupportedError, StoreError
from penstock.meta.client import MetadataClient, Update, Watch
from penstock.meta.controller.decisions import STORAGE_LISTENER
from penstock.meta.state.metadata.commands import NodePut, NodeRemoved
from penstock.platform.clock_guard import ClockStatus
from penstock.record import Offset, Producer, Record, ShardId, StoredRecord
from penstock.remote import shards_pb2 as pb
from penstock.remote import storage_pb2, wire
from penstock.remote.shard_service import SERVICE
from penstock.remote.wire import MESSAGE_SIZE_MAX, READ_SIZE_MAX
from penstock.remote.wire_errors import error_of_call

CALL_S: Final = 30.0
CLOCK_S: Final = 2.0
INFO_S: Final = 5.0
"""Where a shard begins and ends is a look at memory: a node that takes longer does not answer."""
UNDER_WAY_MAX: Final = 128

# Made here, for msgspec must not look at a type for the first time in two threads at once.
_infos: Final = msgspec.json.Decoder(ShardInfo)
_clocks: Final = msgspec.json.Decoder(ClockStatus)

R = TypeVar("R", bound=WireMessage)


class NodeForwarder:
    """Made before the node it belongs to; `follow` when the node has its metadata."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._addresses: dict[int, str] = {}
        self._channels: dict[int, tuple[str, grpc.Channel]] = {}
        self._free: Final = threading.Semaphore(UNDER_WAY_MAX)
        self._watch: Watch | None = None

    def follow(self, meta: MetadataClient) -> None:
        """Learn where the nodes are, now and from now on."""
        self._watch = meta.watch(0, self._note)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        with self._lock:
            for _, channel in self._channels.values():
                channel.close()
            self._channels.clear()
            self._addresses.clear()

    def nodes(self) -> list[int]:
        """Return the nodes whose addresses are known."""
        with self._lock:
            return list(self._addresses)

    def clock_of(self, node_id: int) -> ClockStatus:
        """Return what another node's clock shows."""
        request = pb.ClockRequest()
        answer = self.call(node_id, "Clock", request, storage_pb2.JsonReply, timeout_s=CLOCK_S)
        return _clocks.decode(answer.json)

    def engine_of(self, node_id: int, storage_type: str) -> StorageEngine:
        return OtherNode(self, node_id, storage_type)

    def open_shards(
        self, node_id: int, topic_id: str, partitions: Sequence[int], revision: int
    ) -> None:
        request = pb.ShardNames(topic_id=topic_id, partitions=partitions, revision=revision)
        self.call(node_id, "Open", request, storage_pb2.Nothing)

    def take_transaction_step(self, node_id: int, step: str) -> str:
        request = pb.TransactionStep(json=step)
        return self.call(node_id, "Transact", request, storage_pb2.JsonReply).json

    def take_offset_step(self, node_id: int, step: str, seconds: float) -> str:
        request = pb.OffsetStep(json=step)
        reply_type = storage_pb2.JsonReply
        return self.call(node_id, "CoordinateOffsets", request, reply_type, timeout_s=seconds).json

    def ask_group(self, node_id: int, question: bytes) -> bytes:
        """Ask the coordinator of a group."""
        request = pb.GroupQuestion(packed=question)
        return self.call(node_id, "AskGroup", request, pb.GroupAnswer).packed

    def ask_group_later(
        self, node_id: int, question: bytes, done: Callable[[bytes | StoreError], None]
    ) -> None:
        """Ask the coordinator of a group, and call `done` with its answer from a thread of gRPC's:
        it holds no thread here, and raises when nothing could be sent."""
        address, channel = self._channel(node_id)
        call = channel.unary_unary(
            f"/{SERVICE}/AskGroup",
            request_serializer=_serialize,
            response_deserializer=pb.GroupAnswer.FromString,
        )
        request = pb.GroupQuestion(packed=question)
        if not self._free.acquire(blocking=False):
            raise _too_many()

        def end(future: grpc.Future[pb.GroupAnswer]) -> None:
            self._free.release()
            try:
                found: bytes | StoreError = future.result().packed
            except grpc.RpcError as error:
                found = error_of_call(error, f"node {node_id} at {address}", request)
            except grpc.FutureCancelledError:
                found = DeadlineError(f"the connection to node {node_id} was closed")
            done(found)

        try:
            future = call.future(request, timeout=CALL_S)
        except ValueError as error:
            self._free.release()
            raise DeadlineError(f"the connection to node {node_id} was closed") from error
        future.add_done_callback(end)

    def call(
        self,
        node_id: int,
        method: str,
        request: WireMessage,
        reply_type: type[R],
        *,
        timeout_s: float = CALL_S,
    ) -> R:
        """Ask another node; raises what it raised, or `DeadlineError` when it does not answer."""
        address, channel = self._channel(node_id)
        parse: Callable[[bytes], R] = reply_type.FromString
        call = channel.unary_unary(
            f"/{SERVICE}/{method}", request_serializer=_serialize, response_deserializer=parse
        )
        with self._under_way(node_id, address, request):
            return call(request, timeout=timeout_s)

    def call_for_pages(
        self, node_id: int, method: str, request: WireMessage, reply_type: type[R]
    ) -> list[R]:
        """The same, for an answer that comes in pages."""
        address, channel = self._channel(node_id)
        parse: Callable[[bytes], R] = reply_type.FromString
        call = channel.unary_stream(
            f"/{SERVICE}/{method}", request_serializer=_serialize, response_deserializer=parse
        )
        with self._under_way(node_id, address, request):
            return list(call(request, timeout=CALL_S))

    @contextmanager
    def _under_way(self, node_id: int, address: str, request: WireMessage) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise _too_many()
        try:
            yield
        except grpc.RpcError as error:
            raise error_of_call(error, f"node {node_id} at {address}", request) from error
        finally:
            self._free.release()

    def _channel(self, node_id: int) -> tuple[str, grpc.Channel]:
        with self._lock:
            address = self._addresses.get(node_id)
            if address is None:
                raise DeadlineError(f"it is not known where node {node_id} serves requests")
            known = self._channels.get(node_id)
            if known is not None and known[0] == address:
                return known
            if known is not None:
                known[1].close()
            options = [
                ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
                ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
                # A node that comes back is found within a second.
                ("grpc.max_reconnect_backoff_ms", 1_000),
                ("grpc.initial_reconnect_backoff_ms", 100),
            ]
            found = (address, grpc.insecure_channel(address, options=options))
            self._channels[node_id] = found
            return found

    def _note(self, update: Update) -> None:
        with self._lock:
            if update.is_reset:
                self._addresses.clear()
            for event in update.events:
                if isinstance(event, NodePut):
                    address = event.node.listeners.get(STORAGE_LISTENER)
                    if address is None:
                        self._addresses.pop(event.node.node_id, None)
                    else:
                        self._addresses[event.node.node_id] = address
                elif isinstance(event, NodeRemoved):
                    self._addresses.pop(event.node_id, None)


class OtherNode:
    """`StorageEngine` of another node, for the shards that it leads."""

    def __init__(self, forwarder: NodeForwarder, node_id: int, storage_type: str) -> None:
        self._forwarder: Final = forwarder
        self._node_id: Final = node_id
        self._storage_type: Final = storage_type

    @property
    def capabilities(self) -> Capabilities:
        raise self._refusal("what its engines can do")

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:  # noqa: ARG002 - it has it
        """Its node creates it when it learns of it; see `NodeForwarder.open_shards`."""
        self._call("Open", pb.ShardNames(topic_id=shard.topic, partitions=[shard.partition]))

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        text = msgspec.json.encode(config).decode()
        self._call("Alter", pb.ShardAlteration(shard=shard.name, config=text))

    def delete_shard(self, shard: ShardId) -> None:
        raise self._refusal(f"the deletion of {shard.name!r}")

    def list_shard(self, topic: str | None = None) -> list[ShardId]:  # noqa: ARG002 - the contract's
        raise self._refusal("which shards it has")

    def apply_retention(self, shard: ShardId) -> Offset:
        raise self._refusal(f"the retention of {shard.name!r}")

    def close(self) -> None:
        """Connections belong to the forwarder."""

    def seal_shard(self, shard: ShardId) -> None:
        self._call("Seal", pb.ShardName(shard=shard.name))

    def shard_info(self, shard: ShardId) -> ShardInfo:
        request = pb.ShardName(shard=shard.name)
        reply = self._forwarder.call(
            self._node_id, "Info", request, storage_pb2.JsonReply, timeout_s=INFO_S
        )
        return _infos.decode(reply.json)

    def write(self, shard: ShardId, record: Record, *, producer: Producer | None = None) -> Written:
        return self.batch_write(shard, [record], producer=producer)

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        request = pb.ShardWrite(
            shard=shard.name, records=[wire.record_to_wire(record) for record in records]
        )
        if producer is not None:
            request.producer.CopyFrom(
                storage_pb2.Producer(
                    id=producer.id, epoch=producer.epoch, sequence=producer.sequence
                )
            )
        reply = self._ask("Write", request, pb.ShardWritten)
        return Written(Offset(reply.first), reply.count, reply.repeated_write)

    def read_by_offset(
        self,
        shard: ShardId,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        request = pb.ShardRead(
            shard=shard.name,
            offset=offset,
            max_records=max_records,
            max_size=min(max_size, READ_SIZE_MAX),
            isolation=isolation.value,
        )
        return self._records("Read", request)

    def read_by_tag(
        self,
        shard: ShardId,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        request = pb.ShardTagRead(
            shard=shard.name,
            tag=wire.to_bytes(tag),
            start_offset=start_offset,
            max_records=max_records,
            max_size=min(max_size, READ_SIZE_MAX),
        )
        return self._records("ReadByTag", request)

    def read_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        found = self._records("ReadByKey", pb.ShardKey(shard=shard.name, key=key))
        return found[0] if found else None

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        request = pb.ShardKey(
            shard=shard.name, key=key, begin_ms=begin_ms, end_ms=end_ms, limit=limit
        )
        pages = self._forwarder.call_for_pages(
            self._node_id, "QueryByKey", request, storage_pb2.RecordsReply
        )
        return [wire.stored_from_wire(record) for page in pages for record in page.records]

    def delete_by_key(self, shard: ShardId, key: bytes) -> int:
        return self._count("DeleteByKey", pb.ShardKey(shard=shard.name, key=key))

    def delete_by_offset(self, shard: ShardId, offset: Offset) -> bool:
        place = pb.ShardPlace(shard=shard.name, offset=offset)
        return self._count("DeleteByOffset", place) > 0

    def delete_records_before(self, shard: ShardId, offset: Offset) -> Offset:
        return Offset(self._count("DeleteBefore", pb.ShardPlace(shard=shard.name, offset=offset)))

    def get_offset_by_timestamp(
        self, shard: ShardId, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset:
        moment = pb.ShardMoment(
            shard=shard.name, timestamp_ms=timestamp_ms, strategy=strategy.value
        )
        return Offset(self._count("OffsetAt", moment))

    def compact(self, shard: ShardId) -> Compacted:
        reply = self._ask("Compact", pb.ShardName(shard=shard.name), storage_pb2.CompactReply)
        return Compacted(reply.records, reply.size)

    def _ask(self, method: str, request: WireMessage, reply_type: type[R]) -> R:
        return self._forwarder.call(self._node_id, method, request, reply_type)

    def _call(self, method: str, request: WireMessage) -> None:
        self._ask(method, request, storage_pb2.Nothing)

    def _count(self, method: str, request: WireMessage) -> int:
        return self._ask(method, request, storage_pb2.CountReply).count

    def _records(self, method: str, request: WireMessage) -> list[StoredRecord]:
        reply = self._ask(method, request, storage_pb2.RecordsReply)
        return [wire.stored_from_wire(record) for record in reply.records]

    def _refusal(self, what: str) -> StoreError:
        return NotSupportedError(f"{what} is the business of node {self._node_id} itself")


def _too_many() -> BusyError:
    return BusyError(f"{UNDER_WAY_MAX} requests wait for other nodes already")


def _serialize(message: WireMessage) -> bytes:
    return message.SerializeToString()
