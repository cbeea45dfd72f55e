"""Fetch: responds when there are enough records, or the time is up.

A delayed fetch stays registered with its partitions from one request to the next, and a partition
without a write costs a comparison. A client with a fetch session (version 7 on)
names only what changes; its session lives as long as its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import BrokerAddress, ClusterView
from penstock.brokers.kafka.connection import Connection
from penstock.brokers.kafka.fetch.follower_reads import FollowerReader
from penstock.brokers.kafka.fetch.partition_reader import Limits, PartitionReader, Stable
from penstock.brokers.kafka.fetch.replica_selection import ReplicaSelector
from penstock.brokers.kafka.fetch.request import (
    FIRST_BY_ID,
    FIRST_WITH_RACKS,
    FetchPartition,
    FetchRequest,
    parse_fetch,
)
from penstock.brokers.kafka.fetch.response import (
    FIRST_WITH_LEADERS,
    NO_REPLICA,
    FetchedPartition,
    encode_fetch,
)
from penstock.brokers.kafka.fetch.session import FetchSession
from penstock.brokers.kafka.metadata.partitions import Partition, PartitionTable
from penstock.brokers.kafka.wire.cursor import MalformedRequestError

KEY: Final = 1
MIN_VERSION: Final = 4
MAX_VERSION: Final = 17
MAX_WAIT_MS: Final = 300_000
REQUEST_SIZE_MAX: Final = 8 << 20
"""Bytes of one request; its objects take several times as much memory."""
SIZE_MAX: Final = 64 << 20
"""Bytes of one response, whatever a client asks for."""
ANSWER_NOW: Final = 0.0
"""A deadline that has passed."""
TIMER_SLACK_S: Final = 0.001
"""Timers may end this much too early."""
HELD_PAUSE_S: Final = 0.05
"""How soon a leader is asked again for the end of an open transaction."""
HELD_MAX: Final = 16 << 20
"""Bytes of one response that are not in the log's mapping but in memory; about."""

_UNKNOWN: Final = int(ErrorCode.unknown_topic_or_partition)
_UNKNOWN_ID: Final = int(ErrorCode.unknown_topic_id)

_Resolved = tuple[FetchPartition, Partition | None]


class FetchState:
    """The state of one connection: its session, watched partitions, a delayed fetch."""

    __slots__ = ("_handler", "connection", "delayed", "session", "watched")

    def __init__(self, handler: FetchHandler, connection: Connection) -> None:
        self._handler = handler
        self.connection = connection
        self.session: FetchSession | None = None
        self.watched: set[Partition] = set()
        self.delayed: DelayedFetch | None = None

    def on_append(self, partition: Partition) -> None:
        delayed = self.delayed
        if delayed is not None and partition in delayed.partitions:
            self._handler.try_again(self, delayed, partition)

    def close(self) -> None:
        self._handler.close_state(self)


class DelayedFetch:
    """A fetch that waits for records."""

    __slots__ = ("correlation_id", "deadline", "partitions", "request", "resolved", "timer")

    def __init__(
        self,
        correlation_id: int,
        request: FetchRequest,
        resolved: Sequence[_Resolved],
        deadline: float,
        timer: asyncio.TimerHandle,
    ) -> None:
        self.correlation_id = correlation_id
        self.request = request
        self.resolved = resolved
        self.deadline = deadline
        """When it is answered at the latest, by the clock of the event loop."""
        self.timer = timer
        self.partitions = {partition: requested for requested, partition in resolved if partition}


class FetchHandler:
    def __init__(
        self, broker: KafkaBroker, partitions: PartitionTable, cluster: ClusterView
    ) -> None:
        self._broker: Final = broker
        self._node_id: Final = broker.node_id
        self._partitions: Final = partitions
        self._cluster: Final = cluster
        self._reader: Final = PartitionReader(broker)
        self._follower_reader: Final = FollowerReader(broker)
        self._selector: Final = ReplicaSelector(cluster)
        self._loop: Final = asyncio.get_running_loop()
        self._next_session = 1

    def __call__(
        self, connection: Connection, version: int, correlation_id: int, body: memoryview
    ) -> bool:
        if len(body) > REQUEST_SIZE_MAX:
            raise MalformedRequestError(
                f"Fetch: {len(body)} bytes; the limit is {REQUEST_SIZE_MAX}"
            )
        request = parse_fetch(version, body)
        state = connection.fetching
        if not isinstance(state, FetchState):
            state = connection.fetching = FetchState(self, connection)
        code, requested = self._apply_session(state, request)
        if code:
            connection.send_parts(encode_fetch(version, correlation_id, code, 0, ()))
            return True
        resolved = self._resolve(version, requested)
        # Before the reads: a write after them notifies this fetch.
        self._watch(state, {partition for _, partition in resolved if partition is not None})
        seconds = min(request.max_wait_ms, MAX_WAIT_MS) / 1000
        deadline = self._loop.time() + seconds if seconds > 0 else ANSWER_NOW
        return self._respond(state, correlation_id, request, resolved, deadline)

    # Sessions

    def _apply_session(
        self, state: FetchState, request: FetchRequest
    ) -> tuple[int, list[FetchPartition]]:
        """Return an error code, or the partitions that are asked for."""
        session = state.session
        if request.session_epoch <= 0:
            state.session = None
            if request.session_epoch == 0 and request.version >= 7:
                by_id = request.version >= FIRST_BY_ID
                state.session = FetchSession(self._next_session, request.requested, by_id=by_id)
                self._next_session = self._next_session % 0x7FFFFFFF + 1
            return 0, request.requested
        if session is None or session.id != request.session_id:
            return int(ErrorCode.fetch_session_id_not_found), []
        if session.epoch != request.session_epoch:
            return int(ErrorCode.invalid_fetch_session_epoch), []
        if session.by_id != (request.version >= FIRST_BY_ID):
            # The session has topics by name and the request has ids, or the reverse. The
            # client opens a new session with a full request.
            return int(ErrorCode.fetch_session_topic_id_error), []
        session.apply(request.requested, request.forgotten)
        return 0, session.requested()

    def _resolve(self, version: int, requested: Sequence[FetchPartition]) -> list[_Resolved]:
        find = self._partitions.by_id if version >= FIRST_BY_ID else self._partitions.by_name
        resolved: list[_Resolved] = []
        last: bytes | None = None
        topic = None
        for entry in requested:
            if entry.topic != last:
                last = entry.topic
                topic = find(entry.topic)
            resolved.append((entry, None if topic is None else topic.get(entry.partition_id)))
        return resolved

    # Reading

    def _reader_of(self, request: FetchRequest, partition: Partition) -> PartitionReader:
        """Return the reader of a partition: clients that know of replicas may read a copy."""
        if request.version < FIRST_WITH_RACKS or not partition.is_replicated:
            return self._reader
        shard = partition.entry.meta
        is_led = shard is None or shard.leader == self._node_id
        return self._reader if is_led else self._follower_reader

    def _try_fast(
        self, request: FetchRequest, resolved: Sequence[_Resolved]
    ) -> list[FetchedPartition | None]:
        """Return the responses of partitions without new records, and None for others."""
        is_committed = request.is_committed
        return [
            None
            if partition is None
            or (request.rack and self._preferred(request, requested, partition) != NO_REPLICA)
            else self._reader_of(request, partition).try_fast(
                partition, requested, is_committed=is_committed
            )
            for requested, partition in resolved
        ]

    def _preferred(
        self, request: FetchRequest, requested: FetchPartition, partition: Partition
    ) -> int:
        """Return another replica that the client should read from."""
        return self._selector.choose(
            partition, requested.offset, request.rack, is_committed=request.is_committed
        )

    def _respond(
        self,
        state: FetchState,
        correlation_id: int,
        request: FetchRequest,
        resolved: Sequence[_Resolved],
        deadline: float,
    ) -> bool:
        """Respond now and return True, or later and return False: with enough records, or when
        the deadline has passed."""
        fast_responses = self._try_fast(request, resolved)
        changed = [
            entry
            for entry, empty_response in zip(resolved, fast_responses, strict=True)
            if empty_response is None
        ]
        may_delay = self._loop.time() < deadline
        if may_delay and not changed:
            self._delay(state, correlation_id, request, resolved, deadline)
            return False
        if any(
            partition is not None
            and self._reader_of(request, partition).may_wait(partition, requested.offset)
            for requested, partition in changed
        ):
            self._respond_later(state, correlation_id, request, resolved, fast_responses, deadline)
            return False
        fetched = self._read(request, resolved, fast_responses)
        if may_delay and not _is_enough(request, fetched):
            self._delay(state, correlation_id, request, resolved, deadline)
            return False
        state.connection.send_parts(self._encode(state, correlation_id, request, fetched))
        return True

    def _respond_later(
        self,
        state: FetchState,
        correlation_id: int,
        request: FetchRequest,
        resolved: Sequence[_Resolved],
        fast_responses: Sequence[FetchedPartition | None],
        deadline: float,
    ) -> None:
        marks = [None if partition is None else partition.mark for _, partition in resolved]

        async def read() -> None:
            fetched = await self._broker.run_blocking(
                lambda: self._read(request, resolved, fast_responses)
            )
            is_followed = any(response.is_followed for response in fetched)
            if not state.connection.is_open:
                return
            # Partitions that this node leads have records here, or an error.
            if is_followed and self._loop.time() < deadline and not _is_enough(request, fetched):
                self._delay(state, correlation_id, request, resolved, deadline)
                now = [None if partition is None else partition.mark for _, partition in resolved]
                if now != marks and state.delayed is not None:
                    self._look_again(state, state.delayed)  # written to during the read
                return
            parts = self._encode(state, correlation_id, request, fetched)
            state.connection.respond(parts)

        task = self._broker.spawn(read(), "fetch")
        state.connection.on_failure(task)

    def _read(
        self,
        request: FetchRequest,
        resolved: Sequence[_Resolved],
        fast_responses: Sequence[FetchedPartition | None],
    ) -> list[FetchedPartition]:
        left = min(request.max_bytes, SIZE_MAX)
        stable = self._ask_leaders(request, resolved, fast_responses)
        held = 0
        is_first = True
        fetched: list[FetchedPartition] = []
        for (requested, partition), empty_response in zip(resolved, fast_responses, strict=True):
            if empty_response is not None:
                fetched.append(empty_response)
                continue
            if partition is None:
                code = _UNKNOWN_ID if request.version >= FIRST_BY_ID else _UNKNOWN
                fetched.append(FetchedPartition(requested.topic, requested.partition_id, code))
                continue
            room = min(left, HELD_MAX - held)  # the size in memory is known after the read
            limits = Limits(request.is_committed, room, is_first, stable)
            response = self._read_one(request, requested, partition, limits)
            if response.size:
                left -= response.size
                held += sum(
                    len(part) for part in response.parts if not isinstance(part, memoryview)
                )
                is_first = False
            fetched.append(response)
        return fetched

    def _read_one(
        self,
        request: FetchRequest,
        requested: FetchPartition,
        partition: Partition,
        limits: Limits,
    ) -> FetchedPartition:
        reader = self._reader_of(request, partition)
        preferred = self._preferred(request, requested, partition) if request.rack else NO_REPLICA
        if preferred == NO_REPLICA:
            return reader.read(partition, requested, limits)
        # Without records: the client asks the replica for them.
        response = reader.read(partition, requested, limits._replace(size_left=0, is_first=False))
        return response if response.error_code else response._replace(preferred=preferred)

    def _ask_leaders(
        self,
        request: FetchRequest,
        resolved: Sequence[_Resolved],
        fast_responses: Sequence[FetchedPartition | None],
    ) -> Mapping[str, Stable]:
        """Return what this node must know of the partitions that it follows."""
        if not request.is_committed:
            return {}
        followed = [
            (requested, partition)
            for (requested, partition), fast in zip(resolved, fast_responses, strict=True)
            if fast is None
            and partition is not None
            and self._reader_of(request, partition) is self._follower_reader
        ]
        return self._follower_reader.ask_leaders(followed) if followed else {}

    def _encode(
        self,
        state: FetchState,
        correlation_id: int,
        request: FetchRequest,
        fetched: Sequence[FetchedPartition],
    ) -> list[bytes | bytearray | memoryview]:
        self._broker.metrics.count_errors(KEY, (response.error_code for response in fetched))
        self._broker.metrics.follower_reads += sum(
            1 for response in fetched if response.is_followed and response.size
        )
        session = state.session
        session_id = 0
        if session is not None:
            session_id = session.id
            fetched = session.advance(fetched, is_full=request.session_epoch == 0)
        leaders = {response.leader[0] for response in fetched if response.leader is not None}
        endpoints = self._endpoints(leaders) if request.version >= FIRST_WITH_LEADERS else ()
        return encode_fetch(request.version, correlation_id, 0, session_id, fetched, endpoints)

    def _endpoints(self, leaders: Iterable[int]) -> list[BrokerAddress]:
        addresses = (self._cluster.find(leader) for leader in sorted(leaders))
        return [address for address in addresses if address is not None]

    # Waiting

    def _delay(
        self,
        state: FetchState,
        correlation_id: int,
        request: FetchRequest,
        resolved: Sequence[_Resolved],
        deadline: float,
    ) -> None:
        until = deadline
        if request.is_committed and any(
            self._reader_of(request, partition) is self._follower_reader
            and self._follower_reader.is_held(partition)
            for _, partition in resolved
            if partition is not None
        ):
            until = min(deadline, self._loop.time() + HELD_PAUSE_S)
        timer = self._loop.call_at(until, self._time_is_up, state)
        state.delayed = DelayedFetch(correlation_id, request, resolved, deadline, timer)
        state.connection.cancel_waiting = timer.cancel

    def _watch(self, state: FetchState, partitions: set[Partition]) -> None:
        if partitions == state.watched:
            return
        for partition in partitions - state.watched:
            self._partitions.watch(partition, state)
        if len(state.watched) > 2 * len(partitions):
            for partition in state.watched - partitions:
                self._partitions.unwatch(partition, state)
            state.watched = set(partitions)
        else:
            state.watched |= partitions

    def try_again(self, state: FetchState, delayed: DelayedFetch, partition: Partition) -> None:
        """Respond to a delayed fetch, if there are enough records; one partition was written to."""
        if state.delayed is not delayed or not state.connection.is_open:
            return
        request, resolved = delayed.request, delayed.resolved
        if self._try_fast(request, ((delayed.partitions[partition], partition),))[0] is not None:
            return
        if request.min_bytes > 1:
            fetched = self._read(request, resolved, self._try_fast(request, resolved))
            if not _is_enough(request, fetched):
                return
        if self._reader_of(request, partition) is self._follower_reader:
            self._look_again(state, delayed)
        else:
            self._respond_to_delayed(state, delayed, ANSWER_NOW)

    def _time_is_up(self, state: FetchState) -> None:
        if state.delayed is not None:
            self._look_again(state, state.delayed)

    def _look_again(self, state: FetchState, delayed: DelayedFetch) -> None:
        """Respond to a delayed fetch, unless there is still too little and time is left."""
        is_over = self._loop.time() >= delayed.deadline - TIMER_SLACK_S
        self._respond_to_delayed(state, delayed, ANSWER_NOW if is_over else delayed.deadline)

    def _respond_to_delayed(
        self, state: FetchState, delayed: DelayedFetch, deadline: float
    ) -> None:
        state.delayed = None
        delayed.timer.cancel()
        resolved = self._resolve(delayed.request.version, [entry for entry, _ in delayed.resolved])
        request, number = delayed.request, delayed.correlation_id
        if self._respond(state, number, request, resolved, deadline):
            state.connection.respond([])

    def close_state(self, state: FetchState) -> None:
        """The connection has ended."""
        if state.delayed is not None:
            state.delayed.timer.cancel()
            state.delayed = None
        for partition in state.watched:
            self._partitions.unwatch(partition, state)
        state.watched = set()


def _is_enough(request: FetchRequest, fetched: Sequence[FetchedPartition]) -> bool:
    if request.max_wait_ms <= 0 or any(
        response.error_code or response.preferred != NO_REPLICA for response in fetched
    ):
        return True
    return sum(response.size for response in fetched) >= request.min_bytes
