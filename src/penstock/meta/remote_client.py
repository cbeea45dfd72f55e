"""`MetaClient` over gRPC, for nodes and tools outside of the groups.

It calls one node after the other until one answers. A command keeps its request id in retries, so
that it is applied once.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

import grpc
from google.protobuf.message import Message as WireMessage
from msgspec.msgpack import Decoder

from penstock import errors
from penstock.errors import (
    ClosedError,
    DeadlineError,
    DiskFailedError,
    RetryableError,
    StoreError,
)
from penstock.meta import events
from penstock.meta.client_api.call_batcher import CallBatcher
from penstock.meta.client_api.local_reads import STALENESS_MS, LocalRows
from penstock.meta.client_api.metadata_client import LogMetadataClient
from penstock.meta.client_api.offset_client import LogOffsetClient
from penstock.meta.client_api.transaction_client import LogTransactionClient
from penstock.meta.controller.decisions import (
    OFFLINE,
    Load,
    load_of,
    load_of_placements,
    place_shards,
    storage_nodes,
)
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.raft.bootstrap import group_names
from penstock.meta.rejections import encode_checked
from penstock.meta.service import ERROR_KEY, SERVICE, MetaService
from penstock.meta.standalone.group import GroupLog, GroupName
from penstock.meta.standalone.log import METADATA
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import PLUGIN_STORAGE_ROLE
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.rows import NODES, SHARDS
from penstock.meta.state.offsets import commands as offset_cmd
from penstock.meta.state.view import Row
from penstock.meta.watch import Update, Watch, Watchers
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger

DEADLINE_S: Final = 30.0
_TRY_S: Final = 10.0
_PAUSE_S: Final = 0.1
_PLACES_KNOWN_S: Final = 1.0
"""How long the list of nodes and their shard counts are cached."""
HEARTBEAT_SECONDS: Final = 0.5
CHECK_BEATS: Final = 10
"""Heartbeats between two checks of this node's stored registration."""
_UNREACHABLE_S: Final = 10.0
"""Time without an answer after which the metadata service counts as unreachable."""
_MESSAGE_SIZE_MAX: Final = 16 << 20

_log: Final = get_logger(__name__)

R = TypeVar("R", bound=WireMessage)
T = TypeVar("T")
AnswerT = TypeVar("AnswerT")

_rejected_decoder: Final = Decoder(Rejected)
_events_decoder: Final = Decoder(tuple[events.Event, ...])


class MetaConnection:
    """Calls of the service, at the first of several addresses that answers."""

    def __init__(self, addresses: Sequence[str], *, deadline_s: float, clock: Clock) -> None:
        self._addresses = list(addresses)
        self._deadline_s = deadline_s
        self._clock = clock
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._calls: dict[
            tuple[str, str], grpc.UnaryUnaryMultiCallable[WireMessage, WireMessage]
        ] = {}
        self._never = threading.Event()
        self.is_closed = False

    def call(self, method: str, request: WireMessage, reply_type: type[R]) -> R:
        deadline = self._clock.monotonic() + self._deadline_s
        while True:
            address = self._addresses[0]
            try:
                return self._call(address, method, request, reply_type)
            except (RetryableError, DiskFailedError, ClosedError) as error:
                if self._is_final(error) or self._clock.monotonic() > deadline:
                    raise
                self.rotate_from(address)
                self._clock.wait(self._never, _PAUSE_S)

    def retry(self, work: Callable[[], T]) -> T:
        """Run `work`, and again after retryable errors, until the deadline."""
        deadline = self._clock.monotonic() + self._deadline_s
        while True:
            address = self._addresses[0]
            try:
                return work()
            except (RetryableError, DiskFailedError, ClosedError) as error:
                if self._is_final(error) or self._clock.monotonic() > deadline:
                    raise
                self.rotate_from(address)
                self._clock.wait(self._never, _PAUSE_S)

    def channel(self, address: str | None = None) -> grpc.Channel:
        if self.is_closed:
            raise ClosedError("the connection to the meta service was closed")
        address = address or self._addresses[0]
        with self._lock:
            if address not in self._channels:
                options = [("grpc.max_receive_message_length", _MESSAGE_SIZE_MAX)]
                self._channels[address] = grpc.insecure_channel(address, options=options)
            return self._channels[address]

    def close(self) -> None:
        self.is_closed = True
        self._never.set()
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()
            self._calls.clear()

    def _call(self, address: str, method: str, request: WireMessage, reply_type: type[R]) -> R:
        call = self._calls.get((address, method))
        if call is None or self.is_closed:
            parse: Callable[[bytes], WireMessage] = reply_type.FromString
            call = self.channel(address).unary_unary(
                f"/{SERVICE}/{method}", request_serializer=_serialize, response_deserializer=parse
            )
            self._calls[address, method] = call
        try:
            reply = call(request, timeout=min(_TRY_S, self._deadline_s))
        except grpc.RpcError as error:
            raise error_of_call(address, error) from error
        assert isinstance(reply, reply_type), "the deserializer makes it"
        return reply

    def _is_final(self, error: StoreError) -> bool:
        """Whether retries are useless: the node's disk has failed, or it stops, and it is the only
        one."""
        has_others = len(self._addresses) > 1 or isinstance(error, RetryableError)
        return self.is_closed or not has_others

    @property
    def address(self) -> str:
        """The address that is tried first."""
        return self._addresses[0]

    def rotate_from(self, address: str) -> None:
        """Try the other addresses before this one, which did not answer."""
        with self._lock:
            if self._addresses[0] == address:
                self._addresses.append(self._addresses.pop(0))


def error_of_call(address: str, error: grpc.RpcError) -> StoreError:
    """Return the error that the server raised, or a `DeadlineError` when it was not reached."""
    # The errors of gRPC are both RpcError and Call, which its types do not say.
    call: object = error
    if not isinstance(call, grpc.Call):
        return DeadlineError(f"{address}: {error}")
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            made = _error_named(value.decode(), call.details() or "")
            if made is not None:
                return made
    return DeadlineError(f"{address}: {call.details()}")


def _error_named(name: str, reason: str) -> StoreError | None:
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, StoreError):
        return None
    made: StoreError = kind.__new__(kind)
    made.args = (reason,)
    return made


def _parse_watch(data: bytes) -> pb.WatchReply:
    return pb.WatchReply.FromString(data)


def _serialize(message: WireMessage) -> bytes:
    return message.SerializeToString()


class RemoteRows:
    """Rows of a group, read over the connection; with `staleness_ms`, local reads of the node that
    answers."""

    def __init__(
        self, connection: MetaConnection, number: int, staleness_ms: int | None = None
    ) -> None:
        self._connection = connection
        self._number = number
        self._staleness_ms = staleness_ms
        self._age_ms: int | None = 0

    def within(self, staleness_ms: int) -> LocalRows:
        rows = RemoteRows(self._connection, self._number, staleness_ms)
        return LocalRows(rows, lambda: rows.age_ms)

    @property
    def age_ms(self) -> int | None:
        """The greatest age of all answers so far; None: the age of one is unknown."""
        return self._age_ms

    def get(self, key: bytes) -> bytes | None:
        request = pb.GetRequest(
            group=self._number,
            key=key,
            is_local=self._staleness_ms is not None,
            max_staleness_ms=self._staleness_ms,
        )
        reply = self._connection.call("Get", request, pb.GetReply)
        self._update_age(reply)
        return reply.row if reply.is_there else None

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        while True:
            request = pb.ScanRequest(
                group=self._number,
                start=start,
                end=end,
                is_local=self._staleness_ms is not None,
                max_staleness_ms=self._staleness_ms,
            )
            reply = self._connection.call("Scan", request, pb.ScanReply)
            self._update_age(reply)
            for found in reply.rows:
                yield found.key, found.row
            if not reply.has_more:
                return
            start = reply.rows[-1].key + b"\x00"

    def _update_age(self, reply: pb.GetReply | pb.ScanReply) -> None:
        if not reply.HasField("age_ms"):
            self._age_ms = None
        elif self._age_ms is not None:
            self._age_ms = max(self._age_ms, reply.age_ms)


class RemoteGroup(Generic[AnswerT]):
    """A group that other nodes hold."""

    def __init__(
        self,
        connection: MetaConnection,
        name: GroupName,
        number: int,
        decode: Callable[[bytes], AnswerT],
    ) -> None:
        self.name: Final = name
        self.reader: Final = RemoteRows(connection, number)
        self._connection = connection
        self._number = number
        self._decode = decode
        self._batcher: CallBatcher[pb.ProposeOutcome] = CallBatcher(self._send)

    def propose(self, data: bytes) -> AnswerT | Rejected:
        outcome = self._connection.retry(lambda: self._outcome(data))
        if outcome.is_rejected:
            return _rejected_decoder.decode(outcome.answer)
        return self._decode(outcome.answer)

    def propose_many(self, requests: Sequence[bytes]) -> list[AnswerT | Rejected | StoreError]:
        answers: list[AnswerT | Rejected | StoreError] = []
        for data in requests:
            try:
                answers.append(self.propose(data))
            except StoreError as error:
                answers.append(error)
        return answers

    def _outcome(self, data: bytes) -> pb.ProposeOutcome:
        outcome = self._batcher.call(data)
        if outcome.error:
            error = _error_named(outcome.error, outcome.reason)
            raise error if error is not None else DeadlineError(outcome.reason)
        return outcome

    def _send(self, requests: list[bytes]) -> list[pb.ProposeOutcome]:
        request = pb.ProposeManyRequest(group=self._number, requests=requests)
        reply = self._connection.call("ProposeMany", request, pb.ProposeManyReply)
        return list(reply.outcomes)


class RemoteMetaClient(LogMetadataClient, LogOffsetClient, LogTransactionClient):
    """`MetaClient` of a node that keeps no groups itself. `close` when done."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        node_id: int,
        deadline_s: float = DEADLINE_S,
        clock: Clock | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        store_id: str = "",
    ) -> None:
        """`store_id` says which records this node has; empty: it keeps none."""
        self._store_id = store_id
        clock = clock if clock is not None else SystemClock()
        self.connection: Final = MetaConnection(addresses, deadline_s=deadline_s, clock=clock)
        status = self.connection.call(
            "ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusReply
        )
        names = group_names(status.offset_groups)
        self._nonce = entropy(8).hex()
        self._listeners: dict[str, str] = {}
        self._registering = threading.Lock()
        self._last_beat = clock.monotonic()
        self._is_registered = False
        self._placing = threading.Lock()
        self._place_until = 0.0
        self._places: set[int] = set()
        self._load = Load()
        self._requests = 0
        self._counting = threading.Lock()
        self._closing = threading.Event()
        # Its own connection: a call that waits for a node that hangs must not hold up the beats.
        self._heart = MetaConnection(addresses, deadline_s=HEARTBEAT_SECONDS, clock=clock)
        self._beating = threading.Thread(target=self._beat, name="penstock-meta-beat", daemon=True)
        LogMetadataClient.__init__(
            self,
            RemoteGroup(self.connection, names[0], 0, Decoder(cmd.Applied).decode),
            Watchers(),
            node_id=node_id,
            cluster_id=status.cluster_id,
            clock=clock,
            entropy=entropy,
        )
        groups = [
            RemoteGroup(self.connection, name, number, Decoder(offset_cmd.OffsetApplied).decode)
            for number, name in enumerate(names[1:], start=1)
        ]
        LogOffsetClient.__init__(self, groups, node_id=node_id, clock=clock)
        LogTransactionClient.__init__(self, groups, clock=clock)

    def watch(self, after: int, callback: Callable[[Update], None]) -> Watch:
        """As `MetadataClient.watch`, on a thread of its own; after a lost connection it continues
        from the last revision."""
        watch = Watch(callback, after)
        begun = threading.Event()
        threading.Thread(
            target=self._follow, args=(watch, begun), name="penstock-meta-watch", daemon=True
        ).start()
        if not begun.wait(DEADLINE_S):
            watch.close()
            raise DeadlineError("the meta service sends no changes")
        return watch

    def start_heartbeats(self) -> None:
        """Register this node, and say that it lives until `close`: the controller gives the shards
        of a node that is silent to others."""
        self._register()
        self._last_beat = self._clock.monotonic()
        self._beating.start()

    def leader_problem(self) -> str:
        """Return why no change of the metadata can be decided at the moment; empty: it can."""
        seconds = self._clock.monotonic() - self._last_beat
        if not self._beating.is_alive() or seconds < _UNREACHABLE_S:
            return ""
        return f"the metadata service has not taken a heartbeat for {seconds:.0f} s"

    def leads_metadata(self) -> bool:
        """A node without groups leads none."""
        return False

    def service(self) -> MetaService:
        """Return the gRPC service over this client: calls are passed on."""
        groups: list[GroupLog[object]] = [self._group, *self._offset_groups]
        reads = [RemoteRows(self.connection, number) for number in range(len(groups))]
        return MetaService(self, groups, reads)

    @property
    def failure(self) -> StoreError | None:
        """A node without groups has none that could fail."""
        return None

    def close(self) -> None:
        self._closing.set()
        self._heart.close()
        if self._beating.is_alive():
            self._beating.join()
        self.connection.close()

    def _place(self, partitions: Iterable[int], topic_id: str = "") -> tuple[cmd.Placement, ...]:
        own = load_of(self.list_shards(topic_id)) if topic_id else None
        with self._placing:
            now = self._clock.monotonic()
            if now >= self._place_until:
                rows = RemoteRows(self.connection, 0, STALENESS_MS)
                self._places = storage_nodes(NODES.scan(rows), self._node_id)
                # A single candidate needs no comparison.
                self._load = load_of(SHARDS.scan(rows)) if len(self._places) > 1 else Load()
                self._place_until = now + _PLACES_KNOWN_S
            placed = place_shards(partitions, 1, self._places, self._load, own)
            own = load_of_placements(placed)
            self._load = Load(
                Counter(self._load.replicas) + Counter(own.replicas),
                Counter(self._load.leaders) + Counter(own.leaders),
            )
            return placed

    def leave(self) -> None:
        """Say that this node stops; see `RaftMetaClient.leave`."""
        self._closing.set()
        self.set_node_status(self._node_id, OFFLINE)

    def _register(self) -> None:
        # One at a time: an older registration must not arrive after a newer one.
        with self._registering:
            self.register_node(
                "",
                listeners=self._listeners,
                roles=(PLUGIN_STORAGE_ROLE,),
                boot_id=self._nonce,
                store_id=self._store_id,
            )
            self._is_registered = True

    def announce(self, protocol: str, address: str) -> None:
        """Tell all nodes where this one serves the clients of a protocol."""
        self._listeners[protocol] = address
        self._is_registered = False
        self._register()

    def _beat(self) -> None:
        group = RemoteGroup(self._heart, METADATA, 0, Decoder(cmd.Applied).decode)
        beat = cmd.Heartbeat(self._node_id, self._nonce)
        beats = 0
        while not self._clock.wait(self._closing, HEARTBEAT_SECONDS):
            beats += 1
            try:
                # Without an id: a beat may count twice, and needs no place among the answers.
                answer = group.propose(encode_checked(cmd.Request(self._clock.now_ms(), beat)))
                self._last_beat = self._clock.monotonic()
                is_known = not isinstance(answer, Rejected) and self._is_registered
                if is_known and beats % CHECK_BEATS == 0:
                    is_known = self._is_known_as_it_is()
                if not is_known:
                    self._register()
            except StoreError as error:
                # No majority, or no way to it: the next beat tries again.
                _log.debug("heartbeat_failed", reason=str(error))

    def _is_known_as_it_is(self) -> bool:
        """Check the stored registration: one that timed out may arrive after a newer one."""
        mine = NODES.get(RemoteRows(self._heart, 0, STALENESS_MS), self._node_id)
        return mine is not None and mine.listeners == self._listeners

    def _follow(self, watch: Watch, begun: threading.Event) -> None:
        is_first = True
        while not self._is_over(watch):
            address = self.connection.address
            try:
                call = self.connection.channel(address).unary_stream(
                    f"/{SERVICE}/Watch",
                    request_serializer=_serialize,
                    response_deserializer=_parse_watch,
                )
                for reply in call(pb.WatchRequest(after=watch.revision)):
                    if self._is_over(watch):
                        return
                    if reply.revision or reply.is_reset or reply.events:
                        self._deliver(watch, reply, is_first=is_first)
                        is_first = False
                    if reply.is_level:
                        begun.set()  # not before: who watches takes what it has seen for all
            except (grpc.RpcError, StoreError, ValueError):
                # Gone, or closed meanwhile: the next try goes on where this one ended, elsewhere.
                self.connection.rotate_from(address)
                threading.Event().wait(_PAUSE_S)

    def _is_over(self, watch: Watch) -> bool:
        return watch.is_closed or self.connection.is_closed

    def _deliver(self, watch: Watch, reply: pb.WatchReply, *, is_first: bool) -> None:
        events = _events_decoder.decode(reply.events)
        if is_first:
            watch.revision = min(watch.revision, reply.revision - 1)
        watch.deliver(Update(reply.revision, events, is_reset=reply.is_reset))

    def _request_id(self, given: str) -> str:
        if given:
            return given
        with self._counting:
            self._requests += 1
            return f"{self._nonce}-{self._requests}"

    _offset_request_id = _request_id

    def _transaction_request_id(self) -> str:
        return self._request_id("")
