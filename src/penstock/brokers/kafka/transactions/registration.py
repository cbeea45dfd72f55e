"""Names the transaction APIs to the registry."""

from __future__ import annotations

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.groups.coordinator import KafkaGroups
from penstock.brokers.kafka.registry import ApiRegistry
from penstock.brokers.kafka.transactions.api import TransactionApi
from penstock.brokers.kafka.transactions.coordinator import TransactionCoordinator
from penstock.brokers.kafka.transactions.implicit_enlistment import ImplicitEnlistment
from penstock.brokers.kafka.transactions.index import TransactionIndex
from penstock.brokers.kafka.transactions.participant import TransactionParticipant
from penstock.meta import ListenerAnnouncer, TransactionClient


def register(
    registry: ApiRegistry, broker: KafkaBroker, groups: KafkaGroups, cluster: ClusterView
) -> TransactionCoordinator | None:
    """Offer transactions if the meta service stores their state."""
    if not isinstance(broker.meta, TransactionClient):
        return None
    index = TransactionIndex(broker.drivers.limits)
    participant = TransactionParticipant(broker, broker.meta, index)
    others = cluster if isinstance(broker.meta, ListenerAnnouncer) else None
    if others is not None:
        participant.is_group_here = others.is_coordinator_of
    coordinator = TransactionCoordinator(broker, broker.meta, index, participant, others)
    states = [
        state for state in broker.meta.list_transactions() if state.namespace == broker.namespace
    ]
    participant.recover(states)
    coordinator.recover(states)
    enlistment = ImplicitEnlistment(broker, coordinator, participant, cluster.node_of)
    broker.drivers.serve_transaction_steps(enlistment.handle, participant.resume)
    broker.transactions = index
    broker.enlist_shards = enlistment.enlist_shards
    api = TransactionApi(broker, coordinator, groups, enlistment)
    broker.init_transactional = api.init_producer
    registry.add(24, 0, 3, api.add_partitions)
    registry.add(25, 0, 4, api.add_offsets)
    registry.add(26, 0, 5, api.end)
    registry.add(28, 0, 5, api.commit_offsets)
    broker.spawn(coordinator.maintenance.watch(), "transactions")
    return coordinator
