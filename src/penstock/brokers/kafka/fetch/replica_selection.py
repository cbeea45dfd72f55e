"""Which replica a consumer reads from: one on its rack, if it is in sync (KIP-392)."""

from __future__ import annotations

from typing import Final

from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.fetch.response import NO_REPLICA
from penstock.brokers.kafka.metadata.partitions import Partition


class ReplicaSelector:
    def __init__(self, cluster: ClusterView) -> None:
        self._cluster: Final = cluster

    def choose(self, partition: Partition, offset: int, rack: str, *, is_committed: bool) -> int:
        """Return the replica that a client on `rack` should read from; `NO_REPLICA`: this node,
        the leader."""
        own, replica = self._cluster.own, partition.entry.replica
        shard = partition.entry.meta
        if not rack or rack == own.rack or shard is None or shard.leader != own.node_id:
            return NO_REPLICA
        # A replica that is in sync has everything that is committed; older records may be in a
        # tier, which the leader reads.
        if replica is None or not replica.start <= offset <= replica.logs[0].commit:
            return NO_REPLICA
        if is_committed and not partition.is_raw:
            return NO_REPLICA  # see `follower_reads`
        near = [node for node in shard.in_sync if self._is_on(node, rack)]
        return near[partition.index % len(near)] if near else NO_REPLICA

    def _is_on(self, node_id: int, rack: str) -> bool:
        address = self._cluster.find(node_id)
        return address is not None and address.rack == rack
