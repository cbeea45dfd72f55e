"""Registers all APIs. Every module that serves some is named here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.brokers.kafka.admin import registration as admin
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.dispatch import Dispatcher
from penstock.brokers.kafka.fetch import handler as fetch
from penstock.brokers.kafka.groups import registration as groups
from penstock.brokers.kafka.groups.coordinator import KafkaGroups
from penstock.brokers.kafka.metadata import api_versions, list_offsets, log_dirs
from penstock.brokers.kafka.metadata import handler as metadata
from penstock.brokers.kafka.metadata.partitions import PartitionTable
from penstock.brokers.kafka.produce import handler as produce
from penstock.brokers.kafka.produce import producer_ids
from penstock.brokers.kafka.registry import ApiRegistry
from penstock.brokers.kafka.transactions import registration as transactions

MODULES: Final[tuple[Callable[[ApiRegistry, KafkaBroker], None], ...]] = (
    list_offsets.register,
    log_dirs.register,
    producer_ids.register,
)


def serve_data(broker: KafkaBroker, registry: ApiRegistry, dispatcher: Dispatcher) -> None:
    """Add the APIs that parse their requests by themselves. On the event loop."""
    partitions = PartitionTable(broker.drivers, broker.namespace)
    registry.add(produce.KEY, produce.MIN_VERSION, produce.MAX_VERSION)
    cluster = ClusterView(broker)
    dispatcher.add_raw(produce.KEY, produce.ProduceHandler(broker, partitions, cluster))
    registry.add(fetch.KEY, fetch.MIN_VERSION, fetch.MAX_VERSION)
    dispatcher.add_raw(fetch.KEY, fetch.FetchHandler(broker, partitions, cluster))


def register_all(broker: KafkaBroker) -> ApiRegistry:
    registry = ApiRegistry()
    cluster = ClusterView(broker)
    broker.spawn(cluster.announce(), "announce")
    metadata.register(registry, broker, cluster)
    members = KafkaGroups(broker.groups, broker.namespace)
    coordinator = transactions.register(registry, broker, members, cluster)
    pending = None if coordinator is None else coordinator.pending_offsets
    groups.register(registry, broker, members, cluster, pending)
    admin.register(registry, broker, cluster)
    api_versions.register(registry, cluster)
    for register in MODULES:
        register(registry, broker)
    return registry
