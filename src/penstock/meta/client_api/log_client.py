"""The clients of a log, joined: what single, Raft and remote nodes have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final

from penstock.errors import BadRequestError
from penstock.meta.client import StartProof
from penstock.meta.client_api.broker_lease import BrokerLease
from penstock.meta.client_api.metadata_client import LogMetadataClient
from penstock.meta.client_api.metadata_proposer import MetadataGroup
from penstock.meta.client_api.offset_client import LogOffsetClient, OffsetGroup
from penstock.meta.client_api.reassignment_client import LogReassignmentClient
from penstock.meta.client_api.transaction_client import LogTransactionClient
from penstock.meta.controller.decisions import has_internal_port, storage_nodes
from penstock.meta.state.constants import (
    COPY_ANEW_ROLE,
    DATA_PEERS_ROLE,
    EPOCH_BUMP_ROLE,
    HANDOVER_ROLE,
    LASTING_DRAIN_ROLE,
    PLUGIN_STORAGE_ROLE,
    RACK,
    REASSIGNMENT_ROLE,
    REPLICA_ORDER_ROLE,
    REPLICATION_ROLE,
)
from penstock.meta.state.metadata.rows import NODES
from penstock.meta.watch import Watchers
from penstock.platform.clock import Clock

NO_PORT: Final = "a node without the role `meta` needs node.meta_listen and the cluster's secret"
_DISK_SHARE: Final = 5
"""A node reports its free space again when it has changed by this part of it."""


class LogClient(LogMetadataClient, LogReassignmentClient, LogOffsetClient, LogTransactionClient):
    def __init__(
        self,
        metadata: MetadataGroup,
        offsets: Sequence[OffsetGroup],
        watchers: Watchers,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
    ) -> None:
        LogMetadataClient.__init__(
            self,
            metadata,
            watchers,
            node_id=node_id,
            cluster_id=cluster_id,
            clock=clock,
            entropy=entropy,
        )
        LogOffsetClient.__init__(self, offsets, node_id=node_id, clock=clock)
        LogTransactionClient.__init__(self, offsets, node_id=node_id, clock=clock)


class ClusterClient(LogClient):
    """A client that may send a request again, and that registers its node."""

    _roles: tuple[str, ...] = (
        PLUGIN_STORAGE_ROLE,
        REPLICATION_ROLE,
        HANDOVER_ROLE,
        REASSIGNMENT_ROLE,
        EPOCH_BUMP_ROLE,
        DATA_PEERS_ROLE,
        COPY_ANEW_ROLE,
        REPLICA_ORDER_ROLE,
        LASTING_DRAIN_ROLE,
    )
    _proof = StartProof()
    """Whether this node's logs have what they had at its last end; set before it registers."""

    def __init__(
        self,
        metadata: MetadataGroup,
        offsets: Sequence[OffsetGroup],
        watchers: Watchers,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
        store_id: str,
    ) -> None:
        """`store_id` says which records this node has; empty: it keeps none."""
        super().__init__(
            metadata,
            offsets,
            watchers,
            node_id=node_id,
            cluster_id=cluster_id,
            clock=clock,
            entropy=entropy,
        )
        self._store_id: Final = store_id
        self._nonce: Final = entropy(8).hex()
        """Identifies this run of the node."""
        self._listeners: Final[dict[str, str]] = {}
        self._registering: Final = threading.Lock()
        self._is_registered = False
        self._broker_epoch: int | None = None
        self._on_registered: Final[list[Callable[[int], None]]] = []
        self._lease: Final = BrokerLease(clock)
        self._free_bytes = -1
        """What was reported last of the free space for records."""
        self._requests = 0
        self._counting: Final = threading.Lock()

    def _set_rack(self, rack: str) -> None:
        """Register with a rack, if the node has one; before the first registration."""
        if rack:
            self._listeners[RACK] = rack

    def _request_id(self, given: str = "") -> str:
        if given:
            return given
        with self._counting:
            self._requests += 1
            return f"{self._nonce}-{self._requests}"

    @property
    def _address(self) -> str:
        """Where the other nodes reach this one; empty: they do not."""
        return ""

    def _check_replication(self, replication: int) -> None:
        nodes = list(NODES.scan(self._reader))
        old = sorted(node.node_id for node in nodes if REPLICATION_ROLE not in node.roles)
        if old:
            raise BadRequestError(
                f"replication is {replication}, but these nodes run a release that does not "
                f"replicate: {', '.join(map(str, old))}; upgrade them, or create the topic with "
                "replication = 1"
            )
        able = storage_nodes(nodes, self._node_id, replication)
        if len(able) < replication:
            are_online = "is" if len(able) == 1 else "are"
            others = len(storage_nodes(nodes, self._node_id) - able)
            hint = f"; {others} more have no internal port ({NO_PORT})" if others else ""
            raise BadRequestError(
                f"replication {replication} needs {replication} nodes; {len(able)} {are_online} "
                f"online{hint}"
            )

    def _check_reassignment(self) -> None:
        old = sorted(
            node.node_id for node in NODES.scan(self._reader) if REASSIGNMENT_ROLE not in node.roles
        )
        if old:
            raise BadRequestError(
                "the number of copies of a shard, or the rate at which it is copied, cannot be "
                f"changed while these nodes run an older release: {', '.join(map(str, old))}; "
                "upgrade them"
            )

    def _check_replicas_on(self, nodes: Collection[int]) -> None:
        known = list(NODES.scan(self._reader))
        named = [node for node in known if node.node_id in nodes and not node.address]
        unable = sorted(node.node_id for node in named if not has_internal_port(node))
        if unable:
            raise BadRequestError(
                f"node {unable[0]} has no internal port, and records are not copied to it or from "
                f"it: {NO_PORT}"
            )
        old = sorted(node.node_id for node in known if DATA_PEERS_ROLE not in node.roles)
        if named and old:
            raise BadRequestError(
                f"node {named[0].node_id} has no role `meta`, and these nodes run an older release "
                f"that does not copy to it: {', '.join(map(str, old))}; upgrade them"
            )

    @property
    def broker_epoch(self) -> int | None:
        return self._broker_epoch

    def on_registered(self, callback: Callable[[int], None]) -> None:
        with self._registering:
            self._on_registered.append(callback)
            if self._broker_epoch is not None:
                callback(self._broker_epoch)

    def lease_left_s(self) -> float:
        return self._lease.left_s()

    def report_disk(self, free_bytes: int) -> None:
        known = self._free_bytes
        if known >= 0 and abs(free_bytes - known) * _DISK_SHARE <= known:
            return
        self._free_bytes = free_bytes
        if self._broker_epoch is not None:
            self._register()

    def _register(self) -> None:
        # One at a time: an older registration that arrived last would hide the listeners of this
        # node from the others until it notices.
        with self._registering:
            node = self.register_node(
                self._address,
                listeners=self._listeners,
                roles=self._roles,
                boot_id=self._nonce,
                store_id=self._store_id,
                proof=self._proof if self._proof.cluster_id == self._cluster_id else None,
                free_bytes=self._free_bytes,
            )
            self._broker_epoch = node.epoch
            self._is_registered = True
            for callback in self._on_registered:
                callback(node.epoch)
