"""Metadata and DescribeCluster: the nodes, and the leader of each partition."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.adapter.topics import build_storage_name
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.error_codes import code_of
from penstock.brokers.kafka.metadata.creation_limits import CreationLimits
from penstock.brokers.kafka.metadata.suspected_nodes import SuspectedNodes
from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.brokers.kafka.metadata.topic_names import is_legal
from penstock.brokers.kafka.metadata.topic_partitions import TopicPartitionsApi
from penstock.brokers.kafka.registry import ApiRegistry
from penstock.brokers.kafka.wire.fields import NO_UUID, Fields, Response
from penstock.errors import AlreadyExistsError, StoreError
from penstock.meta import PeerNetwork, Topic
from penstock.platform.log import get_logger

NO_LEADER: Final = -1
_log: Final = get_logger(__name__)


class ClusterDescriber:
    def __init__(
        self, broker: KafkaBroker, cluster: ClusterView, suspected: Container[int] = ()
    ) -> None:
        """`suspected`: nodes that clients are not sent to."""
        self._broker: Final = broker
        self._cluster: Final = cluster
        self._suspected: Final = suspected
        self._limits: Final = CreationLimits(broker.settings.auto_create_rate, broker.clock)

    async def metadata(self, context: RequestContext, request: Fields) -> Response:
        requested = request.optional_items("topics")
        if requested is None or (context.api_version == 0 and not requested):
            topics = [self._topic(topic) for topic in self._all_topics()]
        else:
            may_create = request.flag("allow_auto_topic_creation", True)
            topics = [
                await self._requested_topic(context, topic, may_create) for topic in requested
            ]
        return {
            "brokers": [address._asdict() for address in self._cluster.listed],
            "cluster_id": self._broker.meta.cluster_id,
            "controller_id": self._broker.node_id,
            "topics": topics,
        }

    async def describe_cluster(self, _context: RequestContext, request: Fields) -> Response:
        return {
            "error_code": ErrorCode.none,
            "endpoint_type": request.number("endpoint_type", 1),
            "cluster_id": self._broker.meta.cluster_id,
            "controller_id": self._broker.node_id,
            "brokers": [
                {"broker_id": address.node_id, **address._asdict()}
                for address in self._cluster.brokers
            ],
        }

    def _all_topics(self) -> list[Topic]:
        return self._broker.drivers.broker_cache.list_topics(self._broker.namespace)

    async def _requested_topic(
        self, context: RequestContext, requested: Fields, may_create: bool
    ) -> Response:
        identifier, name = requested.uuid("topic_id"), requested.optional_text("name")
        if name is None or (identifier != NO_UUID and not name):
            for topic in self._all_topics():
                if uuid_of(topic.topic_id) == identifier:
                    return self._topic(topic)
            return _rejected(ErrorCode.unknown_topic_id, None) | {"topic_id": identifier}
        topics = self._broker.drivers.broker_cache.topics
        existing = topics.get((self._broker.namespace, name))
        if existing is not None:
            return self._topic(existing)
        if not is_legal(name):
            return _rejected(ErrorCode.invalid_topic_exception, name)
        if not (may_create and self._broker.settings.auto_create_topics):
            return _rejected(ErrorCode.unknown_topic_or_partition, name)
        return await self._create(context, name)

    async def _create(self, context: RequestContext, name: str) -> Response:
        limit = self._broker.settings.auto_create_topics_max
        if len(self._broker.drivers.broker_cache.topics) >= limit:
            _log.warning("kafka_topic_not_created", name=name, peer=context.peer, topics=limit)
            return _rejected(ErrorCode.policy_violation, name)
        if not self._limits.allow(context.connection_id):
            # Clients retry after a pause.
            _log.debug("kafka_topic_not_created_yet", name=name, peer=context.peer)
            return _rejected(ErrorCode.leader_not_available, name)
        try:
            return self._topic(await self._broker.create_topic(name))
        except AlreadyExistsError:
            return _rejected(ErrorCode.leader_not_available, name)
        except StoreError as error:
            return _rejected(code_of(error), name)

    def _topic(self, topic: Topic) -> Response:
        alive = self._cluster.alive
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": uuid_of(topic.topic_id),
            "partitions": [
                self._partition(topic.topic_id, partition, alive)
                for partition in range(topic.partitions)
            ],
        }

    def describe_partition(self, topic: Topic, partition: int) -> Response:
        return self._partition(topic.topic_id, partition, self._cluster.alive)

    def _partition(self, topic_id: str, partition: int, alive: Collection[int]) -> Response:
        entry = self._broker.drivers.storage_cache.shards.get(
            build_storage_name(topic_id, partition)
        )
        shard = None if entry is None else entry.meta
        if shard is None:
            return {
                "error_code": ErrorCode.leader_not_available,
                "partition_index": partition,
                "leader_id": NO_LEADER,
            }
        # Clients have no way to a leader that does not serve Kafka yet, or any more.
        is_led = (
            shard.leader is not None
            and shard.leader not in self._suspected
            and self._cluster.find(shard.leader) is not None
        )
        return {
            "error_code": ErrorCode.none if is_led else ErrorCode.leader_not_available,
            "partition_index": partition,
            "leader_id": shard.leader if is_led else NO_LEADER,
            "leader_epoch": shard.leader_epoch,
            "replica_nodes": shard.replicas,
            "isr_nodes": shard.in_sync,
            "offline_replicas": tuple(node for node in shard.replicas if node not in alive),
            "eligible_leader_replicas": shard.eligible,
            "last_known_elr": () if is_led or shard.last_leader is None else (shard.last_leader,),
        }


def _rejected(code: ErrorCode, name: str | None) -> dict[str, object]:
    return {"error_code": code, "name": name, "partitions": ()}


def _suspected_nodes(broker: KafkaBroker) -> Container[int]:
    if not isinstance(broker.meta, PeerNetwork):
        return ()
    suspected = SuspectedNodes(broker.meta, broker.clock, broker.run_blocking)
    broker.spawn(suspected.watch(), "suspected nodes")
    return suspected


def register(registry: ApiRegistry, broker: KafkaBroker, cluster: ClusterView) -> None:
    describer = ClusterDescriber(broker, cluster, _suspected_nodes(broker))
    registry.add(3, 0, 13, describer.metadata)
    registry.add(60, 0, 1, describer.describe_cluster)
    partitions = TopicPartitionsApi(broker, describer.describe_partition)
    registry.add(75, 0, 0, partitions.describe)
