"""`ClientConnectionManager`: connections to the other nodes, for the shards that they lead.

`write_send` and `read_send` pass a request to the `ShardService` of the node that the metadata
names as leader, once; that node serves it or answers that it does not lead. At most
`PENDING_CALLS_MAX` calls wait for other nodes: each holds a thread, and some threads must stay free
for the requests of those nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Timeout for the bounds of a shard, which a node has in memory."""
PENDING_CALLS_MAX: Final = 128

# Created at import: msgspec must not inspect a type for the first time in two threads.
_infos: Final = msgspec.json.Decoder(ShardInfo)
_clocks: Final = msgspec.json.Decoder(ClockStatus)

R = TypeVar("R", bound=WireMessage)


ReadRequest = pb.ShardRead | pb.ShardTagRead | pb.ShardKey
_READ_METHODS: Final[Mapping[type[ReadRequest], str]] = {
    pb.ShardRead: "Read",
    pb.ShardTagRead: "ReadByTag",
    pb.ShardKey: "ReadByKey",
}


class ClientConnectionManager:
    """One channel for each node, opened with the first request to it. Created before the node that
    it belongs to; `follow` starts when that node has its metadata."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._addresses: dict[int, str] = {}
        self._channels: dict[int, tuple[str, grpc.Channel]] = {}
        self._free: Final = threading.Semaphore(PENDING_CALLS_MAX)
        self._watch: Watch | None = None

    def follow(self, meta: MetadataClient) -> None:
        """Keep the addresses of the nodes up to date with the metadata."""
        self._watch = meta.watch(0, self._apply)

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
        """Return the state of another node's clock."""
        request = pb.ClockRequest()
        answer = self.call(node_id, "Clock", request, storage_pb2.JsonReply, timeout_s=CLOCK_S)
        return _clocks.decode(answer.json)

    def engine_of(self, node_id: int, storage_type: str) -> StorageEngine:
        return RemoteEngine(self, node_id, storage_type)

    def write_send(self, node_id: int, request: pb.ShardWrite) -> pb.ShardWritten:
        """Have the leader of a shard append records."""
        return self.call(node_id, "Write", request, pb.ShardWritten)

    def read_send(self, node_id: int, request: ReadRequest) -> storage_pb2.RecordsReply:
        """Have the leader of a shard read by offset, tag or key, as the request's type says."""
        method = _READ_METHODS[type(request)]
        return self.call(node_id, method, request, storage_pb2.RecordsReply)

    def open_shards(
        self, node_id: int, topic_id: str, partitions: Sequence[int], revision: int
    ) -> None:
        request = pb.ShardNames(topic_id=topic_id, partitions=partitions, revision=revision)
        self.call(node_id, "Open", request, storage_pb2.Nothing)

    def run_transaction_step(self, node_id: int, step: str) -> str:
        request = pb.TransactionStep(json=step)
        return self.call(node_id, "Transact", request, storage_pb2.JsonReply).json

    def send_offset_request(self, node_id: int, request: str, seconds: float) -> str:
        step = pb.OffsetStep(json=request)
        reply_type = storage_pb2.JsonReply
        return self.call(node_id, "CoordinateOffsets", step, reply_type, timeout_s=seconds).json

    def ask_group(self, node_id: int, question: bytes) -> bytes:
        """Send a request to the coordinator of a consumer group."""
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
        """Call another node; raise the error that it raised, or `DeadlineError` without a reply."""
        address, channel = self._channel(node_id)
        parse: Callable[[bytes], R] = reply_type.FromString
        call = channel.unary_unary(
            f"/{SERVICE}/{method}", request_serializer=_serialize, response_deserializer=parse
        )
        with self._pending_call(node_id, address, request):
            return call(request, timeout=timeout_s)

    def call_for_pages(
        self, node_id: int, method: str, request: WireMessage, reply_type: type[R]
    ) -> list[R]:
        """As `call`, for a reply in pages."""
        address, channel = self._channel(node_id)
        parse: Callable[[bytes], R] = reply_type.FromString
        call = channel.unary_stream(
            f"/{SERVICE}/{method}", request_serializer=_serialize, response_deserializer=parse
        )
        with self._pending_call(node_id, address, request):
            return list(call(request, timeout=CALL_S))

    @contextmanager
    def _pending_call(self, node_id: int, address: str, request: WireMessage) -> Iterator[None]:
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
                raise DeadlineError(
                    f"node {node_id} has not registered an address of its storage API; try again"
                )
            known = self._channels.get(node_id)
            if known is not None and known[0] == address:
                return known
            if known is not None:
                known[1].close()
            options = [
                ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
                ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
                # Reconnect within a second after a node has started again.
                ("grpc.max_reconnect_backoff_ms", 1_000),
                ("grpc.initial_reconnect_backoff_ms", 100),
            ]
            opened = (address, grpc.insecure_channel(address, options=options))
            self._channels[node_id] = opened
            return opened

    def _apply(self, update: Update) -> None:
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


class RemoteEngine:
    """`StorageEngine` of another node, for the shards that it leads."""

    def __init__(
        self, connections: ClientConnectionManager, node_id: int, storage_type: str
    ) -> None:
        self._connections: Final = connections
        self._node_id: Final = node_id
        self._storage_type: Final = storage_type

    @property
    def capabilities(self) -> Capabilities:
        raise self._unsupported("the capabilities of its engines")

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:  # noqa: ARG002 - it has it
        """See `ClientConnectionManager.open_shards`."""
        self._call("Open", pb.ShardNames(topic_id=shard.topic, partitions=[shard.partition]))

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        text = msgspec.json.encode(config).decode()
        self._call("Alter", pb.ShardAlteration(shard=shard.name, config=text))

    def delete_shard(self, shard: ShardId) -> None:
        raise self._unsupported(f"the deletion of {shard.name!r}")

    def list_shard(self, topic: str | None = None) -> list[ShardId]:  # noqa: ARG002 - the contract's
        raise self._unsupported("the list of its shards")

    def apply_retention(self, shard: ShardId) -> Offset:
        raise self._unsupported(f"the retention of {shard.name!r}")

    def close(self) -> None:
        """The connection manager closes the connections."""

    def seal_shard(self, shard: ShardId) -> None:
        self._call("Seal", pb.ShardName(shard=shard.name))

    def shard_info(self, shard: ShardId) -> ShardInfo:
        request = pb.ShardName(shard=shard.name)
        reply = self._connections.call(
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
        reply = self._connections.write_send(self._node_id, request)
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
        return self._read(request)

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
        return self._read(request)

    def read_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        records = self._read(pb.ShardKey(shard=shard.name, key=key))
        return records[0] if records else None

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
        pages = self._connections.call_for_pages(
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
        return self._connections.call(self._node_id, method, request, reply_type)

    def _call(self, method: str, request: WireMessage) -> None:
        self._ask(method, request, storage_pb2.Nothing)

    def _count(self, method: str, request: WireMessage) -> int:
        return self._ask(method, request, storage_pb2.CountReply).count

    def _read(self, request: ReadRequest) -> list[StoredRecord]:
        reply = self._connections.read_send(self._node_id, request)
        return [wire.stored_from_wire(record) for record in reply.records]

    def _unsupported(self, what: str) -> StoreError:
        return NotSupportedError(f"{what}: only node {self._node_id} itself can do this")


def _too_many() -> BusyError:
    return BusyError(
        f"{PENDING_CALLS_MAX} requests to other nodes are pending, which is the limit; try again"
    )


def _serialize(message: WireMessage) -> bytes:
    return message.SerializeToString()
