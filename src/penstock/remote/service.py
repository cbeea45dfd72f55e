"""`StorageService`: a backend behind gRPC.

Each call is one call of the backend, in a thread of the server's pool. Calls that wait are
generators of replies and pauses, and have no thread while they pause (see `parked_calls`). Errors
of the store keep their type on the way (see `wire_errors`); anything else is a fault of ours:
logged, and answered as one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message as WireMessage

from penstock.adapter.record_watch import RecordWatch
from penstock.engine.contract import AdapterOffsetStrategy, ColumnQuery
from penstock.errors import (
    BadRequestError,
    CorruptionError,
    DeadlineError,
    PartialWriteError,
    RequestError,
    RetryableError,
    SetupError,
    StoreError,
)
from penstock.groups.codes import GroupCode
from penstock.groups.model import Joined, Synced
from penstock.groups.routing import PendingReply
from penstock.platform.addresses import find_problem, resolve, with_port
from penstock.platform.calls.grpc import WaitingPools, service_handlers, when_ended
from penstock.platform.calls.parked_calls import CallFailure, Resumer, Steps, WaitingCalls
from penstock.platform.calls.waiting_calls import WaitingThreads
from penstock.platform.calls.wakeup import Pause, Wakeup
from penstock.platform.log import get_logger
from penstock.record import Offset
from penstock.remote import group_wire, wire
from penstock.remote import storage_pb2 as pb
from penstock.remote.call_threads import CallThreads
from penstock.remote.read_budget import ReadBudget, Share
from penstock.remote.served_backend import ServedBackend
from penstock.remote.wire import MESSAGE_SIZE_MAX, READ_SIZE_MAX
from penstock.remote.wire_errors import error_to_metadata, error_to_wire, status_details

R = TypeVar("R", bound=WireMessage)
SERVICE: Final = "penstock.storage.v1.StorageService"
THREADS_MAX: Final = 256
WAITS_MAX: Final = 2_048
"""Calls that may wait for records or for a group; more are answered immediately."""
STREAMS_MAX: Final = 4_096
"""Streams that follow a topic or the metadata; as many calls with one reply that wait."""
PER_CLIENT_MAX: Final = 256
"""Streams of one connection."""
STREAM_THREADS_MAX: Final = 64
WAIT_THREADS_MAX: Final = 64
"""Threads for such calls while they read and send: none while they wait."""
WRITE_STREAMS_MAX: Final = 256
WRITE_STREAMS_PER_CLIENT_MAX: Final = 64
"""Streams of writes, each of which has a thread."""
KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
FOLLOW_WAIT_S: Final = 10.0
"""After so long a stream that follows gets an empty page."""
WAIT_S_MAX: Final = 30.0
READ_MEMORY_MAX: Final = 1 << 30
BATCH_SIZE: Final = 64 << 20
"""What one batch may inflate to (`kafka.batch_inflated_size_max`)."""
RECORD_SIZE: Final = 4 << 20
GROUP_WAIT_S_MAX: Final = 5.0

_log: Final = get_logger(__name__)

_CODES: Final[list[tuple[type[StoreError], grpc.StatusCode]]] = [
    (BadRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (RequestError, grpc.StatusCode.FAILED_PRECONDITION),
    (RetryableError, grpc.StatusCode.UNAVAILABLE),
    (SetupError, grpc.StatusCode.FAILED_PRECONDITION),
    (CorruptionError, grpc.StatusCode.DATA_LOSS),
]


class ReadLimits:
    """What a read may take of the server's memory."""

    def __init__(
        self,
        size_max: int = READ_MEMORY_MAX,
        holds_batches: Callable[[str, str], bool] = lambda _namespace, _topic: False,
    ) -> None:
        """`holds_batches` says whether a topic has batches, each of which may inflate."""
        self.budget: Final = ReadBudget(size_max)
        self._holds_batches: Final = holds_batches

    def share(self, name: pb.TopicName, max_size: int) -> Share:
        return self.budget.take(self.size_of(name, max_size))

    def size_of(self, name: pb.TopicName, max_size: int) -> int:
        """Return what a read takes before it begins."""
        least = BATCH_SIZE if self._holds_batches(name.namespace, name.topic) else RECORD_SIZE
        return max(min(max_size, READ_SIZE_MAX), least)


def _kept(share: Share, read: Callable[[], R]) -> R:
    """Return a reply, and hold its share until the call has ended."""
    try:
        reply = read()
        share.settle(reply.ByteSize())
    except BaseException:
        share.release()
        raise
    share.release_with(when_ended)
    return reply


class StorageService:
    """The handlers of `storage.proto`, over a backend."""

    def __init__(
        self, backend: ServedBackend, stopping: threading.Event, reading: ReadLimits | None = None
    ) -> None:
        """`stopping` ends streams that would go on for ever."""
        self._backend: Final = backend
        self._stopping: Final = stopping
        self._reading: Final = reading if reading is not None else ReadLimits()
        self._waits: Final = threading.Semaphore(WAITS_MAX)

    # Topics

    def create_topic(self, request: pb.TopicRequest) -> pb.TopicReply:
        info = self._backend.create_topic(
            request.name.namespace, request.name.topic, *_shape(request)
        )
        return pb.TopicReply(info=wire.topic_to_wire(info))

    def alter_topic(self, request: pb.TopicRequest) -> pb.TopicReply:
        info = self._backend.alter_topic(
            request.name.namespace, request.name.topic, *_shape(request)
        )
        return pb.TopicReply(info=wire.topic_to_wire(info))

    def delete_topic(self, name: pb.TopicName) -> pb.Nothing:
        self._backend.delete_topic(name.namespace, name.topic)
        return pb.Nothing()

    def describe_topic(self, name: pb.TopicName) -> pb.TopicReply:
        info = self._backend.describe_topic(name.namespace, name.topic)
        return pb.TopicReply(info=wire.topic_to_wire(info))

    def list_topics(self, request: pb.ListRequest) -> pb.TopicsReply:
        found = self._backend.list_topics(_namespace(request))
        return pb.TopicsReply(infos=[wire.topic_to_wire(info) for info in found])

    def locate_topic(self, name: pb.TopicName) -> pb.TopicPlace:
        topic_id, partitions = self._backend.locate_topic(name.namespace, name.topic)
        return pb.TopicPlace(topic_id=topic_id, partitions=partitions)

    def partition_info(self, request: pb.PartitionRequest) -> pb.JsonReply:
        name = request.name
        info = self._backend.partition_info(name.namespace, name.topic, request.partition)
        return pb.JsonReply(json=msgspec.json.encode(info).decode())

    # Records

    def write(self, request: pb.WriteRequest) -> pb.WriteReply:
        name = request.name
        try:
            locations = self._backend.write_many(
                name.namespace,
                name.topic,
                [wire.record_from_wire(record) for record in request.records],
                request.partition if request.HasField("partition") else None,
                wire.producer_from_wire(request),
            )
        except PartialWriteError as error:
            return pb.WriteReply(failure=error_to_wire(error))
        return wire.locations_to_wire(locations)

    def write_stream(self, requests: Iterator[pb.WriteRequest]) -> Iterator[pb.WriteReply]:
        return map(self.write, requests)

    def write_topics(self, request: pb.WriteTopicsRequest) -> pb.WriteReply:
        if len(request.topics) != len(request.records):
            raise BadRequestError(
                f"{len(request.topics)} topics are named for {len(request.records)} records; "
                "expected one for each"
            )
        records = (wire.record_from_wire(record) for record in request.records)
        batch = list(zip(request.topics, records, strict=True))
        try:
            locations = self._backend.write_topics(request.namespace, batch)
        except PartialWriteError as error:
            return pb.WriteReply(failure=error_to_wire(error))
        return wire.locations_to_wire(locations)

    def read(self, request: pb.ReadRequest) -> pb.RecordsReply:
        share = self._reading.share(request.name, request.max_size)
        return _kept(share, lambda: self._read(request))

    def _read(self, request: pb.ReadRequest) -> pb.RecordsReply:
        found = self._backend.read(
            request.name.namespace,
            request.name.topic,
            request.partition,
            Offset(request.offset),
            request.max_records,
            min(request.max_size, READ_SIZE_MAX),
        )
        return pb.RecordsReply(
            records=[wire.stored_to_wire(record, request.partition) for record in found]
        )

    def read_stream(self, request: pb.ReadRequest) -> Steps:
        wakeup = Wakeup()
        watch: RecordWatch | None = None
        try:
            while True:
                share = yield from self._wait_for_share(request, wakeup)
                with share:
                    page = self._read(request)
                    if page.records:
                        share.settle(page.ByteSize())
                        request.offset = page.records[-1].offset + 1
                        yield page
                if page.records:
                    continue
                if not request.follow or self._stopping.is_set():
                    return
                if watch is not None and watch.is_gone():
                    watch.close()
                    watch = None
                if watch is None:
                    watch = self._watch(request, wakeup)
                watch.move(Offset(request.offset))
                yield from self._follow(watch, wakeup)
        finally:
            if watch is not None:
                watch.close()

    def _wait_for_share(
        self, request: pb.ReadRequest, wakeup: Wakeup
    ) -> Generator[object, bool | None, Share]:
        """Wait for a share of the memory for replies, without a thread."""
        budget, size = self._reading.budget, self._reading.size_of(request.name, request.max_size)
        deadline = time.monotonic() + budget.wait_s
        while (share := budget.take_or_call(size, wakeup.set)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or self._stopping.is_set():
                raise budget.give_up(wakeup.set)
            yield Pause(wakeup, left)
        return share

    def _watch(self, request: pb.ReadRequest, wakeup: Wakeup) -> RecordWatch:
        name = request.name
        at = {(name.topic, request.partition): Offset(request.offset)}
        return self._backend.watch_records(name.namespace, at, wakeup.set)

    def _follow(self, watch: RecordWatch, wakeup: Wakeup) -> Steps:
        """Wait until it is time to read again."""
        until = time.monotonic() + min(watch.pause_s(), FOLLOW_WAIT_S)
        while not watch.has_news() and not self._stopping.is_set():
            left = until - time.monotonic()
            if left <= 0:
                # An empty page: a client that only reads can end its stream, and look around.
                yield pb.RecordsReply()
                return
            yield Pause(wakeup, left)

    def read_columns(self, request: pb.ColumnsRequest) -> pb.ColumnsReply:
        if find_spec("pyarrow") is None:
            return pb.ColumnsReply()
        wanted = ColumnQuery(
            request.offset,
            request.until,
            tuple(request.columns),
            wire.to_text(request.tag) if request.HasField("tag") else None,
            min(request.max_size, MESSAGE_SIZE_MAX // 4),
        )
        name = request.name

        def read() -> pb.ColumnsReply:
            found = self._backend.read_columns(
                name.namespace, name.topic, request.partition, wanted
            )
            return pb.ColumnsReply(arrow=None if found is None else wire.columns_to_wire(found))

        return _kept(self._reading.share(name, request.max_size), read)

    def read_by_tag(self, request: pb.ReadByTagRequest) -> pb.RecordsReply:
        start: Offset | dict[int, Offset] = Offset(request.start_offset)
        if request.start_offsets:
            start = {one: Offset(offset) for one, offset in request.start_offsets.items()}

        def read() -> pb.RecordsReply:
            found = self._backend.read_by_tag(
                request.name.namespace,
                request.name.topic,
                wire.to_text(request.tag),
                request.partition if request.HasField("partition") else None,
                start,
                request.max_records,
                min(request.max_size, READ_SIZE_MAX),
            )
            return wire.messages_to_wire(found)

        return _kept(self._reading.share(request.name, request.max_size), read)

    def read_by_key(self, request: pb.KeyRequest) -> pb.RecordsReply:
        name = request.name

        def read() -> pb.RecordsReply:
            found = self._backend.read_by_key(name.namespace, name.topic, request.key)
            return wire.messages_to_wire([] if found is None else [found])

        return _kept(self._reading.share(name, 0), read)

    def query_by_key(self, request: pb.KeyRequest) -> Iterator[pb.RecordsReply]:
        end_ms = request.end_ms if request.HasField("end_ms") else None
        found = self._backend.query_by_key(
            request.name.namespace,
            request.name.topic,
            request.key,
            request.begin_ms,
            end_ms,
            request.limit,
        )
        return wire.pages_to_wire(
            wire.stored_to_wire(message.record, message.partition) for message in found
        )

    def offsets_at(self, request: pb.OffsetsAtRequest) -> pb.PartitionOffsets:
        try:
            strategy = AdapterOffsetStrategy(request.strategy)
        except ValueError as error:
            raise BadRequestError(f"there is no strategy {request.strategy!r}") from error
        name = request.name
        found = self._backend.offsets_at(name.namespace, name.topic, request.timestamp_ms, strategy)
        return pb.PartitionOffsets(offsets=dict(found))

    def wait_for_records(self, request: pb.WaitRequest) -> Steps:
        wakeup = Wakeup()
        positions = wire.positions_from_wire(request.positions)
        with (
            self._may_wait(request.seconds, WAIT_S_MAX) as seconds,
            self._backend.watch_records(request.namespace, positions, wakeup.set) as watch,
        ):
            until = time.monotonic() + seconds
            found = watch.has_records()
            while not found and not watch.is_over:
                left = until - time.monotonic()
                if left <= 0:
                    break
                yield Pause(wakeup, left)
                found = watch.has_news()
        yield pb.WaitReply(found=found)

    # Deleting

    def delete_by_key(self, request: pb.KeyRequest) -> pb.CountReply:
        name = request.name
        count = self._backend.delete_by_key(name.namespace, name.topic, request.key)
        return pb.CountReply(count=count)

    def delete_by_offset(self, request: pb.PartitionRequest) -> pb.CountReply:
        name, offset = request.name, Offset(request.offset)
        deleted = self._backend.delete_by_offset(
            name.namespace, name.topic, request.partition, offset
        )
        return pb.CountReply(count=int(deleted))

    def delete_before(self, request: pb.PartitionRequest) -> pb.CountReply:
        name, offset = request.name, Offset(request.offset)
        earliest = self._backend.delete_before(
            name.namespace, name.topic, request.partition, offset
        )
        return pb.CountReply(count=earliest)

    def compact(self, name: pb.TopicName) -> pb.CompactReply:
        done = self._backend.compact(name.namespace, name.topic)
        return pb.CompactReply(records=done.records, size=done.size)

    # Groups

    def commit(self, request: pb.GroupOffsets) -> pb.Nothing:
        positions = wire.positions_from_wire(request.positions)
        topic_ids = wire.topic_ids_from_wire(request.positions)
        caller = group_wire.caller_from_wire(request.caller) if request.HasField("caller") else None
        name = request.name
        self._backend.commit(name.namespace, name.group, positions, topic_ids, caller)
        return pb.Nothing()

    def committed(self, request: pb.CommittedRequest) -> pb.GroupOffsets:
        topics = None if request.all_topics else list(request.topics)
        found = self._backend.committed(request.name.namespace, request.name.group, topics)
        return pb.GroupOffsets(name=request.name, positions=wire.positions_to_wire(found))

    def reset(self, request: pb.GroupOffsets) -> pb.Nothing:
        positions = wire.positions_from_wire(request.positions)
        self._backend.reset(request.name.namespace, request.name.group, positions)
        return pb.Nothing()

    def list_groups(self, request: pb.ListRequest) -> pb.GroupsReply:
        found = self._backend.list_groups(_namespace(request))
        return pb.GroupsReply(groups=[group_wire.info_to_wire(info) for info in found])

    def describe_group(self, name: pb.GroupName) -> pb.GroupReply:
        return group_wire.info_to_wire(self._backend.describe_group(name.namespace, name.group))

    def delete_group(self, name: pb.GroupName) -> pb.Nothing:
        self._backend.delete_group(name.namespace, name.group)
        return pb.Nothing()

    # Members of groups

    def join_group(self, request: pb.GroupJoin) -> Steps:
        name, wakeup = request.caller.name, Wakeup()
        join = group_wire.join_from_wire(request)
        with self._may_wait(request.wait_s, GROUP_WAIT_S_MAX) as seconds:
            pending = self._backend.begin_join(
                name.namespace, name.group, join, seconds, wakeup.set
            )
            yield from self._decided(pending, wakeup, seconds)
        joined = pending.now().joined or Joined(GroupCode.invalid_request)
        yield group_wire.joined_to_wire(joined)

    def sync_group(self, request: pb.GroupSync) -> Steps:
        name, wakeup = request.caller.name, Wakeup()
        sync = group_wire.sync_from_wire(request)
        with self._may_wait(request.wait_s, GROUP_WAIT_S_MAX) as seconds:
            pending = self._backend.begin_sync(
                name.namespace, name.group, sync, seconds, wakeup.set
            )
            yield from self._decided(pending, wakeup, seconds)
        synced = pending.now().synced or Synced(GroupCode.invalid_request)
        yield group_wire.synced_to_wire(synced)

    def _decided(self, pending: PendingReply, wakeup: Wakeup, seconds: float) -> Steps:
        """Wait until the coordinator has answered. One on another node answers also when the group
        has not decided within `seconds`."""
        until = time.monotonic() + seconds + pending.grace_s
        while not pending.is_there and not self._stopping.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return
            yield Pause(wakeup, left)

    def heartbeat_group(self, request: pb.GroupCaller) -> pb.GroupCodeReply:
        caller = group_wire.caller_from_wire(request)
        name = request.name
        code = self._backend.heartbeat_group(name.namespace, name.group, caller)
        return pb.GroupCodeReply(code=code)

    def leave_group(self, request: pb.GroupCaller) -> pb.GroupCodeReply:
        caller = group_wire.caller_from_wire(request)
        code = self._backend.leave_group(
            request.name.namespace, request.name.group, caller.member_id, caller.instance_id
        )
        return pb.GroupCodeReply(code=code)

    @contextmanager
    def _may_wait(self, seconds: float, seconds_max: float) -> Iterator[float]:
        """Yield how long a call may wait: beyond the bound of those that do, not at all. Then the
        client pauses by itself."""
        may_wait = self._waits.acquire(blocking=False)
        try:
            wanted = seconds if math.isfinite(seconds) else 0.0
            yield min(max(0.0, wanted), seconds_max) if may_wait else 0.0
        finally:
            if may_wait:
                self._waits.release()

    # The store

    def allocate_producer_id(self, _: pb.Nothing) -> pb.CountReply:
        return pb.CountReply(count=self._backend.allocate_producer_id())

    def run_upkeep(self, _: pb.Nothing) -> pb.Nothing:
        self._backend.run_upkeep()
        return pb.Nothing()

    def clock_status(self, _: pb.Nothing) -> pb.JsonReply:
        return pb.JsonReply(json=msgspec.json.encode(self._backend.clock_status()).decode())

    def confirm_clock(self, _: pb.Nothing) -> pb.JsonReply:
        return pb.JsonReply(json=msgspec.json.encode(self._backend.confirm_clock()).decode())


def _shape(request: pb.TopicRequest) -> tuple[int | None, dict[str, object]]:
    try:
        options = msgspec.json.decode(request.options or "{}", type=dict[str, object])
    except msgspec.DecodeError as error:
        raise BadRequestError(f"a topic's options are a JSON object: {error}") from error
    return request.partitions if request.HasField("partitions") else None, options


def _namespace(request: pb.ListRequest) -> str | None:
    return request.namespace if request.HasField("namespace") else None


# The server


def waiting_pools() -> WaitingPools:
    """Return the bounds and threads of a server for calls that wait."""
    resumer = Resumer()
    return WaitingPools(
        WaitingCalls(
            CallThreads(STREAM_THREADS_MAX, "penstock-rpc-stream"),
            resumer,
            STREAMS_MAX,
            PER_CLIENT_MAX,
        ),
        WaitingCalls(
            CallThreads(WAIT_THREADS_MAX, "penstock-rpc-wait"),
            resumer,
            STREAMS_MAX,
            STREAMS_MAX,
        ),
        WaitingThreads(WRITE_STREAMS_MAX, WRITE_STREAMS_PER_CLIENT_MAX),
    )


def start_server(
    backend: ServedBackend,
    host: str,
    port: int,
    *,
    stopping: threading.Event,
    reading: ReadLimits | None = None,
    also: Sequence[grpc.GenericRpcHandler] = (),
    threads: CallThreads | None = None,
    pools: WaitingPools | None = None,
) -> tuple[grpc.Server, int]:
    """Serve `backend`, and `also` other services; return the server and its port (chosen when
    `port` is 0). Set `stopping` before the server is stopped.

    Raises `SetupError` when the port is taken, or `host` no address of this machine.
    """
    resolve(host, port)  # says what gRPC does not: that nobody knows the name
    server = grpc.server(
        threads if threads is not None else CallThreads(THREADS_MAX),
        options=[
            ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
            ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
            ("grpc.so_reuseport", 0),
            # Clients that vanished without a word are noticed, and their streams end.
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ],
    )
    service = StorageService(backend, stopping, reading)
    handlers = service_handlers(pb, SERVICE, service, failure_of, pools)
    server.add_generic_rpc_handlers((handlers, *also))
    try:
        bound = server.add_insecure_port(with_port(host, port))
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise find_problem(host, port, choose="another port")
    server.start()
    return server, bound


def failure_of(error: StoreError) -> CallFailure:
    """Return how a call ends with an error that keeps its type."""
    code = next((c for kind, c in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    return CallFailure(code, status_details(error), (error_to_metadata(error),))
