"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.adapter.topics import NewTopicRequest
from penstock.brokers.kafka.admin.configs_api import topic_entries
from penstock.brokers.kafka.admin.replica_assignments import added_replicas, assigned_replicas
from penstock.brokers.kafka.admin.responses import RejectedError, rejected, requested_configs
from penstock.brokers.kafka.admin.topic_configs import parse_configs
from penstock.brokers.kafka.broker import NEW_TOPIC, KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.metadata.topic_finder import TopicFinder, shard_of
from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.brokers.kafka.metadata.topic_names import is_legal
from penstock.brokers.kafka.wire.fields import NO_UUID, Fields, Response
from penstock.errors import BadRequestError, StoreError
from penstock.meta import PARTITIONS_MAX, Topic, TopicConfig
from penstock.record import Offset

AT_ONCE: Final = 6
"""Topics of one request that are worked on together: fewer than the node's pool has threads."""
_TO_THE_END: Final = -1
_CONFIGS_REMEMBERED: Final = 64


class TopicsApi:
    def __init__(self, broker: KafkaBroker, defaults: TopicConfig, cluster: ClusterView) -> None:
        self._broker: Final = broker
        self._cluster: Final = cluster
        self._namespace: Final = broker.namespace
        # Topics of one request mostly have the same settings.
        self._shown: Final = lru_cache(_CONFIGS_REMEMBERED)(
            lambda config: [
                entry.to_response()
                for entry in topic_entries(config, defaults, broker.all_settings)
            ]
        )

    # Creating

    async def create(self, _context: RequestContext, request: Fields) -> Response:
        """All topics of a request are created together: one write of the metadata for all."""
        topics = request.items_of("topics")
        counts = Counter(topic.text("name") for topic in topics)
        is_dry = request.flag("validate_only")
        responses: list[Response | None] = []
        requested: list[NewTopicRequest] = []
        for topic in topics:
            name = topic.text("name")
            try:
                _check_named_once(name, counts[name])
                new = self._requested(topic)
                if is_dry:
                    config = self._broker.admin.check_creation(
                        new.name, new.partitions, new.options, namespace=self._namespace
                    )
                    responses.append(self._created(name, new.partitions, config))
                else:
                    requested.append(new)
                    responses.append(None)
            except (StoreError, RejectedError) as error:
                responses.append(_not_created(name, error))
        create = partial(self._broker.admin.create_topics, requested, namespace=self._namespace)
        topics_or_errors = await self._broker.run_blocking(create)
        outcomes = zip(requested, topics_or_errors, strict=True)
        done = (self._outcome(new.name, topic) for new, topic in outcomes)
        return {"topics": [next(done) if response is None else response for response in responses]}

    def _outcome(self, name: str, topic: Topic | StoreError) -> Response:
        if isinstance(topic, StoreError):
            return _not_created(name, topic)
        response = self._created(name, topic.partitions, topic.config)
        return response | {"topic_id": uuid_of(topic.topic_id)}

    def _requested(self, request: Fields) -> NewTopicRequest:
        name = request.text("name")
        if not is_legal(name):
            reason = f"{name!r}: a name has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_', '-'"
            raise RejectedError(ErrorCode.invalid_topic_exception, reason)
        replicas = assigned_replicas(request, self._cluster.registered, self._online)
        options = dict(NEW_TOPIC) | _options_of(request)
        if replicas:
            options |= {"replication": len(replicas[0])}
            return NewTopicRequest(name, len(replicas), options, replicas)
        partitions = self._partitions_of(request)
        return NewTopicRequest(name, partitions, options | self._replication_of(request))

    @property
    def _online(self) -> set[int]:
        return self._cluster.alive

    def _replication_of(self, request: Fields) -> dict[str, object]:
        """Return the option for the number of replicas; -1 asks for the node's default."""
        replication = request.number("replication_factor", -1)
        if replication == -1:
            return {}
        nodes = len(self._cluster.brokers)
        if not 1 <= replication <= nodes:
            reason = f"{replication} replicas were asked for, and {nodes} nodes are online"
            raise RejectedError(ErrorCode.invalid_replication_factor, reason)
        return {"replication": replication}

    def _partitions_of(self, request: Fields) -> int:
        partitions = request.number("num_partitions", -1)
        if partitions == -1:
            return self._broker.all_settings.topics.partitions
        if not 1 <= partitions <= PARTITIONS_MAX:
            reason = f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}"
            raise RejectedError(ErrorCode.invalid_partitions, reason)
        return partitions

    def _created(self, name: str, partitions: int, config: TopicConfig) -> dict[str, object]:
        return {
            "name": name,
            "error_code": ErrorCode.none,
            "num_partitions": partitions,
            "replication_factor": config.replication,
            "configs": self._shown(config),
        }

    # Deleting

    async def delete(self, context: RequestContext, request: Fields) -> Response:
        finder = TopicFinder(self._broker, by_id=True)
        if context.api_version < 6:
            requested = [Fields(name=name) for name in request.texts("topic_names")]
        else:
            requested = request.items_of("topics")
        return {
            "responses": await run_for_all(lambda topic: self._delete(topic, finder), requested)
        }

    async def _delete(self, request: Fields, finder: TopicFinder) -> Response:
        name, identifier = request.optional_text("name"), request.uuid("topic_id")
        topic = finder.find(request)
        if topic is None:
            is_named = identifier == NO_UUID
            code = ErrorCode.unknown_topic_or_partition if is_named else ErrorCode.unknown_topic_id
            return {"name": name, "topic_id": identifier, "error_code": code}
        response = {"name": topic.name, "topic_id": uuid_of(topic.topic_id)}
        try:
            await self._broker.run_blocking(
                partial(self._broker.admin.delete_topic, topic.name, namespace=self._namespace)
            )
        except StoreError as error:
            return response | rejected(error)
        return response | {"error_code": ErrorCode.none}

    # Partitions and records

    async def create_partitions(self, _context: RequestContext, request: Fields) -> Response:
        is_dry = request.flag("validate_only")

        async def grow(topic: Fields) -> Response:
            name = topic.text("name")
            try:
                await self._grow(topic, is_dry=is_dry)
            except (StoreError, RejectedError) as error:
                return {"name": name} | rejected(error)
            return {"name": name, "error_code": ErrorCode.none}

        return {"results": await run_for_all(grow, request.items_of("topics"))}

    async def _grow(self, request: Fields, *, is_dry: bool) -> None:
        name, count = request.text("name"), request.number("count")
        topic = self._broker.drivers.broker_cache.get_topic(name, self._broker.namespace)
        if not topic.partitions < count <= PARTITIONS_MAX:
            reason = f"{name} has {topic.partitions} partitions; {count} is not more, or too many"
            raise RejectedError(ErrorCode.invalid_partitions, reason)
        replicas = added_replicas(
            request,
            count - topic.partitions,
            topic.config.replication,
            self._cluster.registered,
            self._online,
        )
        if not is_dry:
            grow = partial(
                self._broker.admin.alter_topic,
                name,
                partitions=count,
                replicas=replicas,
                namespace=self._namespace,
            )
            await self._broker.run_blocking(grow)

    async def delete_records(self, _context: RequestContext, request: Fields) -> Response:
        finder = TopicFinder(self._broker)
        topics: list[Response] = []
        for requested_topic in request.items_of("topics"):
            topic = finder.find(requested_topic)
            partitions = [
                await self._delete_before(topic, requested)
                for requested in requested_topic.items_of("partitions")
            ]
            topics.append({"name": requested_topic.text("name"), "partitions": partitions})
        return {"topics": topics}

    async def _delete_before(self, topic: Topic | None, request: Fields) -> Response:
        number, offset = request.number("partition_index"), request.number("offset")
        response = {"partition_index": number, "low_watermark": -1}
        shard = shard_of(topic, number)
        if shard is None:
            return response | {"error_code": ErrorCode.unknown_topic_or_partition}
        try:
            delete = partial(self._delete_shard_before, shard.name, offset)
            earliest = await self._broker.run_blocking(delete)
        except StoreError as error:
            return response | {"error_code": code_of(error)}
        if earliest is None:
            return response | {"error_code": ErrorCode.offset_out_of_range}
        return response | {"error_code": ErrorCode.none, "low_watermark": earliest}

    def _delete_shard_before(self, shard_name: str, offset: int) -> Offset | None:
        """Return the new earliest offset; None when `offset` is not in the shard."""
        driver = self._broker.drivers.open_shard(shard_name).driver
        info = driver.shard_info(shard_name)
        if offset == _TO_THE_END:
            offset = info.commit
        if not 0 <= offset <= info.commit:
            return None
        return driver.delete_records_before(shard_name, Offset(offset))


async def run_for_all(
    work: Callable[[Fields], Awaitable[Response]], items: Sequence[Fields]
) -> list[Response]:
    """Do `work` for all items, several concurrently, and return its responses in their order.
    Concurrent items share the syncs of the meta service, which each of them waits for."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def run(item: Fields) -> Response:
        async with turns:
            return await work(item)

    return await asyncio.gather(*(run(item) for item in items))


def _check_named_once(name: str, count: int) -> None:
    if count > 1:
        raise RejectedError(ErrorCode.invalid_request, f"{name} is named {count} times")


def _options_of(request: Fields) -> dict[str, object]:
    try:
        return parse_configs(requested_configs(request))
    except BadRequestError as error:
        raise RejectedError(ErrorCode.invalid_config, str(error)) from error


def _not_created(name: str, error: StoreError | RejectedError) -> Response:
    return {"name": name, "configs": None} | rejected(error)
