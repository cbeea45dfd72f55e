"""Names the administrators' APIs to the registry."""

from __future__ import annotations

from penstock.adapter.topics import build_config
from penstock.brokers.kafka.admin.configs_api import ConfigsApi
from penstock.brokers.kafka.admin.replicas_api import ReplicasApi
from penstock.brokers.kafka.admin.topics_api import TopicsApi
from penstock.brokers.kafka.broker import NEW_TOPIC, KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.registry import ApiRegistry


def register(registry: ApiRegistry, broker: KafkaBroker, cluster: ClusterView) -> None:
    defaults = build_config(NEW_TOPIC, broker.admin.defaults)
    topics = TopicsApi(broker, defaults, cluster)
    registry.add(19, 2, 7, topics.create)
    registry.add(20, 1, 6, topics.delete)
    registry.add(21, 0, 2, topics.delete_records)
    registry.add(37, 0, 3, topics.create_partitions)
    replicas = ReplicasApi(broker, cluster)
    registry.add(43, 0, 2, replicas.elect)
    registry.add(45, 0, 1, replicas.alter)
    registry.add(46, 0, 0, replicas.list_moves)
    configs = ConfigsApi(broker, defaults)
    registry.add(32, 1, 4, configs.describe)
    registry.add(33, 0, 2, configs.alter)
    registry.add(44, 0, 1, configs.alter_incrementally)
