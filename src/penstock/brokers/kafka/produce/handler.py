"""Produce: parsed and checked by native functions, as the most frequent request.

request   transactional id · acks 2 · timeout 4 · topics [name · partitions [index 4 · batch]]
response  topics [name · partitions [index 4 · error 2 · base offset 8 · append time 8 ·
          log start 8 · record errors · message]] · throttle time 4
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import BrokerAddress, ClusterView
from penstock.brokers.kafka.connection import Connection
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.metadata.partitions import Partition, PartitionTable
from penstock.brokers.kafka.produce.decompression import (
    QUICK_SIZE_MAX,
    QUICK_SIZE_MIN,
    STEP_SIZE,
    InflationPool,
    request_limit,
)
from penstock.brokers.kafka.produce.partition_writer import (
    NO_PRODUCER,
    PartitionWriter,
    Result,
    Verdict,
)
from penstock.brokers.kafka.produce.pending_commits import PendingCommits, acks_of
from penstock.brokers.kafka.produce.refused_batches import NumberedBatch, RefusedBatches
from penstock.brokers.kafka.produce.transaction_partitions import (
    FIRST_ENLISTING,
    Newcomers,
    TransactionPartitions,
)
from penstock.brokers.kafka.wire.batch_header import HEAD, HEAD_SIZE, BatchHead
from penstock.brokers.kafka.wire.batch_validation import BadBatchError, Checked
from penstock.brokers.kafka.wire.cursor import MalformedRequestError
from penstock.brokers.kafka.wire.schema import response_layout, write_varint
from penstock.codec.select import native_only

KEY: Final = 0
MIN_VERSION: Final = 3
MAX_VERSION: Final = 12
_FIRST_FLEXIBLE: Final = 9
_TOO_LARGE: Final = int(ErrorCode.message_too_large)
_NOT_LEADER: Final = int(ErrorCode.not_leader_or_follower)

_ACKS: Final = frozenset({-1, 0, 1})
_HEAD: Final = Struct(">ii")
_NOTHING: Final = memoryview(b"")
_AFTER_REFUSED: Final = Result(
    int(ErrorCode.not_leader_or_follower),
    message="an earlier batch of this producer was refused; send that one first",
)


class _Write(NamedTuple):
    topic: bytes
    partition_id: int
    partition: Partition | None
    records: memoryview


class _Request(NamedTuple):
    transactional_id: str | None
    acks: int
    writes: list[_Write]
    may_wait: bool
    """Whether a write could wait for a device."""
    is_replicated: bool
    """Whether a write could wait for other nodes."""
    refused: RefusedBatches
    """Of the connection."""
    rejection: Result | None = None
    """The result of all its batches, when their transaction may not write them."""


_Verdict = Verdict | None
"""None: the check must inflate more bytes first."""


class _Written(NamedTuple):
    results: list[Result]
    verdicts: list[_Verdict]


def _grown(verdict: _Verdict) -> int:
    """Return how many bytes the check of a compressed batch inflated."""
    if isinstance(verdict, Checked):
        return verdict.size if verdict.codec else 0
    return QUICK_SIZE_MIN if verdict is None else 0


def _is_converted(write: _Write, verdict: _Verdict) -> bool:
    """Say whether a large batch is decoded to records, all of which are in memory."""
    is_raw = write.partition is not None and write.partition.is_raw
    return isinstance(verdict, Checked) and verdict.is_heavy and not is_raw


class ProduceHandler:
    def __init__(
        self, broker: KafkaBroker, partitions: PartitionTable, cluster: ClusterView
    ) -> None:
        self._broker: Final = broker
        self._cluster: Final = cluster
        self._partitions: Final = partitions
        self._parse_request: Final = native_only().parse_produce
        self._writer: Final = PartitionWriter(broker)
        self._transactions: Final = TransactionPartitions(broker)
        self._inflation: Final = InflationPool()
        broker.on_close(self._inflation.close)
        self._kept_size = 0
        """Bytes of requests that wait for a device or for decompression."""

    def __call__(
        self, connection: Connection, version: int, correlation_id: int, body: memoryview
    ) -> bool:
        try:
            request = self._parse(connection, version, body)
        except ValueError as bad:
            raise MalformedRequestError(f"Produce: {bad}") from bad
        newcomers = None
        if request.transactional_id is not None and version >= FIRST_ENLISTING:
            newcomers = self._transactions.newcomers(request.transactional_id, request.writes)
        if request.may_wait or newcomers:
            self._write_later(connection, version, correlation_id, request, None, newcomers)
            return False
        verdicts = self._check_quickly(request)
        if None in verdicts:
            self._write_later(connection, version, correlation_id, request, verdicts)
            return False
        if request.is_replicated and request.acks < 0:
            # The batches are appended now: nothing of the request's bytes is needed later.
            commits = PendingCommits(request.acks)
            results = self._write_all(request, verdicts, commits)
            self._respond_later(
                connection, version, correlation_id, request, verdicts, results, commits
            )
            return False
        results = self._write_all(request, verdicts, None)
        self._count_errors(results)
        if request.acks:
            connection.send(self._encode(version, correlation_id, request.writes, results))
        elif any(result.code for result in results):
            connection.close()  # acks=0: the client waits for no response
        return True

    # Checking and writing

    def _check_quickly(self, request: _Request) -> list[_Verdict]:
        """Check batches of ordinary cost; None for the others."""
        budget = QUICK_SIZE_MAX
        verdicts: list[_Verdict] = []
        for write in request.writes:
            partition = write.partition
            if partition is None or request.acks not in _ACKS:
                verdicts.append(self._rejection(request, write))
                continue
            verdict = self._writer.check_quickly(partition, write.records, budget)
            budget -= _grown(verdict)
            verdicts.append(verdict)
        return verdicts

    @staticmethod
    def _rejection(request: _Request, write: _Write) -> BadBatchError:
        if request.acks not in _ACKS:
            return BadBatchError(
                ErrorCode.invalid_required_acks, f"acks is -1, 0 or 1, not {request.acks}"
            )
        assert write.partition is None, "only a write without a partition is rejected here"
        return BadBatchError(ErrorCode.unknown_topic_or_partition, "no such partition")

    def _check_step(self, request: _Request, verdicts: list[_Verdict], budget: int) -> int:
        """Check batches without a verdict, up to `STEP_SIZE` inflated bytes; return the rest of the
        request's budget. Runs in a thread of the pool."""
        done = 0
        for index, write in enumerate(request.writes):
            if verdicts[index] is not None or write.partition is None:
                continue
            if done >= STEP_SIZE:
                break
            verdict = self._writer.check_fully(write.partition, write.records, max(budget, 0))
            verdicts[index] = verdict
            # A batch that exceeded its limit has cost the limit.
            size = _grown(verdict)
            is_large = isinstance(verdict, BadBatchError) and verdict.code == _TOO_LARGE
            size = max(size, min(STEP_SIZE, budget)) if is_large else size
            done += size
            budget -= size
        return budget

    def _write(
        self,
        request: _Request,
        index: int,
        verdict: _Verdict,
        commits: PendingCommits | None,
    ) -> Result:
        refused = request.refused
        batch = _numbered(request.writes[index], verdict) if refused else None
        if batch is not None and refused.must_wait(batch):
            result = _AFTER_REFUSED
        else:
            result = self._append(request, index, verdict, commits)
        if batch is None:
            if not result.code:
                return result  # as nearly always
            batch = _numbered(request.writes[index], verdict)
            if batch is None:
                return result
        if refused.code_of(batch, result.code) != result.code:
            result = _AFTER_REFUSED
        refused.record(batch, result.code)
        return result

    def _append(
        self,
        request: _Request,
        index: int,
        verdict: _Verdict,
        commits: PendingCommits | None,
    ) -> Result:
        write = request.writes[index]
        assert verdict is not None, "checked before"
        if write.partition is None:
            assert isinstance(verdict, BadBatchError), "rejected before"
            return Result(verdict.code)
        if request.rejection is not None:
            return request.rejection
        if commits is None or not write.partition.is_replicated:
            commit = acks_of(request.acks)
            return self._writer.write(
                write.partition, verdict, write.records, request.transactional_id, commit
            )
        result = self._writer.write(
            write.partition,
            verdict,
            write.records,
            request.transactional_id,
            commits.commit_of(index),
        )
        if result.code:
            commits.drop(index)
        return result

    def _count_errors(self, results: list[Result]) -> None:
        for result in results:
            if result.code:
                self._broker.metrics.count_errors(KEY, (result.code,))

    def _write_all(
        self, request: _Request, verdicts: Sequence[_Verdict], commits: PendingCommits | None
    ) -> list[Result]:
        return [
            self._write(request, index, verdict, commits) for index, verdict in enumerate(verdicts)
        ]

    def _respond_later(
        self,
        connection: Connection,
        version: int,
        correlation_id: int,
        request: _Request,
        verdicts: Sequence[_Verdict],
        results: list[Result],
        commits: PendingCommits,
    ) -> None:
        """Respond when the replicas have the batches that were written."""
        # Nothing that refers to the receive buffer, which is reused; errors do, by their frames.
        writes = [write._replace(records=_NOTHING) for write in request.writes]
        kept = request._replace(writes=writes)
        checked = [verdict if isinstance(verdict, Checked) else None for verdict in verdicts]

        async def respond() -> None:
            final = await _committed(kept, checked, results, commits)
            self._count_errors(final)
            connection.respond([self._encode(version, correlation_id, writes, final)])

        connection.on_failure(self._broker.spawn(respond(), "produce"))

    # Later

    def _write_later(
        self,
        connection: Connection,
        version: int,
        correlation_id: int,
        request: _Request,
        verdicts: list[_Verdict] | None,
        newcomers: Newcomers | None = None,
    ) -> None:
        size = sum(len(write.records) for write in request.writes)
        if self._kept_size and self._kept_size + size > self._broker.settings.buffer_size_max:
            raise MalformedRequestError(
                f"Produce: {self._kept_size} bytes of other requests are waiting; the limit is "
                f"kafka.buffer_size_max = {self._broker.settings.buffer_size_max}"
            )
        # The receive buffer is reused after this call.
        kept = [
            write._replace(records=memoryview(bytes(write.records))) for write in request.writes
        ]
        copy = request._replace(writes=kept)
        self._kept_size += size

        async def write() -> None:
            try:
                results = await self._finish(copy, verdicts, size, newcomers)
            finally:
                self._kept_size -= size
            self._count_errors(results)
            if copy.acks:
                connection.respond([self._encode(version, correlation_id, copy.writes, results)])
            elif any(result.code for result in results):
                connection.close()
            else:
                connection.respond([])

        connection.on_failure(self._broker.spawn(write(), "produce"))

    async def _finish(
        self,
        request: _Request,
        checked: list[_Verdict] | None,
        size: int,
        newcomers: Newcomers | None,
    ) -> list[Result]:
        """Check the batches without a verdict, then append; each in its pool of threads."""
        if newcomers:
            rejection = await self._transactions.enlist(newcomers)
            request = request._replace(rejection=rejection)
        verdicts = checked
        commits = PendingCommits(request.acks) if request.is_replicated else None
        if verdicts is None:
            begun = await self._broker.run_blocking(lambda: self._begin(request, commits))
            if isinstance(begun, _Written):
                return await _committed(request, begun.verdicts, begun.results, commits)
            verdicts = begun
        budget = request_limit(size, self._broker.settings.batch_inflated_size_max)
        open_verdicts = verdicts
        while None in open_verdicts:
            step = partial(self._check_step, request, open_verdicts, budget)
            budget = await self._inflation.run(step)
        results: dict[int, Result] = {}
        for index, verdict in enumerate(open_verdicts):
            if _is_converted(request.writes[index], verdict):
                # One at a time, so that few batches are in memory as records.
                results[index] = await self._inflation.run(
                    partial(self._write, request, index, verdict, commits)
                )
        rest = [index for index in range(len(open_verdicts)) if index not in results]

        def write_rest() -> None:
            for index in rest:
                results[index] = self._write(request, index, open_verdicts[index], commits)

        if request.may_wait:
            await self._broker.run_blocking(write_rest)
        else:
            write_rest()
        in_order = [results[index] for index in range(len(open_verdicts))]
        return await _committed(request, open_verdicts, in_order, commits)

    def _begin(
        self, request: _Request, commits: PendingCommits | None
    ) -> _Written | list[_Verdict]:
        """Check and append, in a thread that may block; or return incomplete verdicts."""
        verdicts = self._check_quickly(request)
        if None in verdicts:
            return verdicts
        return _Written(self._write_all(request, verdicts, commits), verdicts)

    def _encode(
        self, version: int, correlation_id: int, writes: list[_Write], results: list[Result]
    ) -> bytes | bytearray:
        quick = _encode_quickly(version, correlation_id, writes, results)
        if quick is not None:
            return quick
        return _encode_slowly(version, correlation_id, writes, results, self._cluster.find)

    # Parsing

    def _parse(self, connection: Connection, version: int, body: memoryview) -> _Request:
        parsed = self._parse_request(body, version >= _FIRST_FLEXIBLE)
        transactional_id, acks, topics = parsed
        writes: list[_Write] = []
        may_wait = is_replicated = False
        for name, batches in topics:
            topic = self._partitions.by_name(name)
            for index, start, end in batches:
                partition = None if topic is None else topic.get(index)
                if partition is not None:
                    may_wait |= partition.may_wait
                    is_replicated |= partition.is_replicated
                writes.append(_Write(name, index, partition, body[start:end]))
        refused = connection.producing
        if not isinstance(refused, RefusedBatches):
            refused = connection.producing = RefusedBatches()
        return _Request(transactional_id, acks, writes, may_wait, is_replicated, refused)


# Responding


async def _committed(
    request: _Request,
    verdicts: Sequence[_Verdict],
    results: list[Result],
    commits: PendingCommits | None,
) -> list[Result]:
    """Return the results of a request when the replicas have its batches, or will not."""
    if commits is None:
        return results
    final = list(results)
    for index, error in (await commits.wait()).items():
        final[index] = Result(int(code_of(error)), message=str(error))
        batch = _numbered(request.writes[index], verdicts[index])
        if batch is not None:
            # Another leader may cut it off before the next one is written.
            request.refused.record(batch, final[index].code)
    return final


def _numbered(write: _Write, verdict: _Verdict) -> NumberedBatch | None:
    """Return the numbers of an idempotent producer's batch; None for others."""
    head: Checked | BatchHead
    if isinstance(verdict, Checked):
        head = verdict
    elif write.partition is None and len(write.records) >= HEAD_SIZE:
        head = BatchHead._make(HEAD.unpack_from(write.records))
    else:
        return None
    if head.producer_id == NO_PRODUCER:
        return None
    return NumberedBatch(
        write.topic, write.partition_id, head.producer_id, head.producer_epoch, head.sequence
    )


class _AckForm:
    """The encoded response to a request with one partition, except for the variable fields."""

    __slots__ = ("_middle", "_pack", "_rest", "_size")

    def __init__(self, name: bytes, index: int) -> None:
        size = bytearray()
        write_varint(size, len(name) + 1)
        self._middle = b"\0\x02" + bytes(size) + name + b"\x02" + index.to_bytes(4, "big")
        # No record errors, no message, no tags of partition and topic; throttle time; no tags.
        self._rest = b"\x01\0\0" + b"\0" + b"\0\0\0\0" + b"\0"
        form = Struct(f">ii{len(self._middle)}shqqq{len(self._rest)}s")
        self._pack = form.pack
        self._size = form.size - 4

    def encode(self, correlation_id: int, result: Result, log_start: int) -> bytes:
        base_offset, append_ms = result.base_offset, result.append_ms
        return self._pack(
            *(self._size, correlation_id, self._middle, 0),
            *(base_offset, append_ms, log_start, self._rest),
        )


def _encode_quickly(
    version: int, correlation_id: int, writes: list[_Write], results: list[Result]
) -> bytes | None:
    """Return the response to a request with one partition that was written; None for others."""
    if len(writes) == 1 and version >= _FIRST_FLEXIBLE and results[0].code == 0:
        partition = writes[0].partition
        assert partition is not None
        form = partition.ack_form
        if not isinstance(form, _AckForm):
            form = partition.ack_form = _AckForm(writes[0].topic, writes[0].partition_id)
        return form.encode(correlation_id, results[0], _log_start(partition))
    return None


def _encode_slowly(
    version: int,
    correlation_id: int,
    writes: list[_Write],
    results: list[Result],
    find: Callable[[int], BrokerAddress | None],
) -> bytearray:
    """`find` returns the address of a node, for the leaders that the response names."""
    leaders: set[int] = set()
    topics: dict[bytes, list[dict[str, object]]] = {}
    for write, result in zip(writes, results, strict=True):
        leader = _leader_of(write, result)
        if leader is not None:
            leaders.add(leader["leader_id"])
        topics.setdefault(write.topic, []).append(
            {
                "index": write.partition_id,
                "error_code": result.code,
                "base_offset": result.base_offset,
                "log_append_time": result.append_ms,
                "log_start_offset": -1 if write.partition is None else _log_start(write.partition),
                "record_errors": [
                    {"batch_index": index, "batch_index_error_message": result.message}
                    for index in result.indexes
                ],
                "error_message": result.message,
            }
            | ({} if leader is None else {"current_leader": leader})
        )
    out = bytearray(_HEAD.size + (version >= _FIRST_FLEXIBLE))
    response = {
        "responses": [
            {"name": name.decode("utf-8", "replace"), "partition_responses": partitions}
            for name, partitions in topics.items()
        ],
        "node_endpoints": tuple(
            address._asdict() for leader in sorted(leaders) if (address := find(leader))
        ),
    }
    response_layout(KEY, version).write(out, response)
    _HEAD.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def _leader_of(write: _Write, result: Result) -> dict[str, int] | None:
    """Return the leader and its epoch for a client that wrote to another node (KIP-951)."""
    shard = None if write.partition is None else write.partition.entry.meta
    if result.code != _NOT_LEADER or shard is None or shard.leader is None:
        return None
    return {"leader_id": shard.leader, "leader_epoch": shard.leader_epoch}


def _log_start(partition: Partition) -> int:
    known = partition.cached_bounds()
    return -1 if known is None else known[0]
