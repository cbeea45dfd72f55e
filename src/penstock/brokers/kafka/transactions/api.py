"""InitProducerId with a transactional id, and the requests of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.groups.coordinator import KafkaGroups, caller_of
from penstock.brokers.kafka.groups.offset_api import collect_commits, reject_accepted
from penstock.brokers.kafka.metadata.topic_finder import TopicFinder, shard_of
from penstock.brokers.kafka.transactions.coordinator import TransactionCoordinator
from penstock.brokers.kafka.transactions.implicit_enlistment import ImplicitEnlistment
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.errors import RetryableError, StoreError, TransactionRefusedError
from penstock.meta import NewOffset
from penstock.record import ShardId

_SAYS_FENCED_FROM: Final = {22: 4, 24: 2, 25: 2, 26: 2}
"""The first version of each API that can say PRODUCER_FENCED."""
_BUMPS_FROM: Final = 5
"""The first version of EndTxn whose response has the next producer id and epoch."""
_ENLISTS_GROUP_FROM: Final = 5
"""The first version of TxnOffsetCommit without AddOffsetsToTxn before it."""
_CODES: Final = {
    "unknown_transaction": ErrorCode.invalid_producer_id_mapping,
    "in_progress": ErrorCode.concurrent_transactions,
    "bad_state": ErrorCode.invalid_txn_state,
    "not_here": ErrorCode.not_coordinator,
}

_Step = Callable[[], Coroutine[None, None, None]]


class TransactionApi:
    def __init__(
        self,
        broker: KafkaBroker,
        coordinator: TransactionCoordinator,
        groups: KafkaGroups,
        enlistment: ImplicitEnlistment,
    ) -> None:
        self._broker: Final = broker
        self._coordinator: Final = coordinator
        self._groups: Final = groups
        self._enlistment: Final = enlistment

    async def init_producer(self, context: RequestContext, request: Fields) -> Response:
        rejection = {"producer_id": -1, "producer_epoch": -1}
        transactional_id = request.text("transactional_id")
        if not transactional_id:
            return rejection | {"error_code": ErrorCode.invalid_request}
        timeout_ms = request.number("transaction_timeout")
        if not 0 < timeout_ms <= self._broker.settings.transaction_timeout_max_ms:
            return rejection | {"error_code": ErrorCode.invalid_transaction_timeout}
        expected = (request.number("producer_id", -1), request.number("producer_epoch", -1))
        try:
            state = await self._coordinator.begin_producer(transactional_id, timeout_ms, expected)
        except StoreError as error:
            return rejection | {"error_code": _code(error, context)}
        return {
            "error_code": ErrorCode.none,
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
        }

    async def add_partitions(self, context: RequestContext, request: Fields) -> Response:
        finder = TopicFinder(self._broker)
        shards: list[ShardId] = []
        is_whole = True
        codes: dict[tuple[str, int], ErrorCode] = {}
        for requested in request.items_of("v3_and_below_topics"):
            name = requested.text("name")
            topic = finder.find_name(name)
            for number in requested.numbers("partitions"):
                shard = shard_of(topic, number)
                code = ErrorCode.none if shard else ErrorCode.unknown_topic_or_partition
                codes[name, number] = code
                is_whole = is_whole and code is ErrorCode.none
                if shard is not None:
                    shards.append(shard)
        if is_whole:
            producer = _producer(request, "v3_and_below_")
            code = await self._try(context, lambda: self._coordinator.enlist(producer, shards))
        else:
            code = ErrorCode.operation_not_attempted
        for key, partition_code in codes.items():
            if partition_code is ErrorCode.none:
                codes[key] = code
        return {"results_by_topic_v3_and_below": _by_topic(codes)}

    async def add_offsets(self, context: RequestContext, request: Fields) -> Response:
        group = request.text("group_id")
        if not group:
            return {"error_code": ErrorCode.invalid_group_id}
        code = await self._try(
            context, lambda: self._coordinator.enlist(_producer(request), groups=[group])
        )
        return {"error_code": code}

    async def commit_offsets(self, context: RequestContext, request: Fields) -> Response:
        group = request.text("group_id")
        rejection = self._groups.check_commit(group, caller_of(request), in_transaction=True)
        commits, topics = collect_commits(request, TopicFinder(self._broker), rejection)
        offsets = [
            NewOffset(shard.name, commit.offset, commit.leader_epoch, commit.metadata)
            for shard, commit in commits.items()
        ]
        if offsets:
            enlists = context.api_version >= _ENLISTS_GROUP_FROM
            code = await self._try(
                context, lambda: self._stage(_producer(request), group, offsets, enlists=enlists)
            )
            if code is not ErrorCode.none:
                reject_accepted(topics, code)
        return {"topics": topics}

    async def end(self, context: RequestContext, request: Fields) -> Response:
        commit, producer = request.flag("committed"), _producer(request)
        bumps = context.api_version >= _BUMPS_FROM
        try:
            producer_id, epoch = await self._coordinator.end(producer, commit=commit, bumps=bumps)
        except StoreError as error:
            rejection = {"producer_id": -1, "producer_epoch": -1} if bumps else {}
            return rejection | {"error_code": _code(error, context)}
        response: dict[str, object] = {"error_code": ErrorCode.none}
        if bumps:
            response |= {"producer_id": producer_id, "producer_epoch": epoch}
        return response

    async def _stage(
        self,
        producer: tuple[str, int, int],
        group: str,
        offsets: Sequence[NewOffset],
        *,
        enlists: bool,
    ) -> None:
        if enlists:
            await self._enlistment.enlist_group(producer, group)
        await self._coordinator.stage(producer, group, offsets)

    async def _try(self, context: RequestContext, step: _Step) -> ErrorCode:
        try:
            await step()
        except StoreError as error:
            return _code(error, context)
        return ErrorCode.none


def _producer(request: Fields, prefix: str = "") -> tuple[str, int, int]:
    return (
        request.text(f"{prefix}transactional_id"),
        request.number(f"{prefix}producer_id"),
        request.number(f"{prefix}producer_epoch"),
    )


def _by_topic(codes: dict[tuple[str, int], ErrorCode]) -> list[Response]:
    topics: dict[str, list[Response]] = {}
    for (name, number), code in codes.items():
        topics.setdefault(name, []).append(
            {"partition_index": number, "partition_error_code": code}
        )
    return [{"name": name, "results_by_partition": results} for name, results in topics.items()]


def _code(error: StoreError, context: RequestContext) -> ErrorCode:
    if not isinstance(error, TransactionRefusedError):
        # Clients accept no other retryable code in these responses.
        is_passing = isinstance(error, RetryableError)
        return ErrorCode.coordinator_not_available if is_passing else code_of(error)
    if error.code == "fenced":
        says_fenced = context.api_version >= _SAYS_FENCED_FROM.get(context.api_key, 99)
        return ErrorCode.producer_fenced if says_fenced else ErrorCode.invalid_producer_epoch
    return _CODES[error.code]
