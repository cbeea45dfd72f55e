"""`RemoteBackend`: the calls of a store, sent to a server.

Every call has a deadline. A server that cannot be reached is tried again until then, and so are the
others when there are several addresses: see `failover`. A write is sent again only when it carries
a producer, because the first one may have arrived.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

import grpc
import msgspec
from google.protobuf.message import Message as WireMessage

from penstock.adapter.locations import Message
from penstock.api.backend import TopicPartition
from penstock.api.topic_info import GroupInfo, PartitionInfo, TopicInfo
from penstock.api.validation import check_name, check_partition, check_places, check_start
from penstock.codec.validation import (
    check_key,
    check_limit,
    check_offset,
    check_producer,
    check_record,
    check_shard,
    check_text,
    check_time,
)
from penstock.engine.contract import AdapterOffsetStrategy, ColumnQuery, Compacted
from penstock.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    DeadlineError,
    UnknownTopicError,
)
from penstock.groups.codes import GroupCode
from penstock.groups.model import Caller, Join, Joined, Sync, Synced
from penstock.platform.clock_guard import ClockStatus
from penstock.record import Location, Offset, Producer, Record, ShardId, StoredRecord
from penstock.remote import group_wire, wire
from penstock.remote import storage_pb2 as pb
from penstock.remote.failover import REPEATABLE, Server, Servers, UnansweredError
from penstock.remote.option_checks import check_option
from penstock.remote.service import SERVICE, WAIT_S_MAX
from penstock.remote.wire import MESSAGE_SIZE_MAX, READ_SIZE_MAX
from penstock.remote.wire_errors import ERROR_KEY, error_from_wire, error_of_call

if TYPE_CHECKING:
    import pyarrow as pa

DEADLINE_S: Final = 30.0
_DEADLINE_S_MAX: Final = 365 * 24 * 3600.0
"""gRPC counts nanoseconds in 64 bits: a deadline of centuries would be in the past."""
_WAIT_MARGIN_S: Final = 5.0
_LEAVE_S: Final = 2.0
_PAUSE_S: Final = 0.1
_INT64_MAX: Final = (1 << 63) - 1
_NONE: Final = ()

Q = TypeVar("Q", bound=WireMessage)
R = TypeVar("R", bound=WireMessage)
# Made here, for msgspec must not look at a type for the first time in two threads at once.
_clocks: Final = msgspec.json.Decoder(ClockStatus)
_Call: TypeAlias = "grpc.UnaryUnaryMultiCallable[WireMessage, WireMessage]"
_WRITE: Final = "Write"


class RemoteBackend:
    """Implements `Backend`. Safe to use from many threads, which share one connection."""

    def __init__(self, address: str | Sequence[str], *, deadline_s: float = DEADLINE_S) -> None:
        """`address` is one, or several of the same store."""
        addresses = [address] if isinstance(address, str) else list(address)
        self._deadline_s: Final = min(deadline_s, _DEADLINE_S_MAX)
        self._servers: Final = Servers(
            addresses,
            options=[
                ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
                ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
            ],
        )
        self._lock: Final = threading.Lock()
        self._calls: dict[tuple[str, str], _Call] = {}
        self._closed = False
        self.write_at_once: Final = None

    @property
    def place(self) -> str:
        return self._servers.name

    def check_connection(self) -> None:
        """Raise `DeadlineError` when no server answers."""
        try:
            self._servers.check()
        except DeadlineError:
            self.close()
            raise

    def _call(
        self,
        method: str,
        request: WireMessage,
        reply_type: type[R],
        *,
        deadline_s: float | None = None,
        again: bool = True,
    ) -> R:
        self._check_open()

        def attempt(server: Server, seconds: float, waits: bool) -> R:
            call = self._calls.get((server.address, method)) or self._make(
                server, method, reply_type
            )
            try:
                # wait_for_ready queues the call while the server is away, without sending it twice.
                reply = call(request, timeout=seconds, wait_for_ready=waits)
            except grpc.RpcError as error:
                raise _failure(error, server, request) from error
            except ValueError:
                self._check_open()  # it was closed by another thread meanwhile
                raise
            assert isinstance(reply, reply_type)
            return reply

        may_repeat = method in REPEATABLE or (method == _WRITE and again)
        return self._servers.call(
            attempt, deadline_s or self._deadline_s, waits=again, may_repeat=may_repeat
        )

    def _call_for_pages(self, method: str, request: WireMessage, reply_type: type[R]) -> list[R]:
        """Return all pages of an answer that one message might not hold."""
        self._check_open()
        parse: Callable[[bytes], R] = reply_type.FromString

        def attempt(server: Server, seconds: float, waits: bool) -> list[R]:
            call = server.channel.unary_stream(
                f"/{SERVICE}/{method}", request_serializer=_serialize, response_deserializer=parse
            )
            try:
                return list(call(request, timeout=seconds, wait_for_ready=waits))
            except grpc.RpcError as error:
                raise _failure(error, server, request) from error

        return self._servers.call(attempt, self._deadline_s, may_repeat=method in REPEATABLE)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the connection to {self._servers.name} was closed")

    def _make(self, server: Server, method: str, reply_type: type[R]) -> _Call:
        with self._lock:
            parse: Callable[[bytes], WireMessage] = reply_type.FromString
            call = server.channel.unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=_serialize,
                response_deserializer=parse,
            )
            self._calls[server.address, method] = call
            return call

    # Topics

    def create_topic(
        self, namespace: str, topic: str, partitions: int | None, options: Mapping[str, object]
    ) -> TopicInfo:
        request = _topic_request(namespace, topic, partitions, options)
        return wire.topic_from_wire(self._call("CreateTopic", request, pb.TopicReply).info)

    def alter_topic(
        self, namespace: str, topic: str, partitions: int | None, options: Mapping[str, object]
    ) -> TopicInfo:
        request = _topic_request(namespace, topic, partitions, options)
        return wire.topic_from_wire(self._call("AlterTopic", request, pb.TopicReply).info)

    def delete_topic(self, namespace: str, topic: str) -> None:
        self._call("DeleteTopic", _name(namespace, topic), pb.Nothing)

    def describe_topic(self, namespace: str, topic: str) -> TopicInfo:
        reply = self._call("DescribeTopic", _name(namespace, topic), pb.TopicReply)
        return wire.topic_from_wire(reply.info)

    def list_topics(self, namespace: str | None) -> list[TopicInfo]:
        reply = self._call("ListTopics", _listing(namespace), pb.TopicsReply)
        return [wire.topic_from_wire(text) for text in reply.infos]

    def locate_topic(self, namespace: str, topic: str) -> tuple[str, int]:
        try:
            name = _name(namespace, topic)
        except BadRequestError as error:
            # What is no name is no topic's name: who asks whether it exists gets an answer.
            raise UnknownTopicError(topic) from error
        reply = self._call("LocateTopic", name, pb.TopicPlace)
        return reply.topic_id, reply.partitions

    def partition_info(self, namespace: str, topic: str, partition: int) -> PartitionInfo:
        _check_place(partition)
        request = pb.PartitionRequest(name=_name(namespace, topic), partition=partition)
        return wire.partition_from_wire(self._call("PartitionInfo", request, pb.JsonReply).json)

    # Records

    def write(
        self,
        namespace: str,
        topic: str,
        record: Record,
        partition: int | None,
        producer: Producer | None,
    ) -> Location:
        return self.write_many(namespace, topic, [record], partition, producer)[0]

    def write_many(
        self,
        namespace: str,
        topic: str,
        records: Sequence[Record],
        partition: int | None,
        producer: Producer | None,
    ) -> Sequence[Location]:
        if partition is not None:
            _check_place(partition)
        if producer is not None:
            check_producer(producer)
        request = pb.WriteRequest(
            name=_name(namespace, topic),
            records=_records(records),
            partition=partition,
            producer=None
            if producer is None
            else pb.Producer(id=producer.id, epoch=producer.epoch, sequence=producer.sequence),
        )
        return _written(self._call("Write", request, pb.WriteReply, again=producer is not None))

    def write_topics(
        self, namespace: str, batch: Sequence[tuple[str, Record]]
    ) -> Sequence[Location]:
        check_name(namespace, "a namespace")
        for topic, _ in batch:
            check_name(topic, "a topic")
        request = pb.WriteTopicsRequest(
            namespace=namespace,
            topics=[topic for topic, _ in batch],
            records=_records([record for _, record in batch]),
        )
        return _written(self._call("WriteTopics", request, pb.WriteReply, again=False))

    def read(
        self,
        namespace: str,
        topic: str,
        partition: int,
        offset: Offset,
        max_records: int,
        max_size: int,
    ) -> list[StoredRecord]:
        _check_place(partition)
        check_offset(offset)
        check_limit(max_records, "max_records")
        check_limit(max_size, "max_size")
        request = pb.ReadRequest(
            name=_name(namespace, topic),
            partition=partition,
            offset=min(offset, _INT64_MAX),
            max_records=min(max_records, _INT64_MAX),
            max_size=min(max_size, READ_SIZE_MAX),
        )
        reply = self._call("Read", request, pb.RecordsReply)
        return [wire.stored_from_wire(record) for record in reply.records]

    def read_columns(
        self, namespace: str, topic: str, partition: int, wanted: ColumnQuery
    ) -> list[pa.RecordBatch] | None:
        _check_place(partition)
        check_offset(wanted.offset)
        request = pb.ColumnsRequest(
            name=_name(namespace, topic),
            partition=partition,
            offset=min(wanted.offset, _INT64_MAX),
            until=min(wanted.until, _INT64_MAX),
            columns=wanted.columns,
            tag=None if wanted.tag is None else wire.to_bytes(wanted.tag),
            max_size=wanted.max_size,
        )
        reply = self._call("ReadColumns", request, pb.ColumnsReply)
        return wire.columns_from_wire(reply.arrow) if reply.HasField("arrow") else None

    def read_by_tag(
        self,
        namespace: str,
        topic: str,
        tag: str,
        partition: int | None,
        start_offset: Offset | Mapping[int, Offset],
        max_records: int,
        max_size: int,
    ) -> list[Message]:
        check_text(tag, "tag")
        if partition is not None:
            _check_place(partition)
        check_start(start_offset)
        check_limit(max_records, "max_records")
        check_limit(max_size, "max_size")
        by_partition = start_offset if isinstance(start_offset, Mapping) else {}
        request = pb.ReadByTagRequest(
            name=_name(namespace, topic),
            tag=wire.to_bytes(tag),
            partition=partition,
            start_offset=0 if isinstance(start_offset, Mapping) else min(start_offset, _INT64_MAX),
            start_offsets={one: min(at, _INT64_MAX) for one, at in by_partition.items()},
            max_records=min(max_records, _INT64_MAX),
            max_size=min(max_size, READ_SIZE_MAX),
        )
        return wire.messages_from_wire(
            topic, self._call("ReadByTag", request, pb.RecordsReply).records
        )

    def read_by_key(self, namespace: str, topic: str, key: bytes) -> Message | None:
        check_key(key)
        request = pb.KeyRequest(name=_name(namespace, topic), key=key)
        reply = self._call("ReadByKey", request, pb.RecordsReply)
        found = wire.messages_from_wire(topic, reply.records)
        return found[0] if found else None

    def query_by_key(
        self,
        namespace: str,
        topic: str,
        key: bytes,
        begin_ms: int,
        end_ms: int | None,
        limit: int,
    ) -> list[Message]:
        check_key(key)
        check_time(begin_ms, "begin_ms")
        check_limit(limit, "limit")
        request = pb.KeyRequest(
            name=_name(namespace, topic),
            key=key,
            begin_ms=_bounded(begin_ms),
            end_ms=None if end_ms is None else _bounded(end_ms),
            limit=min(limit, _INT64_MAX),
        )
        pages = self._call_for_pages("QueryByKey", request, pb.RecordsReply)
        return [
            message for page in pages for message in wire.messages_from_wire(topic, page.records)
        ]

    def offsets_at(
        self, namespace: str, topic: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> dict[int, Offset]:
        request = pb.OffsetsAtRequest(
            name=_name(namespace, topic),
            timestamp_ms=_bounded(timestamp_ms),
            strategy=strategy.value,
        )
        reply = self._call("OffsetsAt", request, pb.PartitionOffsets)
        return {one: Offset(offset) for one, offset in sorted(reply.offsets.items())}

    def delete_by_key(self, namespace: str, topic: str, key: bytes) -> int:
        check_key(key)
        request = pb.KeyRequest(name=_name(namespace, topic), key=key)
        return self._call("DeleteByKey", request, pb.CountReply).count

    def delete_by_offset(self, namespace: str, topic: str, partition: int, offset: Offset) -> bool:
        request = _partition(namespace, topic, partition, offset)
        return self._call("DeleteByOffset", request, pb.CountReply).count == 1

    def delete_before(self, namespace: str, topic: str, partition: int, offset: Offset) -> Offset:
        request = _partition(namespace, topic, partition, offset)
        return Offset(self._call("DeleteBefore", request, pb.CountReply).count)

    def compact(self, namespace: str, topic: str) -> Compacted:
        reply = self._call("Compact", _name(namespace, topic), pb.CompactReply)
        return Compacted(reply.records, reply.size)

    def wait_for_records(
        self, namespace: str, positions: Mapping[TopicPartition, Offset], seconds: float
    ) -> bool:
        check_name(namespace, "a namespace")
        places = _positions(positions, {})
        end = time.monotonic() + min(seconds, _DEADLINE_S_MAX)
        while True:
            # A server waits no longer at once, so that it can tell clients that are gone.
            left = min(max(0.0, end - time.monotonic()), WAIT_S_MAX)
            request = pb.WaitRequest(namespace=namespace, positions=places, seconds=left)
            found = False
            with contextlib.suppress(BusyError):  # too many wait there, in streams or joins
                found = self._call(
                    "WaitForRecords", request, pb.WaitReply, deadline_s=left + _WAIT_MARGIN_S
                ).found
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            time.sleep(min(left, _PAUSE_S))  # too many wait there, perhaps

    # Groups

    def commit(
        self,
        namespace: str,
        group: str,
        offsets: Mapping[TopicPartition, Offset],
        topic_ids: Mapping[str, str],
        caller: Caller | None = None,
    ) -> None:
        request = _group_offsets(namespace, group, offsets, topic_ids)
        if caller is not None:
            request.caller.CopyFrom(group_wire.caller_to_wire(None, caller))
        self._call("Commit", request, pb.Nothing)

    def committed(
        self, namespace: str, group: str, topics: Sequence[str] | None
    ) -> dict[TopicPartition, Offset]:
        request = pb.CommittedRequest(
            name=_group(namespace, group),
            topics=topics or [],
            all_topics=topics is None,
        )
        reply = self._call("Committed", request, pb.GroupOffsets)
        return wire.positions_from_wire(reply.positions)

    def reset(self, namespace: str, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        self._call("Reset", _group_offsets(namespace, group, offsets, {}), pb.Nothing)

    def join_group(self, namespace: str, group: str, request: Join, seconds: float) -> Joined:
        join = group_wire.join_to_wire(_group(namespace, group), request, seconds)
        join.client_host = socket.gethostname()
        deadline_s = seconds + _WAIT_MARGIN_S
        reply = self._call("JoinGroup", join, pb.GroupJoined, deadline_s=deadline_s)
        return group_wire.joined_from_wire(reply)

    def sync_group(self, namespace: str, group: str, request: Sync, seconds: float) -> Synced:
        sync = group_wire.sync_to_wire(_group(namespace, group), request, seconds)
        deadline_s = seconds + _WAIT_MARGIN_S
        reply = self._call("SyncGroup", sync, pb.GroupSynced, deadline_s=deadline_s)
        return group_wire.synced_from_wire(reply)

    def heartbeat_group(self, namespace: str, group: str, caller: Caller) -> GroupCode:
        request = group_wire.caller_to_wire(_group(namespace, group), caller)
        reply = self._call("HeartbeatGroup", request, pb.GroupCodeReply, deadline_s=_WAIT_MARGIN_S)
        return group_wire.code_from_wire(reply.code)

    def leave_group(
        self, namespace: str, group: str, member_id: str, instance_id: str | None
    ) -> GroupCode:
        caller = Caller(member_id, instance_id=instance_id)
        request = group_wire.caller_to_wire(_group(namespace, group), caller)
        # Not again: a program that ends does not wait for a server that is gone.
        reply = self._call(
            "LeaveGroup", request, pb.GroupCodeReply, deadline_s=_LEAVE_S, again=False
        )
        return group_wire.code_from_wire(reply.code)

    def list_groups(self, namespace: str | None) -> list[GroupInfo]:
        reply = self._call("ListGroups", _listing(namespace), pb.GroupsReply)
        return [group_wire.info_from_wire(group) for group in reply.groups]

    def describe_group(self, namespace: str, group: str) -> GroupInfo:
        name = _group(namespace, group)
        return group_wire.info_from_wire(self._call("DescribeGroup", name, pb.GroupReply))

    def delete_group(self, namespace: str, group: str) -> None:
        name = _group(namespace, group)
        self._call("DeleteGroup", name, pb.Nothing)

    # The store

    def allocate_producer_id(self) -> int:
        return self._call("AllocateProducerId", pb.Nothing(), pb.CountReply).count

    def run_upkeep(self) -> None:
        self._call("RunUpkeep", pb.Nothing(), pb.Nothing)

    def clock_status(self) -> ClockStatus:
        return self._clock("ClockStatus")

    def confirm_clock(self) -> ClockStatus:
        return self._clock("ConfirmClock")

    def _clock(self, method: str) -> ClockStatus:
        return _clocks.decode(self._call(method, pb.Nothing(), pb.JsonReply).json)

    def close(self) -> None:
        self._closed = True
        self._servers.close()


def _failure(error: grpc.RpcError, server: Server, request: WireMessage) -> Exception:
    """Return what the store raised, or that it did not answer."""
    found = error_of_call(error, server.address, request)
    call: object = error
    is_answered = isinstance(call, grpc.Call) and any(
        key == ERROR_KEY for key, _ in call.trailing_metadata() or ()
    )
    is_lost = isinstance(found, DeadlineError) and not is_answered
    return UnansweredError(found) if is_lost else found


def _serialize(message: WireMessage) -> bytes:
    return message.SerializeToString()


def _name(namespace: str, topic: str) -> pb.TopicName:
    check_name(namespace, "a namespace")
    check_name(topic, "a topic")
    return pb.TopicName(namespace=namespace, topic=topic)


def _listing(namespace: str | None) -> pb.ListRequest:
    if namespace is not None:
        check_name(namespace, "a namespace")
    return pb.ListRequest(namespace=namespace)


def _group(namespace: str, group: str) -> pb.GroupName:
    check_name(namespace, "a namespace")
    check_name(group, "a group")
    return pb.GroupName(namespace=namespace, group=group)


def _bounded(moment_ms: int) -> int:
    return max(-_INT64_MAX, min(moment_ms, _INT64_MAX))


def _check_place(partition: object) -> None:
    """Check a partition before it is put into a message, which has 32 bits for it."""
    check_partition(partition)
    check_shard(ShardId("-", cast("int", partition)))


def _records(records: Sequence[Record]) -> list[pb.Record]:
    try:
        for record in records:
            # Tags and headers that a store refuses could be put into a message; the rest could not.
            if record.tags is not _NONE or record.headers is not _NONE:
                check_record(record)
        return [wire.record_to_wire(record) for record in records]
    except (AttributeError, TypeError, ValueError):
        for record in records:
            check_record(record)  # says what is wrong
        raise


def _written(reply: pb.WriteReply) -> Sequence[Location]:
    if reply.HasField("failure"):
        raise error_from_wire(reply.failure)
    return wire.locations_from_wire(reply)


def _partition(namespace: str, topic: str, partition: int, offset: int) -> pb.PartitionRequest:
    _check_place(partition)
    check_offset(offset)
    return pb.PartitionRequest(
        name=_name(namespace, topic), partition=partition, offset=min(offset, _INT64_MAX)
    )


def _topic_request(
    namespace: str, topic: str, partitions: int | None, options: Mapping[str, object]
) -> pb.TopicRequest:
    name = _name(namespace, topic)
    for option, value in options.items():
        check_option(option, value)
    try:
        text = msgspec.json.encode(dict(options)).decode()
        return pb.TopicRequest(name=name, partitions=partitions, options=text)
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"such a topic cannot be asked for: {error}") from error


def _group_offsets(
    namespace: str,
    group: str,
    offsets: Mapping[TopicPartition, Offset],
    topic_ids: Mapping[str, str],
) -> pb.GroupOffsets:
    positions = _positions(offsets, topic_ids)
    for offset in offsets.values():
        if offset > _INT64_MAX:
            raise BadRequestError(f"an offset must fit in 64 bits, but is {offset}")
    return pb.GroupOffsets(name=_group(namespace, group), positions=positions)


def _positions(
    offsets: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, str]
) -> Sequence[pb.TopicPosition]:
    check_places(offsets)
    for _, partition in offsets:
        _check_place(partition)
    return wire.positions_to_wire(
        {at: Offset(min(offset, _INT64_MAX)) for at, offset in offsets.items()}, topic_ids
    )
