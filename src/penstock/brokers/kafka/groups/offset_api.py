"""OffsetCommit, OffsetFetch and OffsetDelete over the node's OffsetManager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.groups.commit_queue import CommitQueue
from penstock.brokers.kafka.groups.coordinator import KafkaGroups, caller_of
from penstock.brokers.kafka.metadata.topic_finder import TopicFinder, named, shard_of
from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.errors import StoreError, UnknownGroupError
from penstock.groups.model import GroupState
from penstock.groups.subscriptions import subscribed_topics
from penstock.meta import METADATA_SIZE_MAX, CommittedOffset
from penstock.offsets import GroupCommit, OffsetCommit
from penstock.record import Offset, ShardId

NO_OFFSET: Final = -1
_IDS_FROM: Final = 10
"""OffsetCommit and OffsetFetch: the first version that names topics by id."""

Pending = Callable[[str], Awaitable[Collection[ShardId]]]


class OffsetApi:
    def __init__(
        self,
        broker: KafkaBroker,
        coordinator: KafkaGroups,
        pending_in_transactions: Pending | None,
    ) -> None:
        """`pending_in_transactions` returns the shards of a group whose offsets a transaction may
        change; None: no transactions are served."""
        self._broker: Final = broker
        self._coordinator: Final = coordinator
        self._pending: Final = pending_in_transactions
        self._queue: Final = CommitQueue(broker)
        settings = broker.all_settings
        self._is_cached: Final = settings.kafka.offsets_cached and settings.offsets.enable_cache

    # Committing

    async def commit(self, context: RequestContext, request: Fields) -> Response:
        group_id = request.text("group_id")
        caller = caller_of(request, "generation_id_or_member_epoch")
        rejection = self._coordinator.check_commit(group_id, caller)
        finder = TopicFinder(self._broker, by_id=context.api_version >= _IDS_FROM)
        commits, topics = collect_commits(request, finder, rejection)
        if commits:
            error = await self._store(group_id, commits)
            if error is not ErrorCode.none:
                reject_accepted(topics, error)
        return {"topics": topics}

    async def _store(self, group_id: str, commits: dict[ShardId, OffsetCommit]) -> ErrorCode:
        broker = self._broker
        try:
            if self._is_cached:
                await broker.run_blocking(
                    partial(
                        broker.offsets.commit_offsets,
                        group_id,
                        commits,
                        namespace=broker.namespace,
                        enable_cache=True,
                    )
                )
            else:
                by_name = {shard.name: commit for shard, commit in commits.items()}
                await self._queue.commit(GroupCommit(broker.namespace, group_id, by_name))
            # A topic that was deleted meanwhile is either seen here, or its deletion comes later
            # and removes what was just committed.
            for topic_id in {shard.topic for shard in commits}:
                if topic_id not in broker.drivers.storage_cache.topics:
                    await broker.run_blocking(partial(broker.offsets.remove_topic, topic_id))
        except StoreError as error:
            return commit_code_of(error)
        return ErrorCode.none

    # Fetching

    async def fetch(self, context: RequestContext, request: Fields) -> Response:
        stable = request.flag("require_stable")
        by_id = context.api_version >= _IDS_FROM
        if context.api_version < 8:
            return await self._fetch_group(request, stable=stable, by_id=by_id)
        groups = [
            await self._fetch_group(group, stable=stable, by_id=by_id)
            for group in request.items_of("groups")
        ]
        return {"groups": groups}

    async def _fetch_group(self, request: Fields, *, stable: bool, by_id: bool) -> Response:
        group_id = request.text("group_id")
        offsets = partial(
            self._broker.offsets.get_offsets, group_id, namespace=self._broker.namespace
        )
        if not self._broker.groups.is_here(group_id):
            return {"group_id": group_id, "error_code": ErrorCode.not_coordinator, "topics": ()}
        try:
            # First: an offset whose transaction ends meanwhile is among the committed ones.
            pending = await self._pending(group_id) if stable and self._pending else ()
            committed = await self._broker.run_blocking(offsets) if group_id else {}
        except StoreError as error:
            return {"group_id": group_id, "error_code": commit_code_of(error), "topics": ()}
        finder = TopicFinder(self._broker, by_id=by_id)
        requested = request.optional_items("topics")
        if requested is None:
            topics = _all_topics(finder, committed, pending)
        else:
            topics = [_requested_topic(finder, topic, committed, pending) for topic in requested]
        return {"group_id": group_id, "error_code": ErrorCode.none, "topics": topics}

    # Deleting

    async def delete(self, _context: RequestContext, request: Fields) -> Response:
        group_id = request.text("group_id")
        if not self._broker.groups.is_here(group_id):
            return {"error_code": ErrorCode.not_coordinator, "topics": ()}
        machine = self._coordinator.find(group_id)
        in_use = subscribed_topics(machine) if machine is not None else frozenset()
        if machine is not None and machine.state is GroupState.DEAD:
            return {"error_code": ErrorCode.group_id_not_found, "topics": ()}
        finder = TopicFinder(self._broker)
        doomed: list[ShardId] = []
        topics: list[Response] = []
        for requested_topic in request.items_of("topics"):
            topic, partitions = finder.find(requested_topic), list[Response]()
            for requested in requested_topic.items_of("partitions"):
                number = requested.number("partition_index")
                shard = shard_of(topic, number)
                code = ErrorCode.none if shard is not None else finder.unknown
                if shard is not None and requested_topic.text("name") in in_use:
                    code = ErrorCode.group_subscribed_to_topic
                elif shard is not None:
                    doomed.append(shard)
                partitions.append({"partition_index": number, "error_code": code})
            topics.append({"name": requested_topic.text("name"), "partitions": partitions})
        try:
            await self._broker.run_blocking(partial(self._delete_offsets, group_id, doomed))
        except StoreError as error:
            return {"error_code": commit_code_of(error), "topics": ()}
        return {"error_code": ErrorCode.none, "topics": topics}

    def _delete_offsets(self, group_id: str, shards: list[ShardId]) -> None:
        """May block: another node may have the offsets of the group."""
        offsets, namespace = self._broker.offsets, self._broker.namespace
        if offsets.get_group(group_id, namespace=namespace) is None:
            raise UnknownGroupError(group_id)
        offsets.delete_offsets(group_id, shards, namespace=namespace)


def collect_commits(
    request: Fields, finder: TopicFinder, rejection: ErrorCode
) -> tuple[dict[ShardId, OffsetCommit], list[Response]]:
    """Return the offsets to commit, and the response for success. Also for transactions."""
    commits: dict[ShardId, OffsetCommit] = {}
    topics: list[Response] = []
    for requested_topic in request.items_of("topics"):
        topic, partitions = finder.find(requested_topic), list[Response]()
        for requested in requested_topic.items_of("partitions"):
            number = requested.number("partition_index")
            shard = shard_of(topic, number)
            code = rejection
            if code is ErrorCode.none:
                code = finder.unknown if shard is None else _problem(requested)
            if code is ErrorCode.none and shard is not None:
                commits[shard] = OffsetCommit(
                    Offset(requested.number("committed_offset")),
                    requested.text("committed_metadata"),
                    requested.number("committed_leader_epoch", -1),
                )
            partitions.append({"partition_index": number, "error_code": code})
        topics.append({**named(requested_topic), "partitions": partitions})
    return commits, topics


def _problem(requested: Fields) -> ErrorCode:
    if requested.number("committed_offset") < 0:
        return ErrorCode.invalid_request
    if len(requested.text("committed_metadata")) > METADATA_SIZE_MAX:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def reject_accepted(topics: list[Response], error: ErrorCode) -> None:
    """All or none: accepted partitions get the error of the store."""
    for topic in topics:
        partitions = topic["partitions"]
        assert isinstance(partitions, list)
        for partition in partitions:
            if partition["error_code"] is ErrorCode.none:
                partition["error_code"] = error


def commit_code_of(error: StoreError) -> ErrorCode:
    code = code_of(error)
    # NOT_LEADER would make a consumer look for another leader in vain.
    return ErrorCode.coordinator_not_available if code is ErrorCode.leader_not_available else code


def _requested_topic(
    finder: TopicFinder,
    requested: Fields,
    committed: dict[ShardId, CommittedOffset],
    pending: Collection[ShardId],
) -> Response:
    topic = finder.find(requested)
    partitions: list[Response] = []
    for number in requested.numbers("partition_indexes"):
        shard = shard_of(topic, number)
        if shard is None:
            # By name, an unknown topic simply has no offset: clients ask before they know it.
            code = (
                finder.unknown if finder.unknown is ErrorCode.unknown_topic_id else ErrorCode.none
            )
            partitions.append(_offset(number, None, code))
        else:
            partitions.append(_known_offset(number, shard, committed, pending))
    return {**named(requested), "partitions": partitions}


def _all_topics(
    finder: TopicFinder,
    committed: dict[ShardId, CommittedOffset],
    pending: Collection[ShardId],
) -> list[Response]:
    known = finder.by_topic_id()
    by_topic: dict[str, list[ShardId]] = {}
    for shard in sorted(committed):
        if shard.topic in known:
            by_topic.setdefault(shard.topic, []).append(shard)
    return [
        {
            "name": known[topic_id].name,
            "topic_id": uuid_of(topic_id),
            "partitions": [
                _known_offset(shard.partition, shard, committed, pending) for shard in shards
            ],
        }
        for topic_id, shards in by_topic.items()
    ]


def _known_offset(
    number: int,
    shard: ShardId,
    committed: dict[ShardId, CommittedOffset],
    pending: Collection[ShardId],
) -> Response:
    if shard in pending:
        return _offset(number, None, ErrorCode.unstable_offset_commit)
    return _offset(number, committed.get(shard), ErrorCode.none)


def _offset(number: int, committed: CommittedOffset | None, code: ErrorCode) -> Response:
    return {
        "partition_index": number,
        "committed_offset": NO_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": -1 if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": code,
    }
