"""Names the group APIs to the registry."""

from __future__ import annotations

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.groups.admin_api import GroupAdminApi
from penstock.brokers.kafka.groups.api import GroupApi
from penstock.brokers.kafka.groups.coordinator import KafkaGroups
from penstock.brokers.kafka.groups.offset_api import OffsetApi, Pending
from penstock.brokers.kafka.registry import ApiRegistry


def register(
    registry: ApiRegistry,
    broker: KafkaBroker,
    coordinator: KafkaGroups,
    cluster: ClusterView,
    pending_in_transactions: Pending | None,
) -> None:
    groups = GroupApi(cluster, coordinator)
    registry.add(10, 0, 6, groups.find_coordinator)
    registry.add(11, 0, 9, groups.join_group)
    registry.add(12, 0, 4, groups.heartbeat)
    registry.add(13, 0, 5, groups.leave_group)
    registry.add(14, 0, 5, groups.sync_group)
    offsets = OffsetApi(broker, coordinator, pending_in_transactions)
    registry.add(8, 2, 10, offsets.commit)
    registry.add(9, 1, 10, offsets.fetch)
    registry.add(47, 0, 0, offsets.delete)
    admin = GroupAdminApi(broker, coordinator)
    registry.add(15, 0, 6, admin.describe_groups)
    registry.add(16, 0, 5, admin.list_groups)
    registry.add(42, 0, 2, admin.delete_groups)
    broker.on_close(coordinator.close)
