"""`ClientConnectionManager`: connections to the other nodes, for the shards that they lead.

`write_send` passes calls that change a shard, `read_send` those that read it, to the `ShardService`
of the node that the metadata names as leader, once; that node serves it or answers that it does not
lead. Writes and reads take the channel `forward` of the internal port where it is connected, all
else gRPC. At most `PENDING_CALLS_MAX` calls wait for other nodes: each holds a thread, and some
threads must stay free for the requests of those nodes. A call that was not sent, because the node
refuses connections or has no address, ends with `NotSentError`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

import grpc
import msgspec
from google.protobuf.message import EncodeError
from google.protobuf.message import Message as WireMessage

from penstock.engine.contract import ShardConfig, StorageEngine
from penstock.errors import (
    BusyError,
    DeadlineError,
    NotSentError,
    NotSupportedError,
    StoreError,
)
from penstock.meta import STORAGE_LISTENER, MetadataClient, Update, Watch
from penstock.meta.events import NodePut, NodeRemoved
from penstock.platform.clock_guard import ClockStatus
from penstock.record import ShardId
from penstock.remote import shards_pb2 as pb
from penstock.remote import storage_pb2
from penstock.remote.peers.forward_calls import ForwardCalls
from penstock.remote.peers.remote_engine import RemoteEngine
from penstock.remote.wire.errors import error_of_call
from penstock.remote.wire.packed_write import WRITE_PACKED, PackedWrite, pack_write
from penstock.remote.wire.records import MESSAGE_SIZE_MAX
from penstock.remote.wire.shard_calls import CALL_S, FORWARDED, SERVICE, WRITE, ShardCall

CLOCK_S: Final = 2.0
_FORWARDED: Final = frozenset(call.method for call in FORWARDED)
PENDING_CALLS_MAX: Final = 128

# Created at import: msgspec must not inspect a type for the first time in two threads.
_clocks: Final = msgspec.json.Decoder(ClockStatus)

M = TypeVar("M", bound=WireMessage)
P = ParamSpec("P")
R = TypeVar("R")


class ClientConnectionManager:
    """One channel for each node, opened with the first request to it. Created before the node that
    it belongs to; `follow` starts when that node has its metadata."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._addresses: dict[int, str] = {}
        self._channels: dict[int, tuple[str, grpc.Channel]] = {}
        self._free: Final = threading.Semaphore(PENDING_CALLS_MAX)
        self._watch: Watch | None = None
        self._unpacked: Final[set[int]] = set()
        """Nodes that refused a packed write; they are asked again when they have registered."""
        self.forward_calls: ForwardCalls | None = None
        """The channel of the internal port; None: this node has none."""

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

    def engine_of(self, node_id: int, storage_type: str) -> StorageEngine:  # noqa: ARG002 - the leader knows it
        return RemoteEngine(self, node_id)

    def write_send(self, node_id: int, call: ShardCall[P, R], message: WireMessage) -> WireMessage:
        """Have the leader of a shard append records, or change the shard in another way."""
        return self._send(node_id, call, message)

    def read_send(self, node_id: int, call: ShardCall[P, R], message: WireMessage) -> WireMessage:
        """Have the leader of a shard read records, or look at the shard in another way."""
        return self._send(node_id, call, message)

    def send_packed(self, node_id: int, write: PackedWrite) -> WireMessage | None:
        """Have the leader of a shard append records, over the internal port; None: nothing was
        sent, or the node does not know such calls."""
        calls = self.forward_calls
        if calls is None or node_id in self._unpacked:
            return None
        data = pack_write(write)
        if data is None:
            return None
        try:
            with self._thread_of_call():
                reply = calls.call(node_id, WRITE_PACKED, data, WRITE.timeout_s)
        except NotSupportedError:
            # It has done nothing: the same write in the form of earlier releases says more.
            with self._lock:
                self._unpacked.add(node_id)
            return None
        return None if reply is None else WRITE.reply.message.FromString(reply)

    def open_shards(
        self, node_id: int, topic_id: str, partitions: Sequence[int], revision: int
    ) -> None:
        request = pb.ShardNames(topic_id=topic_id, partitions=partitions, revision=revision)
        self.call(node_id, "Open", request, storage_pb2.Nothing)

    def alter_shard(self, node_id: int, shard: ShardId, config: ShardConfig, revision: int) -> None:
        text = msgspec.json.encode(config).decode()
        request = pb.ShardAlteration(shard=shard.name, config=text, revision=revision)
        self.call(node_id, "Alter", request, storage_pb2.Nothing)

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
                outcome: bytes | StoreError = future.result().packed
            except grpc.RpcError as error:
                outcome = error_of_call(error, f"node {node_id} at {address}", request)
            except grpc.FutureCancelledError:
                outcome = DeadlineError(f"the connection to node {node_id} was closed")
            done(outcome)

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
        reply_type: type[M],
        *,
        timeout_s: float = CALL_S,
    ) -> M:
        """Call another node; raise the error that it raised, or `DeadlineError` without a reply:
        `NotSentError` when there is none because nothing was sent."""
        address, channel = self._channel(node_id)
        parse: Callable[[bytes], M] = reply_type.FromString
        call = channel.unary_unary(
            f"/{SERVICE}/{method}", request_serializer=_serialize, response_deserializer=parse
        )
        with self._pending_call(node_id, address, request):
            return call(request, timeout=timeout_s)

    def _send(self, node_id: int, call: ShardCall[P, R], message: WireMessage) -> WireMessage:
        """Send a call of the engine contract; return all pages of its reply as one."""
        reply_type = call.reply.message
        if not call.is_paged:
            forwarded = self._forward(node_id, call, message)
            if forwarded is not None:
                return forwarded
            return self.call(node_id, call.method, message, reply_type, timeout_s=call.timeout_s)
        address, channel = self._channel(node_id)
        parse: Callable[[bytes], WireMessage] = reply_type.FromString
        stream = channel.unary_stream(
            f"/{SERVICE}/{call.method}", request_serializer=_serialize, response_deserializer=parse
        )
        reply = reply_type()
        with self._pending_call(node_id, address, message):
            for page in stream(message, timeout=call.timeout_s):
                reply.MergeFrom(page)
        return reply

    def _forward(
        self, node_id: int, call: ShardCall[P, R], message: WireMessage
    ) -> WireMessage | None:
        """Return the reply that came over the internal port; None: the call was not sent."""
        calls = self.forward_calls
        if calls is None or call.method not in _FORWARDED:
            return None
        try:
            with self._thread_of_call():
                reply = calls.call(node_id, call.method, _serialize(message), call.timeout_s)
        except EncodeError:
            return None  # gRPC says what is too large
        return None if reply is None else call.reply.message.FromString(reply)

    @contextmanager
    def _thread_of_call(self) -> Iterator[None]:
        """Count a call that waits for another node."""
        if not self._free.acquire(blocking=False):
            raise _too_many()
        try:
            yield
        finally:
            self._free.release()

    @contextmanager
    def _pending_call(self, node_id: int, address: str, request: WireMessage) -> Iterator[None]:
        with self._thread_of_call():
            try:
                yield
            except grpc.RpcError as error:
                raise error_of_call(error, f"node {node_id} at {address}", request) from error

    def _channel(self, node_id: int) -> tuple[str, grpc.Channel]:
        with self._lock:
            address = self._addresses.get(node_id)
            if address is None:
                raise NotSentError(
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
                    self._unpacked.discard(event.node.node_id)
                    address = event.node.listeners.get(STORAGE_LISTENER)
                    if address is None:
                        self._addresses.pop(event.node.node_id, None)
                    else:
                        self._addresses[event.node.node_id] = address
                elif isinstance(event, NodeRemoved):
                    self._addresses.pop(event.node_id, None)


def _too_many() -> BusyError:
    return BusyError(
        f"{PENDING_CALLS_MAX} requests to other nodes are pending, which is the limit; try again"
    )


def _serialize(message: WireMessage) -> bytes:
    return message.SerializeToString()
