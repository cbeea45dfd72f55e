"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders.

A reassignment copies first: new replicas join, and the others go when those are in sync. The
metadata service does both; these APIs start, cancel and list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.admin.replica_assignments import check_replicas
from penstock.brokers.kafka.admin.responses import RejectedError
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.metadata.topic_finder import TopicFinder, shard_of
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.errors import BadRequestError, StoreError
from penstock.meta import LeaderOutcome, ReplicaMove, Shard
from penstock.record import ShardId

_NOT_NEEDED: Final = ErrorCode.election_not_needed
PREFERRED: Final = 0
UNCLEAN: Final = 1
_ELECTION_CODES: Final = {
    "elected": ErrorCode.none,
    "not-needed": _NOT_NEEDED,
    "unknown": ErrorCode.unknown_topic_or_partition,
}
_Key = tuple[str, int]
"""A topic and a partition."""
_Codes = dict[_Key, tuple[ErrorCode, str | None]]
"""A code for each partition, with what happened."""
_Moves = dict[_Key, ReplicaMove]
_UNKNOWN: Final = (ErrorCode.unknown_topic_or_partition, "the partition does not exist")
_NOTHING: Final = (ErrorCode.none, None)


class ReplicasApi:
    def __init__(self, broker: KafkaBroker, cluster: ClusterView) -> None:
        self._broker: Final = broker
        self._meta: Final = broker.meta
        self._cluster: Final = cluster

    # Reassignments

    async def alter(self, _context: RequestContext, request: Fields) -> Response:
        """Start or, with null in place of replicas, cancel reassignments; each on its own."""
        may_resize = request.flag("allow_replication_factor_change", True)
        finder = TopicFinder(self._broker)
        codes: _Codes = {}
        moves: _Moves = {}
        ends: dict[_Key, ShardId] = {}
        for topic in request.items_of("topics"):
            for partition in topic.items_of("partitions"):
                key = (topic.text("name"), partition.number("partition_index"))
                shard = self._shard(finder, *key)
                replicas = partition.optional_numbers("replicas")
                if shard is None:
                    codes[key] = _UNKNOWN
                elif replicas is None:
                    ends[key] = shard.id
                elif tuple(replicas) == shard.replicas and not shard.is_moving:
                    codes[key] = _NOTHING  # it is there
                else:
                    try:
                        moves[key] = self._move(shard, replicas, may_resize=may_resize)
                    except RejectedError as error:
                        codes[key] = (error.code, str(error))
        run = self._broker.run_blocking
        codes |= await run(partial(self._move_all, moves, finder))
        codes |= await run(partial(self._cancel, ends))
        return {
            "allow_replication_factor_change": may_resize,
            "error_code": ErrorCode.none,
            "error_message": None,
            "responses": [
                {
                    "name": topic.text("name"),
                    "partitions": [
                        _outcome(
                            "partition_index", topic, partition.number("partition_index"), codes
                        )
                        for partition in topic.items_of("partitions")
                    ],
                }
                for topic in request.items_of("topics")
            ],
        }

    def _shard(self, finder: TopicFinder, topic: str, partition: int) -> Shard | None:
        shard = shard_of(finder.find_name(topic), partition)
        entry = None if shard is None else self._broker.drivers.storage_cache.shards.get(shard.name)
        return None if entry is None else entry.meta

    def _move(self, shard: Shard, replicas: Sequence[int], *, may_resize: bool) -> ReplicaMove:
        nodes, alive = self._cluster.registered, self._cluster.alive
        (checked,) = check_replicas([replicas], len(replicas), nodes, alive)
        count = len(shard.replicas) - len(shard.adding)
        if not may_resize and len(checked) != count:
            raise RejectedError(
                ErrorCode.invalid_replication_factor,
                f"{len(checked)} replicas are assigned to a partition that has {count}, and the "
                "request does not allow that",
            )
        return ReplicaMove(shard.id, checked)

    def _check_sizes(self, moves: _Moves, finder: TopicFinder) -> tuple[_Codes, dict[str, int]]:
        """Return how many replicas topics get whose partitions are all moved to as many others. All
        partitions of a topic have the same number: other moves are taken out, with a code."""
        counts: dict[str, dict[_Key, int]] = {}
        for key, move in moves.items():
            counts.setdefault(key[0], {})[key] = len(move.replicas)
        codes: _Codes = {}
        sizes: dict[str, int] = {}
        for name, by_key in counts.items():
            topic = finder.find_name(name)
            if topic is None or set(by_key.values()) == {topic.config.replication}:
                continue
            if len(by_key) == topic.partitions and len(set(by_key.values())) == 1:
                sizes[name] = next(iter(by_key.values()))
                continue
            reason = (
                f"the partitions of a topic have equally many replicas, those of {name} have "
                f"{topic.config.replication}: reassign its {topic.partitions} partitions together "
                "to change that"
            )
            for key in by_key:
                del moves[key]
                codes[key] = (ErrorCode.invalid_replication_factor, reason)
        return codes, sizes

    def _resize(self, moves: _Moves, sizes: Mapping[str, int]) -> _Codes:
        """Set how many replicas topics have; return a code for the partitions of those that cannot
        have so many, whose moves are taken out."""
        codes: _Codes = {}
        for name, size in sizes.items():
            try:
                self._broker.admin.alter_topic(
                    name, options={"replication": size}, namespace=self._broker.namespace
                )
            except StoreError as error:
                for key in [key for key in moves if key[0] == name]:
                    del moves[key]
                    codes[key] = (code_of(error), str(error))
        return codes

    def _move_all(self, moves: _Moves, finder: TopicFinder) -> _Codes:
        codes, sizes = self._check_sizes(moves, finder)
        # The controller gives each shard as many replicas as its topic has, on nodes of its own
        # choice. What is moved last decides: a topic grows before its moves, and shrinks after.
        grown = {name: size for name, size in sizes.items() if size > self._size(name, finder)}
        codes |= self._resize(moves, grown)
        codes |= self._start(moves)
        shrunk = {name: size for name, size in sizes.items() if name not in grown}
        return codes | self._resize(moves, shrunk)

    @staticmethod
    def _size(name: str, finder: TopicFinder) -> int:
        topic = finder.find_name(name)
        return 0 if topic is None else topic.config.replication

    def _start(self, moves: _Moves) -> _Codes:
        outcomes = self._meta.start_reassignments(list(moves.values())) if moves else []
        return {key: _reassigned(outcome) for key, outcome in zip(moves, outcomes, strict=True)}

    def _cancel(self, ends: dict[_Key, ShardId]) -> _Codes:
        moving = {shard.id for shard in self._meta.list_reassignments()} if ends else set()
        codes: _Codes = {
            key: (ErrorCode.no_reassignment_in_progress, "the partition is not reassigned")
            for key, shard in ends.items()
            if shard not in moving
        }
        some = {key: shard for key, shard in ends.items() if shard in moving}
        outcomes = self._meta.cancel_reassignments(list(some.values())) if some else []
        return codes | {
            key: _reassigned(outcome) for key, outcome in zip(some, outcomes, strict=True)
        }

    async def list_moves(self, _context: RequestContext, request: Fields) -> Response:
        """List the reassignments in progress; of all topics when the request names none."""
        moving = await self._broker.run_blocking(self._meta.list_reassignments)
        requested = request.optional_items("topics")
        asked_for: set[tuple[str, int]] | None = None
        if requested is not None:
            asked_for = {
                (topic.text("name"), partition)
                for topic in requested
                for partition in topic.numbers("partition_indexes")
            }
        topics = TopicFinder(self._broker).by_topic_id()
        by_topic: dict[str, list[Response]] = {}
        for shard in moving:
            topic = topics.get(shard.topic_id)
            if topic is None or (
                asked_for is not None and (topic.name, shard.partition) not in asked_for
            ):
                continue
            by_topic.setdefault(topic.name, []).append(
                {
                    "partition_index": shard.partition,
                    "replicas": shard.replicas,
                    "adding_replicas": shard.adding,
                    "removing_replicas": shard.removing,
                }
            )
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "topics": [{"name": name, "partitions": by_topic[name]} for name in sorted(by_topic)],
        }

    # Elections

    async def elect(self, context: RequestContext, request: Fields) -> Response:
        """Elect preferred leaders, or leaders of partitions that have none."""
        kind = request.number("election_type", PREFERRED) if context.api_version else PREFERRED
        if kind not in {PREFERRED, UNCLEAN}:
            return {"error_code": ErrorCode.invalid_request, "replica_election_results": ()}
        requested = request.optional_items("topic_partitions")
        finder = TopicFinder(self._broker)
        keys = self._all_partitions() if requested is None else _named_partitions(requested)
        shards = {key: shard_of(finder.find_name(key[0]), key[1]) for key in keys}
        codes: _Codes = {key: _UNKNOWN for key, shard in shards.items() if shard is None}
        known = {key: shard for key, shard in shards.items() if shard is not None}
        elect = partial(self._elect, list(known.values()), kind)
        try:
            outcomes = await self._broker.run_blocking(elect) if known else []
        except StoreError as error:
            return {"error_code": code_of(error), "replica_election_results": ()}
        codes |= {
            key: (_election_code(outcome, kind), outcome.reason or None)
            for key, outcome in zip(known, outcomes, strict=True)
        }
        if requested is None:
            # As Kafka: all partitions were meant, and those without an election are left out.
            codes = {key: code for key, code in codes.items() if code[0] is not _NOT_NEEDED}
        by_topic: dict[str, list[Response]] = {}
        for (name, index), (code, message) in codes.items():
            by_topic.setdefault(name, []).append(
                {"partition_id": index, "error_code": code, "error_message": message}
            )
        return {
            "error_code": ErrorCode.none,
            "replica_election_results": [
                {"topic": name, "partition_result": by_topic[name]} for name in by_topic
            ],
        }

    def _elect(self, shards: Sequence[ShardId], kind: int) -> list[LeaderOutcome]:
        if kind == PREFERRED:
            return self._meta.elect_preferred(shards)
        return self._meta.elect_any(shards, is_unclean=True)

    def _all_partitions(self) -> list[tuple[str, int]]:
        topics = self._broker.drivers.broker_cache.list_topics(self._broker.namespace)
        return [(topic.name, index) for topic in topics for index in range(topic.partitions)]


def _named_partitions(requested: Sequence[Fields]) -> list[tuple[str, int]]:
    return [
        (topic.text("topic"), partition)
        for topic in requested
        for partition in topic.numbers("partitions")
    ]


def _election_code(outcome: LeaderOutcome, kind: int) -> ErrorCode:
    code = _ELECTION_CODES.get(outcome.kind)
    if code is not None:
        return code
    if kind == PREFERRED:
        return ErrorCode.preferred_leader_not_available
    return ErrorCode.eligible_leaders_not_available


def _reassigned(outcome: Shard | StoreError) -> tuple[ErrorCode, str | None]:
    if isinstance(outcome, Shard):
        return _NOTHING
    if isinstance(outcome, BadRequestError):
        return ErrorCode.invalid_replica_assignment, str(outcome)
    return code_of(outcome), str(outcome)


def _outcome(field: str, topic: Fields, index: int, codes: _Codes) -> Response:
    code, message = codes[topic.text("name"), index]
    return {field: index, "error_code": code, "error_message": message}
