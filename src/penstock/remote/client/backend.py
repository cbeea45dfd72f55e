"""`RemoteBackend`: the calls of a store, sent to a server.

Every call has a deadline. A server that cannot be reached is tried again until then, and so are the
others when there are several addresses: see `failover`. A write is sent again only when it carries
a producer, because the first one may have arrived.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import Message as WireMessage

from penstock.api import TopicPartition
from penstock.api.requests.node import Request
from penstock.api.validation import check_name
from penstock.codec.validation import INT64_MAX, check_limit, check_offset, check_producer
from penstock.engine.contract import RECORDS_PER_READ, SIZE_PER_READ, Acks
from penstock.errors import BusyError, ClosedError, DeadlineError, NotSentError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.record import Location, Offset, Producer, Record, StoredRecord
from penstock.remote import storage_pb2 as pb
from penstock.remote.client.failover import Server, Servers, UnansweredError
from penstock.remote.wire import records as wire
from penstock.remote.wire.arguments import positions_to_wire
from penstock.remote.wire.call import SERVICE, WAIT_S_MAX
from penstock.remote.wire.calls import CALL_OF, REPLY_MARGIN_S
from penstock.remote.wire.errors import ERROR_KEY, error_from_wire, error_of_call
from penstock.remote.wire.fields import check_place, topic_name
from penstock.remote.wire.records import MESSAGE_SIZE_MAX, READ_SIZE_MAX

DEADLINE_S: Final = 30.0
_DEADLINE_S_MAX: Final = 365 * 24 * 3600.0
"""gRPC counts nanoseconds in 64 bits: a deadline of centuries would be in the past."""
_PAUSE_S: Final = 0.1

M = TypeVar("M", bound=WireMessage)
R = TypeVar("R")
_Call: TypeAlias = "grpc.UnaryUnaryMultiCallable[WireMessage, WireMessage]"


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
        self.place: Final = self._servers.name
        self.try_write: Final = None

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
        reply_type: type[M],
        *,
        deadline_s: float | None = None,
        waits: bool = True,
        may_repeat: bool = False,
    ) -> M:
        self._check_open()

        def attempt(server: Server, seconds: float, waits: bool) -> M:
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

        return self._servers.call(
            attempt, deadline_s or self._deadline_s, waits=waits, may_repeat=may_repeat
        )

    def _call_for_pages(
        self,
        method: str,
        request: WireMessage,
        reply_type: type[M],
        *,
        deadline_s: float | None = None,
        waits: bool = True,
        may_repeat: bool = False,
    ) -> M:
        """As `_call`, for a reply that one message might not hold: return all pages as one."""
        self._check_open()
        parse: Callable[[bytes], M] = reply_type.FromString

        def attempt(server: Server, seconds: float, waits: bool) -> M:
            call = server.channel.unary_stream(
                f"/{SERVICE}/{method}", request_serializer=_serialize, response_deserializer=parse
            )
            reply = reply_type()
            try:
                for page in call(request, timeout=seconds, wait_for_ready=waits):
                    reply.MergeFrom(page)
            except grpc.RpcError as error:
                raise _failure(error, server, request) from error
            return reply

        return self._servers.call(
            attempt, deadline_s or self._deadline_s, waits=waits, may_repeat=may_repeat
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the connection to {self._servers.name} was closed")

    def _make(self, server: Server, method: str, reply_type: type[M]) -> _Call:
        with self._lock:
            parse: Callable[[bytes], WireMessage] = reply_type.FromString
            call = server.channel.unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=_serialize,
                response_deserializer=parse,
            )
            self._calls[server.address, method] = call
            return call

    def execute(self, request: Request[R]) -> R:
        """Send a request; see `calls` for how."""
        call = CALL_OF[type(request)]
        message = call.to_wire(request)
        send = self._call_for_pages if call.is_paged else self._call
        reply = send(
            call.method,
            message,
            call.reply.message,
            deadline_s=None if call.deadline_s is None else call.deadline_s(request),
            waits=call.waits,
            may_repeat=call.may_repeat,
        )
        return cast("R", call.reply.from_wire(reply, request))

    def write(
        self,
        topic: str,
        record: Record,
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Location:
        return self.batch_write(
            topic, [record], partition=partition, producer=producer, acks=acks, namespace=namespace
        )[0]

    def batch_write(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Sequence[Location]:
        if partition is not None:
            check_place(partition)
        if producer is not None:
            check_producer(producer)
        request = pb.WriteRequest(
            name=topic_name(namespace, topic),
            records=wire.records_to_wire(records),
            partition=partition,
            producer=None if producer is None else wire.producer_to_wire(producer),
            acks="" if acks is Acks.ALL else acks.value,
        )
        is_repeatable = producer is not None
        return _written(
            self._call(
                "Write", request, pb.WriteReply, waits=is_repeatable, may_repeat=is_repeatable
            )
        )

    def batch_write_topics(
        self, batch: Sequence[tuple[str, Record]], *, namespace: str = DEFAULT_NAMESPACE
    ) -> Sequence[Location]:
        check_name(namespace, "a namespace")
        for topic, _ in batch:
            check_name(topic, "a topic")
        request = pb.WriteTopicsRequest(
            namespace=namespace,
            topics=[topic for topic, _ in batch],
            records=wire.records_to_wire([record for _, record in batch]),
        )
        return _written(self._call("WriteTopics", request, pb.WriteReply, waits=False))

    def read_by_offset(
        self,
        topic: str,
        partition: int,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[StoredRecord]:
        check_place(partition)
        check_offset(offset)
        check_limit(max_records, "max_records")
        check_limit(max_size, "max_size")
        request = pb.ReadRequest(
            name=topic_name(namespace, topic),
            partition=partition,
            offset=min(offset, INT64_MAX),
            max_records=min(max_records, INT64_MAX),
            max_size=min(max_size, READ_SIZE_MAX),
        )
        reply = self._call("Read", request, pb.RecordsReply, may_repeat=True)
        return [wire.stored_from_wire(record) for record in reply.records]

    def wait_for_records(
        self,
        positions: Mapping[TopicPartition, Offset],
        seconds: float,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> bool:
        check_name(namespace, "a namespace")
        places = positions_to_wire(positions)
        end = time.monotonic() + min(seconds, _DEADLINE_S_MAX)
        while True:
            # A server limits the length of one wait, so that it notices clients that are gone.
            left = min(max(0.0, end - time.monotonic()), WAIT_S_MAX)
            request = pb.WaitRequest(namespace=namespace, positions=places, seconds=left)
            has_records = False
            with contextlib.suppress(BusyError):  # too many calls wait there
                has_records = self._call(
                    "WaitForRecords",
                    request,
                    pb.WaitReply,
                    deadline_s=left + REPLY_MARGIN_S,
                    may_repeat=True,
                ).found
            left = end - time.monotonic()
            if has_records or left <= 0:
                return has_records
            time.sleep(min(left, _PAUSE_S))

    def close(self) -> None:
        self._closed = True
        self._servers.close()


def _failure(error: grpc.RpcError, server: Server, request: WireMessage) -> Exception:
    """Return what the store raised, or that it did not answer."""
    failure = error_of_call(error, server.address, request)
    call: object = error
    is_answered = isinstance(call, grpc.Call) and any(
        key == ERROR_KEY for key, _ in call.trailing_metadata() or ()
    )
    is_lost = isinstance(failure, DeadlineError) and not is_answered
    if not is_lost:
        return failure
    return UnansweredError(failure, is_sent=not isinstance(failure, NotSentError))


def _serialize(message: WireMessage) -> bytes:
    return message.SerializeToString()


def _written(reply: pb.WriteReply) -> Sequence[Location]:
    if reply.HasField("failure"):
        raise error_from_wire(reply.failure)
    return wire.locations_from_wire(reply)
