"""`StorageService`: a store over gRPC.

A request of the table in `calls` is one call of the backend, in a thread of the server's pool.
Calls that wait are generators of replies and pauses, and have no thread while they pause (see
`parked_calls`). Errors of the store keep their type on the way (see `wire_errors`); any other error
is a fault of the server: logged, and reported as one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, cast

from google.protobuf.message import Message as WireMessage
from msgspec.structs import replace

from penstock.adapter import RecordWatch
from penstock.adapter.requests import TopicRequest
from penstock.api.requests.groups import JoinGroup, SyncGroup
from penstock.api.requests.node import Request
from penstock.errors import BadRequestError, PartialWriteError
from penstock.groups.codes import GroupCode
from penstock.groups.model import Joined, Synced
from penstock.groups.routing import PendingReply
from penstock.platform.calls.grpc import attribute_of
from penstock.platform.calls.parked_calls import Steps
from penstock.platform.calls.wakeup import Pause, Wakeup
from penstock.record import Offset
from penstock.remote import storage_pb2 as pb
from penstock.remote.server.read_budget import ReadLimits, Share, with_share
from penstock.remote.server.served_backend import ServedBackend
from penstock.remote.wire import arguments
from penstock.remote.wire import groups as group_wire
from penstock.remote.wire import records as wire
from penstock.remote.wire.call import WAIT_S_MAX, Call
from penstock.remote.wire.calls import CALLS
from penstock.remote.wire.errors import error_to_wire
from penstock.remote.wire.fields import acks_from_wire
from penstock.remote.wire.records import READ_SIZE_MAX

WAITS_MAX: Final = 2_048
"""Calls that may wait for records or for a group; more are answered immediately."""
FOLLOW_WAIT_S: Final = 10.0
"""After so long a stream that follows gets an empty page."""
GROUP_WAIT_S_MAX: Final = 5.0


class StorageService:
    """The handlers of `storage.proto`, over a backend."""

    def __init__(
        self, backend: ServedBackend, stopping: threading.Event, reading: ReadLimits | None = None
    ) -> None:
        """`stopping` ends streams that follow a topic."""
        self._backend: Final = backend
        self._stopping: Final = stopping
        self._reading: Final = reading if reading is not None else ReadLimits()
        self._waits: Final = threading.Semaphore(WAITS_MAX)
        for call in CALLS:
            if not hasattr(self, attribute_of(call.method)):
                setattr(self, attribute_of(call.method), partial(self._serve, call))

    def _serve(self, call: Call, message: WireMessage) -> WireMessage | Iterator[WireMessage]:
        request = cast("Request[object]", call.from_wire(message))

        def run() -> WireMessage:
            return call.reply.to_wire(self._backend.execute(request), request)

        if call.is_read and isinstance(request, TopicRequest):
            size = getattr(request, "max_size", 0)
            return with_share(self._reading.share(request.namespace, request.topic, size), run)
        reply = run()
        if call.is_paged:
            return wire.pages_to_wire(cast("pb.RecordsReply", reply).records)
        return reply

    # Records

    def write(self, request: pb.WriteRequest) -> pb.WriteReply:
        name = request.name
        try:
            locations = self._backend.batch_write(
                name.topic,
                wire.records_from_wire(request.records),
                partition=request.partition if request.HasField("partition") else None,
                producer=(
                    wire.producer_from_wire(request.producer)
                    if request.HasField("producer")
                    else None
                ),
                acks=acks_from_wire(request.acks),
                namespace=name.namespace,
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
        records = wire.records_from_wire(request.records)
        batch = list(zip(request.topics, records, strict=True))
        try:
            locations = self._backend.batch_write_topics(batch, namespace=request.namespace)
        except PartialWriteError as error:
            return pb.WriteReply(failure=error_to_wire(error))
        return wire.locations_to_wire(locations)

    def read(self, request: pb.ReadRequest) -> pb.RecordsReply:
        name = request.name
        share = self._reading.share(name.namespace, name.topic, request.max_size)
        return with_share(share, lambda: self._read(request))

    def _read(self, request: pb.ReadRequest) -> pb.RecordsReply:
        records = self._backend.read_by_offset(
            request.name.topic,
            request.partition,
            Offset(request.offset),
            max_records=request.max_records,
            max_size=min(request.max_size, READ_SIZE_MAX),
            namespace=request.name.namespace,
        )
        return pb.RecordsReply(
            records=[wire.stored_to_wire(record, request.partition) for record in records]
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
                        share.resize(page.ByteSize())
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
        name, budget = request.name, self._reading.budget
        size = self._reading.size_of(name.namespace, name.topic, request.max_size)
        deadline = time.monotonic() + budget.wait_s
        while (share := budget.reserve_or_call(size, wakeup.set)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or self._stopping.is_set():
                raise budget.give_up(wakeup.set)
            yield Pause(wakeup, left)
        return share

    def _watch(self, request: pb.ReadRequest, wakeup: Wakeup) -> RecordWatch:
        name = request.name
        position = {(name.topic, request.partition): Offset(request.offset)}
        return self._backend.watch_records(position, wakeup.set, namespace=name.namespace)

    def _follow(self, watch: RecordWatch, wakeup: Wakeup) -> Steps:
        """Wait until it is time to read again."""
        until = time.monotonic() + min(watch.pause_s(), FOLLOW_WAIT_S)
        while not watch.has_news() and not self._stopping.is_set():
            left = until - time.monotonic()
            if left <= 0:
                # An empty page: a client that only reads can end its stream.
                yield pb.RecordsReply()
                return
            yield Pause(wakeup, left)

    def wait_for_records(self, request: pb.WaitRequest) -> Steps:
        wakeup = Wakeup()
        positions = wire.positions_from_wire(request.positions)
        with (
            self._may_wait(request.seconds, WAIT_S_MAX) as seconds,
            self._backend.watch_records(
                positions, wakeup.set, namespace=request.namespace
            ) as watch,
        ):
            until = time.monotonic() + seconds
            has_records = watch.has_records()
            while not has_records and not watch.is_over:
                left = until - time.monotonic()
                if left <= 0:
                    break
                yield Pause(wakeup, left)
                has_records = watch.has_news()
        yield pb.WaitReply(found=has_records)

    # Members of groups

    def join_group(self, message: pb.GroupJoin) -> Steps:
        pending = yield from self._ask_group(arguments.JOIN.from_wire(message))
        joined = pending.now().joined or Joined(GroupCode.invalid_request)
        yield group_wire.joined_to_wire(joined)

    def sync_group(self, message: pb.GroupSync) -> Steps:
        pending = yield from self._ask_group(arguments.SYNC.from_wire(message))
        synced = pending.now().synced or Synced(GroupCode.invalid_request)
        yield group_wire.synced_to_wire(synced)

    def _ask_group(
        self, request: JoinGroup | SyncGroup
    ) -> Generator[object, bool | None, PendingReply]:
        """Ask the coordinator, and wait until it has answered. One on another node answers also
        when the group has not decided within the time."""
        wakeup = Wakeup()
        with self._may_wait(request.seconds, GROUP_WAIT_S_MAX) as seconds:
            question = replace(request, seconds=seconds).question()
            pending = self._backend.begin_group_question(question, wakeup.set)
            until = time.monotonic() + seconds + pending.grace_s
            while not pending.is_there and not self._stopping.is_set():
                left = until - time.monotonic()
                if left <= 0:
                    break
                yield Pause(wakeup, left)
        return pending

    @contextmanager
    def _may_wait(self, seconds: float, seconds_max: float) -> Iterator[float]:
        """Yield how long a call may wait: not at all when too many calls wait. The client then
        pauses by itself."""
        may_wait = self._waits.acquire(blocking=False)
        try:
            limited = min(max(0.0, seconds), seconds_max) if math.isfinite(seconds) else 0.0
            yield limited if may_wait else 0.0
        finally:
            if may_wait:
                self._waits.release()
